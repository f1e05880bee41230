"""What comes before the body of a constrained answer: free thinking, and headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from localspec.models.chat_template.thinking_tags import AnswerParser
from localspec.spec.protocols import GrammarState

_NO_TOKENS = np.array([], np.int64)
_NAME_BEHIND_SIGN = re.compile(r"=[\w.-]+\Z", re.ASCII)
_STORED_SPACES = {ord("Ġ"): " ", ord("▁"): " "}
"""How vocabularies write a space, the one of BPE and the one of SentencePiece."""


class HeaderTokens:
    """The tokens of one vocabulary that headers of messages consist of."""

    def __init__(
        self,
        n_tokens: int,
        piece: Callable[[int], bytes],
        stored_text: Callable[[int], bytes] | None = None,
    ) -> None:
        """`stored_text` is a token's text in the model's file, which is faster to read."""
        self._n_tokens = n_tokens
        self._piece = piece
        self._stored_text = stored_text
        self._tokens_by_text: dict[tuple[str, ...], dict[str, list[int]]] = {}
        self._following: dict[tuple[str, tuple[str, ...]], NDArray[np.int64]] = {}

    def text(self, token: int) -> str:
        """A token's bytes as Latin-1: a token may hold a part of a character."""
        return self._piece(token).decode("latin-1")

    def following(self, begun: str, headers: tuple[str, ...]) -> NDArray[np.int64]:
        """The tokens with which a header continues from `begun` to one of `headers`.

        The last token of a header holds no text of the message behind it. A header that
        ends in `to=` goes on with a name, of which the token may hold a part; none
        follow within the name.
        """
        key = (begun, headers)
        known = self._following.get(key)
        if known is not None:
            return known
        rests = [header[len(begun) :] for header in headers if header.startswith(begun)]
        if not rests:
            return _NO_TOKENS
        tokens_by_text = self._index(headers)
        found: set[int] = set()
        for rest in rests:
            for text in self._beginnings(rest, tokens_by_text):
                found.update(tokens_by_text.get(text, ()))
        self._following[key] = np.array(sorted(found), np.int64)
        return self._following[key]

    @staticmethod
    def _beginnings(rest: str, tokens_by_text: dict[str, list[int]]) -> Iterator[str]:
        """The texts that the next token may have, given the rest of a header.

        A marker such as `<|channel|>` is not split if it is a token.
        """
        shortest = 1
        marker = rest[: rest.find("|>") + 2]
        if rest.startswith("<|") and marker in tokens_by_text:
            shortest = len(marker)
        for length in range(shortest, len(rest) + 1):
            yield rest[:length]

    def _index(self, headers: tuple[str, ...]) -> dict[str, list[int]]:
        """The tokens by their text, for all texts that occur in the headers."""
        known = self._tokens_by_text.get(headers)
        if known is not None:
            return known
        wanted: set[str] = set()
        for header in headers:
            for begin in range(len(header)):
                ends = range(begin + 1, len(header) + 1)
                wanted.update(header[begin:end] for end in ends)
        found: dict[str, list[int]] = {}
        for token in range(self._n_tokens):
            if self._stored_text is not None:
                stored = self._stored_text(token).decode("utf-8", "replace")
                if _without_name(stored.translate(_STORED_SPACES)) not in wanted:
                    continue
            text = _without_name(self.text(token))
            if text in wanted:
                found.setdefault(text, []).append(token)
        self._tokens_by_text[headers] = found
        return found


def _without_name(text: str) -> str:
    """The text of a token without the part of a tool's name that it may hold."""
    return _NAME_BEHIND_SIGN.sub("=", text) if "=" in text else text


class AnswerStart:
    """A `GrammarState` before an answer's body: `grammar` begins where the parser says.

    Thinking and tool calls are free. Between messages there are two ways to go on: a
    header that the format documents, or, where a model writes none, the answer itself.
    So no token of the body comes before the grammar, also where a model would write a
    wrong header.
    """

    def __init__(
        self,
        grammar: GrammarState,
        parser: AnswerParser,
        tokens: HeaderTokens,
        *,
        has_tools: bool,
    ) -> None:
        """`has_tools`: a message before a call is no answer; a header may name a tool."""
        self._grammar = grammar
        self._parser = parser
        self._tokens = tokens
        self._has_tools = has_tools
        self._is_between_messages = parser.kind == "header" and not parser.unread_header
        self._header_tokens = _NO_TOKENS
        if parser.kind == "header":
            headers = parser.expected_headers(has_tools=has_tools)
            self._header_tokens = tokens.following(parser.unread_header, headers)

    @property
    def is_free(self) -> bool:
        """Whether any token may follow.

        That is so in a header too, from a tool's name or a mistake on.
        """
        return not self._is_between_messages and not len(self._header_tokens)

    def allows(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The method of `GrammarState`; not called where any token may follow."""
        allowed = np.isin(tokens, self._header_tokens)
        if self._is_between_messages:
            allowed |= self._grammar.allows(tokens)
        return allowed

    def allowed_tokens(self) -> NDArray[np.int64]:
        """The method of `GrammarState`; not called where any token may follow."""
        if self._is_between_messages:
            return np.union1d(self._header_tokens, self._grammar.allowed_tokens())
        return self._header_tokens

    def forced_tokens(self) -> list[int]:
        return []

    def advance(self, token: int) -> GrammarState:
        """The next state, also after a token that is not allowed.

        Only the parser decides what the token is.
        """
        if self._begins_answer(token):
            return self._grammar.advance(token)
        parser = self._parser.fork()
        parser.feed(self._tokens.text(token))
        if parser.kind == "answer" or (
            parser.kind == "preamble" and not self._has_tools
        ):
            return self._grammar
        return AnswerStart(
            self._grammar, parser, self._tokens, has_tools=self._has_tools
        )

    def _begins_answer(self, token: int) -> bool:
        """Whether a token between messages is the first of an answer without a header."""
        if not self._is_between_messages or token in self._header_tokens:
            return False
        return bool(self._grammar.allows(np.array([token]))[0])
