"""Costs of target and draft passes on this machine, refined by every round."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import pairwise

from msgspec import Struct

from localspec.protocol.wire import DRAFT_MAX, NEW_TIME_WEIGHT, MeasuredCosts
from localspec.spec.control.draft_plan import DraftCosts

MAX_WIDTH = DRAFT_MAX + 1
# Of a new time for other widths: all costs grow with the context.
_OTHER_WIDTHS_WEIGHT = 0.1
_NEW_PLAIN_WEIGHT = 0.5
"""Weight of a time for which there was none, or no recent one.

That is a plain pass that is the first for a while, the first time of a width beyond those
measured, and the first price of a change.
"""
_MAX_CHANGE = 2.0  # Larger changes are clipped: another program was probably running.
# Upper bound of a plain pass, relative to the newest wider pass.
_MAX_PLAIN_RATIO = 1.1
# Rounds until a plain pass is due; doubled.
_MIN_PLAIN_INTERVAL = 8
_MAX_PLAIN_INTERVAL = 128
ROW_COSTS = {
    "CUDA": 0.15,
    "ROCm": 0.15,
    "Vulkan": 0.3,
    "SYCL": 0.3,
    "Metal": 0.4,
    "CPU": 0.6,  # With quantised weights.
    "CPU, floats": 0.25,
}
"""What one more row costs until a wider pass is timed, by the kind of device.

In one-token passes. Two CPU cores take 1.2 passes for 2 rows of BF16 and 1.8 for 2 rows
of Q8_0. They err upwards: too dear a row costs a few per cent of a first answer, too
cheap a one makes a hopeless draft look good.
"""
UNKNOWN_ROW_COST = 0.35
"""Of a device that nobody has measured."""
_CATCH_UP_SHARE = 0.1
_GPU_CATCH_UP_SHARE = 0.03
"""Cost of a token that the draft model reads in a wide batch, in draft passes.

They hold until it is timed. On a GPU a wide pass of the draft costs hardly more than a
narrow one.
"""
# Up to it the curve may be steeper than beyond: kernels that begin at two rows.
_CLIFF_WIDTH = 3
# Until learnt: launching 32 layers kernel by kernel, on an H100.
_GRAPH_CHANGE_MS = 0.9
UNKNOWN_DRAFT_COST = 0.1
"""Cost of a draft pass until one is timed, in one-token target passes."""


class UsualCosts(Struct, frozen=True):
    """What passes of a kind usually cost, in one-token passes of the target."""

    row: float = UNKNOWN_ROW_COST  # One more row in a pass.
    draft: float = UNKNOWN_DRAFT_COST


class PassCosts:
    """Milliseconds of target passes by width and of draft passes, host time included."""

    def __init__(
        self,
        measured: MeasuredCosts | None = None,
        *,
        drafts_blocks: bool = False,
        settling: int = 0,
        drafts_on_gpu: bool = False,
        max_rollback: int = sys.maxsize,
        usual: UsualCosts | None = None,
    ) -> None:
        """`drafts_blocks`: one draft pass gives all draft tokens.

        `settling`: the passes that cost more when the width changes, because their
        graph is sent to another computer again (1), or is launched kernel by kernel
        before it is captured (2).

        `max_rollback`: the draft tokens of a pass that can be dropped again. The `usual`
        costs hold until a wider pass and a draft pass are timed.
        """
        if usual is None:
            usual = UsualCosts()
        self._row_cost = usual.row
        self._max_rollback = max_rollback
        self.is_measured = measured is not None
        t1 = 1.0
        curve: Mapping[str, float] = {}
        c = None
        if measured is not None:
            t1 = measured.t1_ms
            curve = measured.curve
            c = measured.c
        self._ms_by_width = {1: t1}
        for width, in_passes in curve.items():
            if 0 < int(width) <= MAX_WIDTH:
                self._ms_by_width[int(width)] = in_passes * t1
        self.is_draft_measured = c is not None
        if c is None:
            c = usual.draft
        self.drafts_blocks = drafts_blocks
        self.first_draft_ms = t1 * c
        """The first draft pass of a round, which also catches up with the text."""
        self.draft_ms = self.first_draft_ms
        """One after the first; a block needs none."""
        if drafts_blocks:
            self.draft_ms = 0.0
        self.catch_up_share = _CATCH_UP_SHARE
        if drafts_on_gpu:
            self.catch_up_share = _GPU_CATCH_UP_SHARE
        self._rounds_since_plain = 0
        self._plain_interval = _MIN_PLAIN_INTERVAL
        self._settling = settling
        self._last_width = 0
        self._n_alike = 0
        self.change_ms = _GRAPH_CHANGE_MS if settling > 1 else 0.0
        """Extra time of each of the first `settling` passes of another width."""
        self._interpolate()

    def _interpolate(self) -> None:
        """Times for every width, from those of the measured widths.

        They are linear between measured widths. Beyond the last they rise as from its
        half to it, because kernels take rows by twos, fours and eights: with 8 as the
        last width, as fast as from 4 to 8.
        """
        times = self._ms_by_width
        widths = sorted(self._ms_by_width)
        slope = self._row_cost * times[widths[0]]
        line = [times[widths[0]]] * (widths[0] + 1)
        for low, high in pairwise(widths):
            slope = (times[high] - times[low]) / (high - low)
            line += [times[low] + slope * i for i in range(1, high - low + 1)]
        if (half := widths[-1] // 2) >= widths[0]:
            slope = (line[-1] - line[half]) / (widths[-1] - half)
        slope = max(slope, 0.0)
        if widths[-1] < _CLIFF_WIDTH:
            slope = min(slope, self._row_cost * line[1])
        line += [line[-1] + slope * i for i in range(1, MAX_WIDTH + 1 - widths[-1])]
        self.verify_ms = line
        """Milliseconds of a target pass by width, host time included."""

    @property
    def plain_ms(self) -> float:
        """Milliseconds of a round that drafts nothing."""
        return self.verify_ms[1]

    @property
    def c(self) -> float:
        """Cost of a draft pass in one-token target passes."""
        draft_ms = self.first_draft_ms if self.drafts_blocks else self.draft_ms
        return draft_ms / self.plain_ms

    def start_answer(self) -> None:
        """The last pass was the prompt's, of some other width."""
        self._last_width = 0

    def record_pass(self, width: int, ms: float) -> None:
        """Record the milliseconds of a target pass, host time included."""
        self._n_alike = self._n_alike + 1 if width == self._last_width else 1
        is_dear = self._n_alike <= self._settling
        if not self.is_measured:
            self.is_measured = True
            self._ms_by_width = {width: ms}
            self.draft_ms *= ms
            self.first_draft_ms *= ms
        else:
            # the first says what a change costs, unless a prompt was read before it
            if is_dear:
                is_change = self._n_alike == 1 and self._last_width > 0
                ms = (
                    self._record_change(width, ms)
                    if is_change
                    else self.verify_ms[width]
                )
            self._update_times(width, ms)
        self._last_width = width
        self._interpolate()

    def _record_change(self, width: int, ms: float) -> float:
        """Learn the price of a change of the width; returns the time without it."""
        extra = max(0.0, ms - self.verify_ms[width])
        extra = min(extra, 2 * _MAX_CHANGE * self.change_ms or extra)
        if width <= max(self._ms_by_width):  # an extrapolated time says nothing
            weight = NEW_TIME_WEIGHT if self.change_ms else _NEW_PLAIN_WEIGHT
            self.change_ms += weight * (extra - self.change_ms)
        return ms - min(extra, self.change_ms)

    def _update_times(self, width: int, ms: float) -> None:
        times = self._ms_by_width
        before = self.verify_ms[width]
        if width > 1 and max(times) == 1:
            times[width] = ms
        else:
            is_rare = width == 1 and self._rounds_since_plain >= _MIN_PLAIN_INTERVAL
            is_rare |= width > max(times)
            change = min(max(ms / before, 1 / _MAX_CHANGE), _MAX_CHANGE) - 1
            for w in times:
                times[w] *= 1 + change * _OTHER_WIDTHS_WEIGHT
            weight = _NEW_PLAIN_WEIGHT if is_rare else NEW_TIME_WEIGHT
            times[width] = before * (1 + change * weight)
        if 1 in times:
            times[1] = min(times[1], _MAX_PLAIN_RATIO * times[width])
        self._rounds_since_plain += 1
        if width == 1:
            if self._rounds_since_plain > _MIN_PLAIN_INTERVAL:
                self._plain_interval = min(
                    2 * self._plain_interval, _MAX_PLAIN_INTERVAL
                )
            self._rounds_since_plain = 0

    @property
    def needs_plain_pass(self) -> bool:
        """Whether a plain pass is due: every speed-up is measured against one."""
        return not self.is_measured or self._rounds_since_plain >= self._plain_interval

    def draft_passes_ms(self, n_passes: int) -> float:
        """Milliseconds of consecutive draft passes in one round."""
        return self.first_draft_ms + self.draft_ms * (n_passes - 1) if n_passes else 0.0

    def in_passes(self) -> DraftCosts:
        """All costs, in one-token passes.

        A pass of another width costs a change, and coming back costs one for each of the
        first passes, until their graph is there again.
        """
        plain_ms = self.plain_ms
        return DraftCosts(
            verify=[ms / plain_ms for ms in self.verify_ms],
            first_draft=self.first_draft_ms / plain_ms,
            next_draft=self.draft_ms / plain_ms,
            excursion=(1 + self._settling) * self.change_ms / plain_ms,
            max_rollback=self._max_rollback,
        )

    def record_draft(self, ms: float, n_passes: int) -> None:
        if not self.is_draft_measured:
            self.is_draft_measured = True
            self.first_draft_ms = ms / n_passes
            self.draft_ms = 0.0 if self.drafts_blocks else self.first_draft_ms
            return
        ratio = min(
            max(ms / self.draft_passes_ms(n_passes), 1 / _MAX_CHANGE), _MAX_CHANGE
        )
        self.first_draft_ms *= 1 + (ratio - 1) * NEW_TIME_WEIGHT
        if n_passes > 1:
            self.draft_ms *= 1 + (ratio - 1) * NEW_TIME_WEIGHT

    def verify_curve(self) -> dict[str, float]:
        """The measured verify curve: cost by width, in one-token passes."""
        return {
            str(w): round(t / self.plain_ms, 4)
            for w, t in sorted(self._ms_by_width.items())
        }
