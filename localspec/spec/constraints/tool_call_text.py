"""A grammar that holds only within tool calls: free text, a mark, calls, free text.

Before the mark that opens a call any token may follow. From the mark on, the grammar
allows the call of an offered tool and the text that closes it, and nothing else.

Which token completes a mark depends on the vocabulary, and such a token may hold text
behind the mark. With the mark `<tool_call>`, and a call that begins with a line feed,
after `<tool_call` these tokens may follow:

    `>`     completes the mark: the grammar begins with the next token
    `>\\n`   the grammar has read the line feed already
    `>x`    is forbidden: no call begins so
    `s`     is text, as any token is that does not complete the mark

A layout says where a mark opens a call (`CallLayout.place`): Llama 3's only at the
beginning of an answer, gpt-oss's only in the header of a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.models.chat_template.thinking_tags import AnswerParser
from localspec.spec.constraints.grammars import CallStates
from localspec.spec.protocols import GrammarState, Vocabulary

_NO_TOKENS = np.array([], np.int64)


class MarkEnd(NamedTuple):
    """The first mark that a text completes, and the text behind it."""

    mark: bytes
    rest: bytes


class MarkTokens:
    """The tokens of one vocabulary that complete a mark and hold text behind it."""

    def __init__(
        self,
        marks: Iterable[str],
        n_tokens: int,
        piece: Callable[[int], bytes],
        text_pieces: Sequence[bytes] | None = None,
    ) -> None:
        """`text_pieces`: the texts of all tokens, if they are known already.

        A control token is a whole mark or none of it, so only the texts are searched.
        """
        self._text_pieces = text_pieces
        self.marks = tuple(mark.encode() for mark in marks)
        self.n_tokens = n_tokens
        self.piece = piece
        self._long_tokens: dict[int, bytes] | None = None
        self._rests: dict[bytes, dict[int, MarkEnd]] = {}

    def rests(self, begun: bytes) -> dict[int, MarkEnd]:
        """By token: the mark that it completes, and the text behind it.

        `begun` is the beginning of a mark that is written.
        """
        if begun not in self._rests:
            found: dict[int, MarkEnd] = {}
            for token, piece in self._find_long_tokens().items():
                end = self.find_end(begun + piece)
                if end is not None and end.rest:
                    found[token] = end
            self._rests[begun] = found
        return self._rests[begun]

    def _find_long_tokens(self) -> dict[int, bytes]:
        """The tokens with the last character of a mark, and something behind it."""
        if self._long_tokens is None:
            pieces = self._text_pieces
            if pieces is None:
                pieces = [self.piece(token) for token in range(self.n_tokens)]
            last_bytes = b"".join({mark[-1:] for mark in self.marks})
            has_more = re.compile(
                b"[" + re.escape(last_bytes) + b"].", re.DOTALL
            ).search
            self._long_tokens = {
                token: piece for token, piece in enumerate(pieces) if has_more(piece)
            }
        return self._long_tokens

    def find_end(self, text: bytes) -> MarkEnd | None:
        """The mark that ends first in a text."""
        first: MarkEnd | None = None
        for mark in self.marks:
            _, found, rest = text.partition(mark)
            if found and (first is None or len(rest) > len(first.rest)):
                first = MarkEnd(mark, rest)
        return first

    def begun(self, text: bytes) -> bytes:
        """The longest end of a text that may begin a mark."""
        longest = b""
        for mark in self.marks:
            for n in range(min(len(text), len(mark) - 1), len(longest), -1):
                if mark.startswith(text[-n:]):
                    longest = text[-n:]
                    break
        return longest

    def may_begin(self, text: bytes) -> bool:
        """Whether a text from its first character on may become a mark."""
        return any(mark.startswith(text) for mark in self.marks)


class CallGrammar:
    """The grammar of calls, and how they begin behind each mark."""

    def __init__(
        self,
        states: CallStates,
        tokens: MarkTokens,
        vocabulary: Vocabulary,
        place: Literal["answer", "start", "header"] = "answer",
    ) -> None:
        self.tokens = tokens
        self.place = place
        self.ends_answer = states.ends_answer
        self._vocabulary = vocabulary
        self._end_token = np.array([vocabulary.eos])
        self._states: dict[MarkEnd, GrammarState | None] = {
            MarkEnd(mark.encode(), b""): state for mark, state in states.by_mark.items()
        }
        self._forbidden: dict[bytes, NDArray[np.int64]] = {}

    def state_behind(self, end: MarkEnd) -> GrammarState | None:
        """The state behind a mark and a text; None if no call begins with this."""
        if end not in self._states:
            self._states[end] = self._read(end)
        return self._states[end]

    def _read(self, end: MarkEnd) -> GrammarState | None:
        tokens = self._vocabulary.tokenize_plain(end.rest)
        if b"".join(map(self._vocabulary.text_piece, tokens)) != end.rest:
            return None  # This tokenizer puts a space in front of a text.
        state = self._states[MarkEnd(end.mark, b"")]
        for token in tokens:
            if state is None or not state.allows(np.array([token]))[0]:
                return None
            state = state.advance(token)
        return state

    def forbidden(self, begun: bytes) -> NDArray[np.int64]:
        """The tokens that complete a mark, and hold what no call begins with."""
        if begun not in self._forbidden:
            wrong = [
                token
                for token, end in self.tokens.rests(begun).items()
                if self.state_behind(end) is None
            ]
            self._forbidden[begun] = np.array(wrong, np.int64)
        return self._forbidden[begun]

    def is_complete(self, state: GrammarState) -> bool:
        """Whether a call has been written to its end: then an answer may end, too."""
        return bool(state.allows(self._end_token)[0])


class TextBetweenCalls:
    """A `GrammarState` outside of calls, where a token may only not begin a wrong one.

    A mark within the thinking is a part of it.
    """

    def __init__(
        self,
        calls: CallGrammar,
        parser: AnswerParser | None,
        begun: bytes = b"",
        *,
        is_over: bool = False,
    ) -> None:
        """`parser` knows the thinking; `begun` is the beginning of a mark.

        `is_over`: no call follows, as calls begin an answer, and this one has begun.
        """
        self._calls = calls
        self._parser = parser
        self._begun = begun
        self._is_over = is_over
        self._forbidden = _NO_TOKENS
        if not is_over and self._may_open(parser):
            self._forbidden = calls.forbidden(begun)

    def _may_open(self, parser: AnswerParser | None) -> bool:
        """Whether a mark opens a call where the parser is."""
        if self._calls.place == "header":
            return parser is not None and parser.kind == "header"
        # What may become a header becomes a mark of Kimi K3: `<|open|>tools<|sep|>`.
        return parser is None or parser.kind in ("answer", "header")

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
        if self._is_over:
            return self
        tokens = self._calls.tokens
        piece = tokens.piece(token)
        parser = self._parser
        if parser is not None:
            was_thinking = parser.kind == "thinking"
            parser = parser.fork()
            parser.feed(piece.decode("latin-1"))
            # A token that ends the thinking begins no mark.
            if was_thinking or not self._may_open(parser):
                return TextBetweenCalls(self._calls, parser)

        text = self._begun + piece
        if self._calls.place == "start":
            text = text.lstrip()
        end = tokens.find_end(text)
        if end is not None and self._is_in_place(text, end):
            state = self._calls.state_behind(end)
            if state is not None:
                return _enter_call(self._calls, parser, state)
        if self._calls.place == "start":
            may_think = parser is not None and parser.may_think
            is_over = not may_think and not tokens.may_begin(text)
            return TextBetweenCalls(self._calls, parser, text, is_over=is_over)
        return TextBetweenCalls(self._calls, parser, tokens.begun(text))

    def _is_in_place(self, text: bytes, end: MarkEnd) -> bool:
        return self._calls.place != "start" or text.startswith(end.mark)


class ToolCallText:
    """A `GrammarState` within a call; behind its closing mark, text is free again.

    Where the closing mark is the end of the answer, nothing else follows.
    """

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
        parser = self._parser
        if parser is not None and self._calls.place == "header":
            # The call is a message, which the parser has to see end.
            parser = parser.fork()
            parser.feed(self._calls.tokens.piece(token).decode("latin-1"))
        if not self._grammar.allows(np.array([token]))[0]:
            return TextBetweenCalls(self._calls, parser)
        return _enter_call(self._calls, parser, self._grammar.advance(token))


def _enter_call(
    calls: CallGrammar, parser: AnswerParser | None, grammar: GrammarState
) -> GrammarState:
    """The state within a call, or behind it if it is complete."""
    if calls.is_complete(grammar) and not calls.ends_answer:
        is_over = calls.place == "start"
        return TextBetweenCalls(calls, parser, is_over=is_over)
    return ToolCallText(calls, parser, grammar)
