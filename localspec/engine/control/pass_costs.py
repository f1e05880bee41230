"""What a pass costs on this machine: measured before, refined by every round."""

from __future__ import annotations

from itertools import pairwise

from localspec.protocol.wire import DRAFT_MAX, MeasuredCosts

_MAX_WIDTH = DRAFT_MAX + 1
_NEW_TIME_WEIGHT = 0.2
"""Weight of a new time against what was known of that width."""
_OTHER_WIDTHS_WEIGHT = 0.1
"""Weight of a new time for the other widths: all grow as the context does."""
_MAX_CHANGE = 2.0
"""A time this far from what was known is cut: something else was running."""
_NEW_PLAIN_WEIGHT = 0.5
"""The same for a plain pass, where none was seen for a while."""
_MAX_PLAIN_RATIO = 1.1
"""How much a plain pass may take of one that also checks a guess: hardly ever more."""
_MIN_PLAIN_INTERVAL, _MAX_PLAIN_INTERVAL = 8, 128
"""Rounds without a plain pass after which one is due; each that comes doubles them."""
_DEFAULT_SLOPE = 0.05
"""What a row more adds to a pass before anything was measured, in one-token passes."""


class PassCosts:
    """Milliseconds of a target pass by width, and of a draft pass; host time is in them."""

    def __init__(
        self, measured: MeasuredCosts | None = None, *, drafts_blocks: bool = False
    ) -> None:
        """`at_once`: one pass of the draft makes all guesses."""
        self.is_measured = measured is not None
        t1 = measured.t1_ms if measured else 1.0
        curve = measured.curve if measured else {}
        self._ms_by_width = {int(w): v * t1 for w, v in curve.items() if 0 < int(w) <= _MAX_WIDTH}
        self._ms_by_width.setdefault(1, t1)
        c = measured.c if measured else None
        self.draft_ms = t1 * (0.1 if c is None else c)
        """One more pass of the draft model."""
        self.first_draft_ms = self.draft_ms
        """Its first pass of a round, which also reads what it missed."""
        self._rounds_since_plain = 0
        """Rounds since a plain pass."""
        self._plain_interval = _MIN_PLAIN_INTERVAL
        self._drafts_blocks = drafts_blocks
        if drafts_blocks:
            self.draft_ms = 0.0
        self._interpolate()

    def _interpolate(self) -> None:
        """A time for every width: straight lines between the known ones, and on after the last."""
        times, widths = self._ms_by_width, sorted(self._ms_by_width)
        first, slope = times[widths[0]], _DEFAULT_SLOPE * times[widths[0]]
        line = [first] * (widths[0] + 1)
        for low, high in pairwise(widths):
            slope = (times[high] - times[low]) / (high - low)
            line += [times[low] + slope * i for i in range(1, high - low + 1)]
        slope = max(slope, 0.0)
        line += [line[-1] + slope * i for i in range(1, _MAX_WIDTH + 1 - widths[-1])]
        self.verify_ms = line

    @property
    def c(self) -> float:
        """A pass of the draft model, in passes of one token of the target."""
        return (self.first_draft_ms if self._drafts_blocks else self.draft_ms) / self.plain_ms

    @property
    def plain_ms(self) -> float:
        """A round that drafts nothing."""
        return self.verify_ms[1]

    def record_pass(self, width: int, ms: float) -> None:
        """A target pass of this width took so long, host time included."""
        if not self.is_measured:
            self.is_measured, self._ms_by_width = True, {width: ms}
            self.draft_ms *= ms
            self.first_draft_ms *= ms
            self._interpolate()
            return
        before = self.verify_ms[width]
        ratio = min(max(ms / before, 1 / _MAX_CHANGE), _MAX_CHANGE)
        share = (
            _NEW_PLAIN_WEIGHT
            if width == 1 and self._rounds_since_plain >= _MIN_PLAIN_INTERVAL
            else _NEW_TIME_WEIGHT
        )
        for w in self._ms_by_width:
            self._ms_by_width[w] *= 1 + (ratio - 1) * _OTHER_WIDTHS_WEIGHT
        self._ms_by_width[width] = before * (1 + (ratio - 1) * share)
        if 1 in self._ms_by_width:
            self._ms_by_width[1] = min(
                self._ms_by_width[1], _MAX_PLAIN_RATIO * self._ms_by_width[width]
            )
        self._count_plain_passes(width)
        self._interpolate()

    def _count_plain_passes(self, width: int) -> None:
        self._rounds_since_plain += 1
        if width == 1:
            if self._rounds_since_plain > _MIN_PLAIN_INTERVAL:
                self._plain_interval = min(2 * self._plain_interval, _MAX_PLAIN_INTERVAL)
            self._rounds_since_plain = 0

    @property
    def needs_plain_pass(self) -> bool:
        """Whether no plain pass was seen for long: all that guesses win is measured by one."""
        return self._rounds_since_plain >= self._plain_interval

    def draft_passes_ms(self, n_passes: int) -> float:
        """So many passes of the draft model, one after the other."""
        return self.first_draft_ms + self.draft_ms * (n_passes - 1)

    def record_draft(self, ms: float, n_passes: int) -> None:
        """So many draft passes took so long; a first pass alone says nothing of the others."""
        ratio = min(max(ms / self.draft_passes_ms(n_passes), 1 / _MAX_CHANGE), _MAX_CHANGE)
        self.first_draft_ms *= 1 + (ratio - 1) * _NEW_TIME_WEIGHT
        if n_passes > 1:
            self.draft_ms *= 1 + (ratio - 1) * _NEW_TIME_WEIGHT

    def verify_curve(self) -> dict[str, float]:
        """The verify curve v, by width, as far as it was measured."""
        return {str(w): round(t / self.plain_ms, 4) for w, t in sorted(self._ms_by_width.items())}
