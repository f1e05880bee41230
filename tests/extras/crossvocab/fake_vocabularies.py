"""Tiny vocabularies that spell the same letters differently, and a drafter across them."""

from collections.abc import Callable, Sequence

import numpy as np

from localspec.extras.crossvocab.drafter import (
    CrossVocabularyDrafter,
    SpelledVocabulary,
    VocabularyMap,
)
from localspec.extras.crossvocab.token_bytes import TokenBytes
from localspec.protocol.wire import SamplingParams
from localspec.spec.drafters import DrafterInputs
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.protocols import Logits, Verifier
from tests.support.fake_models import FakeModel

TARGET = ("a", "b", "ab", "c", "ca", "bc")
DRAFT = ("b", "a", "c", "cab", "aa", "", "bb")
"""Shares a, b and c; its token 5 ends a text."""
PERMUTED = ("d", "a", "f", "b", "e", "c")
"""The letters a to f, in another order."""


def vocabulary(pieces: Sequence[str]) -> SpelledVocabulary:
    """Its tokenizer takes the longest match."""
    spelled = [piece.encode() for piece in pieces]
    tokens = TokenBytes(spelled, {piece: i for i, piece in enumerate(spelled) if piece})
    silent = tuple(i for i, piece in enumerate(spelled) if not piece)

    def tokenize(text: bytes) -> list[int]:
        ids = []
        while text:
            matches = [n for n in range(1, len(text) + 1) if text[:n] in tokens.ids]
            if matches:
                longest = max(matches)
                ids.append(tokens.ids[text[:longest]])
                text = text[longest:]
            else:
                text = text[1:]
        return ids

    return SpelledVocabulary(tokens, tokenize, (), silent)


def crossed(
    model: FakeModel | PrefixCache,
    verifier: Verifier,
    sampling: SamplingParams,
    start: int,
    pieces: tuple[Sequence[str], Sequence[str]] = (TARGET, DRAFT),
    is_end: Callable[[int], bool] = lambda token: False,
) -> CrossVocabularyDrafter:
    """The production's drafter over a fake draft model.

    `pieces` are those of the target and the draft.
    """
    cache = model if isinstance(model, PrefixCache) else PrefixCache(model)
    target_pieces, draft_pieces = pieces
    vocabularies = VocabularyMap(vocabulary(target_pieces), vocabulary(draft_pieces))
    inputs = DrafterInputs(
        draft_cache=cache,
        verifier=verifier,
        sampling=sampling,
        prompt_length=start,
        n_vocab=len(target_pieces),
        is_eog=is_end,
        prepared=vocabularies,
    )
    return CrossVocabularyDrafter(cache, vocabularies, inputs)


class PermutedModel(FakeModel):
    """The same model with permuted token ids.

    Its letters are those of PERMUTED; the letters of `model` are a to f.
    """

    def __init__(self, model: FakeModel) -> None:
        super().__init__(model.n_vocab, model.n_ctx, model.n_batch)
        self._model = model
        self._their_ids = np.array(["abcdef".index(letter) for letter in PERMUTED])
        """The token of `model` for each of this one's."""

    def row(self, past: Sequence[int]) -> Logits:
        their_past = [int(self._their_ids[token]) for token in past]
        their_row = self._model.row(their_past)
        row: Logits = their_row[self._their_ids]
        return row
