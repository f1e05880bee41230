"""Benchmark results: paired runs summarized by workload, and their JSON (`bench
--json`).
"""

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
from localspec.protocol.events import EngineReady
from localspec.protocol.round_totals import DraftTotals, RoundTotals
from localspec.protocol.wire import DRAFT_MAX, MeasuredCosts

REPETITIVE, TOO_SHORT, NOT_A_COPY = "repeats itself", "ended at once", "is no copy"
"""Reasons to leave out a trial; keys of `left_out` in the JSON."""
_MIN_DISTINCT_SHARE = 0.5
"""Of 4-grams.

A greedy answer below this repeats itself: any prompt lookup looks good on it.
"""
_MIN_COPIED_SHARE = 0.7
_MIN_TOKENS = 8  # The speed of a shorter answer is not meaningful.


class SpeedupSpread(Struct, frozen=True):
    median: float
    min: float
    max: float


class LatencyPercentiles(Struct, frozen=True):
    """Milliseconds between tokens."""

    p50: float
    p99: float


class Trial(Struct, frozen=True):
    """One prompt answered plain and speculative; `left_out` is the reason not to count
    it.
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
        return (
            self.spec_tps / self.plain_tps if self.spec_tps and self.plain_tps else None
        )


class WorkloadResult(Struct, frozen=True):
    """A workload at one temperature, over the trials that count, or over all if none
    counts.
    """

    name: str
    temperature: float
    trials: tuple[Trial, ...]
    plain_tps: float | None
    spec_tps: float | None
    speedup: SpeedupSpread | None
    best: BestDraftLength | None
    acceptance_rate: float | None
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
    def counted(self) -> bool:
        return any(trial.left_out is None for trial in self.trials)

    @property
    def identical(self) -> int:
        """Trials with plain decoding's text."""
        return sum(trial.identical for trial in self.trials)

    @property
    def share_of_best(self) -> float | None:
        """The measured speed-up over that of the best fixed draft length."""
        return (
            self.speedup.median / self.best.speedup
            if self.speedup and self.best
            else None
        )


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
    rows: tuple[WorkloadResult, ...] = ()

    @property
    def trials(self) -> list[Trial]:
        return [trial for row in self.rows for trial in row.trials]

    @property
    def counted_rows(self) -> list[WorkloadResult]:
        return [row for row in self.rows if row.counted]

    @property
    def left_out(self) -> dict[str, int]:
        """Reason -> number of trials."""
        return dict(Counter(trial.left_out for trial in self.trials if trial.left_out))

    @property
    def speedup(self) -> float | None:
        """Geometric mean over all workloads that count."""
        return _mean_speedup(self.counted_rows)

    @property
    def means(self) -> list[MeanSpeedup]:
        means = []
        for temperature, group in groupby(self.rows, lambda row: row.temperature):
            rows = [row for row in group if row.counted]
            means.append(MeanSpeedup(temperature, _mean_speedup(rows), len(rows)))
        return means


def _mean_speedup(rows: Sequence[WorkloadResult]) -> float | None:
    speedups = [row.speedup.median for row in rows if row.speedup]
    return geometric_mean(speedups) if speedups else None


def report_to_json(report: BenchReport) -> dict[str, Any]:
    """`bench --json`, described in docs/json.md."""
    costs = report.measured
    return {
        "schema": 1,
        "pair": report.pair,
        "model": report.model,
        "draft": report.draft,
        "spec": report.spec,
        "why": report.why,
        "machine": to_builtins(report.machine),
        "cost": {
            "c": costs.c if costs else None,
            "verify_curve": costs.curve if costs else {},
            "host_ms": _round_floats(report.host_ms),
            "t1_ms": costs.t1_ms if costs else None,
        },
        "max_tokens": report.max_tokens,
        "rounds": report.rounds,
        "workloads": [_workload_to_json(row) for row in report.rows],
        "means": [_round_floats(to_builtins(mean)) for mean in report.means],
        "speedup": _round_floats(report.speedup),
        "trials": len(report.trials),
        "left_out": report.left_out,
        "interrupted": report.interrupted,
    }


def _workload_to_json(row: WorkloadResult) -> dict[str, Any]:
    body = to_builtins(row)
    best = body.pop("best") or {}
    body["theory"] = {
        "best": best.get("speedup"),
        "reached": row.share_of_best,
        "draft_length": best.get("gamma"),
    }
    body["trials"] = [
        to_builtins(trial) | {"speedup": trial.speedup} for trial in row.trials
    ]
    body |= {"identical": row.identical == len(row.trials), "counted": row.counted}
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
    """Ignores runs whose other arm is missing."""
    pairs = _pair_runs(runs)
    host_ms, added_host_ms = _host_times(pairs)
    groups: dict[tuple[float, str], list[_PairedRuns]] = {}
    for pair in pairs:
        groups.setdefault((pair.task.temperature, pair.task.workload), []).append(pair)
    # The lowest temperature first; the workloads in their order.
    ordered = sorted(groups.items(), key=lambda item: item[0][0])
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
        rows=tuple(
            _summarize_workload(group, measured, added_host_ms) for _, group in ordered
        ),
    )


def _pair_runs(runs: Sequence[BenchRun]) -> list[_PairedRuns]:
    unpaired: dict[BenchTask, BenchRun] = {}
    pairs = []
    for run in runs:
        if (other := unpaired.pop(run.task, None)) is None:
            unpaired[run.task] = run
            continue
        plain, speculative = (run, other) if run.arm == "plain" else (other, run)
        trial = _compare_answers(run.task, plain.answer, speculative.answer)
        pairs.append(_PairedRuns(run.task, plain.answer, speculative.answer, trial))
    return pairs


def _compare_answers(
    task: BenchTask, plain: RecordedAnswer, speculative: RecordedAnswer
) -> Trial:
    both = plain, speculative
    distinct = _min_known(distinct_4grams(answer.ids) for answer in both)
    copied = _min_known(copied_share(task.text, answer.text) for answer in both)
    left_out = None
    if any(
        len(answer.ids) < _MIN_TOKENS or answer.tokens_per_second is None
        for answer in both
    ):
        left_out = TOO_SHORT
    elif (
        task.temperature == 0
        and distinct is not None
        and distinct < _MIN_DISTINCT_SHARE
    ):
        left_out = REPETITIVE
    elif task.copies_prompt and (copied or 0) < _MIN_COPIED_SHARE:
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


def _summarize_workload(
    group: Sequence[_PairedRuns], measured: MeasuredCosts | None, added_host_ms: float
) -> WorkloadResult:
    task, trials = group[0].task, tuple(pair.trial for pair in group)
    counting = [pair for pair in group if pair.trial.left_out is None] or group
    plain = [pair.plain for pair in counting]
    speculative = [pair.speculative for pair in counting]
    speedups = [
        pair.trial.speedup for pair in counting if pair.trial.speedup is not None
    ]
    totals = RoundTotals.of(event for answer in speculative for event in answer.rounds)
    acceptance = cumulative_acceptance(totals.by_position)
    costs = _speculation_costs(totals, measured, added_host_ms)
    return WorkloadResult(
        name=task.workload,
        temperature=task.temperature,
        trials=trials,
        plain_tps=_median_known(answer.tokens_per_second for answer in plain),
        spec_tps=_median_known(answer.tokens_per_second for answer in speculative),
        speedup=SpeedupSpread(median(speedups), min(speedups), max(speedups))
        if speedups
        else None,
        best=best_draft_length(costs, acceptance) if costs and acceptance else None,
        acceptance_rate=totals.acceptance_rate,
        mean_accepted_length=totals.mean_accepted_length,
        first_token_ms=_median_known(answer.first_token_ms for answer in speculative),
        plain_first_token_ms=_median_known(answer.first_token_ms for answer in plain),
        latency_ms=_latency_percentiles(speculative),
        plain_latency_ms=_latency_percentiles(plain),
        distinct_4grams=_median_known(trial.distinct_4grams for trial in trials),
        copied=_median_known(trial.copied for trial in trials)
        if task.copies_prompt
        else None,
        survival=tuple(position.acceptance_rate for position in totals.by_position),
    )


def _speculation_costs(
    totals: RoundTotals, measured: MeasuredCosts | None, added_host_ms: float
) -> SpeculationCosts | None:
    """Prompt-lookup draft tokens cost nothing."""
    if measured is None or measured.t1_ms <= 0:
        return None
    copied = totals.by_source.get("lookup", DraftTotals()).drafted
    c = (measured.c or 0.0) * (1 - copied / totals.drafted) if totals.drafted else 0.0
    verify = {int(width): v for width, v in measured.curve.items()}
    return SpeculationCosts(c, verify, added_host_ms / measured.t1_ms)


def _latency_percentiles(
    answers: Iterable[RecordedAnswer],
) -> LatencyPercentiles | None:
    ms = sorted(latency for answer in answers for latency in answer.latencies)
    if not ms:
        return None
    p50, p99 = (ms[min(int(share * len(ms)), len(ms) - 1)] for share in (0.5, 0.99))
    return LatencyPercentiles(p50, p99)


def _median_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _min_known(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _host_times(pairs: Sequence[_PairedRuns]) -> tuple[float | None, float]:
    """Ms outside llama.cpp: of a round that drafted, and how much that is over a plain
    round.

    The measured cost of a plain pass includes its host time.
    """
    rounds = [event for pair in pairs for event in pair.speculative.rounds]
    drafting = _median_known(event.ms.host for event in rounds if event.drafted)
    # An answer's first round also reads the prompt.
    plain = _median_known(
        event.ms.host for pair in pairs for event in pair.plain.rounds[1:]
    )
    added = 0.0 if drafting is None or plain is None else drafting - plain
    return drafting, max(added, 0.0)


_MIN_VERIFIED = 8
"""A position with fewer verified draft tokens uses the rate of the position before it.
"""


def cumulative_acceptance(counts: Sequence[DraftTotals]) -> list[float]:
    """Probability that the first 1, 2, … DRAFT_MAX draft tokens are all accepted.

    `counts` are those of each position; empty without any.
    """
    if not counts:
        return []
    rate = counts[0].acceptance_rate or 0.0
    probabilities, product = [], 1.0
    for j in range(DRAFT_MAX):
        if j < len(counts) and counts[j].drafted >= _MIN_VERIFIED:
            rate = counts[j].acceptance_rate or 0.0
        product *= rate
        probabilities.append(product)
    return probabilities


_WORD_PATTERN = re.compile(r"\w+|[^\w\s]")


def distinct_4grams(ids: Sequence[int]) -> float | None:
    """Share of distinct 4-grams; None for fewer than four tokens."""
    grams = _4grams(ids)
    return len(set(grams)) / len(grams) if grams else None


def copied_share(prompt: str, text: str) -> float | None:
    """Share of the text's word 4-grams that occur in the prompt; None for fewer than
    four words.

    Words, because the prompt's token ids are unknown here. White space does not count.
    """
    grams = _4grams(_WORD_PATTERN.findall(text))
    prompt_grams = set(_4grams(_WORD_PATTERN.findall(prompt)))
    return sum(gram in prompt_grams for gram in grams) / len(grams) if grams else None


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
    name = (
        _TRADEMARK.sub("", " ".join(cpu_and_ram.read_cpu_name().split()))
        or "unknown CPU"
    )
    return BenchMachine(
        name,
        cpu_and_ram.read_cpu_cores().physical,
        cpu_and_ram.read_host_memory().total,
        f"{platform.system()} {platform.release()} {platform.machine()}".strip(),
        dict(ready.engine),
        tuple(ready.devices),
        (ready.settings.get("target") or {}).get("n_threads"),
    )
