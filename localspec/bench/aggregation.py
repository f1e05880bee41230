"""Aggregates benchmark runs into a report: medians, excluded trials, best possible speed-up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from localspec.bench import metrics
from localspec.bench.metrics import copied_share, distinct_4grams
from localspec.bench.paired_runs import BenchRun, BenchSettings, BenchTask
from localspec.bench.results import (
    BenchMachine,
    BenchReport,
    LatencyPercentiles,
    MeanSpeedup,
    SpeedupSpread,
    Trial,
    WorkloadResult,
)
from localspec.protocol.events import Round
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import MeasuredCosts

REPETITIVE, TOO_SHORT, NOT_A_COPY = "repeats itself", "ended at once", "is no copy"
"""Reasons to leave out a trial; keys of `left_out` in the JSON."""
_MIN_DISTINCT_SHARE = 0.5
"""Of 4-grams. A greedy answer below this repeats itself: any prompt lookup looks good on it."""
_MIN_COPIED_SHARE = 0.7
_MIN_TOKENS = 8
"""The speed of a shorter answer is not meaningful."""


@dataclass(frozen=True, slots=True)
class BenchContext:
    """What a report contains besides the runs."""

    pair: str
    model: str
    draft: str | None
    settings: BenchSettings
    machine: BenchMachine
    measured: MeasuredCosts | None
    rounds: int


@dataclass(frozen=True, slots=True)
class _PairedRuns:
    plain: BenchRun
    speculative: BenchRun

    @property
    def task(self) -> BenchTask:
        return self.plain.task

    def to_trial(self) -> Trial:
        both = (self.plain, self.speculative)
        return Trial(
            prompt=self.task.prompt_index,
            turn=self.task.round_index,
            seed=self.task.seed,
            plain_tps=self.plain.tokens_per_second,
            spec_tps=self.speculative.tokens_per_second,
            distinct_4grams=_min_known(distinct_4grams(run.ids) for run in both),
            copied=_min_known(copied_share(self.task.text, run.text) for run in both),
            identical=self.plain.ids == self.speculative.ids,
            left_out=exclusion_reason(self.plain, self.speculative),
        )


def exclusion_reason(plain: BenchRun, speculative: BenchRun) -> str | None:
    """None if the trial counts."""
    both, task = (plain, speculative), plain.task
    if any(len(run.ids) < _MIN_TOKENS or run.tokens_per_second is None for run in both):
        return TOO_SHORT
    distinct = _min_known(distinct_4grams(run.ids) for run in both)
    if task.temperature == 0 and distinct is not None and distinct < _MIN_DISTINCT_SHARE:
        return REPETITIVE
    if (
        task.copies_prompt
        and (_min_known(copied_share(task.text, run.text) for run in both) or 0) < _MIN_COPIED_SHARE
    ):
        return NOT_A_COPY
    return None


def build_report(
    runs: Sequence[BenchRun], context: BenchContext, *, interrupted: bool = False
) -> BenchReport:
    """Ignores runs whose other arm is missing."""
    pairs = _pair_runs(runs)
    costs = _make_cost_model(context.measured, pairs)
    rows = [_summarize_workload(group, costs) for group in _group_by_workload(pairs)]
    reasons = Counter(trial.left_out for row in rows for trial in row.trials if trial.left_out)
    measured = context.measured
    return BenchReport(
        pair=context.pair,
        model=context.model,
        draft=context.draft,
        spec=context.settings.spec,
        why=context.settings.why,
        machine=context.machine,
        c=measured.c if measured else None,
        verify_curve=dict(measured.curve) if measured else {},
        t1_ms=measured.t1_ms if measured else None,
        host_ms=_median_host_ms(pair.speculative for pair in pairs),
        max_tokens=context.settings.max_tokens,
        rounds=context.rounds,
        interrupted=interrupted,
        rows=tuple(rows),
        means=tuple(_mean_speedups(rows)),
        speedup=_mean_speedup(row for row in rows if row.counted),
        left_out=dict(reasons),
    )


def _pair_runs(runs: Sequence[BenchRun]) -> list[_PairedRuns]:
    unpaired: dict[BenchTask, BenchRun] = {}
    pairs = []
    for run in runs:
        other = unpaired.pop(run.task, None)
        if other is None:
            unpaired[run.task] = run
        else:
            plain, speculative = (run, other) if run.arm == "plain" else (other, run)
            pairs.append(_PairedRuns(plain, speculative))
    return pairs


def _group_by_workload(pairs: Sequence[_PairedRuns]) -> list[list[_PairedRuns]]:
    """Groups by temperature and workload, the lowest temperature first."""
    groups: dict[tuple[float, str], list[_PairedRuns]] = {}
    for pair in pairs:
        groups.setdefault((pair.task.temperature, pair.task.workload), []).append(pair)
    return sorted(groups.values(), key=lambda group: group[0].task.temperature)


# --- one workload -----------------------------------------------------------------------


def _summarize_workload(
    group: Sequence[_PairedRuns],
    costs: Callable[[Sequence[Round]], metrics.SpeculationCosts | None],
) -> WorkloadResult:
    trials = tuple(pair.to_trial() for pair in group)
    counting = [pair for pair in group if pair.to_trial().left_out is None] or group
    plain = [pair.plain for pair in counting]
    speculative = [pair.speculative for pair in counting]
    rounds = [event for run in speculative for event in run.rounds]
    totals = _sum_rounds(rounds)
    counts = metrics.count_by_position(rounds)
    acceptance, round_costs = metrics.cumulative_acceptance(counts), costs(rounds)
    return WorkloadResult(
        name=group[0].task.workload,
        temperature=group[0].task.temperature,
        trials=trials,
        plain_tps=_median_known(run.tokens_per_second for run in plain),
        spec_tps=_median_known(run.tokens_per_second for run in speculative),
        speedup=_find_spread(pair.to_trial().speedup for pair in counting),
        best=(
            metrics.best_draft_length(round_costs, acceptance)
            if round_costs and acceptance
            else None
        ),
        acceptance_rate=totals.acceptance_rate,
        mean_accepted_length=totals.mean_accepted_length,
        first_token_ms=_median_known(run.first_token_ms for run in speculative),
        plain_first_token_ms=_median_known(run.first_token_ms for run in plain),
        latency_ms=_latency_percentiles(speculative),
        plain_latency_ms=_latency_percentiles(plain),
        distinct_4grams=_median_known(trial.distinct_4grams for trial in trials),
        copied=_median_known(trial.copied for trial in trials)
        if group[0].task.copies_prompt
        else None,
        survival=tuple(metrics.conditional_acceptance(counts)),
    )


def _sum_rounds(rounds: Iterable[Round]) -> RoundTotals:
    totals = RoundTotals()
    for event in rounds:
        totals.add(event)
    return totals


def _latency_percentiles(runs: Iterable[BenchRun]) -> LatencyPercentiles | None:
    ms = sorted(latency for run in runs for latency in run.latencies)
    return LatencyPercentiles(_percentile(ms, 0.5), _percentile(ms, 0.99)) if ms else None


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _find_spread(values: Iterable[float | None]) -> SpeedupSpread | None:
    known = [value for value in values if value is not None]
    return SpeedupSpread(median(known), min(known), max(known)) if known else None


def _median_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _min_known(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


# --- all workloads ----------------------------------------------------------------------


def _mean_speedups(rows: Sequence[WorkloadResult]) -> Iterable[MeanSpeedup]:
    for temperature in dict.fromkeys(row.temperature for row in rows):
        counted = [row for row in rows if row.temperature == temperature and row.counted]
        yield MeanSpeedup(temperature, _mean_speedup(counted), len(counted))


def _mean_speedup(rows: Iterable[WorkloadResult]) -> float | None:
    speedups = [row.speedup.median for row in rows if row.speedup]
    return geometric_mean(speedups) if speedups else None


def _make_cost_model(
    measured: MeasuredCosts | None, pairs: Sequence[_PairedRuns]
) -> Callable[[Sequence[Round]], metrics.SpeculationCosts | None]:
    """Returns a function from rounds to their costs; prompt-lookup draft tokens cost nothing.

    The cost of a plain pass includes its host time; only a drafting round's extra is added.
    """
    added = _added_host_ms(pairs)

    def costs(rounds: Sequence[Round]) -> metrics.SpeculationCosts | None:
        if measured is None or measured.t1_ms <= 0:
            return None
        drafted = sum(event.drafted for event in rounds)
        by_model = sum(event.drafted for event in rounds if event.source not in (None, "lookup"))
        c = (measured.c or 0.0) * by_model / drafted if drafted else 0.0
        verify = {int(width): v for width, v in measured.curve.items()}
        return metrics.SpeculationCosts(c, verify, added / measured.t1_ms)

    return costs


def _median_host_ms(runs: Iterable[BenchRun]) -> float | None:
    """Time outside llama.cpp in rounds that drafted."""
    return _median_known(event.ms.host for run in runs for event in run.rounds if event.drafted)


def _added_host_ms(pairs: Sequence[_PairedRuns]) -> float:
    """Extra time of a drafting round over a plain one, outside llama.cpp."""
    drafting = _median_host_ms(pair.speculative for pair in pairs)
    # An answer's first round also reads the prompt.
    plain = _median_known(event.ms.host for pair in pairs for event in pair.plain.rounds[1:])
    return max(drafting - plain, 0.0) if drafting is not None and plain is not None else 0.0
