"""Aggregates benchmark runs into a report: medians, excluded trials, best possible speed-up."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from statistics import median

from localspec.bench import results
from localspec.bench.measurement import RecordedAnswer
from localspec.bench.paired_runs import BenchRequest, BenchRun, BenchTask
from localspec.bench.results import (
    BenchReport,
    LatencyPercentiles,
    SpeedupSpread,
    Trial,
    WorkloadResult,
)
from localspec.fit.speedup_model import SpeculationCosts, best_draft_length
from localspec.lazy_dataclass import dataclass
from localspec.protocol.events import EngineReady
from localspec.protocol.round_totals import DraftTotals, RoundTotals
from localspec.protocol.wire import DRAFT_MAX, MeasuredCosts

REPETITIVE, TOO_SHORT, NOT_A_COPY = "repeats itself", "ended at once", "is no copy"
"""Reasons to leave out a trial; keys of `left_out` in the JSON."""
_MIN_DISTINCT_SHARE = 0.5
"""Of 4-grams. A greedy answer below this repeats itself: any prompt lookup looks good on it."""
_MIN_COPIED_SHARE = 0.7
_MIN_TOKENS = 8  # The speed of a shorter answer is not meaningful.


@dataclass(frozen=True, slots=True)
class _PairedRuns:
    plain: BenchRun
    speculative: BenchRun
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
        groups.setdefault((pair.plain.task.temperature, pair.plain.task.workload), []).append(pair)
    # The lowest temperature first; the workloads in their order.
    ordered = sorted(groups.items(), key=lambda item: item[0][0])
    rows = [_summarize_workload(group, measured, added_host_ms) for _, group in ordered]
    return BenchReport(
        pair=request.name,
        model=ready.model,
        draft=ready.draft,
        spec=request.spec,
        why=request.why,
        machine=results.describe_machine(ready),
        c=measured.c if measured else None,
        verify_curve=dict(measured.curve) if measured else {},
        t1_ms=measured.t1_ms if measured else None,
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
        else:
            plain, speculative = (run, other) if run.arm == "plain" else (other, run)
            pairs.append(_PairedRuns(plain, speculative, _compare_runs(plain, speculative)))
    return pairs


def _compare_runs(plain: BenchRun, speculative: BenchRun) -> Trial:
    both, task = (plain, speculative), plain.task
    distinct = _min_known(distinct_4grams(run.answer.ids) for run in both)
    copied = _min_known(copied_share(task.text, run.answer.text) for run in both)
    left_out = None
    if any(
        len(run.answer.ids) < _MIN_TOKENS or run.answer.tokens_per_second is None for run in both
    ):
        left_out = TOO_SHORT
    elif task.temperature == 0 and distinct is not None and distinct < _MIN_DISTINCT_SHARE:
        left_out = REPETITIVE
    elif task.copies_prompt and (copied or 0) < _MIN_COPIED_SHARE:
        left_out = NOT_A_COPY
    return Trial(
        prompt=task.prompt_index,
        turn=task.round_index,
        seed=task.seed,
        plain_tps=plain.answer.tokens_per_second,
        spec_tps=speculative.answer.tokens_per_second,
        distinct_4grams=distinct,
        copied=copied,
        identical=plain.answer.ids == speculative.answer.ids,
        left_out=left_out,
    )


# --- one workload -----------------------------------------------------------------------


def _summarize_workload(
    group: Sequence[_PairedRuns], measured: MeasuredCosts | None, added_host_ms: float
) -> WorkloadResult:
    task, trials = group[0].plain.task, tuple(pair.trial for pair in group)
    counting = [pair for pair in group if pair.trial.left_out is None] or group
    plain = [pair.plain.answer for pair in counting]
    speculative = [pair.speculative.answer for pair in counting]
    rounds = [event for answer in speculative for event in answer.rounds]
    speedups = [pair.trial.speedup for pair in counting if pair.trial.speedup is not None]
    totals = RoundTotals.of(rounds)
    acceptance = cumulative_acceptance(totals.by_position)
    costs = _speculation_costs(totals, measured, added_host_ms)
    return WorkloadResult(
        name=task.workload,
        temperature=task.temperature,
        trials=trials,
        plain_tps=_median_known(answer.tokens_per_second for answer in plain),
        spec_tps=_median_known(answer.tokens_per_second for answer in speculative),
        speedup=SpeedupSpread(median(speedups), min(speedups), max(speedups)) if speedups else None,
        best=best_draft_length(costs, acceptance) if costs and acceptance else None,
        acceptance_rate=totals.acceptance_rate,
        mean_accepted_length=totals.mean_accepted_length,
        first_token_ms=_median_known(answer.first_token_ms for answer in speculative),
        plain_first_token_ms=_median_known(answer.first_token_ms for answer in plain),
        latency_ms=_latency_percentiles(speculative),
        plain_latency_ms=_latency_percentiles(plain),
        distinct_4grams=_median_known(trial.distinct_4grams for trial in trials),
        copied=_median_known(trial.copied for trial in trials) if task.copies_prompt else None,
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


def _latency_percentiles(answers: Iterable[RecordedAnswer]) -> LatencyPercentiles | None:
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
    """Ms outside llama.cpp: of a round that drafted, and how much that is over a plain round.

    The measured cost of a plain pass includes its host time.
    """
    drafting = _median_known(
        event.ms.host for pair in pairs for event in pair.speculative.answer.rounds if event.drafted
    )
    # An answer's first round also reads the prompt.
    plain = _median_known(event.ms.host for pair in pairs for event in pair.plain.answer.rounds[1:])
    added = 0.0 if drafting is None or plain is None else drafting - plain
    return drafting, max(added, 0.0)


# --- Acceptance by draft position -------------------------------------------------------------

_MIN_VERIFIED = 8
"""A position with fewer verified draft tokens uses the rate of the position before it."""


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


# --- Repetition, within a text and of its prompt ----------------------------------------------

_NGRAM_SIZE = 4
_WORD_PATTERN = re.compile(r"\w+|[^\w\s]")


def distinct_4grams(ids: Sequence[int]) -> float | None:
    """Share of distinct 4-grams; None for fewer than four tokens."""
    grams = _ngrams(ids)
    return len(set(grams)) / len(grams) if grams else None


def copied_share(prompt: str, text: str) -> float | None:
    """Share of the text's word 4-grams that occur in the prompt; None for fewer than four words.

    Words, because the prompt's token ids are unknown here. White space does not count.
    """
    grams = _ngrams(_WORD_PATTERN.findall(text))
    prompt_grams = set(_ngrams(_WORD_PATTERN.findall(prompt)))
    return sum(gram in prompt_grams for gram in grams) / len(grams) if grams else None


def _ngrams(items: Sequence[Hashable]) -> list[tuple[Hashable, ...]]:
    return [tuple(items[i : i + _NGRAM_SIZE]) for i in range(len(items) - _NGRAM_SIZE + 1)]
