"""From the runs of a bench to its report: medians, what counts, and what could be reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from localspec.bench import theory
from localspec.bench.here import Machine
from localspec.bench.repetition import copied_share, distinct_4grams
from localspec.bench.results import Latency, Mean, Report, Row, Spread, Trial
from localspec.bench.trial import Run, Task, Way
from localspec.protocol.events import Round
from localspec.protocol.stats import Totals
from localspec.protocol.wire import Measured

REPEATS, SHORT, NO_COPY = "repeats itself", "ended at once", "is no copy"
"""Why a trial does not count."""
_DISTINCT = 0.5
"""A greedy answer that says fewer of its 4-grams once runs in a circle: any copy looks good."""
_COPIED = 0.7
_TOKENS = 8
"""An answer shorter than this has no speed worth the name."""


@dataclass(frozen=True, slots=True)
class About:
    """What is known beside the runs."""

    pair: str
    model: str
    draft: str | None
    way: Way
    machine: Machine
    measured: Measured | None
    rounds: int


@dataclass(frozen=True, slots=True)
class _Pair:
    """The same text both ways."""

    plain: Run
    speculative: Run

    @property
    def task(self) -> Task:
        return self.plain.task

    def trial(self) -> Trial:
        both = (self.plain, self.speculative)
        return Trial(
            prompt=self.task.prompt,
            turn=self.task.turn,
            seed=self.task.seed,
            plain_tps=self.plain.tokens_per_second,
            spec_tps=self.speculative.tokens_per_second,
            distinct_4grams=_least(distinct_4grams(run.ids) for run in both),
            copied=_least(copied_share(self.task.text, run.text) for run in both),
            identical=self.plain.ids == self.speculative.ids,
            left_out=left_out(self.plain, self.speculative),
        )


def left_out(plain: Run, speculative: Run) -> str | None:
    """Why these two do not count, or None."""
    both, task = (plain, speculative), plain.task
    if any(len(run.ids) < _TOKENS or run.tokens_per_second is None for run in both):
        return SHORT
    distinct = _least(distinct_4grams(run.ids) for run in both)
    if task.temperature == 0 and distinct is not None and distinct < _DISTINCT:
        return REPEATS
    if task.copies and (_least(copied_share(task.text, run.text) for run in both) or 0) < _COPIED:
        return NO_COPY
    return None


def make(runs: Sequence[Run], about: About, *, interrupted: bool = False) -> Report:
    """The report; runs whose other arm is missing are not in it."""
    pairs = _paired(runs)
    costs = _costs(about.measured, pairs)
    rows = [_row(group, costs) for group in _groups(pairs)]
    reasons = Counter(trial.left_out for row in rows for trial in row.trials if trial.left_out)
    measured = about.measured
    return Report(
        pair=about.pair,
        model=about.model,
        draft=about.draft,
        spec=about.way.spec,
        why=about.way.why,
        machine=about.machine,
        c=measured.c if measured else None,
        verify_curve=dict(measured.curve) if measured else {},
        t1_ms=measured.t1_ms if measured else None,
        host_ms=_host(pair.speculative for pair in pairs),
        max_tokens=about.way.max_tokens,
        rounds=about.rounds,
        interrupted=interrupted,
        rows=tuple(rows),
        means=tuple(_means(rows)),
        speedup=_mean(row for row in rows if row.counted),
        left_out=dict(reasons),
    )


def _paired(runs: Sequence[Run]) -> list[_Pair]:
    waiting: dict[Task, Run] = {}
    pairs = []
    for run in runs:
        other = waiting.pop(run.task, None)
        if other is None:
            waiting[run.task] = run
        else:
            plain, speculative = (run, other) if run.arm == "plain" else (other, run)
            pairs.append(_Pair(plain, speculative))
    return pairs


def _groups(pairs: Sequence[_Pair]) -> list[list[_Pair]]:
    """By temperature and workload, the lowest temperature first."""
    groups: dict[tuple[float, str], list[_Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.task.temperature, pair.task.workload), []).append(pair)
    return sorted(groups.values(), key=lambda group: group[0].task.temperature)


# --- a row ------------------------------------------------------------------------------


def _row(group: Sequence[_Pair], costs: Callable[[Sequence[Round]], theory.Costs | None]) -> Row:
    trials = tuple(pair.trial() for pair in group)
    counting = [pair for pair in group if pair.trial().left_out is None] or group
    plain = [pair.plain for pair in counting]
    speculative = [pair.speculative for pair in counting]
    rounds = [event for run in speculative for event in run.rounds]
    totals = _totals(rounds)
    judged = theory.positions(rounds)
    chances, known = theory.survival(judged), costs(rounds)
    return Row(
        name=group[0].task.workload,
        temperature=group[0].task.temperature,
        trials=trials,
        plain_tps=_median(run.tokens_per_second for run in plain),
        spec_tps=_median(run.tokens_per_second for run in speculative),
        speedup=_spread(pair.trial().speedup for pair in counting),
        best=theory.best(known, chances) if known and chances else None,
        acceptance_rate=totals.acceptance_rate,
        mean_accepted_length=totals.mean_accepted_length,
        first_token_ms=_median(run.first_token_ms for run in speculative),
        plain_first_token_ms=_median(run.first_token_ms for run in plain),
        latency_ms=_latency(speculative),
        plain_latency_ms=_latency(plain),
        distinct_4grams=_median(trial.distinct_4grams for trial in trials),
        copied=_median(trial.copied for trial in trials) if group[0].task.copies else None,
        survival=tuple(theory.hazards(judged)),
    )


def _totals(rounds: Iterable[Round]) -> Totals:
    totals = Totals()
    for event in rounds:
        totals.add(event)
    return totals


def _latency(runs: Iterable[Run]) -> Latency | None:
    waits = sorted(wait for run in runs for wait in run.latencies)
    return Latency(_rank(waits, 0.5), _rank(waits, 0.99)) if waits else None


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(median(known), min(known), max(known)) if known else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


# --- over all rows ----------------------------------------------------------------------


def _means(rows: Sequence[Row]) -> Iterable[Mean]:
    for temperature in dict.fromkeys(row.temperature for row in rows):
        counted = [row for row in rows if row.temperature == temperature and row.counted]
        yield Mean(temperature, _mean(counted), len(counted))


def _mean(rows: Iterable[Row]) -> float | None:
    speedups = [row.speedup.median for row in rows if row.speedup]
    return geometric_mean(speedups) if speedups else None


def _costs(
    measured: Measured | None, pairs: Sequence[_Pair]
) -> Callable[[Sequence[Round]], theory.Costs | None]:
    """The costs of drafting as these rounds did: what copying guesses costs nothing.

    One pass includes a plain round's host time already; a drafting round's is beside it.
    """
    added = _added_host(pairs)

    def of(rounds: Sequence[Round]) -> theory.Costs | None:
        if measured is None or measured.t1_ms <= 0:
            return None
        drafted = sum(event.drafted for event in rounds)
        modelled = sum(event.drafted for event in rounds if event.source not in (None, "lookup"))
        c = (measured.c or 0.0) * modelled / drafted if drafted else 0.0
        verify = {int(width): v for width, v in measured.curve.items()}
        return theory.Costs(c, verify, added / measured.t1_ms)

    return of


def _host(runs: Iterable[Run]) -> float | None:
    """Milliseconds outside llama.cpp in a round that drafted."""
    return _median(event.ms.host for run in runs for event in run.rounds if event.drafted)


def _added_host(pairs: Sequence[_Pair]) -> float:
    """What a drafting round takes longer than a plain one, outside llama.cpp."""
    drafting = _host(pair.speculative for pair in pairs)
    # An answer's first round also reads the prompt.
    plain = _median(event.ms.host for pair in pairs for event in pair.plain.rounds[1:])
    return max(drafting - plain, 0.0) if drafting is not None and plain is not None else 0.0
