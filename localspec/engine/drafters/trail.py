"""What a target has read and its head has not: tokens, and the states that wait for them.

A head's row is made of a token and the target's state before it, so the row of the newest token
can only be made once that token is known: one row always waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.engine.protocols import States


class Trail:
    """The target's text, the head's last row, and states of the text's end; no more than `room`.

    Rows are counted by the place of their token in the text; `first` is that of the first row: 1,
    as nothing stands before the text's beginning, or 0 for a head that puts zeros there.
    """

    def __init__(self, room: int, width: int, first: int = 1) -> None:
        self._states = np.zeros((room + 1, width), np.float32)
        self._none = first - 1
        self.text: list[int] = []
        self._restart()

    def _restart(self) -> None:
        self._states[0] = 0.0
        self._start = self._none
        """Place of the first state that is kept; never beyond `taken`, nor the text's end."""
        self.taken = self._none
        """Place of the head's last row."""
        self._ahead = -1
        """The token of that row, where the text does not hold it."""

    @property
    def n_taken(self) -> int:
        """Rows that the head has."""
        return self.taken - self._none

    def fits(self, n: int) -> bool:
        """Whether n more states have room."""
        return len(self.text) - self._start + n <= len(self._states)

    def add(self, tokens: Sequence[int], states: States) -> None:
        """The target has read on."""
        end = len(self.text)
        # Without the state before it a wrong row stays: one, in a case that hardly occurs.
        if self.taken == end and tokens[0] != self._ahead and self._start < end:
            self.taken = end - 1
        at = end - self._start
        self._states[at : at + len(tokens)] = states
        self.text.extend(tokens)

    def keeps(self, n_past: int) -> int:
        """As `Follower.keeps`: the state before the next token must be there, or be read again."""
        return n_past if n_past == 0 or n_past > self._start else n_past - 1

    def forget(self, n_past: int) -> None:
        """The target holds the first n_past tokens, no more."""
        if n_past >= len(self.text):
            return
        if n_past == 0:
            self._restart()
        elif self.taken >= n_past:
            self.taken, self._ahead = n_past, self.text[n_past]
        del self.text[n_past:]
        self._start = min(self._start, n_past)

    def state(self) -> States | None:
        """A copy of the newest token's state."""
        last = len(self.text) - 1
        if last < max(0, self._start):
            return None
        state: States = self._states[last - self._start].copy()
        return state

    def returned(self, state: States) -> None:
        """As `Follower.returned`, after `forget`."""
        last = len(self.text) - 1
        if self._start > last >= 0:
            self._states[0], self._start = state, last

    def reopen(self) -> bool:
        """Make the newest token's row wait again; False where no state is kept for it."""
        last = len(self.text) - 1
        if not self._start <= min(self.taken, last):
            return False
        self.taken = min(self.taken, last)
        return True

    def waiting(self, following: int) -> tuple[list[int], States]:
        """Tokens of the rows to be made, `following` the last, and the state before each; a view.

        `following` is the text's next token.
        """
        at = self.taken - self._start
        states = self._states[at : len(self.text) - self._start]
        return [*self.text[self.taken + 1 :], following], states

    def took(self, following: int) -> None:
        """All that waited has its row."""
        self.taken, self._ahead = len(self.text), following

    def drop(self) -> None:
        """Keep the last state alone, when all before it are taken."""
        last = len(self.text) - 1
        self._states[0] = self._states[last - self._start]
        self._start = last
