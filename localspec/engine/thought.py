"""The thinking part of an answer, followed token by token, and ended where it takes too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.models.chat.thinking import Markers


class Thought:
    """Whether the answer is within its thinking, and what to write where that is to end.

    `limit` is how many tokens it may take, None: as many as it likes.
    """

    def __init__(
        self,
        markers: Markers | None,
        *,
        inside: bool,
        limit: int | None,
        piece: Callable[[int], bytes],
        closing: Sequence[int],
    ) -> None:
        """`inside`: whether the prompt ends within a thinking part; `closing` ends one."""
        self._open, self._close = (one.strip().encode() for one in markers or ("", ""))
        self.inside = inside and bool(self._close)
        self.begun = self.inside
        """Whether there is or was any."""
        self._over = not self._close
        """Whether thinking can neither begin nor go on."""
        self._limit, self._piece, self._closing = limit, piece, list(closing)
        self._seen = b""
        self.tokens = 0
        """Of thinking, markers left out."""

    def hear(self, tokens: Sequence[int]) -> int:
        """Take in tokens of the answer up to the last that is within the limit; how many."""
        for i, token in enumerate(tokens):
            self._take(self._piece(token))
            if self._due:
                return i + 1
        return len(tokens)

    def recall(self, tokens: Sequence[int]) -> None:
        """Take in tokens that are written, whatever the limit."""
        for token in tokens:
            self._take(self._piece(token))

    def closing(self) -> list[int]:
        """What is to be written now, which ends the thinking; nothing where it may go on."""
        if not self._due:
            return []
        self.inside, self._over = False, True
        return self._closing

    @property
    def _due(self) -> bool:
        return self.inside and self._limit is not None and self.tokens >= self._limit

    def _take(self, piece: bytes) -> None:
        if self._over:
            return
        self._seen += piece
        if self.inside:
            if self._close in self._seen:
                self.inside, self._over = False, True
                return
            self.tokens += 1
            self._seen = self._seen[-len(self._close) :]
        elif self._seen.lstrip().startswith(self._open):
            self.inside = self.begun = True
            self._seen = b""
        elif not self._open.startswith(self._seen.lstrip()[: len(self._open)]):
            self._over = True  # something else was said: no more thinking
