"""What waits for a head: against a plain list of everything that was ever read."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.engine.drafters.trail import Trail
from localspec.engine.protocols import States

ROOM = 9


def states(tokens: list[int], start: int) -> States:
    """Each tells its place and its token."""
    return np.array([[start + i, token] for i, token in enumerate(tokens)], np.float32)


class Target:
    """Reads, forgets and is drafted for at random; its head takes rows from a trail."""

    def __init__(self, seed: int, first: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.trail = Trail(ROOM, 2, first)
        self.first = first
        self.text: list[int] = []
        self.rows: dict[int, int] = {}
        """The head's: token by place."""
        self.again: list[int] = []
        """What is to be read once more, for its state."""

    def read(self, n: int) -> None:
        tokens = self.again or [int(t) for t in self.rng.integers(3, size=n)]
        self.again = []
        if not self.trail.fits(len(tokens)):
            assert self.trail.reopen()
            self.take(tokens[0])
            self.trail.drop()
        self.trail.add(tokens, states(tokens, len(self.text)))
        self.text += tokens

    def take(self, following: int) -> None:
        tokens, before = self.trail.waiting(following)
        assert len(tokens) == len(before)
        start = self.trail.taken + 1
        for place, (token, state) in enumerate(zip(tokens, before, strict=True), start):
            before_it = [place - 1, self.text[place - 1]] if place else [0, 0]
            assert state.tolist() == before_it
            self.rows[place] = token
        self.trail.took(following)
        assert self.trail.taken == len(self.text)

    def forget(self) -> None:
        n = int(self.rng.integers(len(self.text)))
        kept = self.trail.keeps(n)
        assert n - 1 <= kept <= n
        self.trail.forget(kept)
        self.again = self.text[kept:n]
        del self.text[kept:]

    def check(self) -> None:
        trail = self.trail
        assert trail.text == self.text
        assert trail.taken <= len(self.text)
        for place in range(self.first, min(trail.taken + 1, len(self.text))):
            assert self.rows[place] == self.text[place]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("seed", range(20))
def test_rows_are_those_of_the_text(seed: int, first: int) -> None:
    target = Target(seed, first)
    for _ in range(200):
        choice = target.rng.integers(4)
        if choice == 0 and target.text:
            target.forget()
        elif choice == 1 and target.text and target.trail.reopen():
            target.take(int(target.rng.integers(3)))
        else:
            target.read(int(target.rng.integers(1, ROOM)))
        target.check()


def test_the_state_before_the_next_token_is_seen_again_where_it_was_dropped() -> None:
    trail = Trail(ROOM, 2)
    trail.add([0, 1, 2, 0], states([0, 1, 2, 0], 0))
    trail.took(5)
    trail.drop()
    assert trail.keeps(4) == 4
    assert trail.keeps(3) == 2
    assert trail.keeps(0) == 0
