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
        self.model = model
        self._save_checkpoint = save_checkpoint
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
        self._last_text = tokens
        self._n_matched = kept
        return kept

    def truncate(self, n_kept: int) -> None:
        """Drop all cached tokens but the first `n_kept`; the memory can be truncated."""
        self.model.truncate(n_kept)
        del self._cached_tokens[n_kept:]
        self._n_matched = min(self._n_matched, n_kept)

    def settle(self) -> Sequence[int]:
        """Make the model and the list of cached tokens equal; return them.

        A model that returned to a checkpoint holds fewer.
        """
        self.truncate(min(self.n_cached, self.model.n_past))
        self.truncate(self.model.n_past)
        return self._cached_tokens

    def replace(self, tokens: Sequence[int]) -> None:
        """The model's memory was replaced by that of `tokens`."""
        self._cached_tokens = list(tokens)
        self._last_text = ()
        self._n_matched = 0

    def prefill_until(
        self,
        tokens: Sequence[int],
        max_left: int,
        cancelled: Callable[[], bool],
        min_left: int = 1,
    ) -> Iterator[int]:
        """Decode whole batches until at most `max_left` tokens are left.

        Yields how many are cached. At least `min_left` tokens are not decoded, also if
        `max_left` is smaller. Ends early when cancelled. Call `rewind_to` first.

        With 12 tokens of which none is cached, batches of 4 and `max_left` 4, it
        decodes 4 and 4. With `max_left` 2 it decodes 4, 4 and then 3: all that
        `min_left`, 1, leaves it.
        """
        batch = self.model.n_batch
        # More than `min_left` tokens are left in the loop, so it decodes at least one.
        most_left = max(min_left, min(max_left, batch))
        while len(tokens) - self.n_cached > most_left and not cancelled():
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
    """A supposed continuation of the text: a round's outcome, and draft tokens after it."""

    number: int  # In the model; 0 if it continues the text and its draft there.
    outcome: list[int]  # The tokens that the round is supposed to emit.
    decoded: list[int] = field(default_factory=list)
    """The outcome's last token, and the draft tokens after it that are decoded."""
    rows: list[Logits] = field(default_factory=list)  # Logits after each decoded token.


class BranchCache(PrefixCache):
    """A draft model's cache, with branches for the outcomes of the round in progress.

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
        self._n_text = 0
        self._n_drafted = 0
        self._ready: deque[tuple[int, Logits]] = deque()
        """Tokens in the model's memory behind the cached ones, and the logits after each."""
        self.n_served = 0  # Rows that `decode` returned without a pass.

    @property
    def n_branches(self) -> int:
        return self._model.n_branches

    def rewind_to(self, tokens: Sequence[int], n_unchanged: int | None = None) -> int:
        self._ready.clear()
        if not self.branches:
            return super().rewind_to(tokens, n_unchanged)
        branch = None
        if tokens is self._branch_text:
            branch = self._find_branch(tokens[self._n_text :])
        if branch is None:
            self.drop_branches()
            return super().rewind_to(tokens, n_unchanged)
        self.drop_branches(branch.number)
        self._cached_tokens[self._n_text :] = branch.outcome[:-1]
        self._last_text = tokens
        self._n_matched = self.n_cached
        self._ready.extend(zip(branch.decoded, branch.rows, strict=True))
        return self.n_cached

    def _find_branch(self, outcome: Sequence[int]) -> Branch | None:
        for branch in self.branches:
            if branch.outcome == outcome and branch.decoded:
                return branch
        return None

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
        """Prepare for branches after `tokens`, and after prefixes of `drafted`.

        `tokens` are cached. All draft tokens but the last are decoded here.
        """
        self.drop_branches()
        self._ready.clear()
        self._branch_text = tokens
        self._n_text = len(tokens)
        self._n_drafted = len(drafted)
        n_shared = common_prefix_length(
            self._cached_tokens[len(tokens) :], drafted[:-1]
        )
        self.truncate(len(tokens) + n_shared)
        uncached = drafted[n_shared:-1]
        if uncached:
            super().decode(uncached, 0)

    def add_branch(self, outcome: list[int]) -> Branch:
        """A branch for a round's outcome.

        The first one after all of the draft continues the text in the model. For it and
        its like, the draft's last token must be decoded before (see `decode_branches`).
        """
        numbers = {branch.number for branch in self.branches}
        first = 0 if len(outcome) > self._n_drafted else 1
        number = next(i for i in count(first) if i not in numbers)
        branch = Branch(number, outcome)
        if branch.number:
            self._model.fork(branch.number, self._n_text + len(outcome) - 1)
        self.branches.append(branch)
        return branch

    def decode_branches(
        self, steps: Sequence[tuple[Branch, int]], text_token: int | None = None
    ) -> Logits | None:
        """Append a token to each branch, and `text_token` to the text.

        Returns the row after `text_token`.
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


Snapshot = tuple[SavedCache, ...]
"""The caches of one conversation: the target's, and the draft model's if there is one."""


def _count_bytes(snapshot: Snapshot) -> int:
    return sum(part.n_bytes for part in snapshot)


class ConversationSnapshots:
    """Copies of the caches of a pair, for conversations that left it.

    The first cache is the target's. The oldest copies go first.
    """

    def __init__(self, caches: Sequence[PrefixCache], max_bytes: int) -> None:
        """`max_bytes` of all copies; the models of `caches` can be copied."""
        self._caches = [(cache, cast("SavableModel", cache.model)) for cache in caches]
        self._max_bytes = max_bytes
        self._snapshots: list[Snapshot] = []

    @property
    def n_bytes(self) -> int:
        return sum(map(_count_bytes, self._snapshots))

    def switch_to(self, tokens: Sequence[int]) -> None:
        """Save what would be lost when `tokens` are read; restore what they continue."""
        if not self._max_bytes:
            return
        target_cache, target = self._caches[0]
        n_cached = min(target_cache.n_cached, target.n_past)
        n_shared = min(target_cache.count_shared(tokens), n_cached)

        # A copy is restored only if it holds clearly more of the text than the cache.
        saved = self._take_longest(tokens, n_shared + MIN_TOKENS)
        if n_cached - n_shared >= MIN_TOKENS:
            self._save()
        if saved is None:
            return
        for (cache, model), part in zip(self._caches, saved, strict=True):
            # A draft model whose memory was not copied reads the text again.
            if part.n_bytes:
                is_restored = model.restore_state(part.state, len(part.tokens))
                cache.replace(part.tokens if is_restored else ())

    def _take_longest(self, tokens: Sequence[int], min_shared: int) -> Snapshot | None:
        """Remove the copy that shares most with `tokens`, if that is `min_shared`."""

        def count_shared(snapshot: Snapshot) -> int:
            return common_prefix_length(snapshot[0].tokens, tokens)

        longest = max(self._snapshots, key=count_shared, default=None)
        if longest is None or count_shared(longest) < min_shared:
            return None
        self._snapshots.remove(longest)
        return longest

    def _save(self) -> None:
        texts = [tuple(cache.settle()) for cache, _ in self._caches]
        sizes = [model.state_bytes() for _, model in self._caches]
        if not sizes[0] or sum(sizes) > self._max_bytes:
            return
        parts: list[SavedCache] = []
        for (_, model), text, size in zip(self._caches, texts, sizes, strict=True):
            state = model.save_state() if size else None
            parts.append(SavedCache(text, state, size))

        def is_continued(snapshot: Snapshot) -> bool:
            tokens = snapshot[0].tokens
            return common_prefix_length(tokens, texts[0]) == len(tokens)

        # The new copy holds all of a conversation that it continues.
        self._snapshots = [old for old in self._snapshots if not is_continued(old)]
        self._snapshots.append(tuple(parts))
        while self.n_bytes > self._max_bytes:
            del self._snapshots[0]
