"""A head beside its target: what the target reads becomes its rows, and its rows guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from localspec.engine.drafters import DrafterInputs
from localspec.engine.drafters.draft_sampler import DraftSampler
from localspec.engine.protocols import (
    AutoregressiveHead,
    BlockHead,
    Draft,
    DraftStopPolicy,
    HiddenStates,
    Logits,
)


class HeadRunner:
    """A head beside its target, from answer to answer; a `Follower`.

    States wait until the head is asked for a draft, or they are too many: so the rows of what was
    accepted ride along in the pass that the next draft begins with, and rows of what was rejected
    are never made.  A row is a token and the state before it, encoded.

    `batch` is the most that the target reads at once; `first` as a trail's.
    """

    def __init__(self, head: AutoregressiveHead, batch: int, first_position: int = 1) -> None:
        self.head = head
        self._pending = PendingStates(batch + 1, head.target_width, first_position)

    # --- following ----------------------------------------------------------------------

    def on_decode(self, tokens: Sequence[int], states: HiddenStates) -> None:
        trail = self._pending
        try:
            if not trail.has_room_for(len(tokens)) and self._is_in_sync():
                self._decode_pending(tokens[0], 0)
        finally:  # whatever fails, the text is the target's
            if not trail.has_room_for(len(tokens)):
                trail.keep_last_state()
            trail.append(tokens, states)

    def limit_truncation(self, n_past: int) -> int:
        return self._pending.limit_truncation(n_past)

    def on_truncate(self, n_past: int) -> None:
        self._pending.truncate(n_past)

    def newest_state(self) -> HiddenStates | None:
        return self._pending.newest_state()

    def on_restore(self, state: HiddenStates) -> None:
        self._pending.on_restore(state)

    # --- guessing -----------------------------------------------------------------------

    def is_ready(self, tokens: Sequence[int]) -> bool:
        """Whether the target has read all of the text but its last token."""
        return len(self._pending.target_tokens) == len(tokens) - 1 > 0 and self._is_in_sync()

    def first_logits(self, last_token: int) -> Logits:
        """Logits after the text and the token that follows it."""
        logits: Logits = self._decode_pending(last_token, 1)[0]
        return logits

    def next_logits(self, token: int) -> Logits:
        """Logits after one guess more."""
        head = self.head
        logits: Logits = head.decode([token], 1, head.last_hidden_state())[0]
        return logits

    def _is_in_sync(self) -> bool:
        """Whether the rows that wait can be made: not where some before them were lost."""
        return self._pending.requeue_newest() and self.head.n_past >= self._pending.n_rows

    def _decode_pending(self, last_token: int, outputs: int) -> Logits:
        """Make the rows that wait; logits of the last one, if asked for."""
        head, trail = self.head, self._pending
        head.truncate(trail.n_rows)  # the guesses of the draft before
        tokens, states = trail.pending_rows(last_token)
        for start in range(0, len(tokens), head.n_batch):
            part = slice(start, start + head.n_batch)
            last = part.stop >= len(tokens)
            encoded = head.encode(states[part])
            rows = head.decode(tokens[part], outputs if last else 0, encoded)
        trail.mark_decoded(last_token)
        return rows


class HeadDrafter:
    """One answer's guesses.  Its own only: where others stand ahead there is no state to go on."""

    def __init__(self, head_runner: HeadRunner, inputs: DrafterInputs, source: str) -> None:
        self._head_runner = head_runner
        self._sampler = DraftSampler(inputs, source, head_runner.head.n_vocab)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        draft_prefix: Sequence[int] = (),
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        companion, head = self._head_runner, self._head_runner.head
        limit = min(limit, head.n_ctx - len(tokens))
        if draft_prefix or limit <= 0 or not companion.is_ready(tokens):
            return Draft()
        before = head.decode_seconds

        def row(guess: int | None) -> tuple[Logits, None]:
            logits = (
                companion.first_logits(tokens[-1])
                if guess is None
                else companion.next_logits(guess)
            )
            return logits, None

        draft = self._sampler.sample_draft(tokens, (), limit, stop_policy, row)
        return replace(draft, decode_seconds=head.decode_seconds - before)


# --- What a target has read and its head has not: tokens, and the states that wait for them.


class PendingStates:
    """The target's text, the head's last row, and states of the text's end; no more than `room`.

    Rows are counted by the place of their token in the text; `first` is that of the first row: 1,
    as nothing stands before the text's beginning, or 0 for a head that puts zeros there.
    """

    def __init__(self, capacity: int, width: int, first_position: int = 1) -> None:
        self._states = np.zeros((capacity + 1, width), np.float32)
        self._before_first = first_position - 1
        self.target_tokens: list[int] = []
        self._reset()

    def _reset(self) -> None:
        self._states[0] = 0.0
        self._first_state = self._before_first
        """Place of the first state that is kept; never beyond `taken`, nor the text's end."""
        self.last_row = self._before_first
        """Place of the head's last row."""
        self._last_row_token = -1
        """The token of that row, where the text does not hold it."""

    @property
    def n_rows(self) -> int:
        """Rows that the head has."""
        return self.last_row - self._before_first

    def has_room_for(self, n: int) -> bool:
        """Whether n more states have room."""
        return len(self.target_tokens) - self._first_state + n <= len(self._states)

    def append(self, tokens: Sequence[int], states: HiddenStates) -> None:
        """The target has read on."""
        end = len(self.target_tokens)
        # Without the state before it a wrong row stays: one, in a case that hardly occurs.
        if self.last_row == end and tokens[0] != self._last_row_token and self._first_state < end:
            self.last_row = end - 1
        at = end - self._first_state
        self._states[at : at + len(tokens)] = states
        self.target_tokens.extend(tokens)

    def limit_truncation(self, n_past: int) -> int:
        """As `Follower.keeps`: the state before the next token must be there, or be read again."""
        return n_past if n_past == 0 or n_past > self._first_state else n_past - 1

    def truncate(self, n_past: int) -> None:
        """The target holds the first n_past tokens, no more."""
        if n_past >= len(self.target_tokens):
            return
        if n_past == 0:
            self._reset()
        elif self.last_row >= n_past:
            self.last_row, self._last_row_token = n_past, self.target_tokens[n_past]
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
        """As `Follower.returned`, after `forget`."""
        last = len(self.target_tokens) - 1
        if self._first_state > last >= 0:
            self._states[0], self._first_state = state, last

    def requeue_newest(self) -> bool:
        """Make the newest token's row wait again; False where no state is kept for it."""
        last = len(self.target_tokens) - 1
        if not self._first_state <= min(self.last_row, last):
            return False
        self.last_row = min(self.last_row, last)
        return True

    def pending_rows(self, next_token: int) -> tuple[list[int], HiddenStates]:
        """Tokens of the rows to be made, `following` the last, and the state before each; a view.

        `following` is the text's next token.
        """
        at = self.last_row - self._first_state
        states = self._states[at : len(self.target_tokens) - self._first_state]
        return [*self.target_tokens[self.last_row + 1 :], next_token], states

    def mark_decoded(self, next_token: int) -> None:
        """All that waited has its row."""
        self.last_row, self._last_row_token = len(self.target_tokens), next_token

    def keep_last_state(self) -> None:
        """Keep the last state alone, when all before it are taken."""
        last = len(self.target_tokens) - 1
        self._states[0] = self._states[last - self._first_state]
        self._first_state = last


# --- A head that guesses whole blocks, beside its target: states in, one pass a draft.


class BlockHeadRunner:
    """The head from answer to answer; a `Follower`.

    States wait until the head is asked for a draft, or they are too many: those of rejected
    guesses never enter its memory.  The head needs no token with a state, so nothing else waits.
    """

    def __init__(self, head: BlockHead, batch: int) -> None:
        self.head = head
        self._pending_states = np.zeros((batch, head.target_width), np.float32)
        self._n_pending = 0
        self._n_injected = 0
        """States in the head's memory."""

    def on_decode(self, tokens: Sequence[int], states: HiddenStates) -> None:
        n = len(tokens)
        try:
            if self._n_pending + n > len(self._pending_states) and self.is_in_sync:
                self._inject_pending()
        finally:  # what could not be taken in is lost: the head then falls silent
            if self._n_pending + n > len(self._pending_states):
                self._n_injected, self._n_pending = self._n_injected + self._n_pending, 0
            self._pending_states[self._n_pending : self._n_pending + n] = states
            self._n_pending += n

    def limit_truncation(self, n_past: int) -> int:
        return n_past

    def on_truncate(self, n_past: int) -> None:
        self._n_injected = min(self._n_injected, n_past)
        self._n_pending = min(self._n_pending, n_past - self._n_injected)

    def newest_state(self) -> HiddenStates | None:
        return None  # rows of the head's memory stay true

    def on_restore(self, state: HiddenStates) -> None:
        pass

    @property
    def is_in_sync(self) -> bool:
        """Whether the head has all states but those that wait."""
        return self.head.n_past >= self._n_injected

    def is_ready(self, tokens: Sequence[int]) -> bool:
        """Whether the target has read all of the text but its last token."""
        return self._n_injected + self._n_pending == len(tokens) - 1 and self.is_in_sync

    def draft_block(self, last_token: int, n: int) -> tuple[Logits, HiddenStates | None]:
        """Logits of the n tokens after the text's last one, and how sure the head is of each."""
        self._inject_pending()
        return self.head.draft_block(last_token, n)

    def _inject_pending(self) -> None:
        head = self.head
        head.truncate(self._n_injected)
        for start in range(0, self._n_pending, head.n_batch):
            head.inject(self._pending_states[start : min(start + head.n_batch, self._n_pending)])
        self._n_injected, self._n_pending = self._n_injected + self._n_pending, 0


class BlockDrafter:
    """One answer's guesses, each drawn from its own row.

    DSpark's rows follow its own likeliest guesses, so a drawn one that is another leaves the rows
    after it a worse guess; each is still drawn from the law that the draft says, so any way of
    verifying stays exact.
    """

    def __init__(self, head_runner: BlockHeadRunner, inputs: DrafterInputs, source: str) -> None:
        self._head_runner = head_runner
        self._sampler = DraftSampler(inputs, source, head_runner.head.n_vocab)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        draft_prefix: Sequence[int] = (),
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        companion, head = self._head_runner, self._head_runner.head
        limit = min(limit, head.block_size - head.first_draft_row, head.n_ctx - len(tokens))
        if draft_prefix or limit <= 0 or not companion.is_ready(tokens):
            return Draft()
        before = head.decode_seconds
        rows, sure = companion.draft_block(tokens[-1], limit)
        places = iter(range(limit))

        def row(_: int | None) -> tuple[Logits, float | None]:
            i = next(places)
            return rows[i], None if sure is None else float(sure[i])

        draft = self._sampler.sample_draft(tokens, (), limit, stop_policy, row)
        return replace(draft, decode_seconds=head.decode_seconds - before)
