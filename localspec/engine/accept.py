"""Which drafted tokens stand, and which token follows them.

Every class draws each emitted token from the target's own law, whatever the drafter did; where
the law is certain (temperature 0) all four take the target's argmax.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.engine.protocols import Draft, Law, LawAt, Verifier
from localspec.engine.sampling import certain, race
from localspec.protocol.wire import VerifyMode


class Draws(Protocol):
    """Where randomness comes in; tests enumerate every outcome instead."""

    def choice(self, probs: NDArray[np.float64]) -> int:
        """An index, drawn by these probabilities."""
        ...

    def accept(self, prob: float) -> bool:
        """True with this probability."""
        ...


class Seeded:
    """One generator an answer: a seed is used once, never once a token."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def choice(self, probs: NDArray[np.float64]) -> int:
        return pick(probs, self._rng.random())

    def accept(self, prob: float) -> bool:
        return self._rng.random() < prob


def pick(probs: NDArray[np.float64], u: float) -> int:
    """Inverse of the cumulated sum at u in [0, 1); never an index of probability 0."""
    cumulated = probs.cumsum()
    index = int(cumulated.searchsorted(u * cumulated[-1], "right"))
    return index if index < len(probs) else int(probs.nonzero()[0][-1])


class Coupled:
    """Draft and target draw with the same Gumbel noise (Daliri, Musco, Suresh 2408.07978).

    The noise is keyed by seed, place and token, so the text depends on the seed alone: not on
    the drafter, the draft length, or whether there was one.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def guess(self, law: Law, index: int) -> int:
        if len(law.ids) == 1:
            return int(law.ids[0])
        return race(self._seed, index, law)

    def verify(self, law_at: LawAt, draft: Draft, index: int) -> tuple[int, int]:
        for i, token in enumerate(draft.tokens):
            own = self.guess(law_at(i), index + i)
            if own != token:
                return i, own
        n = len(draft.tokens)
        return n, self.guess(law_at(n), index + n)


class Match:
    """The target samples for itself and a draft stands while it says the same, as in llama.cpp.

    Drafting takes the draft's argmax, which is the best guess under this rule.
    """

    def __init__(self, draws: Draws) -> None:
        self._draws = draws

    def guess(self, law: Law, index: int) -> int:
        return int(law.ids[law.probs.argmax()])

    def verify(self, law_at: LawAt, draft: Draft, index: int) -> tuple[int, int]:
        for i, token in enumerate(draft.tokens):
            own = self._draw(law_at(i))
            if own != token:
                return i, own
        return len(draft.tokens), self._draw(law_at(len(draft.tokens)))

    def _draw(self, law: Law) -> int:
        return int(law.ids[self._draws.choice(law.probs)])


class Rejection:
    """Speculative sampling (Leviathan 2211.17192, Chen 2302.01318): accept by the ratio p/q.

    The token drawn from the residual after a rejection *is* the emitted token.
    """

    def __init__(self, draws: Draws) -> None:
        self._draws = draws

    def guess(self, law: Law, index: int) -> int:
        return int(law.ids[self._draws.choice(law.probs)])

    def verify(self, law_at: LawAt, draft: Draft, index: int) -> tuple[int, int]:
        for i, token in enumerate(draft.tokens):
            p, q = law_at(i), _drawn_from(draft, i)
            ratio = p.prob(token) / q.prob(token)
            if ratio < 1.0 and not self._draws.accept(ratio):
                return i, int(p.ids[self._draws.choice(residual(p, q))])
        law = law_at(len(draft.tokens))
        return len(draft.tokens), int(law.ids[self._draws.choice(law.probs)])


class Block:
    """Block verification (Sun et al. 2403.10444): the longest prefix that stands as a whole.

    A token may make up for one before it, so more of them stand than under `Rejection`, and
    never fewer on average.  For guesses without a law the two are the same.
    """

    def __init__(self, draws: Draws) -> None:
        self._draws = draws

    def guess(self, law: Law, index: int) -> int:
        return int(law.ids[self._draws.choice(law.probs)])

    def verify(self, law_at: LawAt, draft: Draft, index: int) -> tuple[int, int]:
        pairs, shares = _prefixes(law_at, draft)
        chance = shares[-1]
        # Each prefix stands or falls by a draw of its own: from the longest on, the first to stand.
        while chance < 1.0 and not self._draws.accept(chance):
            p, q = pairs.pop()
            share = shares[len(pairs)]
            chance = _chance(share, float(excess(p, q, share).sum()))
        n = len(pairs)
        if n == len(draft.tokens):
            law = law_at(n)
            return n, int(law.ids[self._draws.choice(law.probs)])
        return n, int(p.ids[self._draws.choice(residual(p, q, shares[n]))])


def _prefixes(law_at: LawAt, draft: Draft) -> tuple[list[tuple[Law, Law]], list[float]]:
    """Both laws at each place, and how much of the draft's mass each prefix may keep.

    Ends at the first prefix that the target never says: none beyond it stands.
    """
    pairs: list[tuple[Law, Law]] = []
    shares = [1.0]
    for i, token in enumerate(draft.tokens):
        p, q = law_at(i), _drawn_from(draft, i)
        pairs.append((p, q))
        shares.append(min(1.0, shares[-1] * p.prob(token) / q.prob(token)))
        if shares[-1] == 0.0:
            break
    return pairs, shares


def _chance(share: float, left: float) -> float:
    """That a prefix stands where all longer ones fell; `left` is the mass its residual has."""
    return left / (left + 1.0 - share) if share < 1.0 else 1.0


def _drawn_from(draft: Draft, i: int) -> Law:
    return draft.laws[i] if draft.laws is not None else certain(draft.tokens[i])


def excess(p: Law, q: Law, share: float = 1.0) -> NDArray[np.float64]:
    """max(0, share p - q), over p's ids."""
    order = np.argsort(q.ids)
    places = np.minimum(np.searchsorted(q.ids, p.ids, sorter=order), len(order) - 1)
    same = order[places]
    theirs = np.where(q.ids[same] == p.ids, q.probs[same], 0.0)
    out: NDArray[np.float64] = np.maximum(share * p.probs - theirs, 0.0)
    return out


def residual(p: Law, q: Law, share: float = 1.0) -> NDArray[np.float64]:
    """The excess, renormalised; p itself where nothing is left (p equals q)."""
    left = excess(p, q, share)
    total = left.sum()
    return left / total if total > 0 else p.probs


_BY_DRAWS: dict[VerifyMode, Callable[[Draws], Verifier]] = {
    "rejection": Rejection,
    "block": Block,
    "match": Match,
}


def verifier(mode: VerifyMode, seed: int, draws: Draws | None = None) -> Verifier:
    """The verifier of one answer."""
    return Coupled(seed) if mode == "coupled" else _BY_DRAWS[mode](draws or Seeded(seed))
