"""The tokens of a prompt, with each earlier answer as the model itself wrote it.

A tokenizer writes a text in one way, a model that draws its tokens in any: read back from its
text, an answer would be other tokens than those in memory, and everything from there on would be
read again.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from localspec.protocol.wire import Message


class Vocabulary(Protocol):
    @property
    def n_tokens(self) -> int: ...

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; none for control tokens."""
        ...

    def token_text(self, token: int) -> bytes:
        """How the vocabulary writes a token, a control token too."""
        ...


def spelt(tokens: list[int], said: Sequence[Message], words: Vocabulary) -> list[int]:
    """`tokens` with the answers' own where they stand for the very same text.

    The text stays what it is, byte for byte, and control tokens between the answers stay.  What a
    template changed of an answer is as the tokenizer writes it.
    """
    if not any(message.tokens for message in said):
        return tokens
    text = _Text(tokens, words)
    found: list[int] = []
    done = at = 0
    for message in said:
        content = message.content.encode("utf-8", "replace")
        start = text.whole.find(content.rstrip(), at)
        if start < 0 or not content.strip():
            continue
        at = start + len(content.rstrip())
        first = text.place.get(start)
        if first is None or first < done:
            continue
        own, after = _same(text, start, len(content), _ends(message.tokens, words))
        found += [*tokens[done:first], *message.tokens[:own]]
        done = after if own else first
    return [*found, *tokens[done:]]


class _Text:
    """What tokens say, and at which byte each begins."""

    def __init__(self, tokens: Sequence[int], words: Vocabulary) -> None:
        pieces = [words.piece(token) or words.token_text(token) for token in tokens]
        self.whole = b"".join(pieces)
        self.place: dict[int, int] = {}
        """Of the token that begins at a byte."""
        at = 0
        for i, piece in enumerate(pieces):
            self.place[at] = i
            at += len(piece)
        self.place[at] = len(pieces)


def _ends(own: Sequence[int], words: Vocabulary) -> list[bytes | None]:
    """The text that each token of an answer completes; None where it ends within a character.

    Ends before a token that stands for no text.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found: list[bytes | None] = []
    held = ""
    for token in own:
        piece = words.piece(token) if 0 <= token < words.n_tokens else b""
        if not piece:
            break
        held += decoder.decode(piece)
        if decoder.getstate()[0]:
            found.append(None)
        else:
            found.append(held.encode())
            held = ""
    if found and found[-1] is None:  # the answer was cut there, and its text shows U+FFFD
        found[-1] = (held + decoder.decode(b"", final=True)).encode()
    return found


def _same(text: _Text, start: int, length: int, ends: Sequence[bytes | None]) -> tuple[int, int]:
    """How many of an answer's own tokens say what stands at `start`, and the place after that."""
    own, after, at = 0, -1, start
    for i, piece in enumerate(ends):
        if piece is None:
            continue
        if at + len(piece) > start + length or not text.whole.startswith(piece, at):
            break
        at += len(piece)
        if at in text.place:
            own, after = i + 1, text.place[at]
    return own, after
