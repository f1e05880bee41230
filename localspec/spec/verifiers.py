"""Verification methods: which draft tokens are accepted, and which token follows them.

With each of them every emitted token has the target's own distribution, whatever the
drafter does. At temperature 0 all four take the target's argmax.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from localspec.protocol.wire import VerifyMode
from localspec.spec.protocols import Distribution, DistributionAt, Draft, Verifier
from localspec.spec.sampling import gumbel_argmax, gumbel_noise, one_hot


class SeededRandom:
    """Random decisions.

    One generator per answer: the seed is used once, not once per token.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def choice(self, probs: NDArray[np.float64]) -> int:
        return sample_inverse_cdf(probs, self._rng.random())

    def accept(self, prob: float) -> bool:
        return self._rng.random() < prob


def sample_inverse_cdf(probs: NDArray[np.float64], u: float) -> int:
    """The index at `u` in [0, 1) of the cumulative sum; never one of probability 0."""
    cumulated = probs.cumsum()
    index = int(cumulated.searchsorted(u * cumulated[-1], "right"))
    return index if index < len(probs) else int(probs.nonzero()[0][-1])


class GumbelCoupledVerifier:
    """Draft and target sample with the same Gumbel noise (Daliri, Musco, Suresh
    2408.07978).

    The noise is keyed by seed, position and token, so the text depends on the seed
    alone and not on the drafter or the draft length.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def sample_draft_token(self, distribution: Distribution, index: int) -> int:
        if len(distribution.ids) == 1:
            return int(distribution.ids[0])
        return gumbel_argmax(self._seed, index, distribution)

    def rank_draft_tokens(
        self, distribution: Distribution, index: int, n: int
    ) -> NDArray[np.int64]:
        """The n likeliest tokens, given the noise of position `index`; best first."""
        noise = gumbel_noise(self._seed, index, distribution.ids)
        return distribution.ids[
            (np.log(distribution.probs) + noise).argsort()[::-1][:n]
        ]

    def verify(
        self, distribution_at: DistributionAt, draft: Draft, index: int
    ) -> tuple[int, int]:
        for i, token in enumerate(draft.tokens):
            own = self.sample_draft_token(distribution_at(i), index + i)
            if own != token:
                return i, own
        n = len(draft.tokens)
        return n, self.sample_draft_token(distribution_at(n), index + n)


class _RandomVerifier:
    """A verifier that draws at random; by default its draft tokens are sampled too."""

    def __init__(self, random_source: SeededRandom) -> None:
        self._random = random_source

    def _sample(self, distribution: Distribution) -> int:
        return int(distribution.ids[self._random.choice(distribution.probs)])

    def sample_draft_token(self, distribution: Distribution, index: int) -> int:
        return self._sample(distribution)


class SampleAndMatchVerifier(_RandomVerifier):
    """The target samples; a draft token is accepted if it is the same token, as in
    llama.cpp.

    Drafting takes the argmax, which has the highest acceptance under this rule.
    """

    def sample_draft_token(self, distribution: Distribution, index: int) -> int:
        return int(distribution.ids[distribution.probs.argmax()])

    def rank_draft_tokens(
        self, distribution: Distribution, index: int, n: int
    ) -> NDArray[np.int64]:
        """The n likeliest tokens, best first."""
        return distribution.ids[distribution.probs.argsort()[::-1][:n]]

    def verify(
        self, distribution_at: DistributionAt, draft: Draft, index: int
    ) -> tuple[int, int]:
        for i, token in enumerate(draft.tokens):
            own = self._sample(distribution_at(i))
            if own != token:
                return i, own
        return len(draft.tokens), self._sample(distribution_at(len(draft.tokens)))


class RejectionVerifier(_RandomVerifier):
    """Speculative sampling (Leviathan 2211.17192, Chen 2302.01318): accept with
    probability p/q.

    After a rejection the emitted token is sampled from the residual distribution.
    """

    def verify(
        self, distribution_at: DistributionAt, draft: Draft, index: int
    ) -> tuple[int, int]:
        for i, token in enumerate(draft.tokens):
            p, q = distribution_at(i), _draft_distribution(draft, i)
            ratio = p.prob(token) / q.prob(token)
            if ratio < 1.0 and not self._random.accept(ratio):
                return i, int(p.ids[self._random.choice(residual_probs(p, q))])
        distribution = distribution_at(len(draft.tokens))
        return len(draft.tokens), self._sample(distribution)


class BlockVerifier(_RandomVerifier):
    """Block verification (Sun et al. 2403.10444): accepts the longest prefix as a
    whole.

    A likely token can compensate for an unlikely one before it, so on average at least
    as many tokens are accepted as by `RejectionVerifier`. For drafts that were not
    sampled both are equal.
    """

    def verify(
        self, distribution_at: DistributionAt, draft: Draft, index: int
    ) -> tuple[int, int]:
        pairs, shares = _prefix_shares(distribution_at, draft)
        probability = shares[-1]
        # Each prefix has its own draw; from the longest down, the first accepted one is
        # taken.
        while probability < 1.0 and not self._random.accept(probability):
            p, q = pairs.pop()
            share = shares[len(pairs)]
            mass = float(residual_mass_by_token(p, q, share).sum())
            # That the prefix is accepted after all longer ones were rejected.
            probability = mass / (mass + 1.0 - share) if share < 1.0 else 1.0
        n = len(pairs)
        if n == len(draft.tokens):
            return n, self._sample(distribution_at(n))
        return n, int(p.ids[self._random.choice(residual_probs(p, q, shares[n]))])


def _prefix_shares(
    distribution_at: DistributionAt, draft: Draft
) -> tuple[list[tuple[Distribution, Distribution]], list[float]]:
    """Target and draft distributions at each position, and the share p_i of each
    prefix.

    A share is min(1, previous share * p/q), as in the paper. Ends at the first prefix
    of share 0: no longer one can be accepted.
    """
    pairs: list[tuple[Distribution, Distribution]] = []
    shares = [1.0]
    for i, token in enumerate(draft.tokens):
        p, q = distribution_at(i), _draft_distribution(draft, i)
        pairs.append((p, q))
        shares.append(min(1.0, shares[-1] * p.prob(token) / q.prob(token)))
        if shares[-1] == 0.0:
            break
    return pairs, shares


def _draft_distribution(draft: Draft, i: int) -> Distribution:
    return (
        draft.distributions[i]
        if draft.distributions is not None
        else one_hot(draft.tokens[i])
    )


def residual_mass_by_token(
    p: Distribution, q: Distribution, share: float = 1.0
) -> NDArray[np.float64]:
    """max(0, share * p - q), over p's ids."""
    order = np.argsort(q.ids)
    places = np.minimum(np.searchsorted(q.ids, p.ids, sorter=order), len(order) - 1)
    same = order[places]
    q_probs = np.where(q.ids[same] == p.ids, q.probs[same], 0.0)
    out: NDArray[np.float64] = np.maximum(share * p.probs - q_probs, 0.0)
    return out


def residual_probs(
    p: Distribution, q: Distribution, share: float = 1.0
) -> NDArray[np.float64]:
    """The residual distribution over p's ids; p itself if the residual is empty (p
    equals q).
    """
    left = residual_mass_by_token(p, q, share)
    total = left.sum()
    return left / total if total > 0 else p.probs


RankingVerifier = GumbelCoupledVerifier | SampleAndMatchVerifier
"""Drafting with these draws nothing at random, so it may happen at any time."""

_RANDOM_VERIFIERS: dict[VerifyMode, Callable[[SeededRandom], Verifier]] = {
    "rejection": RejectionVerifier,
    "block": BlockVerifier,
    "match": SampleAndMatchVerifier,
}


def make_verifier(
    mode: VerifyMode, seed: int, random_source: SeededRandom | None = None
) -> Verifier:
    if mode == "coupled":
        return GumbelCoupledVerifier(seed)
    return _RANDOM_VERIFIERS[mode](random_source or SeededRandom(seed))
