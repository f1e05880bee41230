"""A grammar that holds only within tool calls: free text, a mark, one call, free text.

A model whose template has no format for tools is told to write `<tool_call>`, an object
and `</tool_call>`. Before the mark any token may follow. From the mark on, the grammar
allows a call of an offered tool and the text that closes it, and nothing else.

Which token completes the mark depends on the vocabulary, and such a token may hold text
behind the mark. With the mark `<tool_call>`, and a call that begins with a line feed,
after `<tool_call` these tokens may follow:

    `>`     completes the mark: the grammar begins with the next token
    `>\\n`   the grammar has read the line feed already
    `>x`    is forbidden: no call begins so
    `s`     is text, as any token is that does not complete the mark
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from localspec.models.chat_template.thinking_tags import AnswerParser
from localspec.spec.protocols import GrammarState, Vocabulary


class MarkTokens:
    """The tokens of one vocabulary that complete a mark and hold text behind it."""

    def __init__(self, mark: str, n_tokens: int, piece: Callable[[int], bytes]) -> None:
        """The first character of `mark` occurs only once in it."""
        self.mark = mark.encode()
        self.n_tokens = n_tokens
        self.piece = piece
        self._rests: list[dict[int, bytes]] | None = None

    def rests(self, n_begun: int) -> dict[int, bytes]:
        """By token: the text behind the mark, of which `n_begun` bytes are written."""
        if self._rests is None:
            # It takes some 0.1 s, so it waits for the first request with tools.
            self._rests = self._find_rests()
        return self._rests[n_begun]

    def _find_rests(self) -> list[dict[int, bytes]]:
        found: list[dict[int, bytes]] = [{} for _ in self.mark]
        for token in range(self.n_tokens):
            piece = self.piece(token)
            if self.mark[-1] not in piece:
                continue
            for n_begun in range(len(self.mark)):
                _, mark, rest = (self.mark[:n_begun] + piece).partition(self.mark)
                if mark and rest:
                    found[n_begun][token] = rest
        return found

    def n_begun(self, text: bytes) -> int:
        """How many bytes at the end of a text may begin the mark."""
        for n in range(min(len(text), len(self.mark) - 1), 0, -1):
            if self.mark.startswith(text[-n:]):
                return n
        return 0


class CallGrammar:
    """The grammar of one call, and how it begins behind the mark."""

    def __init__(
        self, start: GrammarState, tokens: MarkTokens, vocabulary: Vocabulary
    ) -> None:
        """`start` is the state behind the mark."""
        self.start = start
        self.tokens = tokens
        self._vocabulary = vocabulary
        self._end_token = np.array([vocabulary.eos])
        self._states: dict[bytes, GrammarState | None] = {b"": start}
        self._forbidden: dict[int, NDArray[np.int64]] = {}

    def state_behind(self, rest: bytes) -> GrammarState | None:
        """The state behind the mark and a text; None if no call begins with this."""
        if rest not in self._states:
            self._states[rest] = self._read(rest)
        return self._states[rest]

    def _read(self, rest: bytes) -> GrammarState | None:
        tokens = self._vocabulary.tokenize_plain(rest)
        if b"".join(map(self._vocabulary.text_piece, tokens)) != rest:
            return None  # This tokenizer puts a space in front of a text.
        state = self.start
        for token in tokens:
            if not state.allows(np.array([token]))[0]:
                return None
            state = state.advance(token)
        return state

    def forbidden(self, n_begun: int) -> NDArray[np.int64]:
        """The tokens that complete the mark, and hold what no call begins with."""
        if n_begun not in self._forbidden:
            wrong = [
                token
                for token, rest in self.tokens.rests(n_begun).items()
                if self.state_behind(rest) is None
            ]
            self._forbidden[n_begun] = np.array(wrong, np.int64)
        return self._forbidden[n_begun]

    def is_complete(self, state: GrammarState) -> bool:
        """Whether a call has been written to its end: then an answer may end, too."""
        return bool(state.allows(self._end_token)[0])


class TextBetweenCalls:
    """A `GrammarState` outside of calls, where a token may only not begin a wrong one.

    A mark within the thinking is a part of it.
    """

    def __init__(
        self, calls: CallGrammar, parser: AnswerParser | None, begun: bytes = b""
    ) -> None:
        """`parser` knows the thinking; `begun` is the beginning of a mark."""
        self._calls = calls
        self._parser = parser
        self._begun = begun
        self._forbidden = calls.forbidden(len(begun))

    @property
    def is_free(self) -> bool:
        """Whether any token may follow."""
        return not len(self._forbidden)

    def allows(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.isin(tokens, self._forbidden, invert=True)

    def allowed_tokens(self) -> NDArray[np.int64]:
        every = np.arange(self._calls.tokens.n_tokens)
        return np.setdiff1d(every, self._forbidden)

    def forced_tokens(self) -> list[int]:
        return []

    def advance(self, token: int) -> GrammarState:
        tokens = self._calls.tokens
        piece = tokens.piece(token)
        parser = self._parser
        if parser is not None:
            parser = parser.fork()
            parser.feed(piece.decode("latin-1"))
            if parser.kind != "answer":
                return TextBetweenCalls(self._calls, parser)

        text = self._begun + piece
        _, mark, rest = text.partition(tokens.mark)
        if mark:
            state = self._calls.state_behind(rest)
            if state is not None:
                return ToolCallText(self._calls, parser, state)
        n_begun = tokens.n_begun(text)
        return TextBetweenCalls(self._calls, parser, text[len(text) - n_begun :])


class ToolCallText:
    """A `GrammarState` within a call; behind its closing mark, text is free again."""

    def __init__(
        self, calls: CallGrammar, parser: AnswerParser | None, grammar: GrammarState
    ) -> None:
        self._calls = calls
        self._parser = parser
        self._grammar = grammar

    def allows(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self._grammar.allows(tokens)

    def allowed_tokens(self) -> NDArray[np.int64]:
        return self._grammar.allowed_tokens()

    def forced_tokens(self) -> list[int]:
        return self._grammar.forced_tokens()

    def advance(self, token: int) -> GrammarState:
        """The next state, also after a token of a given text that is no call."""
        if not self._grammar.allows(np.array([token]))[0]:
            return TextBetweenCalls(self._calls, self._parser)
        grammar = self._grammar.advance(token)
        if self._calls.is_complete(grammar):
            return TextBetweenCalls(self._calls, self._parser)
        return ToolCallText(self._calls, self._parser, grammar)
