"""A model with the tokens in its KV cache: reuses the prefix that a new text shares.

A draft's cache also holds branches: continuations of the text that were decoded ahead
of time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, cast

from msgspec import Struct, field

from localspec.spec.protocols import BranchingModel, LanguageModel, Logits, SavableModel

# Tokens at the end of a prompt that the next turn may tokenize differently.
_UNSTABLE_TAIL = 8


class PrefixCache:
    """Keeps the cached prefix that a text shares and decodes only the rest."""

    def __init__(
        self, model: LanguageModel, save_checkpoint: Callable[..., None] | None = None
    ) -> None:
        """`save_checkpoint` saves the model's state, if its memory cannot be truncated.

        With `until_next` it replaces the last one saved so: that before the last draft.
        """
        self.model, self._save_checkpoint = model, save_checkpoint
        self._cached_tokens: list[int] = []
        self._last_text: Sequence[int] = ()
        self._n_matched = 0

    @property
    def n_cached(self) -> int:
        return len(self._cached_tokens)

    def count_shared(self, tokens: Sequence[int]) -> int:
        """How many tokens of the cache are a prefix of `tokens`."""
        return common_prefix_length(self._cached_tokens, tokens, 0)

    def rewind_to(self, tokens: Sequence[int], n_unchanged: int | None = None) -> int:
        """Drop cached tokens that are not a prefix of `tokens`; return how many remain.

        The same list as in the last call must have grown only, or have kept its first
        `n_unchanged` tokens. At least the last token is left to decode. A memory that
        cannot be truncated is emptied or restored to a checkpoint, so fewer tokens may
        remain than the texts share.
        """
        start = self._n_matched if tokens is self._last_text else 0
        if n_unchanged is not None:
            start = min(start, n_unchanged)
        shared = min(
            common_prefix_length(self._cached_tokens, tokens, start), self.model.n_past
        )
        kept = min(shared, len(tokens) - 1)
        if kept < self.model.n_past:
            self.model.truncate(kept)
            kept = min(kept, self.model.n_past)
        del self._cached_tokens[kept:]
        self._last_text, self._n_matched = tokens, kept
        return kept

    def truncate(self, n_kept: int) -> None:
        """Drop all cached tokens but the first `n_kept`, of a memory that can be
        truncated.
        """
        self.model.truncate(n_kept)
        del self._cached_tokens[n_kept:]
        self._n_matched = min(self._n_matched, n_kept)

    def settle(self) -> Sequence[int]:
        """Make the model hold the cached tokens, or fewer after a checkpoint; return
        them.
        """
        self.truncate(min(self.n_cached, self.model.n_past))
        self.truncate(self.model.n_past)
        return self._cached_tokens

    def replace(self, tokens: Sequence[int]) -> None:
        """The model's memory was replaced by that of `tokens`."""
        self._cached_tokens, self._last_text, self._n_matched = list(tokens), (), 0

    def prefill_until(
        self,
        tokens: Sequence[int],
        max_left: int,
        cancelled: Callable[[], bool],
        min_left: int = 1,
    ) -> Iterator[int]:
        """Decode whole batches until at most `max_left` tokens are left; yield how many
        are cached.

        At least `min_left` tokens are not decoded. Ends early when cancelled. Call
        `rewind_to` first.
        """
        batch = self.model.n_batch
        while len(tokens) - self.n_cached > min(max_left, batch) and not cancelled():
            n = min(batch, len(tokens) - self.n_cached - min_left)
            self.decode(tokens[self.n_cached : self.n_cached + n], 0)
            yield self.n_cached

    def prefill(
        self, tokens: Sequence[int], cancelled: Callable[[], bool]
    ) -> Iterator[int]:
        """Decode all of a prompt but its last batch; yield how many tokens are cached.

        Saves checkpoints where the next turn of a chat can resume: see
        `_UNSTABLE_TAIL`.
        """
        if self._save_checkpoint is None:
            yield from self.prefill_until(tokens, self.model.n_batch, cancelled)
            return
        self._save_checkpoint()
        tail = min(_UNSTABLE_TAIL, self.model.n_batch)
        for done in self.prefill_until(tokens, tail, cancelled, min_left=tail):
            if len(tokens) - self.n_cached == tail:
                self._save_checkpoint()
            yield done

    def save_draft_start(self) -> None:
        """Call it before the first draft token is decoded."""
        if self._save_checkpoint is not None:
            self._save_checkpoint(until_next=True)

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        """Append tokens; return the logits of the last `outputs`."""
        rows = self.model.decode(tokens, outputs)
        self._cached_tokens.extend(tokens)
        return rows


class Branch(Struct):
    """A supposed continuation of the text: the outcome of a round, and draft tokens
    after it.
    """

    number: int  # In the model; 0 if it continues the text and its draft there.
    outcome: list[int]  # The tokens that the round is supposed to emit.
    decoded: list[int] = field(default_factory=list)
    """The outcome's last token and the draft tokens after it, as far as they are
    decoded.
    """
    rows: list[Logits] = field(default_factory=list)  # Logits after each decoded token.


class BranchCache(PrefixCache):
    """A draft model's cache, with branches for the outcomes of a round that is being
    verified.

    If one comes true, `rewind_to` makes it the text, and `decode` returns the rows that
    it has.
    """

    def __init__(
        self, model: BranchingModel, save_checkpoint: Callable[..., None] | None = None
    ) -> None:
        super().__init__(model, save_checkpoint)
        self._model = model
        self.branches: list[Branch] = []
        self._branch_text: Sequence[int] = ()
        self._n_text = self._n_drafted = 0
        self._ready: deque[tuple[int, Logits]] = deque()
        """Tokens in the model's memory after the cached ones, and the logits after
        each.
        """
        self.n_served = 0  # Rows that `decode` returned without a pass.

    @property
    def n_branches(self) -> int:
        return self._model.n_branches

    def rewind_to(self, tokens: Sequence[int], n_unchanged: int | None = None) -> int:
        self._ready.clear()
        if not self.branches:
            return super().rewind_to(tokens, n_unchanged)
        new = tokens[self._n_text :] if tokens is self._branch_text else ()
        branch = next(
            (b for b in self.branches if b.outcome == new and b.decoded), None
        )
        self.drop_branches(branch.number if branch else 0)
        if branch is None:
            return super().rewind_to(tokens, n_unchanged)
        self._cached_tokens[self._n_text :] = branch.outcome[:-1]
        self._last_text, self._n_matched = tokens, self.n_cached
        self._ready.extend(zip(branch.decoded, branch.rows, strict=True))
        return self.n_cached

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        if self._ready:
            token, row = self._ready.popleft()
            if len(tokens) == outputs == 1 and tokens[0] == token:
                self._cached_tokens.append(token)
                self.n_served += 1
                return row[None]
            self._ready.clear()
            self.model.truncate(self.n_cached)
        return super().decode(tokens, outputs)

    def settle(self) -> Sequence[int]:
        self.drop_branches()
        self._ready.clear()
        return super().settle()

    def replace(self, tokens: Sequence[int]) -> None:
        self.branches = []
        self._ready.clear()
        super().replace(tokens)

    def begin_branches(self, tokens: Sequence[int], drafted: Sequence[int]) -> None:
        """Prepare for branches after `tokens`, which are cached, and prefixes of
        `drafted`.

        All draft tokens but the last are decoded afterwards.
        """
        self.drop_branches()
        self._ready.clear()
        self._branch_text, self._n_text, self._n_drafted = (
            tokens,
            len(tokens),
            len(drafted),
        )
        n = len(tokens) + common_prefix_length(
            self._cached_tokens[len(tokens) :], drafted[:-1]
        )
        self.truncate(n)
        if uncached := drafted[n - len(tokens) : -1]:
            super().decode(uncached, 0)

    def add_branch(self, outcome: list[int]) -> Branch:
        """A branch for a round's outcome.

        The first one after all of the draft continues the text in the model. For it and
        its like, the draft's last token must be decoded before (see `decode_branches`).
        """
        numbers = {branch.number for branch in self.branches}
        free = 0 if len(outcome) > self._n_drafted else 1
        branch = Branch(next(i for i in count(free) if i not in numbers), outcome)
        if branch.number:
            self._model.fork(branch.number, self._n_text + len(outcome) - 1)
        self.branches.append(branch)
        return branch

    def decode_branches(
        self, steps: Sequence[tuple[Branch, int]], text_token: int | None = None
    ) -> Logits | None:
        """Append a token to each branch, and `text_token` to the text; return the row
        after it.
        """
        batch = [(branch.number, token) for branch, token in steps]
        if text_token is not None:
            batch.append((0, text_token))
        rows = self._model.decode_branches(batch).copy()
        for (branch, token), row in zip(steps, rows, strict=False):
            branch.decoded.append(token)
            branch.rows.append(row)
        if text_token is None:
            return None
        self._cached_tokens.append(text_token)
        last: Logits = rows[-1]
        return last

    def drop_branches(self, adopted: int = 0) -> None:
        """Free the memory of all branches; the `adopted` one becomes the text."""
        if self.branches:
            self._model.adopt(adopted)
            self.branches = []


def common_prefix_length(a: Sequence[int], b: Sequence[int], start: int = 0) -> int:
    """Length of the common prefix; the first `start` tokens are known to be equal."""
    end = min(len(a), len(b))
    for i in range(start, end):
        if a[i] != b[i]:
            return i
    return end


# --- Conversations that left the cache, kept in RAM, as llama.cpp's server does
# (`--cache-ram`)

MIN_TOKENS = 256  # Fewer are not worth a copy of the whole cache.


class SavedCache(Struct, frozen=True):
    tokens: tuple[int, ...]
    state: Any
    n_bytes: int


class ConversationSnapshots:
    """Copies of the caches of the target and of its draft, if it has one; the oldest go
    first.
    """

    def __init__(self, caches: Sequence[PrefixCache], max_bytes: int) -> None:
        """`max_bytes` of all copies; the models of `caches` can be copied."""
        self._caches = [(cache, cast("SavableModel", cache.model)) for cache in caches]
        self._max_bytes = max_bytes
        self._snapshots: list[tuple[SavedCache, ...]] = []

    @property
    def n_bytes(self) -> int:
        return sum(each.n_bytes for snapshot in self._snapshots for each in snapshot)

    def switch_to(self, tokens: Sequence[int]) -> None:
        """Before `tokens` are read: save what would be lost, restore what they
        continue.
        """
        if not self._max_bytes:
            return
        cache, model = self._caches[0]
        n_cached = min(cache.n_cached, model.n_past)
        n_shared = min(cache.count_shared(tokens), n_cached)
        saved = max(
            self._snapshots,
            key=lambda each: common_prefix_length(each[0].tokens, tokens),
            default=None,
        )
        if (
            saved
            and common_prefix_length(saved[0].tokens, tokens) < n_shared + MIN_TOKENS
        ):
            saved = None
        if saved:
            self._snapshots.remove(saved)
        if n_cached - n_shared >= MIN_TOKENS:
            self._save()
        if saved:
            for (cache, model), part in zip(self._caches, saved, strict=True):
                if part.n_bytes:  # else the draft model reads again
                    is_there = model.restore_state(part.state, len(part.tokens))
                    cache.replace(part.tokens if is_there else ())

    def _save(self) -> None:
        texts = [tuple(cache.settle()) for cache, _ in self._caches]
        sizes = [model.state_bytes() for _, model in self._caches]
        if not sizes[0] or sum(sizes) > self._max_bytes:
            return
        new = tuple(
            SavedCache(text, model.save_state() if size else None, size)
            for (_, model), text, size in zip(self._caches, texts, sizes, strict=True)
        )
        self._snapshots = [
            each
            for each in self._snapshots
            if common_prefix_length(each[0].tokens, texts[0])
            < len(each[0].tokens)  # not continued
        ]
        self._snapshots.append(new)
        while self.n_bytes > self._max_bytes:
            del self._snapshots[0]
