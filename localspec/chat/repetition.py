"""Whether an answer only repeats itself or counts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from localspec.chat.answer import AnswerDelta
from localspec.protocol.events import Round

_TAIL = 2000  # Characters that are looked at.
_STEP = 200  # Characters after which they are looked at again.
_MIN_PERIOD_TEXT = 240  # Characters that have to be periodic.
_MIN_REPEATS = 6  # How often the period has to be in them.


class RepetitionWatch:
    """Watches one answer while it is written."""

    def __init__(self) -> None:
        self._tail = ""
        self._n_new = 0  # Characters since the tail was looked at.
        self._is_found = False

    def add_deltas(self, deltas: Iterable[AnswerDelta]) -> bool:
        """As `add`, of the tokens in the deltas."""
        text = ""
        for delta in deltas:
            if isinstance(delta.event, Round):
                text += "".join(token.text for token in delta.event.tokens)
        return self.add(text)

    def add(self, text: str) -> bool:
        """True once, when the answer has begun to repeat itself."""
        self._tail = (self._tail + text)[-_TAIL:]
        self._n_new += len(text)
        if self._is_found or self._n_new < _STEP:
            return False
        self._n_new = 0
        self._is_found = is_repeating(self._tail)
        return self._is_found


def is_repeating(text: str) -> bool:
    """Whether the text ends in a part that is repeated.

    All numbers count as the same one. A rule of the same character, as below a heading,
    is too short to count.

    A text ends in a repeated part if its reversal begins with one. The period of a
    prefix is its length less that of its longest border, which is both its beginning
    and its end: `abcabcab` has the border `abcab`, so its period is 3. The borders of
    all prefixes are found in linear time by the failure function of Knuth, Morris and
    Pratt.
    """
    tail = re.sub(r"\d+", "0", text[-_TAIL:])[::-1]
    borders = [0]  # Of the prefix that ends at each character.
    for i in range(1, len(tail)):
        border = borders[-1]
        while border and tail[i] != tail[border]:
            border = borders[border - 1]
        if tail[i] == tail[border]:
            border += 1
        borders.append(border)
        length = i + 1
        period = length - border
        if length >= max(_MIN_PERIOD_TEXT, _MIN_REPEATS * period):
            return True
    return False
