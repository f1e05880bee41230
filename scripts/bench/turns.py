"""Runs contestants in turns, and tables of what they did, compared within a turn."""

from __future__ import annotations

import string
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace
from programs import BenchError, Case, Run, ShortAnswerError

T = TypeVar("T")
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
                for contestant in in_turn(self.contestants, turn):
                    run = self._run(contestant, case)
                    if run is None:
                        continue
                    sample = Sample(
                        contestant=contestant.name,
                        prompt=case.name,
                        temperature=case.temperature,
                        turn=turn,
                        run=run,
                    )
                    self.samples.append(sample)
                    print(sample, file=sys.stderr, flush=True)

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
        """The greedy answers that do not repeat themselves.

        None if that is all of them, or none.
        """
        repetitive = set()
        for (prompt, _), run in self.by_turn(PLAIN_NAME, 0).items():
            if run.distinct is not None and run.distinct < MIN_DISTINCT:
                repetitive.add(prompt)
        greedy = [case for case in self.cases if not case.temperature]
        cases = [case for case in greedy if case.name not in repetitive]
        if not cases or len(cases) == len(greedy):
            return None
        return replace(self, cases=cases)

    def by_turn(self, name: str, temperature: float) -> dict[tuple[str, int], Run]:
        """A contestant's runs by prompt and turn."""
        prompts = {case.name for case in self.cases if case.temperature == temperature}
        runs = {}
        for sample in self.samples:
            is_wanted = sample.contestant == name and sample.temperature == temperature
            if is_wanted and sample.prompt in prompts:
                runs[sample.prompt, sample.turn] = sample.run
        return runs

    def ratios(
        self, name: str, temperature: float, value: Callable[[Run], float]
    ) -> dict[str, float]:
        """By prompt: the median of the ratios within a turn."""
        ours = self.by_turn(name, temperature)
        base = self.by_turn(self.base, temperature)
        by_prompt: dict[str, list[float]] = {}
        for prompt, turn in ours.keys() & base.keys():
            ratio = value(ours[prompt, turn]) / value(base[prompt, turn])
            by_prompt.setdefault(prompt, []).append(ratio)
        medians = {}
        for case in self.cases:
            if case.name in by_prompt:
                medians[case.name] = median(by_prompt[case.name])
        return medians


def in_turn(items: Sequence[T], turn: int) -> Sequence[T]:
    """The items in reverse order every second turn, so that drift meets all alike."""
    if turn % 2:
        return items[::-1]
    return items


# --- the table

COLUMNS = (
    "T",
    "program",
    "tok/s, ratio",
    "worst",
    "whole answer, ratio",
    "tok/s",
    "answer, s",
    "accepted",
    "same text",
)


def answer_table(measured: Measurement, tokens: int) -> Iterator[list[str]]:
    yield list(COLUMNS)
    for temperature in dict.fromkeys(case.temperature for case in measured.cases):
        for contestant in best_of_families(measured, temperature):
            row = answer_row(measured, contestant.name, temperature, tokens)
            if row:
                yield row


def answer_row(
    measured: Measurement, name: str, temperature: float, tokens: int
) -> list[str]:
    """Empty for a contestant without answers."""
    runs = list(measured.by_turn(name, temperature).values())
    if not runs:
        return []
    same = ""
    if not temperature:
        same = same_texts(measured, name, tokens)
    return [
        f"{temperature:g}",
        name,
        *ratio_cells(measured, name, temperature),
        f"{median(run.speed for run in runs):.1f}",
        f"{median(run.answer_s for run in runs):.2f}",
        acceptance_rate(runs),
        same,
    ]


def ratio_cells(measured: Measurement, name: str, temperature: float) -> list[str]:
    """The speed's mean and its worst prompt, and the whole answer's mean.

    Both means are geometric.
    """
    speeds = measured.ratios(name, temperature, lambda run: run.speed).values()
    answers = measured.ratios(name, temperature, lambda run: 1 / run.answer_s).values()
    if not speeds:
        return ["", "", ""]
    return [
        f"{geometric_mean(speeds):.3f}",
        f"{min(speeds):.3f}",
        f"{geometric_mean(answers):.3f}",
    ]


def best_of_families(measured: Measurement, temperature: float) -> list[Contestant]:
    """The best of each family by its whole answers, and those without a family."""

    def answer_s(contestant: Contestant) -> float:
        runs = measured.by_turn(contestant.name, temperature).values()
        if not runs:
            return float("inf")
        return geometric_mean(run.answer_s for run in runs)

    best: dict[str, Contestant] = {}
    for contestant in measured.contestants:
        key = contestant.family or contestant.name
        best[key] = min(best.get(key, contestant), contestant, key=answer_s)
    return list(best.values())


def acceptance_rate(runs: Sequence[Run]) -> str:
    drafted = sum(run.drafted for run in runs)
    if not drafted:
        return ""
    accepted = sum(run.accepted for run in runs)
    return f"{accepted / drafted:.0%}"


def same_texts(measured: Measurement, name: str, tokens: int) -> str:
    """How many greedy answers equal localspec's plain one."""
    runs = measured.by_turn(name, 0)
    plain = measured.by_turn(PLAIN_NAME, 0)
    both = runs.keys() & plain.keys()
    if not both:
        return ""
    same = [key for key in both if is_same_text(runs[key], plain[key], tokens)]
    return f"{len(same)} of {len(both)}"


def is_same_text(a: Run, b: Run, tokens: int) -> bool:
    """Texts that reach the limit may be cut a few tokens apart, or within a character."""
    texts = [run.text.rstrip(string.whitespace + "\ufffd") for run in (a, b)]
    shorter, longer = sorted(texts, key=len)
    if shorter == longer:
        return True
    reach_limit = min(a.tokens, b.tokens) >= tokens
    return reach_limit and longer.startswith(shorter)


def prompt_table(measured: Measurement) -> Iterator[list[str]]:
    """Ratios of tokens per second, a row for each prompt."""
    names = [contestant.name for contestant in measured.contestants]
    yield ["T", "prompt", *names]
    columns: dict[tuple[float, str], dict[str, float]] = {}
    for temperature in {case.temperature for case in measured.cases}:
        for name in names:
            ratios = measured.ratios(name, temperature, lambda run: run.speed)
            columns[temperature, name] = ratios
    for case in measured.cases:
        row = [f"{case.temperature:g}", case.name]
        for name in names:
            ratio = columns[case.temperature, name].get(case.name)
            row.append("" if ratio is None else f"{ratio:.2f}")
        yield row


def table(rows: Sequence[Sequence[str]]) -> str:
    """In Markdown, with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * width for width in widths]
    lines = []
    for row in (rows[0], rule, *rows[1:]):
        padded = [cell.ljust(w) for cell, w in zip(row, widths, strict=True)]
        lines.append(f"| {' | '.join(padded)} |")
    return "\n".join(lines)
