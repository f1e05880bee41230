"""How far a check is: its parts, folded from what is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from localspec.bench.verdict import Doing, Equality, Finding, Sampled, Widths

NAMES = ("rounding", "temperature 0", "same seed", "coupled", "rejection", "block")
"""In their order; as findings.py calls them."""
ABOUT = {
    "rounding": "passes over 1 and over 8 tokens",
    "temperature 0": "guessed against plain, token by token",
    "same seed": "the same at temperature 0.8",
    "coupled": "sampled tokens against their chances",
    "rejection": "the same, another way of checking",
    "block": "and a third",
}
_PARTS = {"widths": "rounding", "greedy": "temperature 0", "seeded": "same seed"}
_LEAST = 0.05
"""A share that is too small to foretell anything by."""

State = Literal["waiting", "doing", "done"]


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the screen."""

    name: str
    state: State
    share: float
    what: str = ""


class Parts:
    """All of them; `seconds`: what each but the first may take."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._doing = ""
        self._share = 0.0
        self._what = ""
        self._since = clock()
        self._done: set[str] = set()

    def take(self, finding: Finding) -> None:
        if isinstance(finding, Doing):
            name = finding.verify or _PARTS.get(finding.part, "")
            if name != self._doing:
                self._done.add(self._doing)  # it goes on to the next
                self._doing, self._since = name, self._clock()
            self._share = finding.share
            self._what = finding.what.rpartition(": ")[2]
        elif isinstance(finding, Widths):
            self._done.add("rounding")
        elif isinstance(finding, Sampled):
            self._done.add(finding.sample.verify)
        elif isinstance(finding, Equality):
            self._what = ""

    def finish(self) -> None:
        """Everything was looked at."""
        self._done |= set(NAMES)

    def __iter__(self) -> Iterator[Part]:
        for name in NAMES:
            if name == self._doing and name not in self._done:
                yield Part(name, "doing", self._share, self._what)
            elif name in self._done:
                yield Part(name, "done", 1.0)
            else:
                yield Part(name, "waiting", 0.0)

    @property
    def seconds_left(self) -> float:
        """About; a slow machine takes longer than the time that is set."""
        left = 0.0
        for part in self:
            if part.state == "waiting":
                left += 1.0 if part.name == "rounding" else self._seconds
            elif part.state == "doing":
                took = self._clock() - self._since
                whole = took / part.share if part.share > _LEAST else self._seconds
                left += max(whole - took, 0.0)
        return left
