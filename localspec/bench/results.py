"""Benchmark results: paired runs summarized by workload, and the JSON of `bench`."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby
from statistics import geometric_mean, median
from typing import Any

from msgspec import Struct, to_builtins

from localspec.bench.measurement import RecordedAnswer
from localspec.bench.workloads import BenchRequest, BenchRun, BenchTask
from localspec.fit.speedup_model import (
    BestDraftLength,
    SpeculationCosts,
    best_draft_length,
)
from localspec.machine import cpu_and_ram
from localspec.protocol.events import EngineReady, Round
from localspec.protocol.round_totals import DraftTotals, RoundTotals
from localspec.protocol.wire import MODEL_DRAFT_MAX, MeasuredCosts

# Reasons to leave out a trial; keys of `left_out` in the JSON.
REPETITIVE = "repeats itself"
TOO_SHORT = "ended at once"
NOT_A_COPY = "is no copy"
_MIN_DISTINCT_SHARE = 0.5
"""The share of distinct 4-grams below which a greedy answer repeats itself.

Any prompt lookup looks good on such an answer.
"""
_MIN_COPIED_SHARE = 0.7
_MIN_TOKENS = 8  # The speed of a shorter answer is not meaningful.


class SpeedupSpread(Struct, frozen=True):
    """The speed-ups of a workload's trials."""

    median: float
    min: float
    max: float


class LatencyPercentiles(Struct, frozen=True):
    """Milliseconds between tokens."""

    p50: float
    p99: float


class Trial(Struct, frozen=True):
    """One prompt answered plain and speculative.

    `left_out` is the reason not to count it.
    """

    prompt: int
    turn: int
    seed: int
    plain_tps: float | None
    spec_tps: float | None
    distinct_4grams: float | None
    copied: float | None
    identical: bool
    left_out: str | None

    @property
    def speedup(self) -> float | None:
        if not self.spec_tps or not self.plain_tps:
            return None
        return self.spec_tps / self.plain_tps


class WorkloadResult(Struct, frozen=True):
    """A workload at one temperature.

    The figures are those of the trials that count, or of all if none counts.
    """

    name: str
    temperature: float
    trials: tuple[Trial, ...]
    plain_tps: float | None
    spec_tps: float | None
    speedup: SpeedupSpread | None
    best: BestDraftLength | None
    drafts: DraftTotals
    mean_accepted_length: float | None
    first_token_ms: float | None
    plain_first_token_ms: float | None
    latency_ms: LatencyPercentiles | None
    plain_latency_ms: LatencyPercentiles | None
    distinct_4grams: float | None
    copied: float | None
    survival: tuple[float | None, ...]
    """By position: the share accepted of the draft tokens verified there."""

    @property
    def acceptance_rate(self) -> float | None:
        """For data; a person is told it only from some draft tokens on."""
        return self.drafts.acceptance_rate

    @property
    def counted(self) -> bool:
        return any(trial.left_out is None for trial in self.trials)

    @property
    def identical(self) -> int:
        """The number of trials with plain decoding's text."""
        return len([trial for trial in self.trials if trial.identical])

    @property
    def share_of_best(self) -> float | None:
        """The measured speed-up over that of the best fixed draft length."""
        if not self.speedup or not self.best:
            return None
        return self.speedup.median / self.best.speedup


class MeanSpeedup(Struct, frozen=True):
    """Geometric mean of the speed-ups of the workloads that count."""

    temperature: float
    speedup: float | None
    workloads: int


class BenchReport(Struct, frozen=True):
    """A complete benchmark, or the part done before an interruption."""

    pair: str
    model: str
    draft: str | None
    spec: str
    why: str
    machine: BenchMachine
    measured: MeasuredCosts | None
    host_ms: float | None
    max_tokens: int
    rounds: int
    interrupted: bool
    other_load: float | None = None
    """What other programs used of the CPUs meanwhile, 0 to 1; None if unknown."""
    rows: tuple[WorkloadResult, ...] = ()

    @property
    def trials(self) -> list[Trial]:
        trials: list[Trial] = []
        for row in self.rows:
            trials += row.trials
        return trials

    @property
    def counted_rows(self) -> list[WorkloadResult]:
        return [row for row in self.rows if row.counted]

    @property
    def left_out(self) -> dict[str, int]:
        """The number of trials by the reason to leave them out."""
        reasons = [trial.left_out for trial in self.trials if trial.left_out]
        return dict(Counter(reasons))

    @property
    def speedup(self) -> float | None:
        """Geometric mean over all workloads that count."""
        return _mean_speedup(self.counted_rows)

    @property
    def means(self) -> list[MeanSpeedup]:
        """One for each temperature."""
        means = []
        for temperature, group in groupby(self.rows, lambda row: row.temperature):
            rows = [row for row in group if row.counted]
            mean = MeanSpeedup(temperature, _mean_speedup(rows), workloads=len(rows))
            means.append(mean)
        return means


def _mean_speedup(rows: Sequence[WorkloadResult]) -> float | None:
    speedups = [row.speedup.median for row in rows if row.speedup]
    if not speedups:
        return None
    return geometric_mean(speedups)


def report_to_json(report: BenchReport) -> dict[str, Any]:
    """`bench --json`, described in docs/json.md."""
    return {
        "schema": 1,
        "pair": report.pair,
        "model": report.model,
        "draft": report.draft,
        "spec": report.spec,
        "why": report.why,
        "machine": to_builtins(report.machine),
        "cost": _costs_to_json(report.measured, report.host_ms),
        "max_tokens": report.max_tokens,
        "rounds": report.rounds,
        "workloads": [_workload_to_json(row) for row in report.rows],
        "means": [_round_floats(to_builtins(mean)) for mean in report.means],
        "speedup": _round_floats(report.speedup),
        "trials": len(report.trials),
        "left_out": report.left_out,
        "interrupted": report.interrupted,
        "other_load": _round_floats(report.other_load),
    }


def _costs_to_json(
    measured: MeasuredCosts | None, host_ms: float | None
) -> dict[str, Any]:
    host_ms = _round_floats(host_ms)
    if measured is None:
        return {"c": None, "verify_curve": {}, "host_ms": host_ms, "t1_ms": None}
    return {
        "c": measured.c,
        "verify_curve": measured.curve,
        "host_ms": host_ms,
        "t1_ms": measured.t1_ms,
    }


def _workload_to_json(row: WorkloadResult) -> dict[str, Any]:
    body = to_builtins(row)
    del body["best"]
    del body["drafts"]
    body["acceptance_rate"] = row.acceptance_rate
    theory: dict[str, Any] = {"best": None, "reached": None, "draft_length": None}
    if row.best is not None:
        theory["best"] = row.best.speedup
        theory["reached"] = row.share_of_best
        theory["draft_length"] = row.best.gamma
    body["theory"] = theory
    body["trials"] = [
        to_builtins(trial) | {"speedup": trial.speedup} for trial in row.trials
    ]
    body["identical"] = row.identical == len(row.trials)
    body["counted"] = row.counted
    rounded: dict[str, Any] = _round_floats(body)
    return rounded


def _round_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _round_floats(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_round_floats(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


# --- From runs to results.


class _PairedRuns(Struct, frozen=True):
    task: BenchTask
    plain: RecordedAnswer
    speculative: RecordedAnswer
    trial: Trial


def build_report(
    runs: Sequence[BenchRun],
    request: BenchRequest,
    ready: EngineReady,
    measured: MeasuredCosts | None,
    *,
    rounds: int,
    interrupted: bool = False,
) -> BenchReport:
    """Summarize the runs; those whose other arm is missing are ignored."""
    pairs = _pair_runs(runs)
    host_ms, added_host_ms = _host_times(pairs)
    groups: dict[tuple[float, str], list[_PairedRuns]] = {}
    for pair in pairs:
        key = (pair.task.temperature, pair.task.workload)
        groups.setdefault(key, []).append(pair)
    # The lowest temperature comes first; the workloads stay in their order.
    ordered = sorted(groups.values(), key=lambda group: group[0].task.temperature)
    rows = [_summarize_workload(group, measured, added_host_ms) for group in ordered]
    return BenchReport(
        pair=request.name,
        model=ready.model,
        draft=ready.draft,
        spec=request.spec,
        why=request.why,
        machine=describe_machine(ready),
        measured=measured,
        host_ms=host_ms,
        max_tokens=request.max_tokens,
        rounds=rounds,
        interrupted=interrupted,
        rows=tuple(rows),
    )


def _pair_runs(runs: Sequence[BenchRun]) -> list[_PairedRuns]:
    unpaired: dict[BenchTask, BenchRun] = {}
    pairs = []
    for run in runs:
        other = unpaired.pop(run.task, None)
        if other is None:
            unpaired[run.task] = run
            continue
        answers = {run.arm: run.answer, other.arm: other.answer}
        plain = answers["plain"]
        speculative = answers["speculative"]
        trial = _compare_answers(run.task, plain, speculative)
        pairs.append(_PairedRuns(run.task, plain, speculative, trial))
    return pairs


def _compare_answers(
    task: BenchTask, plain: RecordedAnswer, speculative: RecordedAnswer
) -> Trial:
    both = (plain, speculative)
    distinct = _min_known(distinct_4grams(answer.ids) for answer in both)
    copied = _min_known(copied_share(task.text, answer.text) for answer in both)
    is_greedy = task.temperature == 0
    repeats_itself = distinct is not None and distinct < _MIN_DISTINCT_SHARE
    is_copy = copied is not None and copied >= _MIN_COPIED_SHARE
    left_out = None
    if _is_too_short(plain) or _is_too_short(speculative):
        left_out = TOO_SHORT
    elif is_greedy and repeats_itself:
        left_out = REPETITIVE
    elif task.copies_prompt and not is_copy:
        left_out = NOT_A_COPY
    return Trial(
        prompt=task.prompt_index,
        turn=task.round_index,
        seed=task.seed,
        plain_tps=plain.tokens_per_second,
        spec_tps=speculative.tokens_per_second,
        distinct_4grams=distinct,
        copied=copied,
        identical=plain.ids == speculative.ids,
        left_out=left_out,
    )


def _is_too_short(answer: RecordedAnswer) -> bool:
    return len(answer.ids) < _MIN_TOKENS or answer.tokens_per_second is None


def _summarize_workload(
    group: Sequence[_PairedRuns], measured: MeasuredCosts | None, added_host_ms: float
) -> WorkloadResult:
    task = group[0].task
    trials = tuple(pair.trial for pair in group)
    counting = [pair for pair in group if pair.trial.left_out is None] or group
    plain = [pair.plain for pair in counting]
    speculative = [pair.speculative for pair in counting]
    rounds: list[Round] = []
    for answer in speculative:
        rounds += answer.rounds
    totals = RoundTotals.of(rounds)

    best = None
    acceptance = cumulative_acceptance(totals.by_position)
    costs = _speculation_costs(totals, measured, added_host_ms)
    if costs is not None and acceptance:
        best = best_draft_length(costs, acceptance)

    copied = None
    if task.copies_prompt:
        copied = _median_known(trial.copied for trial in trials)
    return WorkloadResult(
        name=task.workload,
        temperature=task.temperature,
        trials=trials,
        plain_tps=_median_known(answer.tokens_per_second for answer in plain),
        spec_tps=_median_known(answer.tokens_per_second for answer in speculative),
        speedup=_spread_speedups([pair.trial for pair in counting]),
        best=best,
        drafts=DraftTotals(totals.rounds, totals.drafted, totals.accepted),
        mean_accepted_length=totals.mean_accepted_length,
        first_token_ms=_median_known(answer.first_token_ms for answer in speculative),
        plain_first_token_ms=_median_known(answer.first_token_ms for answer in plain),
        latency_ms=_latency_percentiles(speculative),
        plain_latency_ms=_latency_percentiles(plain),
        distinct_4grams=_median_known(trial.distinct_4grams for trial in trials),
        copied=copied,
        survival=tuple(position.acceptance_rate for position in totals.by_position),
    )


def _spread_speedups(trials: Sequence[Trial]) -> SpeedupSpread | None:
    speedups = [trial.speedup for trial in trials if trial.speedup is not None]
    if not speedups:
        return None
    return SpeedupSpread(median=median(speedups), min=min(speedups), max=max(speedups))


def _speculation_costs(
    totals: RoundTotals, measured: MeasuredCosts | None, added_host_ms: float
) -> SpeculationCosts | None:
    """The costs of the rounds that were run.

    Draft tokens of prompt lookup cost nothing: if a quarter came from it, a draft token
    costs three quarters of what the model's costs.
    """
    if measured is None or measured.t1_ms <= 0:
        return None
    draft_cost = 0.0
    if totals.drafted and measured.c is not None:
        n_from_lookup = totals.by_source.get("lookup", DraftTotals()).drafted
        share_of_model = 1 - n_from_lookup / totals.drafted
        draft_cost = measured.c * share_of_model
    verify_curve = {int(width): cost for width, cost in measured.curve.items()}
    return SpeculationCosts(
        c=draft_cost, verify_curve=verify_curve, host=added_host_ms / measured.t1_ms
    )


def _latency_percentiles(
    answers: Iterable[RecordedAnswer],
) -> LatencyPercentiles | None:
    latencies: list[float] = []
    for answer in answers:
        latencies += answer.latencies
    if not latencies:
        return None
    latencies.sort()
    return LatencyPercentiles(
        p50=_percentile(latencies, 0.5), p99=_percentile(latencies, 0.99)
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    index = min(int(share * len(ordered)), len(ordered) - 1)
    return ordered[index]


def _median_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return median(known)


def _min_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return min(known, default=None)


def _host_times(pairs: Sequence[_PairedRuns]) -> tuple[float | None, float]:
    """Milliseconds outside llama.cpp of a round that drafted, and what drafting added.

    The measured cost of a plain pass includes the time outside llama.cpp of a plain
    round. So drafting added only what exceeds it: rounds that drafted with 3 ms, plain
    ones with 2 ms give (3, 1).
    """
    drafting_rounds: list[Round] = []
    plain_rounds: list[Round] = []
    for pair in pairs:
        drafting_rounds += [event for event in pair.speculative.rounds if event.drafted]
        # An answer's first round also reads the prompt.
        plain_rounds += pair.plain.rounds[1:]
    drafting = _median_known(event.ms.host for event in drafting_rounds)
    plain = _median_known(event.ms.host for event in plain_rounds)
    if drafting is None or plain is None:
        return drafting, 0.0
    return drafting, max(drafting - plain, 0.0)


_MIN_VERIFIED = 8
"""A position with fewer verified draft tokens takes the rate of the one before it."""


def cumulative_acceptance(counts: Sequence[DraftTotals]) -> list[float]:
    """Probability that the first 1, 2, … MODEL_DRAFT_MAX draft tokens are all accepted.

    `counts` are those of each position; without any the result is empty. The rates 0.8
    and 0.5 of two positions, with too few draft tokens at the third, give 0.8, 0.4,
    0.2, 0.1, …
    """
    if not counts:
        return []
    rate = counts[0].acceptance_rate or 0.0
    probability = 1.0
    probabilities = []
    for position in range(MODEL_DRAFT_MAX):
        if position < len(counts) and counts[position].drafted >= _MIN_VERIFIED:
            rate = counts[position].acceptance_rate or 0.0
        probability *= rate
        probabilities.append(probability)
    return probabilities


_WORD_PATTERN = re.compile(r"\w+|[^\w\s]")


def distinct_4grams(ids: Sequence[int]) -> float | None:
    """Share of distinct 4-grams; None for fewer than four tokens."""
    grams = _4grams(ids)
    if not grams:
        return None
    return len(set(grams)) / len(grams)


def copied_share(prompt: str, text: str) -> float | None:
    """Share of the text's word 4-grams that occur in the prompt.

    It is None for fewer than four words. Words are compared because the prompt's token
    ids are unknown here; white space does not count.
    """
    grams = _4grams(_WORD_PATTERN.findall(text))
    if not grams:
        return None
    prompt_grams = set(_4grams(_WORD_PATTERN.findall(prompt)))
    copied = [gram for gram in grams if gram in prompt_grams]
    return len(copied) / len(grams)


def _4grams(items: Sequence[Hashable]) -> list[tuple[Hashable, ...]]:
    return list(zip(items, items[1:], items[2:], items[3:], strict=False))


# --- The machine.

_TRADEMARK = re.compile(r"\((?:R|TM)\)")


class BenchMachine(Struct, frozen=True):
    cpu: str
    cores: int | None  # Physical cores.
    memory: int | None
    system: str
    engine: dict[str, str]
    devices: tuple[str, ...]
    threads: int | None


def describe_machine(ready: EngineReady) -> BenchMachine:
    cpu_name = " ".join(cpu_and_ram.read_cpu_name().split())
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    target_settings = ready.settings.get("target") or {}
    return BenchMachine(
        cpu=_TRADEMARK.sub("", cpu_name) or "unknown CPU",
        cores=cpu_and_ram.read_cpu_cores().physical,
        memory=cpu_and_ram.read_host_memory().total,
        system=system.strip(),
        engine=dict(ready.engine),
        devices=tuple(ready.devices),
        threads=target_settings.get("n_threads"),
    )
