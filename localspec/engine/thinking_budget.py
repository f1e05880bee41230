"""The thinking part of an answer, followed token by token, and ended where it takes too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.models.chat_template.thinking_tags import ThinkingTags


class ThinkingBudget:
    """Whether the answer is within its thinking, and what to write where that is to end.

    `limit` is how many tokens it may take, None: as many as it likes.
    """

    def __init__(
        self,
        markers: ThinkingTags | None,
        *,
        is_open: bool,
        limit: int | None,
        piece: Callable[[int], bytes],
        closing_tokens: Sequence[int],
    ) -> None:
        """`inside`: whether the prompt ends within a thinking part; `closing` ends one."""
        self._open, self._close = (one.strip().encode() for one in markers or ("", ""))
        self.is_open = is_open and bool(self._close)
        self.has_thinking = self.is_open
        """Whether there is or was any."""
        self._is_finished = not self._close
        """Whether thinking can neither begin nor go on."""
        self._limit, self._piece, self._closing_tokens = limit, piece, list(closing_tokens)
        self._buffer = b""
        self.n_tokens = 0
        """Of thinking, markers left out."""

    def consume_tokens(self, tokens: Sequence[int]) -> int:
        """Take in tokens of the answer up to the last that is within the limit; how many."""
        for i, token in enumerate(tokens):
            self._consume_piece(self._piece(token))
            if self._is_exhausted:
                return i + 1
        return len(tokens)

    def restore_tokens(self, tokens: Sequence[int]) -> None:
        """Take in tokens that are written, whatever the limit."""
        for token in tokens:
            self._consume_piece(self._piece(token))

    def take_closing_tokens(self) -> list[int]:
        """What is to be written now, which ends the thinking; nothing where it may go on."""
        if not self._is_exhausted:
            return []
        self.is_open, self._is_finished = False, True
        return self._closing_tokens

    @property
    def _is_exhausted(self) -> bool:
        return self.is_open and self._limit is not None and self.n_tokens >= self._limit

    def _consume_piece(self, piece: bytes) -> None:
        if self._is_finished:
            return
        self._buffer += piece
        if self.is_open:
            if self._close in self._buffer:
                self.is_open, self._is_finished = False, True
                return
            self.n_tokens += 1
            self._buffer = self._buffer[-len(self._close) :]
        elif self._buffer.lstrip().startswith(self._open):
            self.is_open = self.has_thinking = True
            self._buffer = b""
        elif not self._open.startswith(self._buffer.lstrip()[: len(self._open)]):
            self._is_finished = True  # something else was said: no more thinking
