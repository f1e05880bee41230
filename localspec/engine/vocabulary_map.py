"""Maps between a target's and a draft's tokens when their vocabularies differ."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.lazy_dataclass import dataclass
from localspec.models.gguf.tokenizer import TokenBytes

_ANCHOR = b"\n"
"""Text that no later text merges with, for tokenizers that add a space before the first word."""

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SpelledVocabulary:
    """A vocabulary whose tokens are bytes, and its tokenizer."""

    tokens: TokenBytes
    tokenize: Callable[[bytes], list[int]]
    """Tokens of a plain text: neither BOS nor special tokens."""
    bos: tuple[int, ...] = ()  # The tokens before every text: BOS, if the model uses one.
    eog: tuple[int, ...] = ()  # The tokens that end a text.

    def join(self, tokens: Sequence[int]) -> bytes:
        return b"".join([self.tokens.pieces[token] for token in tokens])

    def spell(self, text: bytes) -> list[int]:
        """Tokens that stand for exactly these bytes; none if the tokenizer changes them."""
        spelled = self.tokenize(text)
        if self.join(spelled) == text:
            return spelled
        spelled = self.tokenize(_ANCHOR + text)
        begin = b""
        for i, token in enumerate(spelled):
            if len(begin) > len(_ANCHOR):
                break
            begin += self.tokens.pieces[token]
            if begin.endswith(_ANCHOR) and self.join(spelled[i + 1 :]) == text:
                return spelled[i + 1 :]
        return []


class VocabularyMap:
    """`shared` tokens stand for the same bytes in both; control and end tokens are never shared."""

    def __init__(
        self, target: SpelledVocabulary, draft: SpelledVocabulary, n_target: int | None = None
    ) -> None:
        """`n_target`: width of the target's rows of logits; tokens beyond are not shared."""
        self.target, self.draft = target, draft
        n_target = len(target.tokens.pieces) if n_target is None else n_target
        shared = [
            (token, other)
            for piece, token in draft.tokens.ids.items()
            if (other := target.tokens.ids.get(piece, n_target)) < n_target
        ]
        pairs = np.array(shared, np.int64).reshape(-1, 2)
        self.shared_draft_ids, self.shared_target_ids = pairs[:, 0].copy(), pairs[:, 1].copy()
        self.n_target = n_target
        self.to_draft = dict(
            zip(self.shared_target_ids.tolist(), self.shared_draft_ids.tolist(), strict=True)
        )
        self._first_target: Ids = np.full(len(draft.tokens.pieces), -1, np.int64)
        self._first_target[self.shared_draft_ids] = self.shared_target_ids
        self._first_target[list(draft.eog)] = target.eog[0] if target.eog else 0
        self._target_tokens = {draft: [target] for draft, target in shared}
        self._sorted_pieces = sorted(draft.tokens.ids)
        ids = [draft.tokens.ids[piece] for piece in self._sorted_pieces]
        self._sorted_ids: Ids = np.array(ids, np.int64)

    def first_target_tokens(self, draft_tokens: Ids) -> Ids:
        """For each draft token the target's token that its bytes begin with."""
        first = self._first_target[draft_tokens]
        if not (first < 0).any():
            return first
        for token in draft_tokens[first < 0].tolist():
            self._first_target[token] = next(iter(self.target_tokens(token)), 0)
        return self._first_target[draft_tokens]

    def target_tokens(self, draft_token: int) -> Sequence[int]:
        """The target's tokens for the bytes of one draft token; none if they are no text alone."""
        spelled = self._target_tokens.get(draft_token)
        if spelled is None:
            piece = self.draft.tokens.pieces[draft_token]
            spelled = self.target.spell(piece) if _is_text(piece) else []
            self._target_tokens[draft_token] = spelled
        return spelled

    def longer_draft_tokens(self, piece: bytes) -> Ids:
        """The draft's tokens that begin with `piece` and continue."""
        pieces = self._sorted_pieces
        start = bisect_left(pieces, piece + b"\0")
        after = piece.rstrip(b"\xff")
        end = bisect_left(pieces, after[:-1] + bytes([after[-1] + 1])) if after else len(pieces)
        return self._sorted_ids[start:end]


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return bool(piece)
