"""Tables of a sweep: the speed of each variant against plain decoding and against theory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench_peers import table

from localspec.bench import metrics
from localspec.protocol.wire import DRAFT_MAX

TOY = 0.5
"""Minimum share of distinct 4-grams; a greedy answer below it is repetitive and left out."""


@dataclass(frozen=True)
class Answer:
    """One variant's answer, a line of the file."""

    workload: str
    prompt: int
    temperature: float
    way: str
    tokens: int
    speed: float
    raw: float
    drafted: int = 0
    accepted: int = 0
    distinct: float | None = None
    survival: tuple[tuple[int, int], ...] = ()
    """By position: draft tokens verified, and accepted."""
    ids: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[str, int, float, str]:
        return self.workload, self.prompt, self.temperature, self.way


class Found:
    """Ratios over all answers of a sweep."""

    def __init__(self, answers: Sequence[Answer], costs: Sequence[dict[str, Any]]) -> None:
        self._by_task: dict[tuple[str, int, float], dict[str, Answer]] = {}
        for answer in answers:
            self._by_task.setdefault(answer.key[:3], {})[answer.way] = answer
        self._costs = next((c for c in costs if c["draft"] == "draft"), None)

    def tasks(
        self, *, workload: str | None = None, temperature: float | None = None, toys: bool = False
    ) -> list[dict[str, Answer]]:
        """The tasks that count: repetitive greedy answers are left out."""
        found = []
        for (name, _, heat), ways in self._by_task.items():
            toy = heat == 0 and "plain" in ways and (ways["plain"].distinct or 0) < TOY
            wanted = workload in (None, name) and temperature in (None, heat)
            if wanted and (toys or not toy or name == "copy-edit"):
                found.append(ways)
        return found

    def ways(self) -> list[str]:
        return list(dict.fromkeys(way for ways in self._by_task.values() for way in ways))

    def keys(self) -> tuple[list[str], list[float]]:
        names = dict.fromkeys(name for name, _, _ in self._by_task)
        return list(names), sorted({heat for _, _, heat in self._by_task})

    def theory(self, tasks: Sequence[dict[str, Answer]]) -> metrics.BestDraftLength | None:
        """The best fixed draft length, by measured costs and the longest one's acceptance."""
        fixed = [w for w in self.ways() if w.startswith("model ")]
        if not fixed or self._costs is None or self._costs["c"] is None:
            return None
        longest = max(fixed, key=lambda way: int(way.split()[1]))
        counts = [[0, 0] for _ in range(DRAFT_MAX)]
        for ways in tasks:
            for i, (reached, kept) in enumerate(ways[longest].survival if longest in ways else ()):
                counts[i][0] += reached
                counts[i][1] += kept
        seen = [metrics.PositionCounts(*pair) for pair in counts if pair[0]]
        curve = {int(w): v for w, v in self._costs["curve"].items()}
        return metrics.best_draft_length(
            metrics.SpeculationCosts(self._costs["c"], curve), metrics.cumulative_acceptance(seen)
        )


def mean_ratio(tasks: Sequence[dict[str, Answer]], way: str, other: str, *, raw: bool) -> float:
    """Geometric mean of the speed ratios over tasks that have both; NaN if none has."""
    logs = []
    for ways in tasks:
        if way in ways and other in ways:
            a, b = ways[way], ways[other]
            pair = (a.raw, b.raw) if raw else (a.speed, b.speed)
            if min(pair) > 0:
                logs.append(math.log(pair[0] / pair[1]))
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def best_of(found: Found, tasks: Sequence[dict[str, Answer]], prefix: str) -> str | None:
    """The fastest draft length of one program, by the mean over these tasks."""
    ways = [way for way in found.ways() if way.startswith(prefix)]
    return max(ways, key=lambda w: mean_ratio(tasks, w, "plain", raw=False), default=None)


def report(found: Found) -> str:
    """Speed-ups against plain by workload, then the comparisons that count."""
    names, heats = found.keys()
    ways = [way for way in found.ways() if way != "plain"]
    rows = [["T", "workload", "answers", *ways, "theory (γ)"]]
    for heat in heats:
        for name in [*names, None]:
            tasks = found.tasks(workload=name, temperature=heat)
            cells = [f"{mean_ratio(tasks, way, 'plain', raw=True):.2f}" for way in ways]
            best = found.theory(tasks)
            bound = f"{best.speedup:.2f} ({best.gamma})" if best else ""
            rows.append([str(heat), name or "all that count", str(len(tasks)), *cells, bound])
    return "\n\n".join([table(rows, markdown=True), *_comparisons(found, heats)])


def _comparisons(found: Found, heats: Sequence[float]) -> Iterator[str]:
    for heat in [*heats, None]:
        tasks = found.tasks(temperature=heat)
        lines = [f"T {heat}:" if heat is not None else "All:"]
        ours, theirs = best_of(found, tasks, "model "), best_of(found, tasks, "llama.cpp ")
        for what, way in (
            ("our best fixed length", ours),
            ("llama.cpp at its defaults", "llama.cpp"),
            ("llama.cpp at its best length", theirs),
            ("plain", "plain"),
        ):
            if way is not None:
                ratio = mean_ratio(tasks, "auto", way, raw=False)
                lines.append(f"- the controller against {what} ({way}): {ratio:.3f}")
        for way in ("hopeless", "copying"):
            for name in found.keys()[0]:
                some = found.tasks(workload=name, temperature=heat, toys=True)
                ratio = mean_ratio(some, way, "plain", raw=True)
                if not math.isnan(ratio):
                    lines.append(f"- {way} against plain, {name}: {ratio:.3f}")
        yield "\n".join(lines)
