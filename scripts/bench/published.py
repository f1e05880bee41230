"""Estimates beside published measurements (localspec/data/published.jsonl), by group.

    bench.py published [--each]

One GPU.  The ratio is the estimate (the middle of the range that is shown) over what was published;
"near" counts rows within that range, gains within 20 %, memory within 6 %.
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
GAIN, MEMORY = 0.2, 0.06  # Relative errors that count as near.
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
    models, seen = catalog.load().models, set[tuple[object, ...]]()
    for row in published.load():
        model = models.get(row.model)
        if model is None or row.n_gpu != 1 or (run := Run.of(row, model)) is None:
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
            if found := checks[key]():
                groups[found.group].append(found)
                if args.each:
                    line = f"{row.model}  {row.describe()}"
                    print(f"{found.ratio:.2f} {'' if found.is_near else 'X':1}  {line}")
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
        same_file = row.quant.removeprefix("UD-") == model.quantization
        size = row.bytes or int(row.gib * GIB) or (same_file and model.size)
        if model.shape is None or not size:
            return None
        try:
            shape = pair_shapes.shape_from_numbers(model.shape, row.quant.upper(), size)
            maker = gpu_catalog.find(row.gpu).maker
        except (LocalspecError, ValueError):
            return None
        kind = (
            "gpt-oss" if "gpt-oss" in row.model else "MoE" if model.active else "dense"
        )
        kind = "hybrid" if kind == "dense" and model.architecture == "qwen35" else kind
        return cls(row, shape, f"{maker}, {kind}")

    def fit(self, load: LoadCommand, draft: ModelShape | None = None) -> Plan:
        row = self.row
        machine = machine_profile.with_gpu(row.gpu, row.vram or None)
        if row.backend == "ROCm":
            gpu = replace(machine.devices[0], backend="ROCm")
            machine = replace(
                machine, devices=(gpu,), hardware=speed.from_devices((gpu,))
            )
        cpu = replace(machine.cpu, free=RAM_GIB * GIB, total=RAM_GIB * GIB)
        speeds = dict(machine.hardware.nominal_speeds)
        if not machine.devices[0].unified:
            speeds[HOST] = TYPICAL_CPU_SPEED
        hardware = replace(machine.hardware, nominal_speeds=speeds, measured_speeds={})
        machine = replace(machine, cpu=cpu, hardware=hardware)
        use = UseCase(
            "chat", context=min(max(row.depth, 0) + 512, self.shape.n_ctx_train)
        )
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
            "target", None, settings, replace(settings, cpu_moe=0), draft_max
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
        group = "partly in RAM" if row.in_ram or row.n_cpu_moe else self.group
        # else it is a group of its own
        if row.ctx and not row.memory and group == self.group:
            is_paged = (
                self.fit(self.load(row.ctx, KV_TYPES.get(row.kv, "q4_0"))).verdict
                == "no"
            )
            group = "paged by the driver" if is_paged else group
        width = (high - low) / (high + low)
        return Result(
            group, (low + high) / 2 / row.plain, low <= row.plain <= high, width
        )

    def check_gain(self) -> Result | None:
        """The gain of an MTP layer at the published acceptance rate and draft length."""
        row, draft = self.row, replace(self.shape, head_kind="mtp")
        if row.draft != "mtp" or not (row.plain and row.speculative and row.acceptance):
            return None
        if not self.shape.n_mtp or not row.draft_max or row.in_ram:
            return None
        rates = [float(part) for part in str(row.acceptance).split("-")]
        n = int(float(row.draft_max))
        load = replace(self.load(4096, draft_max=n), draft="head")
        costs = self.fit(load, draft).speed.costs
        if costs is None:
            return None
        emitted = 1 + n * sum(rates) / len(rates)
        gain = emitted / (n * costs.c + costs.verify_cost(n + 1) + costs.host)
        ratio = gain / (row.speculative / row.plain)
        return Result("MTP gain", ratio, abs(ratio - 1) <= GAIN, 0.0)

    def check_memory(self) -> Result | None:
        row = self.row
        return self._check_memory("memory", row.memory, 0) if row.memory else None

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
        draft = replace(self.shape, head_kind="mtp") if n_draft else None
        fit = self.fit(replace(load, draft="head" if n_draft else None), draft)
        needed = sum(each.needed for each in fit.device_fits) / (1 << 20)
        ratio = needed / published_mib
        fits = self.row.in_ram or fit.verdict != "no"
        return Result(group, ratio, bool(fits) and abs(ratio - 1) <= MEMORY, 0.0)


def report(groups: dict[str, list[Result]]) -> Iterator[list[str]]:
    yield ["group", "rows", "estimate / published", "near", "half width"]
    speeds = [each for results in groups.values() for each in results if each.width]
    for name, results in (*sorted(groups.items()), ("all speeds", speeds)):
        yield [
            name,
            str(len(results)),
            f"{median(each.ratio for each in results):.2f}",
            f"{sum(each.is_near for each in results)}/{len(results)}",
            f"{median(each.width for each in results):.2f}",
        ]
