"""Runs contestants in turns, and tables of what they did, compared within a turn."""

from __future__ import annotations

import string
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from msgspec import Struct, field
from msgspec.structs import replace
from programs import BenchError, Case, Run, ShortAnswerError

PLAIN_NAME = "localspec plain"
MIN_DISTINCT = 0.5  # Below this share of distinct 4-grams an answer repeats itself.


@dataclass(frozen=True)
class Contestant:
    """A program with its options; of those with the same family, the best is reported."""

    name: str
    run: Callable[[Case], Run]
    family: str = ""


@dataclass(frozen=True)
class Sample:
    contestant: str
    prompt: str
    temperature: float
    turn: int
    run: Run

    def __str__(self) -> str:
        where = f"turn {self.turn + 1}, T {self.temperature:g}, {self.prompt}"
        return f"{where}, {self.contestant}: {self.run.speed:.1f} tok/s"


class Measurement(Struct):
    """Runs the contestants in turns.

    A contestant that fails is left out from then on.
    """

    contestants: Sequence[Contestant]
    cases: Sequence[Case]
    base: str
    """The contestant that the others are compared with."""
    samples: list[Sample] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def measure(self, turns: int) -> None:
        for contestant in self.contestants:
            self._run(contestant, self.cases[0])
        for turn in range(turns):
            for case in self.cases:
                for contestant in self.contestants[:: -1 if turn % 2 else 1]:
                    if (run := self._run(contestant, case)) is not None:
                        key = (contestant.name, case.name, case.temperature, turn)
                        self.samples.append(Sample(*key, run))
                        print(self.samples[-1], file=sys.stderr, flush=True)

    def _run(self, contestant: Contestant, case: Case) -> Run | None:
        if contestant.name in self.failed:
            return None
        try:
            return contestant.run(case)
        except ShortAnswerError as error:
            print(f"{contestant.name}, {case.name}: {error}", file=sys.stderr)
            return None
        except BenchError as error:
            self.failed[contestant.name] = str(error)
            print(f"{contestant.name} is left out: {error}", file=sys.stderr)
            return None

    def varied(self) -> Measurement | None:
        """The greedy answers that do not repeat themselves; None if that is all or none
        of them.
        """
        greedy = [case for case in self.cases if not case.temperature]
        repetitive = {
            prompt
            for (prompt, _), run in self.by_turn(PLAIN_NAME, 0).items()
            if run.distinct is not None and run.distinct < MIN_DISTINCT
        }
        cases = [case for case in greedy if case.name not in repetitive]
        return replace(self, cases=cases) if 0 < len(cases) < len(greedy) else None

    def by_turn(self, name: str, temperature: float) -> dict[tuple[str, int], Run]:
        """By prompt and turn."""
        prompts = {case.name for case in self.cases if case.temperature == temperature}
        return {
            (s.prompt, s.turn): s.run
            for s in self.samples
            if s.contestant == name
            and s.temperature == temperature
            and s.prompt in prompts
        }

    def ratios(
        self, name: str, temperature: float, value: Callable[[Run], float]
    ) -> dict[str, float]:
        """By prompt: the median of the ratios within a turn."""
        ours, theirs = (
            self.by_turn(name, temperature),
            self.by_turn(self.base, temperature),
        )
        found: dict[str, list[float]] = {}
        for key in ours.keys() & theirs.keys():
            found.setdefault(key[0], []).append(value(ours[key]) / value(theirs[key]))
        return {
            case.name: median(found[case.name])
            for case in self.cases
            if case.name in found
        }


# --- the table
# ------------------------------------------------------------------------------

COLUMNS = (
    *(
        "T",
        "program",
        "tok/s, ratio",
        "worst",
        "whole answer, ratio",
        "tok/s",
        "answer, s",
    ),
    *("accepted", "same text"),
)


def answer_table(measured: Measurement, tokens: int) -> Iterator[list[str]]:
    yield list(COLUMNS)
    for temperature in dict.fromkeys(case.temperature for case in measured.cases):
        for contestant in best_of_families(measured, temperature):
            runs = list(measured.by_turn(contestant.name, temperature).values())
            if runs:
                same = (
                    same_texts(measured, contestant.name, tokens)
                    if not temperature
                    else ""
                )
                yield [
                    *(f"{temperature:g}", contestant.name),
                    *ratio_cells(measured, contestant.name, temperature),
                    f"{median(run.speed for run in runs):.1f}",
                    f"{median(run.answer_s for run in runs):.2f}",
                    acceptance_rate(runs),
                    same,
                ]


def ratio_cells(measured: Measurement, name: str, temperature: float) -> list[str]:
    """The rate's geometric mean and worst prompt, and the whole answer's geometric
    mean.
    """
    speeds = measured.ratios(name, temperature, lambda run: run.speed).values()
    answers = measured.ratios(name, temperature, lambda run: 1 / run.answer_s).values()
    if not speeds:
        return [""] * 3
    means = geometric_mean(speeds), min(speeds), geometric_mean(answers)
    return [f"{mean:.3f}" for mean in means]


def best_of_families(measured: Measurement, temperature: float) -> list[Contestant]:
    """All contestants without a family, and the best of each family, by its whole
    answers.
    """

    def answer_s(contestant: Contestant) -> float:
        runs = measured.by_turn(contestant.name, temperature).values()
        return geometric_mean(run.answer_s for run in runs) if runs else float("inf")

    best: dict[str, Contestant] = {}
    for contestant in measured.contestants:
        key = contestant.family or contestant.name
        best[key] = min(best.get(key, contestant), contestant, key=answer_s)
    return list(best.values())


def acceptance_rate(runs: Sequence[Run]) -> str:
    drafted = sum(run.drafted for run in runs)
    return f"{sum(run.accepted for run in runs) / drafted:.0%}" if drafted else ""


def same_texts(measured: Measurement, name: str, tokens: int) -> str:
    """How many greedy answers equal localspec's plain one."""
    runs, plain = measured.by_turn(name, 0), measured.by_turn(PLAIN_NAME, 0)
    both = runs.keys() & plain.keys()
    same = sum(is_same_text(runs[key], plain[key], tokens) for key in both)
    return f"{same} of {len(both)}" if both else ""


def is_same_text(a: Run, b: Run, tokens: int) -> bool:
    """Texts that reach the limit may be cut a few tokens apart, or within a character."""
    texts = (run.text.rstrip(string.whitespace + "\ufffd") for run in (a, b))
    shorter, longer = sorted(texts, key=len)
    return shorter == longer or (
        longer.startswith(shorter) and min(a.tokens, b.tokens) >= tokens
    )


def prompt_table(measured: Measurement) -> Iterator[list[str]]:
    """Ratios of tokens per second, a row for each prompt."""
    names = [contestant.name for contestant in measured.contestants]
    yield ["T", "prompt", *names]
    columns = {
        (temperature, name): measured.ratios(name, temperature, lambda run: run.speed)
        for temperature in {case.temperature for case in measured.cases}
        for name in names
    }
    for case in measured.cases:
        found = [columns[case.temperature, name].get(case.name) for name in names]
        cells = ["" if ratio is None else f"{ratio:.2f}" for ratio in found]
        yield [f"{case.temperature:g}", case.name, *cells]


def table(rows: Sequence[Sequence[str]]) -> str:
    """In Markdown, with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [
        [text.ljust(w) for text, w in zip(row, widths, strict=True)] for row in rows
    ]
    cells.insert(1, ["-" * w for w in widths])
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
