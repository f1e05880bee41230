"""Drafts with a draft model of another vocabulary: by text, or by shared tokens.

By text (SLEM, arXiv 2502.05202): the draft model reads the text as its own tokenizer
splits it, and what it drafts is tokenized by the target's tokenizer. Each of its tokens
is drawn with the noise of the first target token that its bytes begin with.

For example, the target has written "return s", as the tokens "return" and " s". The
draft model reads "ret", "urn" and " s", and drafts "um" and "(a". The target's tokenizer
splits "um(a" into "um", "(" and "a": these are the draft tokens that are verified.

By shared tokens (TLI, same paper), for the verification methods that need the
probability of a draft token (`rejection`, `block`): the draft model's other tokens are
masked before the distribution is computed, so that it is the one the token is drawn
from.

Verification is unchanged, and so is the distribution of the text.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Callable, Sequence

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
_MAX_RESPELLED = 64
"""So many draft tokens at the end of the text may be spelled again when it grows."""
_ANCHOR = b"\n"
"""A text that no later text merges with; see `SpelledVocabulary.spell`."""
_NOT_KNOWN = -1

Ids = NDArray[np.int64]


class SpelledVocabulary(Struct, frozen=True, eq=False):
    """A vocabulary whose tokens are bytes, and its tokenizer."""

    tokens: TokenBytes
    tokenize: Callable[[bytes], list[int]]
    """Tokens of a plain text: neither BOS nor special tokens."""
    bos: tuple[int, ...] = ()
    """The tokens before every text: BOS, if the model uses one."""
    eog: tuple[int, ...] = ()  # The tokens that end a text.

    def join(self, tokens: Sequence[int]) -> bytes:
        return b"".join([self.tokens.pieces[token] for token in tokens])

    def spell(self, text: bytes) -> list[int]:
        r"""Tokens that stand for exactly these bytes; none if the tokenizer changes them.

        Some tokenizers add a space before the first word: they read "ab" as " ab". They
        read "\nab" as " \n" and "ab", so what follows the line feed is right.
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
    """The tokens of two vocabularies, by the bytes that they stand for.

    A token is shared if both have one for the same bytes. Control tokens and ends are
    never shared: they stand for no bytes.
    """

    def __init__(self, target: SpelledVocabulary, draft: SpelledVocabulary) -> None:
        self.target = target
        self.draft = draft
        self.n_target = len(target.tokens.pieces)
        self.to_draft: dict[int, int] = {}
        """The draft's token for each shared token of the target."""
        for piece, token in draft.tokens.ids.items():
            shared = target.tokens.ids.get(piece)
            if shared is not None:
                self.to_draft[shared] = token
        self.shared_target_ids: Ids = np.array(list(self.to_draft), np.int64)
        self.shared_draft_ids: Ids = np.array(list(self.to_draft.values()), np.int64)

        self._first_target: Ids = np.full(
            len(draft.tokens.pieces), _NOT_KNOWN, np.int64
        )
        self._first_target[self.shared_draft_ids] = self.shared_target_ids
        self._first_target[list(draft.eog)] = target.eog[0] if target.eog else 0
        self._target_tokens: dict[int, list[int]] = {}
        """The results of `target_tokens` so far."""
        for shared, token in self.to_draft.items():
            self._target_tokens[token] = [shared]
        self._sorted_pieces = sorted(draft.tokens.ids)
        ids = [draft.tokens.ids[piece] for piece in self._sorted_pieces]
        self._sorted_ids: Ids = np.array(ids, np.int64)

    def first_target_tokens(self, draft_tokens: Ids) -> Ids:
        """For each draft token the target's token that its bytes begin with.

        It is token 0 for a draft token that is no text, such as part of a character.
        """
        first = self._first_target[draft_tokens]
        unknown = draft_tokens[first == _NOT_KNOWN]
        if not len(unknown):
            return first
        for token in unknown.tolist():
            spelled = self.target_tokens(token)
            self._first_target[token] = spelled[0] if spelled else 0
        return self._first_target[draft_tokens]

    def target_tokens(self, draft_token: int) -> Sequence[int]:
        """The target's tokens for the bytes of one draft token.

        None if the bytes alone are no text: a control token, or part of a character.
        """
        known = self._target_tokens.get(draft_token)
        if known is not None:
            return known
        piece = self.draft.tokens.pieces[draft_token]
        spelled: list[int] = []
        if piece and _is_text(piece):
            spelled = self.target.spell(piece)
        self._target_tokens[draft_token] = spelled
        return spelled

    def longer_draft_tokens(self, piece: bytes) -> Ids:
        """The draft's tokens that begin with `piece` and continue.

        They are neighbours among the sorted tokens: those of "ab" begin at the first
        that is not before "ab\0", and end before the first that is not before "ac". A
        last byte 255 has no successor, so the byte before it is raised.
        """
        pieces = self._sorted_pieces
        start = bisect_left(pieces, piece + b"\0")
        end = len(pieces)
        raisable = piece.rstrip(b"\xff")
        if raisable:
            successor = raisable[:-1] + bytes([raisable[-1] + 1])
            end = bisect_left(pieces, successor)
        return self._sorted_ids[start:end]


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


class DraftText:
    """The target's text in the draft's tokens, as the draft's tokenizer would split it.

    When the text grows, its last words are spelled again, from a place where a word
    certainly begins. For example, "a bar" becomes "a barn": the draft's tokens were "a"
    and " bar", and they become "a" and " barn". The new text alone would have been "n".
    """

    def __init__(
        self,
        vocabularies: VocabularyMap,
        prompt: Sequence[int] | None,
        prompt_length: int,
    ) -> None:
        """`prompt`: draft tokens that replace the target's prompt, if it is a chat.

        The target's prompt has `prompt_length` tokens.
        """
        self._target = vocabularies.target
        self._draft = vocabularies.draft
        self.tokens: list[int] = list(self._draft.bos)
        """The draft's tokens of the text: the same list throughout."""
        self._n_read = 0  # How many of the target's tokens are in the text.
        if prompt is not None:
            self.tokens = list(prompt)
            self._n_read = prompt_length
        self._n_fixed = len(self.tokens)  # These tokens are not spelled again.
        self.n_unchanged = 0
        """How many tokens at the beginning no update has changed since the caller last
        set it.
        """
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._has_failed = False  # Part of the text could not be spelled.

    def update(self, target_tokens: Sequence[int]) -> bool:
        """Append the text of the new tokens, and return whether the draft can go on.

        False where the text ends within a character, is empty, or could not be spelled
        in the draft's vocabulary.
        """
        pieces = self._target.tokens.pieces
        new = b"".join([pieces[token] for token in target_tokens[self._n_read :]])
        self._n_read = len(target_tokens)
        text = self._decoder.decode(new).encode()
        if text:
            self._append(text)
        unfinished, _ = self._decoder.getstate()
        return not self._has_failed and not unfinished and len(self.tokens) > 0

    def _append(self, text: bytes) -> None:
        start = self._last_word_start()
        end_of_text = self._draft.join(self.tokens[start:]) + text
        spelled = self._draft.spell(end_of_text)
        if not spelled:
            start = len(self.tokens)
            spelled = self._draft.spell(text)
            if not spelled:
                self._has_failed = True
        self.n_unchanged = min(self.n_unchanged, start)
        self.tokens[start:] = spelled

    def _last_word_start(self) -> int:
        """The token at which the last word begins, with the space before it.

        A tokenizer never merges across that place: a letter or digit, then a space and
        a letter.
        """
        pieces = self._draft.tokens.pieces
        tokens = self.tokens
        earliest = max(self._n_fixed, len(tokens) - _MAX_RESPELLED)
        for i in range(len(tokens) - 1, earliest, -1):
            piece = pieces[tokens[i]]
            before = pieces[tokens[i - 1]]
            begins_word = piece[:1] == b" " and piece[1:2].isalpha()
            if begins_word and before[-1:].isalnum():
                return i
        return earliest


class CrossVocabularyDrafter:
    def __init__(
        self,
        draft_cache: PrefixCache,
        vocabularies: VocabularyMap,
        inputs: DrafterInputs,
    ) -> None:
        self._cache = draft_cache
        self._map = vocabularies
        self._inputs = inputs
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
        cache = self._cache
        model = cache.model
        text = self._text
        inputs = self._inputs
        if not text.update(tokens):
            return Draft(reason="the text ends within a character")
        limit = min(limit, model.n_ctx - len(text.tokens))
        if limit <= 0:
            return Draft(reason="the draft model's context is full")
        before = model.decode_seconds
        cache.rewind_to(text.tokens, text.n_unchanged)
        text.n_unchanged = len(text.tokens)
        for _ in cache.prefill_until(text.tokens, model.n_batch, inputs.cancelled):
            pass
        if inputs.cancelled():
            return Draft()
        if self._needs_distributions:
            return self._sampler.sample_draft(
                tokens,
                limit,
                stop_policy,
                next_logits=self._next_shared_logits,
                since=before,
            )
        drafted = _TextDraft(
            cache,
            self._map,
            inputs,
            text=text.tokens,
            index=len(tokens) - inputs.prompt_length,
        )
        drafted.draft(limit, stop_policy)
        return Draft(
            tokens=drafted.tokens()[:limit],
            source=_SOURCE,
            decode_seconds=model.decode_seconds - before,
        )

    def _next_shared_logits(self, token: int | None) -> tuple[Logits, None]:
        """Logits over the target's tokens after draft token `token`; None: after the text.

        Only shared tokens are possible.
        """
        if token is None:
            batch = self._text.tokens[self._cache.n_cached :]
        else:
            batch = [self._map.to_draft[token]]
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
        """The draft follows `text`, in the draft's tokens; it begins at `index` in the answer."""
        self._cache = cache
        self._map = vocabularies
        self._inputs = inputs
        self._text = text
        self._index = index
        pieces = vocabularies.draft.tokens.pieces
        # The bias is for ids of the target's tokens.
        unbiased = replace(inputs.sampling, logit_bias=())
        self._sampling = bind_vocabulary(unbiased, pieces.__getitem__)
        self._drafted = b""
        self._overlap = 0
        """How many bytes of the draft the text already ends with: see `_draw_longer`."""
        self._recent: list[int] = []  # The draft's tokens, as the draft model has them.
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
        return self._map.target.spell(text)

    def draft(self, limit: int, stop_policy: DraftStopPolicy | None) -> None:
        """Draft with at most `limit` passes."""
        cache = self._cache
        uncached = self._text[cache.n_cached :]
        rows = cache.decode(uncached, min(2, len(uncached)))
        token: int | None = None
        if len(rows) == 2:
            token = self._draw_longer(rows[0], stop_policy)
        if token is None:
            token = self._draw(rows[-1], stop_policy)
        for _ in range(limit - 1):
            if token is None or not self._append(token, stop_policy):
                return
            token = self._draw(cache.decode([token], 1)[0], stop_policy)
        if token is not None:
            self._append(token, stop_policy)

    def _append(self, token: int, stop_policy: DraftStopPolicy | None) -> bool:
        """Append a token, and return whether another pass is allowed.

        Nothing follows an end or a control token.
        """
        piece = self._map.draft.tokens.pieces[token]
        replaces_last = self._overlap > 0 and not self._drafted
        self._drafted += piece
        self._recent.append(token)
        if replaces_last:
            spelled: Sequence[int] = self.tokens()
        else:
            spelled = self._map.target_tokens(token)
        self._n_target += len(spelled)
        if not piece:
            return False
        if stop_policy is None:
            return True
        return all(stop_policy.should_continue(token) for token in spelled)

    def _draw(self, row: Logits, stop_policy: DraftStopPolicy | None) -> int | None:
        """The draft model's next token; None ends the draft.

        The verifier draws a target token among those that the draft tokens begin with,
        and the likeliest draft token that begins with it is drafted. For example, the
        draft tokens "a", "cab" and "ca" begin with the target's "a", "ca" and "ca". If
        "ca" is drawn, "cab" is drafted if it is likelier than "ca".
        """
        inputs = self._inputs
        n_recent = self._sampling.history_length
        recent: Sequence[int] = ()
        if n_recent:
            recent = [*self._text[-n_recent:], *self._recent]
        try:
            drawn_from = compute_distribution(row, self._sampling, recent)
        except InvalidLogitsError:  # a broken draft model costs speed, never the answer
            return None
        if stop_policy is not None:
            confidence = top_token_confidence(row, drawn_from)
            if not stop_policy.should_draft_token(confidence):
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
        """A longer token than the text's last one, if it is likelier in its place.

        The target may have ended a token where the draft would not (token healing): it
        wrote "c", and the draft prefers "cab" to "c". Then "cab" replaces "c" in the
        draft's memory, and the draft begins with "ab": one byte of "cab" is overlap.
        `row` has the logits before the text's last token.
        """
        last = self._text[-1]
        piece = self._map.draft.tokens.pieces[last]
        if not piece:
            return None
        longer = self._map.longer_draft_tokens(piece)
        if not len(longer):
            return None
        logits = row[longer]
        margin = float(logits.max()) - float(row[last])
        if not margin > 0:  # NaN, too
            return None
        if stop_policy is not None:
            confidence = margin_confidence(margin)
            if not stop_policy.should_draft_token(confidence):
                return None
        self._cache.truncate(self._cache.n_cached - 1)
        self._overlap = len(piece)
        return int(longer[logits.argmax()])


def make(inputs: DrafterInputs) -> CrossVocabularyDrafter:
    vocabularies = inputs.prepared
    if inputs.draft_cache is None or not isinstance(vocabularies, VocabularyMap):
        raise KeyError(_SOURCE)
    return CrossVocabularyDrafter(inputs.draft_cache, vocabularies, inputs)
