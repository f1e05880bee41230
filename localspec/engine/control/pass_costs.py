"""Costs of target and draft passes on this machine, refined by every round."""

from __future__ import annotations

from itertools import pairwise

from localspec.protocol.wire import DRAFT_MAX, MeasuredCosts

_MAX_WIDTH = DRAFT_MAX + 1
_NEW_TIME_WEIGHT = 0.2
"""Weight of a new time for its own width."""
_OTHER_WIDTHS_WEIGHT = 0.1
"""Weight of a new time for the other widths: all costs grow with the context."""
_MAX_CHANGE = 2.0
"""Larger changes are clipped: another program was probably running."""
_NEW_PLAIN_WEIGHT = 0.5
"""Weight of a plain pass that is the first for a while."""
_MAX_PLAIN_RATIO = 1.1
"""Upper bound of a plain pass, relative to the newest wider pass."""
_MIN_PLAIN_INTERVAL, _MAX_PLAIN_INTERVAL = 8, 128
"""Rounds without a plain pass after which one is due; doubled after each."""
_DEFAULT_SLOPE = 0.05
"""Default cost of one more row, in one-token passes."""


class PassCosts:
    """Milliseconds of target passes by width and of draft passes, host time included."""

    def __init__(
        self, measured: MeasuredCosts | None = None, *, drafts_blocks: bool = False
    ) -> None:
        """`drafts_blocks`: one draft pass gives all draft tokens."""
        self.is_measured = measured is not None
        t1 = measured.t1_ms if measured else 1.0
        curve = measured.curve if measured else {}
        self._ms_by_width = {int(w): v * t1 for w, v in curve.items() if 0 < int(w) <= _MAX_WIDTH}
        self._ms_by_width.setdefault(1, t1)
        c = measured.c if measured else None
        self.draft_ms = t1 * (0.1 if c is None else c)
        """A draft pass after the first of a round."""
        self.first_draft_ms = self.draft_ms
        """The first draft pass of a round, which also catches up with the text."""
        self._rounds_since_plain = 0
        self._plain_interval = _MIN_PLAIN_INTERVAL
        self._drafts_blocks = drafts_blocks
        if drafts_blocks:
            self.draft_ms = 0.0
        self._interpolate()

    def _interpolate(self) -> None:
        """Fill `verify_ms` for every width: linear between measured widths and beyond the last."""
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
        """Cost of a draft pass in one-token target passes."""
        return (self.first_draft_ms if self._drafts_blocks else self.draft_ms) / self.plain_ms

    @property
    def plain_ms(self) -> float:
        """Milliseconds of a round that drafts nothing."""
        return self.verify_ms[1]

    def record_pass(self, width: int, ms: float) -> None:
        """Record the milliseconds of a target pass, host time included."""
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
        """Whether a plain pass is due: every speed-up is measured against one."""
        return self._rounds_since_plain >= self._plain_interval

    def draft_passes_ms(self, n_passes: int) -> float:
        """Milliseconds of consecutive draft passes in one round."""
        return self.first_draft_ms + self.draft_ms * (n_passes - 1)

    def record_draft(self, ms: float, n_passes: int) -> None:
        """Record the milliseconds of a round's draft passes."""
        ratio = min(max(ms / self.draft_passes_ms(n_passes), 1 / _MAX_CHANGE), _MAX_CHANGE)
        self.first_draft_ms *= 1 + (ratio - 1) * _NEW_TIME_WEIGHT
        if n_passes > 1:
            self.draft_ms *= 1 + (ratio - 1) * _NEW_TIME_WEIGHT

    def verify_curve(self) -> dict[str, float]:
        """The measured verify curve: cost by width, in one-token passes."""
        return {str(w): round(t / self.plain_ms, 4) for w, t in sorted(self._ms_by_width.items())}
