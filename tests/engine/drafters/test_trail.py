"""What waits for a head: against a plain list of everything that was ever read."""

from __future__ import annotations

import numpy as np

from localspec.engine.drafters.autoregressive_head import PendingStates
from localspec.engine.protocols import HiddenStates

ROOM = 9


def states(tokens: list[int], start: int) -> HiddenStates:
    """Each tells its place and its token."""
    return np.array([[start + i, token] for i, token in enumerate(tokens)], np.float32)


class Target:
    """Reads, forgets and is drafted for at random; its head takes rows from a trail."""

    def __init__(self, seed: int, first: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.trail = PendingStates(ROOM, 2, first)
        self.first = first
        self.text: list[int] = []
        self.rows: dict[int, int] = {}
        """The head's: token by place."""
        self.again: list[int] = []
        """What is to be read once more, for its state."""

    def read(self, n: int) -> None:
        tokens = self.again or [int(t) for t in self.rng.integers(3, size=n)]
        self.again = []
        if not self.trail.has_room_for(len(tokens)):
            assert self.trail.requeue_newest()
            self.take(tokens[0])
            self.trail.keep_last_state()
        self.trail.append(tokens, states(tokens, len(self.text)))
        self.text += tokens

    def take(self, following: int) -> None:
        tokens, before = self.trail.pending_rows(following)
        assert len(tokens) == len(before)
        start = self.trail.last_row + 1
        for place, (token, state) in enumerate(zip(tokens, before, strict=True), start):
            before_it = [place - 1, self.text[place - 1]] if place else [0, 0]
            assert state.tolist() == before_it
            self.rows[place] = token
        self.trail.mark_decoded(following)
        assert self.trail.last_row == len(self.text)

    def forget(self) -> None:
        n = int(self.rng.integers(len(self.text)))
        kept = self.trail.limit_truncation(n)
        assert n - 1 <= kept <= n
        self.trail.truncate(kept)
        self.again = self.text[kept:n]
        del self.text[kept:]

    def check(self) -> None:
        trail = self.trail
        assert trail.target_tokens == self.text
        assert trail.last_row <= len(self.text)
        for place in range(self.first, min(trail.last_row + 1, len(self.text))):
            assert self.rows[place] == self.text[place]


def test_rows_are_those_of_the_text() -> None:
    for first in (0, 1):
        for seed in range(20):
            target = Target(seed, first)
            for _ in range(200):
                choice = target.rng.integers(4)
                if choice == 0 and target.text:
                    target.forget()
                elif choice == 1 and target.text and target.trail.requeue_newest():
                    target.take(int(target.rng.integers(3)))
                else:
                    target.read(int(target.rng.integers(1, ROOM)))
                target.check()


def test_the_state_before_the_next_token_is_seen_again_where_it_was_dropped() -> None:
    trail = PendingStates(ROOM, 2)
    trail.append([0, 1, 2, 0], states([0, 1, 2, 0], 0))
    trail.mark_decoded(5)
    trail.keep_last_state()
    assert trail.limit_truncation(4) == 4
    assert trail.limit_truncation(3) == 2
    assert trail.limit_truncation(0) == 0
