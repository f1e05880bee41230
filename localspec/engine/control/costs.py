"""What a pass costs on this machine: measured before, refined by every round."""

from __future__ import annotations

from itertools import pairwise

from localspec.protocol.wire import DRAFT_MAX, Measured

_WIDEST = DRAFT_MAX + 1
_SHARE = 0.2
"""Weight of a new time against what was known of that width."""
_DRIFT = 0.1
"""Weight of a new time for the other widths: all grow as the context does."""
_WILD = 2.0
"""A time this far from what was known is cut: something else was running."""
_NEWS = 0.5
"""The same for a plain pass, where none was seen for a while."""
_DEARER = 1.1
"""How much a plain pass may take of one that also checks a guess: hardly ever more."""
_SEEN, _SELDOM = 8, 128
"""Rounds without a plain pass after which one is due; each that comes doubles them."""
_SLOPE = 0.05
"""What a row more adds to a pass before anything was measured, in one-token passes."""


class Costs:
    """Milliseconds of a target pass by width, and of a draft pass; host time is in them."""

    def __init__(self, measured: Measured | None = None, *, at_once: bool = False) -> None:
        """`at_once`: one pass of the draft makes all guesses."""
        self.known = measured is not None
        t1 = measured.t1_ms if measured else 1.0
        curve = measured.curve if measured else {}
        self._times = {int(w): v * t1 for w, v in curve.items() if 0 < int(w) <= _WIDEST}
        self._times.setdefault(1, t1)
        c = measured.c if measured else None
        self.draft = t1 * (0.1 if c is None else c)
        """One more pass of the draft model."""
        self.first_draft = self.draft
        """Its first pass of a round, which also reads what it missed."""
        self._unseen = 0
        """Rounds since a plain pass."""
        self._patience = _SEEN
        self._at_once = at_once
        if at_once:
            self.draft = 0.0
        self._spread()

    def _spread(self) -> None:
        """A time for every width: straight lines between the known ones, and on after the last."""
        times, widths = self._times, sorted(self._times)
        first, slope = times[widths[0]], _SLOPE * times[widths[0]]
        line = [first] * (widths[0] + 1)
        for low, high in pairwise(widths):
            slope = (times[high] - times[low]) / (high - low)
            line += [times[low] + slope * i for i in range(1, high - low + 1)]
        slope = max(slope, 0.0)
        line += [line[-1] + slope * i for i in range(1, _WIDEST + 1 - widths[-1])]
        self.verify = line

    @property
    def c(self) -> float:
        """A pass of the draft model, in passes of one token of the target."""
        return (self.first_draft if self._at_once else self.draft) / self.plain

    @property
    def plain(self) -> float:
        """A round that drafts nothing."""
        return self.verify[1]

    def learn(self, width: int, ms: float) -> None:
        """A target pass of this width took so long, host time included."""
        if not self.known:
            self.known, self._times = True, {width: ms}
            self.draft *= ms
            self.first_draft *= ms
            self._spread()
            return
        before = self.verify[width]
        ratio = min(max(ms / before, 1 / _WILD), _WILD)
        share = _NEWS if width == 1 and self._unseen >= _SEEN else _SHARE
        for w in self._times:
            self._times[w] *= 1 + (ratio - 1) * _DRIFT
        self._times[width] = before * (1 + (ratio - 1) * share)
        if 1 in self._times:
            self._times[1] = min(self._times[1], _DEARER * self._times[width])
        self._look_back(width)
        self._spread()

    def _look_back(self, width: int) -> None:
        self._unseen += 1
        if width == 1:
            if self._unseen > _SEEN:
                self._patience = min(2 * self._patience, _SELDOM)
            self._unseen = 0

    @property
    def forgotten(self) -> bool:
        """Whether no plain pass was seen for long: all that guesses win is measured by one."""
        return self._unseen >= self._patience

    def drafting(self, passes: int) -> float:
        """So many passes of the draft model, one after the other."""
        return self.first_draft + self.draft * (passes - 1)

    def learn_draft(self, ms: float, passes: int) -> None:
        """So many draft passes took so long; a first pass alone says nothing of the others."""
        ratio = min(max(ms / self.drafting(passes), 1 / _WILD), _WILD)
        self.first_draft *= 1 + (ratio - 1) * _SHARE
        if passes > 1:
            self.draft *= 1 + (ratio - 1) * _SHARE

    def curve(self) -> dict[str, float]:
        """The verify curve v, by width, as far as it was measured."""
        return {str(w): round(t / self.plain, 4) for w, t in sorted(self._times.items())}
