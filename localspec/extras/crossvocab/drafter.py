"""Drafter with a draft model of another vocabulary: drafts text, and reads it in target
tokens.

The draft reads the text as it would spell it itself, and each of its tokens is drawn
with the noise of the first target token that its bytes begin with. What it has drafted
is then tokenized by the target's tokenizer (SLEM, arXiv 2502.05202). Verification is
unchanged, so the text is, too.

The verification methods that need the probability of a draft token (`rejection`,
`block`) get drafts from the tokens that both vocabularies share (TLI, same paper): the
others are masked before the distribution is computed, so that it is the one the token
is drawn from.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from localspec.extras.crossvocab.token_bytes import TokenBytes
from localspec.spec.drafters import DrafterInputs
from localspec.spec.drafters.draft_sampler import DraftSampler
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.protocols import Distribution, Draft, DraftStopPolicy, Logits
from localspec.spec.sampling import (
    InvalidLogitsError,
    bind_vocabulary,
    compute_distribution,
    margin_confidence,
    top_token_confidence,
)
from localspec.spec.verifiers import BlockVerifier, RejectionVerifier

_SOURCE = "crossvocab"
# Draft tokens at the end of the text that may be spelled again when it grows.
_MAX_RESPELLED = 64


_ANCHOR = b"\n"
"""Text that no later text merges with, for tokenizers that add a space before the first
word.
"""

Ids = NDArray[np.int64]


class SpelledVocabulary(Struct, frozen=True, eq=False):
    """A vocabulary whose tokens are bytes, and its tokenizer."""

    tokens: TokenBytes
    tokenize: Callable[[bytes], list[int]]
    """Tokens of a plain text: neither BOS nor special tokens."""
    # The tokens before every text: BOS, if the model uses one.
    bos: tuple[int, ...] = ()
    eog: tuple[int, ...] = ()  # The tokens that end a text.

    def join(self, tokens: Sequence[int]) -> bytes:
        return b"".join([self.tokens.pieces[token] for token in tokens])

    def spell(self, text: bytes) -> list[int]:
        """Tokens that stand for exactly these bytes; none if the tokenizer changes
        them.
        """
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
    """`shared` tokens stand for the same bytes in both; control and end tokens are
    never shared.
    """

    def __init__(
        self,
        target: SpelledVocabulary,
        draft: SpelledVocabulary,
        n_target: int | None = None,
    ) -> None:
        """`n_target`: width of the target's rows of logits; tokens beyond are not
        shared.
        """
        self.target, self.draft = target, draft
        n_target = len(target.tokens.pieces) if n_target is None else n_target
        shared = [
            (token, other)
            for piece, token in draft.tokens.ids.items()
            if (other := target.tokens.ids.get(piece, n_target)) < n_target
        ]
        pairs = np.array(shared, np.int64).reshape(-1, 2)
        self.shared_draft_ids, self.shared_target_ids = (
            pairs[:, 0].copy(),
            pairs[:, 1].copy(),
        )
        self.n_target = n_target
        self.to_draft = dict(
            zip(
                self.shared_target_ids.tolist(),
                self.shared_draft_ids.tolist(),
                strict=True,
            )
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
        """The target's tokens for the bytes of one draft token; none if they are no
        text alone.
        """
        spelled = self._target_tokens.get(draft_token)
        if spelled is None:
            piece, spelled = self.draft.tokens.pieces[draft_token], []
            with suppress(UnicodeDecodeError):  # part of a character
                spelled = self.target.spell(piece) if piece.decode() else []
            self._target_tokens[draft_token] = spelled
        return spelled

    def longer_draft_tokens(self, piece: bytes) -> Ids:
        """The draft's tokens that begin with `piece` and continue."""
        pieces = self._sorted_pieces
        start = bisect_left(pieces, piece + b"\0")
        after = piece.rstrip(b"\xff")
        end = (
            bisect_left(pieces, after[:-1] + bytes([after[-1] + 1]))
            if after
            else len(pieces)
        )
        return self._sorted_ids[start:end]


class DraftText:
    """The target's text in the draft's tokens, as the draft's tokenizer would split it.

    When the text grows, the last words are spelled again, from a place where a word
    certainly begins.
    """

    def __init__(
        self,
        vocabularies: VocabularyMap,
        prompt: Sequence[int] | None,
        prompt_length: int,
    ) -> None:
        """`prompt`: draft tokens that replace the target's prompt, if it is a chat."""
        self._target, self._draft = vocabularies.target, vocabularies.draft
        self.tokens = list(self._draft.bos if prompt is None else prompt)
        """The same list throughout."""
        # Tokens that no update has changed since this was last set.
        self.n_unchanged = 0
        self._n_fixed = len(self.tokens)
        self._n_read = 0 if prompt is None else prompt_length
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_lost = False

    def update(self, target_tokens: Sequence[int]) -> bool:
        """Append the new tokens' text. False where it ends within a character, or
        cannot be spelled in the draft's vocabulary.
        """
        pieces = self._target.tokens.pieces
        new = b"".join([pieces[token] for token in target_tokens[self._n_read :]])
        self._n_read = len(target_tokens)
        if text := self._decoder.decode(new).encode():
            self._append(text)
        return (
            not self._is_lost
            and not self._decoder.getstate()[0]
            and len(self.tokens) > 0
        )

    def _append(self, text: bytes) -> None:
        start = self._last_word_start()
        end = self._draft.join(self.tokens[start:]) + text
        spelled = self._draft.spell(end)
        if not spelled:
            spelled, start = self._draft.spell(text), len(self.tokens)
            self._is_lost |= not spelled
        self.n_unchanged = min(self.n_unchanged, start)
        self.tokens[start:] = spelled

    def _last_word_start(self) -> int:
        """Where the last word begins, with the space before it: a letter, a space and a
        letter.
        """
        pieces, tokens = self._draft.tokens.pieces, self.tokens
        earliest = max(self._n_fixed, len(tokens) - _MAX_RESPELLED)
        for i in range(len(tokens) - 1, earliest, -1):
            piece = pieces[tokens[i]]
            if (
                piece[:1] == b" "
                and piece[1:2].isalpha()
                and pieces[tokens[i - 1]][-1:].isalnum()
            ):
                return i
        return earliest


class CrossVocabularyDrafter:
    def __init__(
        self,
        draft_cache: PrefixCache,
        vocabularies: VocabularyMap,
        inputs: DrafterInputs,
    ) -> None:
        self._cache, self._map, self._inputs = draft_cache, vocabularies, inputs
        self._text = DraftText(vocabularies, inputs.draft_prompt, inputs.prompt_length)
        self._needs_distributions = isinstance(
            inputs.verifier, RejectionVerifier | BlockVerifier
        )
        self._sampler = DraftSampler(inputs, _SOURCE, draft_cache.model)
        self._row: Logits = np.full(vocabularies.n_target, -np.inf, np.float32)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        cache, model, text = self._cache, self._cache.model, self._text
        if not text.update(tokens):
            return Draft(reason="the text ends within a character")
        limit = min(limit, model.n_ctx - len(text.tokens))
        if limit <= 0:
            return Draft(reason="the draft model's context is full")
        before = model.decode_seconds
        cache.rewind_to(text.tokens, text.n_unchanged)
        text.n_unchanged = len(text.tokens)
        for _ in cache.prefill_until(
            text.tokens, model.n_batch, self._inputs.cancelled
        ):
            pass
        if self._inputs.cancelled():
            return Draft()
        if self._needs_distributions:
            return self._sampler.sample_draft(
                tokens, limit, stop_policy, self._next_shared_logits, since=before
            )
        index = len(tokens) - self._inputs.prompt_length
        drafted = _TextDraft(self._cache, self._map, self._inputs, text.tokens, index)
        drafted.draft(limit, stop_policy)
        return Draft(
            drafted.tokens()[:limit], None, _SOURCE, model.decode_seconds - before
        )

    def _next_shared_logits(self, token: int | None) -> tuple[Logits, None]:
        """Logits over the target's tokens, of which only shared ones are possible."""
        text = self._text.tokens
        batch = (
            text[self._cache.n_cached :]
            if token is None
            else [self._map.to_draft[token]]
        )
        logits = self._cache.decode(batch, 1)[0]
        self._row[self._map.shared_target_ids] = logits[self._map.shared_draft_ids]
        return self._row, None


class _TextDraft:
    """The text of one draft, token by token of the draft model."""

    def __init__(
        self,
        cache: PrefixCache,
        vocabularies: VocabularyMap,
        inputs: DrafterInputs,
        text: list[int],
        index: int,
    ) -> None:
        """`text`: the draft's tokens before the draft; `index`: the draft's place in
        the answer.
        """
        self._cache, self._map, self._inputs = cache, vocabularies, inputs
        self._text, self._index = text, index
        pieces = vocabularies.draft.tokens.pieces
        unbiased = replace(inputs.sampling, logit_bias=())  # of the target's tokens
        self._sampling = bind_vocabulary(unbiased, pieces.__getitem__)
        self._drafted = b""
        self._overlap = 0  # Bytes of the draft that the text has already.
        self._recent: list[int] = []
        self._n_target = 0
        """Target tokens drafted so far, roughly: each draft token's bytes are counted
        alone.
        """

    def tokens(self) -> list[int]:
        """The target's tokens for the whole characters drafted so far."""
        drafted = self._drafted[self._overlap :]
        text = drafted.decode("utf-8", "ignore").encode()
        if not text or not drafted.startswith(text):
            return []
        tokens = self._map.target.spell(text)
        return tokens if max(tokens, default=0) < self._map.n_target else []

    def draft(self, limit: int, stop_policy: DraftStopPolicy | None) -> None:
        """Draft with at most `limit` passes."""
        cache = self._cache
        fresh = self._text[cache.n_cached :]
        rows = cache.decode(fresh, min(2, len(fresh)))
        token = self._draw_longer(rows[0], stop_policy) if len(rows) == 2 else None
        if token is None:
            token = self._draw(rows[-1], stop_policy)
        for _ in range(limit - 1):
            if token is None or not self._append(token, stop_policy):
                return
            token = self._draw(cache.decode([token], 1)[0], stop_policy)
        if token is not None:
            self._append(token, stop_policy)

    def _append(self, token: int, stop_policy: DraftStopPolicy | None) -> bool:
        """Whether another pass is allowed; nothing follows an end or a control token."""
        piece = self._map.draft.tokens.pieces[token]
        is_healed = self._overlap and not self._drafted
        self._drafted += piece
        self._recent.append(token)
        spelled = self.tokens() if is_healed else self._map.target_tokens(token)
        self._n_target += len(spelled)
        if not piece or stop_policy is None:
            return bool(piece)
        return all(stop_policy.should_continue(token) for token in spelled)

    def _draw(self, row: Logits, stop_policy: DraftStopPolicy | None) -> int | None:
        """The draft's next token: the verifier draws among their first target tokens."""
        inputs = self._inputs
        recent: Sequence[int] = ()
        if n := self._sampling.history_length:
            recent = [*self._text[-n:], *self._recent]
        try:
            drawn_from = compute_distribution(row, self._sampling, recent)
        except InvalidLogitsError:  # a broken draft model costs speed, never the answer
            return None
        if stop_policy is not None and not stop_policy.should_draft_token(
            top_token_confidence(row, drawn_from)
        ):
            return None
        if len(drawn_from.ids) == 1:
            return int(drawn_from.ids[0])
        first = self._map.first_target_tokens(drawn_from.ids)
        wanted = inputs.verifier.sample_draft_token(
            Distribution(first, drawn_from.probs), self._index + self._n_target
        )
        weights = np.where(first == wanted, drawn_from.probs, 0.0)
        return int(drawn_from.ids[weights.argmax()])

    def _draw_longer(
        self, row: Logits, stop_policy: DraftStopPolicy | None
    ) -> int | None:
        """A longer token than the text's last one, if that is likelier in its place.

        The target may have ended a token where the draft would not (token healing).
        `row` is the one before the last token, which the longer one replaces in the
        draft's memory.
        """
        last = self._text[-1]
        piece = self._map.draft.tokens.pieces[last]
        longer = self._map.longer_draft_tokens(piece) if piece else ()
        if not len(longer):
            return None
        logits = row[longer]
        margin = float(logits.max()) - float(row[last])
        if not margin > 0:
            return None
        if stop_policy and not stop_policy.should_draft_token(
            margin_confidence(margin)
        ):
            return None
        self._cache.truncate(self._cache.n_cached - 1)
        self._overlap = len(piece)
        return int(longer[logits.argmax()])


def make(inputs: DrafterInputs) -> CrossVocabularyDrafter:
    vocabularies = inputs.prepared
    if inputs.draft_cache is None or not isinstance(vocabularies, VocabularyMap):
        raise KeyError(_SOURCE)
    return CrossVocabularyDrafter(inputs.draft_cache, vocabularies, inputs)
