"""A model with the tokens in its KV cache: reuses the prefix that a new text shares.

`PrefixCache` is the target's, or a draft model's. `BranchCache`, a draft model's, also
holds branches: continuations of the text that were decoded ahead of time.
`ConversationSnapshots` keeps copies of the caches for conversations that left them.
`ClientPrompts` knows how much of a cached prefix a client may be told of.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, cast

from msgspec import Struct, field

from localspec.spec.picture_ids import find_cut, find_picture_end
from localspec.spec.protocols import BranchingModel, LanguageModel, Logits, SavableModel

# Tokens at the end of a prompt that the next turn may tokenize differently.
_UNSTABLE_TAIL = 8
_MIN_SHARED_LOST = 64
"""A checkpoint costs a copy of the state; it is worth that many tokens read again."""


class PrefixCache:
    """Keeps the cached prefix that a text shares and decodes only the rest.

    With the text [12, 7, 31, 5] cached, and [12, 7, 40, 9, 2] to be read:

        rewind_to     2      [12, 7] are shared; 31 and 5 are dropped from the model
        decode        [40, 9, 2]

    A memory that cannot be truncated (a recurrent state, a sliding window that has moved
    on) has checkpoints instead. If one was saved after [12], it returns to that:

        rewind_to     1      although two tokens are shared
        decode        [7, 40, 9, 2]

    Without a checkpoint it is emptied, and all is decoded again.

    A picture is cut before its first row, never inside, and a pass does not end inside a
    picture that fits into one: its rows may attend to those behind them.
    """

    def __init__(
        self,
        model: LanguageModel,
        save_checkpoint: Callable[..., bool] | None = None,
        max_rollback: int = sys.maxsize,
    ) -> None:
        """`save_checkpoint` saves the model's state, if its memory cannot be truncated.

        It takes one option. With `until_next=True` the checkpoint stays only until the
        next one is saved: it is that before a draft, and each draft has its own. It
        returns whether the state was saved.

        `max_rollback`: so many tokens of the last pass can be dropped again. More are
        dropped by a return to the checkpoint from before the pass, and what was accepted
        is decoded once more.
        """
        self.model = model
        self.max_rollback = max_rollback
        self._save_checkpoint = save_checkpoint
        self._cached_tokens: list[int] = []
        self._last_text: Sequence[int] = ()
        """The list that `rewind_to` got last. An answer's text is one list that grows."""
        self._n_matched = 0
        """So many tokens of that list are known to be cached; they are not compared again."""
        self._n_diverged = 0
        """Where the last text and the cached one parted, if the model could not keep so
        many tokens; else 0.
        """

    @property
    def n_cached(self) -> int:
        return len(self._cached_tokens)

    @property
    def cached_tokens(self) -> Sequence[int]:
        return self._cached_tokens

    def count_shared(self, tokens: Sequence[int]) -> int:
        """How many tokens of the cache are a prefix of `tokens`."""
        return common_prefix_length(self._cached_tokens, tokens, 0)

    def rewind_to(self, tokens: Sequence[int], n_unchanged: int | None = None) -> int:
        """Drop cached tokens that are not a prefix of `tokens`; return how many remain.

        The same list as in the last call must have grown only, or have kept its first
        `n_unchanged` tokens. At least the last token is left to decode, also if all are
        cached: without it there would be no logits. A memory that cannot be truncated is
        emptied or restored to a checkpoint, so fewer tokens may remain than the texts
        share.
        """
        start = self._n_matched if tokens is self._last_text else 0
        if n_unchanged is not None:
            start = min(start, n_unchanged)
        shared = common_prefix_length(self._cached_tokens, tokens, start)
        # After a decode that failed the model may hold fewer than were noted.
        shared = min(shared, self.model.n_past)
        kept = find_cut(tokens, min(shared, len(tokens) - 1))
        if kept < self.model.n_past:
            self.model.truncate(kept)
            kept = min(kept, self.model.n_past)
        self._n_diverged = 0
        if kept < shared:
            self._n_diverged = shared
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
        """Make the model and the list of cached tokens equal; return the list.

        They differ after a decode that failed. The longer one is truncated. A model that
        returns to a checkpoint then holds fewer still, so the list is truncated again.
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
            end = self._find_pass_end(tokens, self.n_cached + n)
            if end <= self.n_cached:
                return  # `min_left` ends in a picture, which is left whole.
            self.decode(tokens[self.n_cached : end], 0)
            yield self.n_cached

    def _find_pass_end(self, tokens: Sequence[int], end: int) -> int:
        """The last place up to `end` at which a pass may end."""
        if end <= self.n_cached:
            return end
        start = find_cut(tokens, end)
        if start == end:
            return end
        is_too_long = find_picture_end(tokens, start) - start > self.model.n_batch
        return end if is_too_long else start

    def prefill(
        self, tokens: Sequence[int], cancelled: Callable[[], bool]
    ) -> Iterator[int]:
        """Decode all of a prompt but its last batch; yield how many tokens are cached.

        Saves checkpoints where the next turn of a chat can resume: before what is
        decoded here, and before the last `_UNSTABLE_TAIL` tokens. With batches of 512, a
        prompt of 1,000 tokens of which 300 are cached:

            300    checkpoint
            812    512 decoded
            992    180 decoded, checkpoint
                   the last 8 are left to the first round

        Chats with the same long instructions part behind these, so there are two more:

        * After a batch, if twice as many tokens are cached as at the last checkpoint: of
          a prompt of 10,000 that is after 512, 1,024, 2,048, 4,096 and 8,192.
        * Where the text before this one went another way. If 557 tokens were shared, and
          the model kept 300 of them, 257 are decoded first, and then the rest.
        """
        if self._save_checkpoint is None:
            yield from self.prefill_until(tokens, self.model.n_batch, cancelled)
            return
        self._save_checkpoint()
        tail = min(_UNSTABLE_TAIL, self.model.n_batch)
        ends = [self._find_pass_end(tokens, len(tokens) - tail)]
        is_long = self._n_diverged - self.n_cached >= _MIN_SHARED_LOST
        if is_long and self._n_diverged < ends[0]:
            ends.insert(0, self._n_diverged)
        n_saved = self.n_cached
        for end in ends:
            n_left = len(tokens) - end
            for done in self.prefill_until(tokens, n_left, cancelled, min_left=n_left):
                if done == end or done >= 2 * n_saved:
                    self._save_checkpoint()
                    n_saved = done
                yield done

    def save_draft_start(self) -> bool:
        """Call it before the first draft token is decoded.

        Returns whether there is a checkpoint to which the memory can return.
        """
        if self._save_checkpoint is None:
            return False
        return self._save_checkpoint(until_next=True)

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        """Append tokens; return the logits of the last `outputs`."""
        rows = self.model.decode(tokens, outputs)
        self._cached_tokens.extend(tokens)
        return rows


class Branch(Struct):
    """A supposed continuation of the text: a round's outcome, and draft tokens after it."""

    number: int
    """Its sequence in the model; 0 if it continues the text and its draft there."""
    outcome: list[int]
    """The tokens that the round is supposed to emit."""
    decoded: list[int] = field(default_factory=list)
    """The outcome's last token, and the draft tokens after it that are decoded."""
    rows: list[Logits] = field(default_factory=list)
    """The logits after each decoded token."""


class BranchCache(PrefixCache):
    """A draft model's cache, with branches for the outcomes of the round in progress.

    The text ends in 40, and the draft is [8, 9]. While the target verifies it, the draft
    model decodes for three outcomes, each of which ends in a token of the target:

        branch   outcome      in the model     decoded
        0        [8, 9, 2]    … 40 8 9 2 4     [2, 4]
        1        [8, 5]       … 40 8 5 1       [5, 1]
        2        [3]          … 40 3 7         [3, 7]

    If the round emits [8, 5], `rewind_to` makes branch 1 the text and frees the others.
    The cached tokens are … 40 8, just as if the draft had been truncated. The next draft
    begins with `decode([5])`, and then samples 1 and asks for `decode([1])`: both rows are
    here already, and no pass is needed. Another outcome, such as [8, 6], drops all three.
    """

    def __init__(
        self, model: BranchingModel, save_checkpoint: Callable[..., bool] | None = None
    ) -> None:
        super().__init__(model, save_checkpoint)
        self._model = model
        self.branches: list[Branch] = []
        # The text that the branches continue: a list, its length when they began, and
        # the length of the draft after it.
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
        # The outcome's last token is left to decode, as in `PrefixCache.rewind_to`.
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
            # Another token than was drafted ahead: the rest of the branch is wrong.
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

        Of the outcomes in which all of the draft is accepted, the first continues the
        text in the model and needs no copy of it: branch 0. For all of these the draft's
        last token must be decoded before (see `decode_branches`).
        """
        accepts_all = len(outcome) > self._n_drafted
        taken = {branch.number for branch in self.branches}
        lowest = 0 if accepts_all else 1
        number = next(i for i in count(lowest) if i not in taken)
        branch = Branch(number, outcome)
        if number:
            self._model.fork(number, self._n_text + len(outcome) - 1)
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


# --- What each client of a server knows


class ClientPrompts:
    """The prompts and answers of each client, to tell it only what it knows.

    The cache is that of all clients. How much of a prompt it had would say whether
    another client has sent a prompt with the same beginning.
    """

    def __init__(self, max_tokens: int = 1_000_000) -> None:
        """`max_tokens`: of all texts; the oldest are forgotten."""
        self._texts: deque[tuple[str, array[int]]] = deque()
        self._n_tokens = 0
        self._max_tokens = max_tokens

    def count_known(self, client: str, tokens: Sequence[int], n_reused: int) -> int:
        """How many of the first `n_reused` tokens this client has sent or received."""
        if not client or not n_reused:
            return n_reused
        reused = array("i", tokens[:n_reused])
        known = [text for owner, text in self._texts if owner == client]
        if any(text[:n_reused] == reused for text in known):
            return n_reused  # Most often, and much faster than to compare tokens.
        return max((common_prefix_length(text, reused) for text in known), default=0)

    def remember(self, client: str, tokens: Sequence[int]) -> None:
        """Keep a text that this client knows, in place of those that it continues."""
        if not client:
            return
        text = array("i", tokens)
        for each in tuple(self._texts):
            owner, earlier = each
            if owner == client and text[: len(earlier)] == earlier:
                self._texts.remove(each)
                self._n_tokens -= len(earlier)
        self._texts.append((client, text))
        self._n_tokens += len(text)
        while self._n_tokens > self._max_tokens:
            _, oldest = self._texts.popleft()
            self._n_tokens -= len(oldest)


# --- Conversations that left the cache, kept in RAM, as llama.cpp's server does
# (`--cache-ram`)

MIN_TOKENS = 256  # Fewer are not worth a copy of the whole cache.


class SavedCache(Struct, frozen=True):
    """A copy of one model's cache."""

    tokens: tuple[int, ...]
    state: Any
    n_bytes: int


Snapshot = tuple[SavedCache, ...]
"""The caches of one conversation: the target's, and the draft model's if there is one."""


def _count_bytes(snapshot: Snapshot) -> int:
    return sum(part.n_bytes for part in snapshot)


class ConversationSnapshots:
    """Copies of the caches of a pair, for conversations that left it.

    The first cache is the target's. If there are too many, the oldest copies go first.

    The cache holds chat A with 2,000 tokens. A prompt of chat B, which shares 40 tokens
    of a system prompt with A, would overwrite 1,960 tokens: chat A is copied first, and
    B is read from token 40 on. When A goes on, 40 tokens are shared again, and the copy
    has 2,000: B is copied, if it is long enough, and A restored.
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
                if model.restore_state(part.state, len(part.tokens)):
                    cache.replace(part.tokens)
                else:
                    cache.replace(())

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
