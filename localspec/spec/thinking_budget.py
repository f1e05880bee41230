"""Finds the thinking part of an answer token by token, and closes it at its budget."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from localspec.models.chat_template.thinking_tags import (
    AnswerParser,
    ThinkingTags,
    make_parser,
)
from localspec.models.chat_template.tool_calls import ToolCallParser

_MAX_CALL_TOKENS = 2048
"""A tool call within the thinking may exceed the budget by so many tokens."""


def make_byte_parser(tags: ThinkingTags | None, *, is_open: bool) -> AnswerParser:
    """The parser of an answer's tokens.

    `is_open` says that the prompt ends inside a thinking part. A token may hold a part
    of a character, so bytes are parsed as the text of Latin-1.
    """
    opening, closing = tags or ("", "")
    return make_parser((_to_latin_1(opening), _to_latin_1(closing)), is_open)


def _to_latin_1(tag: str) -> str:
    return tag.strip().encode().decode("latin-1")


class ThinkingBudget:
    """Knows whether an answer is thinking, and when its budget is used up.

    `limit` is the maximum number of thinking tokens; None is unlimited. A tool call that
    has begun within the thinking is not cut: of a budget of 8, with a call from the 6th
    thinking token to the 20th, the thinking is closed after the 20th.
    """

    def __init__(
        self,
        markers: ThinkingTags | None,
        *,
        is_open: bool,
        limit: int | None,
        piece: Callable[[int], bytes],
        closing_tokens: Sequence[int],
        calls: ToolCallParser | None = None,
    ) -> None:
        """`is_open` says that the prompt ends inside a thinking part.

        `closing_tokens` end one. `calls` reads tool calls in it, if there are tools.
        """
        self._parser = make_byte_parser(markers, is_open=is_open)
        self._limit = limit
        self._piece = piece
        self._closing_tokens = list(closing_tokens)
        self._calls = calls
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.starts_open = self._parser.in_thinking
        self.is_open = self.starts_open
        # Whether the answer has a thinking part, open or closed.
        self.has_thinking = self.is_open
        # Whether no thinking can follow.
        self._is_finished = not self._parser.may_think
        self.n_tokens = 0  # Thinking tokens so far, without the tags.

    def consume_tokens(self, tokens: Sequence[int]) -> int:
        """Process tokens until the budget is used up; return how many were processed."""
        if self._is_finished:
            return len(tokens)
        for i, token in enumerate(tokens):
            self._consume_piece(self._piece(token))
            if self._is_exhausted:
                return i + 1
        return len(tokens)

    def restore_tokens(self, tokens: Sequence[int]) -> None:
        """Process tokens of a resumed answer, ignoring the limit."""
        for token in tokens:
            self._consume_piece(self._piece(token))

    def take_closing_tokens(self) -> list[int]:
        """Close the thinking part if its budget is used up.

        Returns the tokens that end it, or none.
        """
        if not self._is_exhausted:
            return []
        self.is_open = False
        self._is_finished = True
        return self._closing_tokens

    @property
    def _is_exhausted(self) -> bool:
        if not self.is_open or self._limit is None or self.n_tokens < self._limit:
            return False
        is_late = self.n_tokens >= self._limit + _MAX_CALL_TOKENS
        return is_late or not self._may_be_in_call()

    def _may_be_in_call(self) -> bool:
        """Whether the text ends in a call, or in a beginning of its mark or of the tag."""
        if self._calls is None:
            return False
        return self._calls.is_in_call or bool(self._parser.unread)

    def _consume_piece(self, piece: bytes) -> None:
        if self._is_finished:
            return
        was_open = self.is_open
        parts = self._parser.feed(piece.decode("latin-1"))
        if self._calls is not None:
            for part in parts:
                if part.is_thinking:
                    text = self._decoder.decode(part.text.encode("latin-1"))
                    self._calls.feed(text)
        self.is_open = self._parser.in_thinking
        if self.is_open:
            self.has_thinking = True
        if was_open and self.is_open:
            self.n_tokens += 1
        has_closed = was_open and not self.is_open
        self._is_finished = has_closed or not self._parser.may_think
