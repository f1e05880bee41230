"""Rows that wait for a head, against a plain list of all that the target decoded."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.engine.drafters.autoregressive_head import HeadRunner, PendingStates
from localspec.engine.protocols import HiddenStates
from tests.support.fake_heads import FakeHead

ROOM = 9


def states(tokens: list[int], start: int) -> HiddenStates:
    """Each has its position and its token."""
    return np.array([[start + i, token] for i, token in enumerate(tokens)], np.float32)


class Target:
    """Decodes, truncates and is drafted for at random; its head takes the rows that wait."""

    def __init__(self, seed: int, first: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.pending = PendingStates(ROOM, 2, first)
        self.first = first
        self.text: list[int] = []
        self.rows: dict[int, int] = {}
        """The head's: token by position."""
        self.again: list[int] = []
        """Decoded once more, for its state."""

    def decode(self, n: int, reads_along: bool) -> None:
        tokens = self.again or [int(t) for t in self.rng.integers(3, size=n)]
        self.again = []
        if not self.pending.has_room_for(len(tokens)):
            if reads_along:
                assert self.pending.requeue_newest()
                self.take(tokens[0])
            self.pending.drop_oldest(len(tokens))
        self.pending.append(tokens, states(tokens, len(self.text)))
        self.text += tokens

    def take(self, following: int) -> None:
        tokens, before = self.pending.pending_rows(following)
        start = self.pending.last_row + 1
        self.rows = {place: row for place, row in self.rows.items() if place < start}
        self.first = start - self.pending.n_rows
        for place, (token, state) in enumerate(zip(tokens, before, strict=True), start):
            assert state.tolist() == ([place - 1, self.text[place - 1]] if place else [0, 0])
            self.rows[place] = token
        self.pending.mark_decoded(following)
        assert self.pending.last_row == len(self.text)

    def truncate(self) -> None:
        n = int(self.rng.integers(len(self.text)))
        kept = self.pending.limit_truncation(n)
        assert n - 1 <= kept <= n
        self.pending.truncate(kept)
        self.again = self.text[kept:n]
        del self.text[kept:]

    def check(self) -> None:
        last = self.pending.last_row
        assert self.pending.target_tokens == self.text and last <= len(self.text)
        for place in range(self.first, min(last + 1, len(self.text))):
            assert self.rows[place] == self.text[place]


def test_rows_are_those_of_the_text() -> None:
    for first, seed in np.ndindex(2, 20):
        target = Target(seed, first)
        for _ in range(200):
            choice, reads_along = target.rng.integers(4), bool(seed % 2 or target.rng.integers(2))
            if choice == 0 and target.text:
                target.truncate()
            elif choice == 1 and target.text and target.pending.requeue_newest():
                target.take(int(target.rng.integers(3)))
            else:
                target.decode(int(target.rng.integers(1, ROOM)), reads_along)
            target.check()


def test_the_state_before_the_next_token_is_computed_again_where_it_was_dropped() -> None:
    pending = PendingStates(ROOM, 2)
    pending.append([0, 1, 2, 0], states([0, 1, 2, 0], 0))
    pending.mark_decoded(5)
    pending.drop_oldest(ROOM)
    assert [pending.limit_truncation(n) for n in (4, 3, 0)] == [4, 2, 0]


@pytest.mark.parametrize("first_position", [0, 1])
def test_a_head_that_does_not_read_along_reads_the_end_of_the_text(first_position: int) -> None:
    """Also after the text is cut, within what it has read and before that, and goes on."""
    head = FakeHead(1)
    runner = HeadRunner(head, "eagle3", ROOM, first_position)
    runner.reads_along = False
    rng, text = np.random.default_rng(0), list[int]()

    def read(n: int) -> None:
        for part in (ROOM,) * (n // ROOM) + (n % ROOM,) * bool(n % ROOM):
            tokens = [int(token) for token in rng.integers(6, size=part)]
            runner.on_decode(tokens, np.array(tokens, np.float32)[:, np.newaxis] + 1)
            text.extend(tokens)

    read(5 * ROOM + 4)
    assert not head.memory, "nothing is read before a draft"
    assert [runner.count_new(each) for each in ([*text, 1, 2], text[:3], [7, *text])] == [
        2,
        0,
        len(text) + 1,
    ]
    for cut, more in ((0, 0), (2, 3), (2, 0), (2 * ROOM, 5), (3, ROOM - 1), (1, 3 * ROOM)):
        if cut:
            del text[runner.limit_truncation(len(text) - cut) :]
            runner.on_truncate(len(text))
        read(max(more, 1))
        assert runner.is_ready([*text, 5])
        runner.first_logits(5)
        n = len(head.memory)
        assert 2 <= n <= ROOM + 2 and head.memory == [*text, 5][-n:]
        assert head.tokens_before == text[-n:]
