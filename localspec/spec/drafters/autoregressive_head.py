"""Autoregressive heads (EAGLE-3, MTP): draft token by token from hidden states.

A head is one layer that continues the target's thought: its input row is a token and the
target's hidden state at the token before. `HeadRunner` collects these states while the
target decodes, `PendingStates` holds those that the head has not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.spec.drafters import DrafterInputs, HeadStates
from localspec.spec.drafters.draft_sampler import DraftSampler
from localspec.spec.prefix_cache import common_prefix_length
from localspec.spec.protocols import (
    AutoregressiveHead,
    Draft,
    DraftStopPolicy,
    HiddenStates,
    Logits,
)


class HeadRunner(HeadStates):
    """Runs a head across answers; a `HiddenStateListener`.

    Hidden states are kept pending until the next draft, or until the buffer is full. So
    the rows of accepted tokens are decoded in the first pass of the next draft, and
    those of rejected tokens never. A row is a token and the encoded hidden state before
    it.

    While it does not read along, a full buffer drops its oldest states, and the next
    draft begins at those that are left: the head then sees the end of the text only.
    Reading a long prompt for a head that does not pay would cost up to a tenth of the
    target's time.

    `kind` is the head's (`eagle3`, `mtp`), `batch` the target's maximum batch;
    `first_position` as in `PendingStates`.
    """

    head: AutoregressiveHead

    def __init__(
        self, head: AutoregressiveHead, kind: str, batch: int, first_position: int = 1
    ) -> None:
        self.head = head
        self.kind = kind
        # The states of a full pass of the target, and the one before them.
        self.max_pending = batch + 1
        self.reads_along = True
        """Whether a full buffer is decoded; otherwise its oldest states are dropped."""
        self._pending = PendingStates(
            self.max_pending, head.target_width, first_position
        )
        self.buffer_bytes = 4 * self.max_pending * head.target_width

    def on_decode(self, tokens: Sequence[int], states: HiddenStates) -> None:
        pending = self._pending
        try:
            reads = self.reads_along and not self.head.reads_target_memory
            if reads and not pending.has_room_for(len(tokens)) and self._is_in_sync():
                self._decode_pending(tokens[0], 0)
        finally:
            # The tokens must be recorded also if the head failed: they are the target's.
            if not pending.has_room_for(len(tokens)):
                pending.drop_oldest(len(tokens))
            pending.append(tokens, states)

    def count_new(self, tokens: Sequence[int]) -> int:
        """How many of a text's tokens the target has not decoded."""
        return len(tokens) - common_prefix_length(self._pending.target_tokens, tokens)

    def limit_truncation(self, n_past: int) -> int:
        return self._pending.limit_truncation(n_past)

    def on_truncate(self, n_past: int) -> None:
        self._pending.truncate(n_past)

    def newest_state(self) -> HiddenStates | None:
        return self._pending.newest_state()

    def on_restore(self, state: HiddenStates) -> None:
        self._pending.on_restore(state)

    def is_ready(self, tokens: Sequence[int]) -> bool:
        """Whether the target holds all of the text but its last token.

        The head must have read what precedes the pending rows, too.
        """
        n_before_last = len(tokens) - 1
        if n_before_last < 1 or len(self._pending.target_tokens) != n_before_last:
            return False
        return self._is_in_sync()

    def first_logits(self, last_token: int) -> Logits:
        """Logits after the text, whose last token the target does not hold yet."""
        if self.head.reads_target_memory:
            self._pending.skip_to_newest()
        logits: Logits = self._decode_pending(last_token, 1)[0]
        return logits

    def next_logits(self, token: int) -> Logits:
        """Logits after one more draft token."""
        logits: Logits = self.head.continue_draft(token)[0]
        return logits

    def _is_in_sync(self) -> bool:
        """Whether the pending rows can be decoded; they may have to begin anew.

        The head's memory must hold the rows before them. It does not after a failure,
        or when its memory had to be emptied.
        """
        if not self._pending.requeue_newest():
            return False
        head = self.head
        return head.reads_target_memory or head.n_past >= self._pending.n_rows

    def _decode_pending(self, last_token: int, outputs: int) -> Logits:
        """Decode the pending rows; return the logits of the last `outputs` (0 or 1)."""
        head = self.head
        pending = self._pending
        head.truncate(pending.n_rows)  # Drops the previous draft.
        tokens, states = pending.pending_rows(last_token)
        for start in range(0, len(tokens), head.n_batch):
            end = start + head.n_batch
            n_outputs = 0
            if end >= len(tokens):
                n_outputs = outputs
            encoded = head.encode(states[start:end])
            rows = head.decode(tokens[start:end], n_outputs, encoded)
        pending.mark_decoded(last_token)
        return rows


class HeadDrafter:
    """Drafts one answer with a `HeadRunner`."""

    def __init__(self, head_runner: HeadRunner, inputs: DrafterInputs) -> None:
        self._head_runner = head_runner
        self._sampler = DraftSampler(inputs, head_runner.kind, head_runner.head)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        runner = self._head_runner
        head = runner.head
        limit = min(limit, head.max_draft, head.n_ctx - len(tokens))
        if limit <= 0 or not runner.is_ready(tokens):
            return Draft()
        since = head.decode_seconds

        def next_logits(token: int | None) -> tuple[Logits, None]:
            if token is None:
                return runner.first_logits(tokens[-1]), None
            return runner.next_logits(token), None

        return self._sampler.sample_draft(
            tokens,
            limit,
            stop_policy=stop_policy,
            next_logits=next_logits,
            since=since,
        )


class PendingStates:
    """The target's tokens, and the hidden states that the head has not decoded yet.

    Holds at most `capacity` states, those of the last tokens. Rows are numbered by the
    position of their token. `first_position` is that of the first row: 1, as there is
    no state before the first token, or 0 for a head that uses zeros there. If states
    were dropped before the head had decoded them, its rows begin anew at the oldest
    that is left.

    The target decodes a prompt of three tokens and emits a fourth, 5:

        position           0   1   2   3
        target_tokens     12   7  31            s0, s1, s2 are stored
        pending rows          7   31   5        with the states s0, s1, s2

    The head decodes these rows and drafts 8 and 9. Its last row is at position 3, with
    the token 5, which the target does not hold yet. The target decodes [5, 8, 9]:

        position           0   1   2   3   4   5
        target_tokens     12   7  31   5   8   9     s0 to s5 are stored

    It rejects 9 and emits 6, so 9 is truncated. The rows up to position 3 are decoded,
    and those of 8 (with s3) and 6 (with s4) are pending. Had the target decoded another
    token than 5 at position 3, as after another prompt, that row would be pending again.
    """

    def __init__(self, capacity: int, width: int, first_position: int = 1) -> None:
        self._states = np.zeros((capacity + 1, width), np.float32)
        self._first_position = first_position
        self.target_tokens: list[int] = []
        self._reset()

    def _reset(self) -> None:
        self._states[0] = 0.0
        before_first = self._first_position - 1
        self._before_first = before_first
        """The position before the head's first row."""
        self.last_row = before_first
        """The position of the head's last row."""
        self._first_state = before_first
        """The position of the first stored state, `_states[0]`.

        At most `last_row`, unless states were dropped, and at most the text's end.
        """
        self._last_row_token: int | None = None
        """The token of the last row if the target does not hold it; None for no token."""

    @property
    def n_rows(self) -> int:
        """Number of rows the head has decoded."""
        return self.last_row - self._before_first

    def has_room_for(self, n: int) -> bool:
        return len(self.target_tokens) - self._first_state + n <= len(self._states)

    def append(self, tokens: Sequence[int], states: HiddenStates) -> None:
        end = len(self.target_tokens)
        is_other_token = self.last_row == end and tokens[0] != self._last_row_token
        # The row needs the state before it. If that is gone, one wrong row stays: rare.
        if is_other_token and self._first_state < end:
            self.last_row = end - 1
        at = end - self._first_state
        self._states[at : at + len(tokens)] = states
        self.target_tokens.extend(tokens)

    def limit_truncation(self, n_past: int) -> int:
        """As in `HiddenStateListener`: the state before the next token is needed.

        If it is gone, the target decodes the token before again, which brings it.
        """
        if 0 < n_past <= self._first_state:
            return n_past - 1
        return n_past

    def truncate(self, n_past: int) -> None:
        if n_past >= len(self.target_tokens):
            return
        if n_past == 0:
            self._reset()
        elif self.last_row >= n_past:
            # The row at n_past needs only states and tokens before it: it is still right
            # if the same token follows.
            self.last_row = n_past
            self._last_row_token = self.target_tokens[n_past]
            self._before_first = min(self._before_first, n_past)
        del self.target_tokens[n_past:]
        self._first_state = min(self._first_state, n_past)

    def newest_state(self) -> HiddenStates | None:
        """A copy of the newest token's state."""
        last = len(self.target_tokens) - 1
        if last < max(0, self._first_state):
            return None
        state: HiddenStates = self._states[last - self._first_state].copy()
        return state

    def on_restore(self, state: HiddenStates) -> None:
        """As in `HiddenStateListener`, after `truncate`."""
        last = len(self.target_tokens) - 1
        if self._first_state > last >= 0:
            self._states[0] = state
            self._first_state = last

    def requeue_newest(self) -> bool:
        """Make the newest token's row pending again; False if its state is not stored."""
        last = len(self.target_tokens) - 1
        if self._first_state > last:
            return False
        if self.last_row < self._first_state:
            # States that the head has not read were dropped: its rows begin anew.
            self._before_first = self._first_state
            self.last_row = self._first_state
        self.last_row = min(self.last_row, last)
        return True

    def skip_to_newest(self) -> None:
        """Leave only the newest token's state pending: the head's rows begin anew there."""
        newest = len(self.target_tokens) - 1
        self._before_first = newest
        self.last_row = newest

    def pending_rows(self, next_token: int) -> tuple[list[int], HiddenStates]:
        """Tokens of the pending rows and `next_token`, and the state before each, a view."""
        start = self.last_row - self._first_state
        end = len(self.target_tokens) - self._first_state
        states = self._states[start:end]
        return [*self.target_tokens[self.last_row + 1 :], next_token], states

    def mark_decoded(self, next_token: int) -> None:
        """Record that all pending rows, `next_token` included, were decoded."""
        self.last_row = len(self.target_tokens)
        self._last_row_token = next_token

    def drop_oldest(self, n: int) -> None:
        """Make room for n states; the newest are kept, at most half of the buffer."""
        end = len(self.target_tokens)
        n_stored = end - self._first_state
        # Half, so that states are not moved again at each of the next tokens.
        kept = min(len(self._states) - n, len(self._states) // 2, n_stored)
        kept = max(kept, 1)
        self._states[:kept] = self._states[n_stored - kept : n_stored]
        self._first_state = end - kept


def make(inputs: DrafterInputs) -> HeadDrafter:
    if not isinstance(inputs.head_runner, HeadRunner):
        raise KeyError("autoregressive head")
    return HeadDrafter(inputs.head_runner, inputs)
