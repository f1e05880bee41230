"""Whether an answer only repeats itself or counts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from localspec.chat.answer import AnswerDelta
from localspec.protocol.events import Round

_TAIL = 2000  # Characters that are looked at.
_MIN_PERIOD_TEXT = 240  # Characters that have to be periodic,
_MIN_REPEATS = 6  # and how often the period has to be in them.


_STEP = 200  # Characters after which it is looked at again.


class RepetitionWatch:
    """Watches one answer while it is written."""

    def __init__(self) -> None:
        self._tail, self._n_new, self._is_found = "", 0, False

    def add_deltas(self, deltas: Iterable[AnswerDelta]) -> bool:
        rounds = (delta.event for delta in deltas if isinstance(delta.event, Round))
        return self.add(
            "".join(token.text for round_ in rounds for token in round_.tokens)
        )

    def add(self, text: str) -> bool:
        """True once, when the answer has begun to repeat itself."""
        self._tail, self._n_new = (self._tail + text)[-_TAIL:], self._n_new + len(text)
        if self._is_found or self._n_new < _STEP:
            return False
        self._n_new, self._is_found = 0, is_repeating(self._tail)
        return self._is_found


def is_repeating(text: str) -> bool:
    """Whether the text ends in a part that is repeated; all numbers count as the same
    one.

    A rule of the same character, as below a heading, is too short to count.
    """
    tail = re.sub(r"\d+", "0", text[-_TAIL:])
    # The shortest period of the reversed tail, by the failure function of Knuth, Morris
    # and Pratt.
    reversed_tail, borders = tail[::-1], [0]
    for i in range(1, len(reversed_tail)):
        border = borders[-1]
        while border and reversed_tail[i] != reversed_tail[border]:
            border = borders[border - 1]
        borders.append(border + (reversed_tail[i] == reversed_tail[border]))
        length, period = i + 1, i + 1 - borders[-1]
        if length >= max(_MIN_PERIOD_TEXT, _MIN_REPEATS * period):
            return True
    return False
