"""Estimates beside published measurements (localspec/data/published.jsonl), by group.

    bench.py published [--each]

All are of one GPU. The ratio is the estimate (the middle of the range that is shown)
over what was published; "near" counts rows within that range, gains within 20 %, and
memory within 6 %.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace
from turns import table

from localspec.errors import LocalspecError
from localspec.fit import machine_profile, pair_shapes, speed
from localspec.fit.advisor import SettingsAdvisor, SettingsRequest
from localspec.fit.plan import Plan
from localspec.fit.shape import ModelShape
from localspec.fit.speed import TYPICAL_CPU_SPEED, UseCase
from localspec.machine import gpu_catalog, published
from localspec.machine.device import HOST
from localspec.machine.published import PublishedRow
from localspec.models import catalog
from localspec.models.catalog import CatalogModel
from localspec.protocol.wire import ALL_LAYERS, ContextSettings, KvType, LoadCommand

GIB = 1 << 30
# Relative errors that count as near.
GAIN = 0.2
MEMORY = 0.06
KV_TYPES: dict[str, KvType] = {"f16": "f16", "q8_0": "q8_0", "q4_0": "q4_0", "": "f16"}
RAM_GIB = 64  # Of the computer that a published run used, unless it is known.


class Result(NamedTuple):
    group: str
    ratio: float
    is_near: bool
    width: float  # Half of the range that is shown, relative; 0 without one.


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--each", action="store_true", help="a line for each row, too")


def main(args: argparse.Namespace) -> int:
    groups = defaultdict[str, list[Result]](list)
    models = catalog.load().models
    seen = set[tuple[object, ...]]()
    for row in published.load():
        model = models.get(row.model)
        if model is None or row.n_gpu != 1:
            continue
        run = Run.of(row, model)
        if run is None:
            continue
        plain = ("plain", row.model, row.gpu, row.quant, row.plain, row.backend)
        checks: dict[tuple[object, ...], Callable[[], Result | None]] = {
            plain: run.check_plain,
            ("gain", row): run.check_gain,
            ("memory", row.gpu, row.quant, row.ctx, row.memory): run.check_memory,
            ("memory with a draft", row): run.check_memory_with_draft,
        }
        for key in checks.keys() - seen:
            seen.add(key)
            found = checks[key]()
            if found is None:
                continue
            groups[found.group].append(found)
            if args.each:
                mark = " " if found.is_near else "X"
                print(f"{found.ratio:.2f} {mark}  {row.model}  {row.describe()}")
    print(table(list(report(groups))))
    return 0


class Run(NamedTuple):
    """A published run, as this program would load it."""

    row: PublishedRow
    shape: ModelShape
    group: str

    @classmethod
    def of(cls, row: PublishedRow, model: CatalogModel) -> Run | None:
        """None if the shape or the size is not known."""
        size = row.bytes or int(row.gib * GIB)
        if not size and row.quant.removeprefix("UD-") == model.quantization:
            size = model.size or 0
        if model.shape is None or not size:
            return None
        try:
            shape = pair_shapes.shape_from_numbers(model.shape, row.quant.upper(), size)
            maker = gpu_catalog.find(row.gpu).maker
        except (LocalspecError, ValueError):
            return None
        kind = "dense"
        if "gpt-oss" in row.model:
            kind = "gpt-oss"
        elif model.active:
            kind = "MoE"
        elif model.architecture == "qwen35":
            kind = "hybrid"
        return cls(row, shape, f"{maker}, {kind}")

    def fit(self, load: LoadCommand, draft: ModelShape | None = None) -> Plan:
        row = self.row
        machine = machine_profile.with_gpu(row.gpu, row.vram or None)
        if row.backend == "ROCm":
            gpu = replace(machine.devices[0], backend="ROCm")
            hardware = speed.from_devices((gpu,))
            machine = replace(machine, devices=(gpu,), hardware=hardware)
        cpu = replace(machine.cpu, free=RAM_GIB * GIB, total=RAM_GIB * GIB)
        speeds = dict(machine.hardware.nominal_speeds)
        if not machine.devices[0].unified:
            speeds[HOST] = TYPICAL_CPU_SPEED
        hardware = replace(machine.hardware, nominal_speeds=speeds, measured_speeds={})
        machine = replace(machine, cpu=cpu, hardware=hardware)
        context = min(max(row.depth, 0) + 512, self.shape.n_ctx_train)
        use = UseCase("chat", context=context)
        advisor = SettingsAdvisor(self.shape, draft, machine, use)
        settings = load.target_settings
        is_fixed = settings.cpu_moe or settings.n_gpu_layers >= 0 or not row.in_ram
        if is_fixed:
            return advisor.estimate(load)
        return advisor.advise(SettingsRequest(load, ctx=settings.n_ctx))

    def load(self, n_ctx: int, kv: KvType = "f16", draft_max: int = 0) -> LoadCommand:
        n_in_ram = self.row.n_cpu_moe
        cpu_moe = n_in_ram if isinstance(n_in_ram, int) else ALL_LAYERS
        settings = ContextSettings(
            self.row.gpu_layers,
            kv_type=kv,
            n_ctx=n_ctx,
            cpu_moe=cpu_moe,
            swa_full=False,
        )
        return LoadCommand(
            "target",
            draft=None,
            target_settings=settings,
            draft_settings=replace(settings, cpu_moe=0),
            draft_max=draft_max,
        )

    def check_plain(self) -> Result | None:
        row = self.row
        if not row.plain:
            return None
        n_ctx = min(max(2048, row.depth + 512), self.shape.n_ctx_train)
        fit = self.fit(self.load(n_ctx))
        if fit.speed.plain is None:
            return None
        low, high = fit.speed.plain
        group = self.group
        if row.is_partly_in_ram:
            group = "partly in RAM"
        elif row.ctx and not row.memory:
            kv = KV_TYPES.get(row.kv, "q4_0")
            if self.fit(self.load(row.ctx, kv)).verdict == "no":
                group = "paged by the driver"
        return Result(
            group,
            ratio=(low + high) / 2 / row.plain,
            is_near=low <= row.plain <= high,
            width=(high - low) / (high + low),
        )

    def check_gain(self) -> Result | None:
        """The gain of an MTP layer at the published acceptance rate and draft length."""
        row = self.row
        draft = replace(self.shape, head_kind="mtp")
        if row.draft != "mtp" or not (row.plain and row.speculative and row.acceptance):
            return None
        if not self.shape.n_mtp or not row.draft_max or row.in_ram:
            return None
        rates = [float(part) for part in str(row.acceptance).split("-")]
        n_drafted = int(float(row.draft_max))
        load = replace(self.load(4096, draft_max=n_drafted), draft="head")
        costs = self.fit(load, draft).speed.costs
        if costs is None:
            return None
        emitted = 1 + n_drafted * sum(rates) / len(rates)
        verify = costs.verify_cost(n_drafted + 1)
        gain = emitted / (n_drafted * costs.c + verify + costs.host)
        ratio = gain / (row.speculative / row.plain)
        return Result("MTP gain", ratio, is_near=abs(ratio - 1) <= GAIN, width=0.0)

    def check_memory(self) -> Result | None:
        if not self.row.memory:
            return None
        return self._check_memory("memory", self.row.memory, n_draft=0)

    def check_memory_with_draft(self) -> Result | None:
        row = self.row
        if row.draft != "mtp" or not row.memory_speculative or not self.shape.n_mtp:
            return None
        n = int(float(row.draft_max))
        return self._check_memory("memory with MTP", row.memory_speculative, n)

    def _check_memory(
        self, group: str, published_mib: int, n_draft: int
    ) -> Result | None:
        kv = KV_TYPES.get(self.row.kv)
        if kv is None or not self.row.ctx:
            return None
        load = self.load(self.row.ctx, kv, n_draft)
        draft = None
        if n_draft:
            draft = replace(self.shape, head_kind="mtp")
            load = replace(load, draft="head")
        fit = self.fit(load, draft)
        needed = sum(each.needed for each in fit.device_fits) / (1 << 20)
        ratio = needed / published_mib
        fits = bool(self.row.in_ram) or fit.verdict != "no"
        is_near = fits and abs(ratio - 1) <= MEMORY
        return Result(group, ratio, is_near=is_near, width=0.0)


def report(groups: dict[str, list[Result]]) -> Iterator[list[str]]:
    yield ["group", "rows", "estimate / published", "near", "half width"]
    speeds: list[Result] = []
    for name in sorted(groups):
        yield report_row(name, groups[name])
        speeds += [result for result in groups[name] if result.width]
    yield report_row("all speeds", speeds)


def report_row(name: str, results: list[Result]) -> list[str]:
    near = [result for result in results if result.is_near]
    return [
        name,
        str(len(results)),
        f"{median(result.ratio for result in results):.2f}",
        f"{len(near)}/{len(results)}",
        f"{median(result.width for result in results):.2f}",
    ]
