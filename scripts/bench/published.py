"""Estimates beside published measurements (localspec/data/published.jsonl), by group.

    bench.py published [--each] [--constants]

All are of one GPU, or of a CPU. The ratio is the estimate (the middle of the range that
is shown) over what was published; "near" counts rows within that range, gains within
20 %, and memory within 6 %.

"out of sample" has the same of constants that were fitted without the source of the row
(scripts/bench/speed_fit.py). Rows with a caveat, such as another engine, have less
weight in the fit and are not counted. `--constants` prints what a fit to all rows gives
for gpus.yaml and fit/speed.py.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

import speed_fit
from msgspec.structs import replace
from speed_fit import MeasuredDevice, TimedRound, TimedRun
from turns import table

from localspec.errors import LocalspecError
from localspec.fit import machine_profile, pair_shapes, speed
from localspec.fit.advisor import SettingsAdvisor, SettingsRequest
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.plan import Plan
from localspec.fit.shape import ModelShape
from localspec.fit.speed import TYPICAL_CPU_SPEED, PassReads, UseCase
from localspec.machine import gpu_catalog, published
from localspec.machine.device import HOST, Device
from localspec.machine.gpu_catalog import GpuSpec
from localspec.machine.published import Caveat, PublishedRow
from localspec.machine.ram_speed import find_ram_speed
from localspec.models import catalog
from localspec.models.catalog import CatalogModel
from localspec.protocol.wire import ALL_LAYERS, ContextSettings, KvType, LoadCommand

GIB = 1 << 30
# Relative errors that count as near.
GAIN = 0.2
MEMORY = 0.06
KV_TYPES: dict[str, KvType] = {"f16": "f16", "q8_0": "q8_0", "q4_0": "q4_0", "": "f16"}
RAM_GIB = 64  # Of the computer that a published run used, unless it is known.
WEIGHTS: dict[Caveat, float] = {
    "": 1.0,
    "other engine": 0.5,
    "quoted": 0.3,
    "unusual": 0.1,
    "lower bound": 0.0,
}
OLD = 0.4
"""The weight of runs before 2025: llama.cpp joins more kernels since."""
OTHER_BACKENDS = ("ROCm", "SYCL", "Vulkan")
"""Instead of the one that is simulated for the GPU's maker."""


def find_weight(row: PublishedRow) -> float:
    """By how much the row is to be trusted."""
    weight = WEIGHTS[row.caveat]
    if row.date and row.date < "2025":
        weight *= OLD
    return weight


def _name_device(spec: GpuSpec, backend: str) -> MeasuredDevice:
    """What has constants of its own: a generation, or a card that differs from it."""
    name = spec.generation
    if spec.has_own_speed:
        name = spec.name
    return MeasuredDevice(spec.maker, name, backend)


def _read_gib(ram: str) -> float:
    """32 of "32 GB DDR4"."""
    found = re.match(r"(\d+) ?GB", ram)
    return float(found[1]) if found else RAM_GIB


class Result(NamedTuple):
    group: str
    ratio: float
    is_near: bool
    width: float  # Half of the range that is shown, relative; 0 without one.
    has_caveat: bool = False
    timed: TimedRun | None = None
    round: TimedRound | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--each", action="store_true", help="a line for each row, too")
    parser.add_argument(
        "--constants", action="store_true", help="print the constants that fit all rows"
    )


def main(args: argparse.Namespace) -> int:
    show = print_result if args.each else ignore_result
    compared = compare(show)
    if args.constants:
        constants = speed_fit.fit(compared.timed)
        constants |= speed_fit.fit_verify(compared.rounds)
        for name, value in sorted(constants.items()):
            print(f"{name:34}{value:8.3f}")
        return 0
    print(table(list(report(summarize(compared)))))
    print(f"\n{compared.n_whole} runs were whole on a GPU, of which here are not:")
    for line in compared.moved:
        print(f"  {line}")
    return 0


def print_result(row: PublishedRow, result: Result) -> None:
    mark = " " if result.is_near else "X"
    caveat = f"  [{row.caveat}]" if row.caveat else ""
    print(f"{result.ratio:.2f} {mark}  {row.model}  {row.describe()}{caveat}")


def ignore_result(row: PublishedRow, result: Result) -> None:
    del row, result


class Comparison(NamedTuple):
    results: list[Result]
    n_whole: int  # Runs that were whole on a GPU.
    moved: list[str]  # Those that are partly in RAM here, or do not fit.

    @property
    def timed(self) -> list[TimedRun]:
        return [each.timed for each in self.results if each.timed]

    @property
    def rounds(self) -> list[TimedRound]:
        return [each.round for each in self.results if each.round]


def compare(show: Callable[[PublishedRow, Result], None]) -> Comparison:
    """All published runs of one GPU or CPU with the estimates for them."""
    results: list[Result] = []
    models = catalog.load().models
    seen = set[tuple[object, ...]]()
    n_whole = 0
    moved: list[str] = []
    for row in published.load():
        model = models.get(row.model)
        if model is None or row.n_gpu != 1:
            continue
        run = Run.of(row, model)
        if run is None:
            continue
        if run.was_whole:
            n_whole += 1
            problem = run.find_move()
            if problem:
                moved.append(f"{problem}: {row.model}, {row.describe()}")
        plain = ("plain", row.model, row.gpu, row.quant, row.plain, row.backend)
        checks: dict[tuple[object, ...], Callable[[], Result | None]] = {
            plain: run.check_plain,
            ("gain", row): run.check_gain,
            ("memory", row.gpu, row.quant, row.ctx, row.memory): run.check_memory,
            ("memory with a draft", row): run.check_memory_with_draft,
        }
        for key, check in checks.items():
            if key in seen:
                continue
            seen.add(key)
            found = check()
            if found is not None:
                results.append(found)
                show(row, found)
    return Comparison(results, n_whole=n_whole, moved=moved)


class OutOfSample(NamedTuple):
    """What constants estimate that were fitted without the source of a run."""

    passes: dict[TimedRun, float]  # In milliseconds.
    rounds: dict[TimedRound, float]  # In passes of one token.

    def find_ratio(self, result: Result) -> float | None:
        """The estimate over what was published; None without one."""
        if result.timed is not None:
            return result.timed.published_ms / self.passes[result.timed]
        if result.round is not None:
            return result.round.published / self.rounds[result.round]
        return None


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
            if not row.gpu:
                return cls(row, shape, "CPU only")
            maker = gpu_catalog.find(row.gpu).maker
        except (LocalspecError, ValueError):
            return None
        kind = "dense"
        if "gpt-oss" in row.model:
            kind = "gpt-oss"
        elif model.active:
            kind = "MoE"
        elif shape.has_recurrent_state:
            kind = "hybrid"
        return cls(row, shape, f"{maker}, {kind}")

    @property
    def machine(self) -> MachineProfile:
        """The computer of the run, as far as the row says what it is."""
        row = self.row
        cpu_speed = TYPICAL_CPU_SPEED
        if row.cpu:
            cpu_speed = speed.named_cpu(f"{row.cpu} {row.ram}")
        ram = int(_read_gib(row.ram) * GIB)
        cpu = Device(HOST, "RAM", kind="cpu", free=ram, total=ram, backend="CPU")
        if not row.gpu:
            return MachineProfile((), cpu, speed.from_devices((), cpu_speed))
        machine = machine_profile.with_gpu(row.gpu, row.vram or None)
        gpu = machine.devices[0]
        if row.backend in OTHER_BACKENDS:
            gpu = replace(gpu, backend=row.backend)
        if gpu.unified:
            cpu = machine.cpu  # The rest of the memory that they share.
            cpu_speed = speed.nominal_cpu((gpu,))
        return MachineProfile((gpu,), cpu, speed.from_devices((gpu,), cpu_speed))

    def fit(self, load: LoadCommand, draft: ModelShape | None = None) -> Plan:
        row = self.row
        context = min(max(row.depth, 0) + 512, self.shape.n_ctx_train)
        use = UseCase("chat", context=context)
        advisor = SettingsAdvisor(self.shape, draft, self.machine, use)
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
            snapshots=draft_max,  # llama.cpp keeps as many states as it drafts.
        )

    @property
    def was_whole(self) -> bool:
        """Whether the row says that a GPU, of a known size, had all of the model."""
        row = self.row
        if not row.gpu or row.is_partly_in_ram or row.gpu_layers >= 0:
            return False
        sizes = gpu_catalog.find(row.gpu).vram_gib
        is_size_known = bool(row.vram) or len(sizes) == 1
        return is_size_known and row.caveat != "unusual"

    def find_move(self) -> str:
        """Why the pair would not be whole on the GPU here; empty if it is.

        A context that is not stated is what fits.
        """
        row = self.row
        kv = KV_TYPES.get(row.kv)
        n_ctx = min(row.ctx, self.shape.n_ctx_train) or None
        load = self.load(n_ctx or 2048, kv or "q4_0")
        request = SettingsRequest(load, ctx=n_ctx, kv=kv if row.kv else None)
        plan = SettingsAdvisor(self.shape, None, self.machine).advise(request)
        if not plan.verdict.can_load:
            return "does not fit"
        if plan.is_partly_in_ram:
            return "partly in RAM"
        return ""

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
            if not (row.n_cpu_moe or row.gpu_layers >= 0):
                group = "partly in RAM, which part is not said"
        elif row.ctx and not row.memory:
            kv = KV_TYPES.get(row.kv, "q4_0")
            if self.fit(self.load(row.ctx, kv)).verdict == "no":
                group = "paged by the driver"
        return Result(
            group,
            ratio=(low + high) / 2 / row.plain,
            is_near=low <= row.plain <= high,
            width=(high - low) / (high + low),
            has_caveat=bool(row.caveat),
            timed=self._time(fit),
        )

    def _time(self, plan: Plan) -> TimedRun | None:
        """The run in terms of the formula of speed_fit.py."""
        row = self.row
        machine = self.machine
        if plan.speed.reads is None or not row.plain:
            return None
        reads, _ = plan.speed.reads
        if not machine.devices:
            return self._time_cpu(reads)
        gpu = machine.devices[0]
        spec = gpu_catalog.match_device(gpu)
        speeds = speed.find_speeds(reads, machine.hardware)
        part = reads.by_device.get(gpu.name)
        if part is None or spec is None:
            return None
        whole = replace(speeds[gpu.name], efficiency=1.0)
        weight_type = reads.shape.weight_type
        in_ram = 0.0
        if HOST in speeds:
            in_ram = speed.device_ms(reads, HOST, speeds[HOST], 1)
        return TimedRun(
            source=row.source,
            device=_name_device(spec, gpu.backend),
            weight=find_weight(row),
            published_ms=1e3 / row.plain,
            n_layers=part.n_layers + part.n_with_both,
            n_mixtures=part.n_with_experts,
            n_recurrent=part.n_recurrent,
            dense_ms=whole.read_ms(part.dense, weight_type)
            + whole.read_ms(part.kv_cache),
            experts_ms=whole.read_experts_ms(part.experts, weight_type)
            / speed.expert_read_factor(reads.shape),
            expert_mb=max(1.0, reads.shape.expert_matrix_bytes) / 1e6,
            ram_ms=in_ram + speed.DEVICE_CROSSING_MS * reads.n_crossings,
        )

    def _time_cpu(self, reads: PassReads) -> TimedRun | None:
        row = self.row
        part = reads.by_device[HOST]
        whole = replace(self.machine.hardware.nominal_speeds[HOST], efficiency=1.0)
        if not row.plain:
            return None
        attention_ms = whole.read_ms(part.attention) * speed.CPU_ATTENTION_SLOWDOWN
        return TimedRun(
            source=row.source,
            device=MeasuredDevice(
                speed_fit.CPU,
                generation=find_ram_speed(row.cpu).family or "unknown",
                backend="CPU",
            ),
            weight=find_weight(row),
            published_ms=1e3 / row.plain,
            n_layers=part.n_layers + part.n_with_both,
            n_mixtures=part.n_with_experts,
            n_recurrent=part.n_recurrent,
            dense_ms=whole.read_ms(part.dense) + attention_ms,
            experts_ms=whole.read_ms(part.experts) * speed.CPU_EXPERTS_SHARE,
            expert_mb=1.0,
            ram_ms=0.0,
        )

    def check_gain(self) -> Result | None:
        """The gain of an MTP layer at the published acceptance rate and draft length."""
        row = self.row
        if row.draft != "mtp" or not (row.plain and row.speculative and row.acceptance):
            return None
        if not self.shape.n_mtp or not row.draft_max or row.in_ram:
            return None
        rates = [float(part) for part in str(row.acceptance).split("-")]
        n_drafted = int(float(row.draft_max))
        emitted = 1 + n_drafted * sum(rates) / len(rates)
        published = emitted / (row.speculative / row.plain)
        cost = self._estimate_round(n_drafted)
        fixed = self._estimate_round(n_drafted, verify=0.0)
        most = self._estimate_round(n_drafted, verify=1.0)
        gpu = self.machine.devices[0]
        spec = gpu_catalog.match_device(gpu)
        if cost is None or fixed is None or most is None or spec is None:
            return None
        timed = TimedRound(
            source=row.source,
            device=speed_fit.classify_for_rounds(_name_device(spec, gpu.backend)),
            weight=find_weight(row),
            published=published,
            fixed=fixed,
            further=most - fixed,
        )
        ratio = published / cost
        is_near = abs(ratio - 1) <= GAIN
        return Result("MTP gain", ratio=ratio, is_near=is_near, width=0.0, round=timed)

    def _estimate_round(
        self, n_drafted: int, verify: float | None = None
    ) -> float | None:
        """What a round costs, in passes of one token.

        `verify`: what a further token of a pass costs, instead of the GPU's own.
        """
        machine = self.machine
        if verify is not None:
            gpu = machine.devices[0].name
            speeds = dict(machine.hardware.nominal_speeds)
            speeds[gpu] = replace(speeds[gpu], verify=verify)
            hardware = replace(machine.hardware, nominal_speeds=speeds)
            machine = replace(machine, hardware=hardware)
        draft = replace(self.shape, head_kind="mtp")
        load = replace(self.load(4096, draft_max=n_drafted), draft="head")
        plan = SettingsAdvisor(self.shape, draft, machine).estimate(load)
        costs = plan.speed.costs
        if costs is None:
            return None
        return n_drafted * costs.c + costs.verify_cost(n_drafted + 1) + costs.host

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


class GroupSummary(NamedTuple):
    """How well the runs of a group are estimated that have no caveat."""

    name: str
    n_rows: int
    ratio: float  # The median of estimate / published.
    n_near: int
    width: float  # The median of half the range that is shown.
    # The same of constants that were fitted without the source; None without such.
    other_ratio: float | None
    n_other: int
    n_other_near: int


def summarize(compared: Comparison) -> list[GroupSummary]:
    """By group, and of all speeds."""
    timed = compared.timed
    rounds = compared.rounds
    estimates = OutOfSample(
        dict(zip(timed, speed_fit.leave_one_source_out(timed), strict=True)),
        dict(zip(rounds, speed_fit.verify_without_source(rounds), strict=True)),
    )
    groups = defaultdict[str, list[Result]](list)
    for result in compared.results:
        if not result.has_caveat:
            groups[result.group].append(result)
    summaries = [
        summarize_group(name, groups[name], estimates) for name in sorted(groups)
    ]
    speeds: list[Result] = []
    for results in groups.values():
        speeds += [result for result in results if result.width]
    return [*summaries, summarize_group("all speeds", speeds, estimates)]


def summarize_group(
    name: str, results: list[Result], estimates: OutOfSample
) -> GroupSummary:
    near = [result for result in results if result.is_near]
    ratios = []
    n_near = 0
    for result in results:
        ratio = estimates.find_ratio(result)
        if ratio is None:
            continue
        ratios.append(ratio)
        if is_within(ratio, result.width):
            n_near += 1
    other_ratio = None
    if ratios:
        other_ratio = median(ratios)
    return GroupSummary(
        name,
        n_rows=len(results),
        ratio=median(result.ratio for result in results),
        n_near=len(near),
        width=median(result.width for result in results),
        other_ratio=other_ratio,
        n_other=len(ratios),
        n_other_near=n_near,
    )


def is_within(ratio: float, width: float) -> bool:
    """Whether the published speed is in the range; a gain has none, but GAIN."""
    if not width:
        return abs(ratio - 1) <= GAIN
    return ratio * (1 - width) <= 1 <= ratio * (1 + width)


def report(summaries: list[GroupSummary]) -> Iterator[list[str]]:
    yield [
        *("group", "rows", "estimate / published", "near"),
        *("out of sample", "near", "half width"),
    ]
    for group in summaries:
        out_of_sample = ["–", "–"]
        if group.other_ratio is not None:
            out_of_sample = [
                f"{group.other_ratio:.2f}",
                f"{group.n_other_near}/{group.n_other}",
            ]
        width = f"{group.width:.2f}" if group.width else "–"
        yield [
            group.name,
            str(group.n_rows),
            f"{group.ratio:.2f}",
            f"{group.n_near}/{group.n_rows}",
            *out_of_sample,
            width,
        ]
