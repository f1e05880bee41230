"""Verification methods: which draft tokens are accepted, and which token follows them.

With each of them every emitted token has the target's own distribution, whatever is
drafted. At temperature 0 all four take the target's argmax.

`RejectionVerifier` and `BlockVerifier` rely on one thing: `draft.distributions[i]` is
the distribution from which `draft.tokens[i]` was sampled, after temperature and
truncation and given the draft tokens before it. A drafter that reports another one
changes the distribution of the text. (The other two do not look at it.) Tokens that were
not sampled, such as those of prompt lookup, have no distributions: they were certain.

In the examples below there are three tokens. After some text the target's distribution
is p and the draft model's is q:

         a     b     c
    p  0.50  0.30  0.20
    q  0.20  0.70  0.10
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from localspec.protocol.wire import VerifyMode
from localspec.spec.protocols import (
    Distribution,
    DistributionAt,
    Draft,
    InvalidDraftError,
    Verifier,
)
from localspec.spec.sampling import gumbel_argmax, gumbel_noise, one_hot


class SeededRandom:
    """Random decisions.

    One generator per answer, or per `part` of it: the seed is used once, not once per
    token.
    """

    def __init__(self, seed: int, part: int = 0) -> None:
        key: int | list[int] = seed
        if part:
            key = [seed, part]
        self._rng = np.random.Generator(np.random.PCG64(key))

    def choice(self, probs: NDArray[np.float64]) -> int:
        return sample_inverse_cdf(probs, self._rng.random())

    def accept(self, prob: float) -> bool:
        return self._rng.random() < prob


def sample_inverse_cdf(probs: NDArray[np.float64], u: float) -> int:
    """The index at `u` in [0, 1) of the cumulative sum; never one of probability 0.

    With the probabilities 0.2, 0.5, 0 and 0.3 the sums are 0.2, 0.7, 0.7 and 1: below
    0.2 it is index 0, below 0.7 index 1, and from there on index 3.
    """
    cumulated = probs.cumsum()
    index = int(cumulated.searchsorted(u * cumulated[-1], "right"))
    if index == len(probs):
        # The product was rounded up to the whole sum: take the last possible index.
        return int(probs.nonzero()[0][-1])
    return index


class GumbelCoupledVerifier:
    """Draft and target sample with the same noise (Daliri, Musco, Suresh 2408.07978).

    The largest of log p + Gumbel noise is a sample of p. The noise is keyed by seed,
    position and token, so the text depends on the seed alone and not on the drafter or
    the draft length. With the noise 0.1, 1.2 and -0.4 for a, b and c:

        log q + noise   -1.51   0.84  -2.70    the draft model samples b
        log p + noise   -0.59   0.00  -2.01    the target samples b too: accepted

    With 0.9, 0.5 and -0.4 the draft model still samples b (-0.71, 0.14, -2.70), and the
    target a (0.21, -0.70, -2.01): b is rejected, and a emitted.
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
        scores = np.log(distribution.probs) + noise
        return distribution.ids[scores.argsort()[::-1][:n]]

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
    """A verifier that draws at random; by default it samples draft tokens so, too.

    `index` is not used: the generator's state follows the order of the draws.
    """

    def __init__(self, random_source: SeededRandom) -> None:
        self._random = random_source

    def _sample(self, distribution: Distribution) -> int:
        return int(distribution.ids[self._random.choice(distribution.probs)])

    def sample_draft_token(self, distribution: Distribution, index: int) -> int:
        return self._sample(distribution)


class SampleAndMatchVerifier(_RandomVerifier):
    """The target samples; the draft token is accepted if it is the same, as in llama.cpp.

    A draft token is accepted with probability p: b with 0.30. The draft model's argmax
    is its best guess at the token with the largest p, so drafting takes that.
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
    """Speculative sampling (Leviathan 2211.17192, Chen 2302.01318).

    A draft token is accepted with probability p/q, at most 1: a and c always, b with
    3/7. After a rejection the token is sampled from the residual distribution, max(0,
    p - q) made to sum to 1: here 0.75, 0 and 0.25. In the end each token has p:

        a   0.2 drafted, accepted                            + 0.4 rejected x 0.75 = 0.5
        b   0.7 drafted, accepted with 3/7                                         = 0.3
        c   0.1 drafted, accepted                            + 0.4 rejected x 0.25 = 0.2
    """

    def verify(
        self, distribution_at: DistributionAt, draft: Draft, index: int
    ) -> tuple[int, int]:
        for i, token in enumerate(draft.tokens):
            p = distribution_at(i)
            q, q_prob = _draft_distribution(draft, i)
            ratio = p.prob(token) / q_prob
            if ratio < 1.0 and not self._random.accept(ratio):
                return i, int(p.ids[self._random.choice(residual_probs(p, q))])
        distribution = distribution_at(len(draft.tokens))
        return len(draft.tokens), self._sample(distribution)


class BlockVerifier(_RandomVerifier):
    """Block verification (Sun et al. 2403.10444): accepts the longest prefix as a whole.

    The share of a prefix is min(1, share of the prefix before it * p/q). The whole draft
    is accepted with its share. A likely token can compensate for an unlikely one before
    it, so on average at least as many tokens are accepted as by `RejectionVerifier`.

    The paper's example has two tokens, p = 1/3, 2/3 and q = 2/3, 1/3 at each place. The
    shares of the draft [a, b] are 1/2 and min(1, 1/2 * 2) = 1: it is always accepted,
    where `RejectionVerifier` accepts a, and with it the draft, every second time. Over
    all drafts of two tokens that is 11/9 accepted tokens instead of 10/9.

    If the whole draft is rejected, the next shorter prefix has its turn, and so on. The
    shares of [a, a] are 1, 1/2 and 1/4 (of no token, one and two). It is accepted with
    1/4. Else [a] is accepted with m / (m + 1 - s), where s = 1/2 is its share and m the
    mass of its residual, max(0, s * p - q) over the next token: max(0, 1/6 - 2/3) = 0
    for a and max(0, 1/3 - 1/3) = 0 for b, so never. The empty prefix is left: none is
    accepted, and its residual, max(0, p - q), gives b.

    For drafts that were not sampled both verifiers are equal.
    """

    def verify(
        self, distribution_at: DistributionAt, draft: Draft, index: int
    ) -> tuple[int, int]:
        pairs, shares = _prefix_shares(distribution_at, draft)
        n = len(pairs)  # Length of the prefix whose turn it is, the longest first.
        probability = shares[-1]
        while probability < 1.0 and not self._random.accept(probability):
            n -= 1
            p, q = pairs[n]
            # The probability of this prefix, after all longer ones were rejected. That
            # of the empty prefix, whose share is 1, is 1: the loop ends there.
            probability = 1.0
            if shares[n] < 1.0:
                mass = float(residual_mass_by_token(p, q, shares[n]).sum())
                probability = mass / (mass + 1.0 - shares[n])
        if n == len(draft.tokens):
            return n, self._sample(distribution_at(n))
        p, q = pairs[n]
        return n, int(p.ids[self._random.choice(residual_probs(p, q, shares[n]))])


def _prefix_shares(
    distribution_at: DistributionAt, draft: Draft
) -> tuple[list[tuple[Distribution, Distribution]], list[float]]:
    """Target and draft distributions at each position, and the share of each prefix.

    The first share is that of the empty prefix. Ends at the first prefix of share 0: no
    longer one can be accepted.
    """
    pairs: list[tuple[Distribution, Distribution]] = []
    shares = [1.0]
    for i, token in enumerate(draft.tokens):
        p = distribution_at(i)
        q, q_prob = _draft_distribution(draft, i)
        pairs.append((p, q))
        shares.append(min(1.0, shares[-1] * p.prob(token) / q_prob))
        if shares[-1] == 0.0:
            break
    return pairs, shares


def _draft_distribution(draft: Draft, i: int) -> tuple[Distribution, float]:
    """The distribution that draft token i was sampled from, and the token's probability.

    A token that was not sampled is certain. Raises InvalidDraftError for a probability
    of 0: the token cannot have been sampled from this distribution.
    """
    token = draft.tokens[i]
    if draft.distributions is None:
        return one_hot(token), 1.0
    distribution = draft.distributions[i]
    prob = distribution.prob(token)
    if not prob > 0.0:
        problem = f"its distribution {i} does not contain its token {token}"
        raise InvalidDraftError(draft.source or "draft", problem)
    return distribution, prob


def residual_mass_by_token(
    p: Distribution, q: Distribution, share: float = 1.0
) -> NDArray[np.float64]:
    """max(0, share * p - q), over p's ids.

    Each distribution has its own ids in its own order. With p of the ids 2, 5 and 9, and
    q of 9 and 2, `order` is [1, 0]: q's ids are sorted 2, 9. Among these the ids of p
    belong at the places 0, 1 and 1 (one larger than all of q's would belong at 2, which
    becomes 1), so `same` is [1, 0, 0]. There q has the ids 2, 9 and 9, which are p's
    but for 5: q lacks it.
    """
    order = np.argsort(q.ids)
    places = np.searchsorted(q.ids, p.ids, sorter=order)
    places = np.minimum(places, len(order) - 1)
    same = order[places]
    q_probs = np.where(q.ids[same] == p.ids, q.probs[same], 0.0)
    out: NDArray[np.float64] = np.maximum(share * p.probs - q_probs, 0.0)
    return out


def residual_probs(
    p: Distribution, q: Distribution, share: float = 1.0
) -> NDArray[np.float64]:
    """The residual distribution over p's ids; p itself where p equals q."""
    left = residual_mass_by_token(p, q, share)
    total = left.sum()
    return left / total if total > 0 else p.probs


RankingVerifier = GumbelCoupledVerifier | SampleAndMatchVerifier
"""With these, drafting takes nothing from a random generator whose state the order of
the draws would change. So it may happen at any time, also beside the target's pass.
"""

_RANDOM_VERIFIERS: dict[VerifyMode, Callable[[SeededRandom], Verifier]] = {
    "rejection": RejectionVerifier,
    "block": BlockVerifier,
    "match": SampleAndMatchVerifier,
}


def make_verifier(
    mode: VerifyMode,
    seed: int,
    random_source: SeededRandom | None = None,
    *,
    n_resumed: int = 0,
) -> Verifier:
    """The verifier of an answer, or of its rest after `n_resumed` tokens.

    The rest must not be drawn with the numbers that its beginning was drawn with: the
    two would not be independent.
    """
    if mode == "coupled":
        return GumbelCoupledVerifier(seed)
    if random_source is None:
        random_source = SeededRandom(seed, n_resumed)
    return _RANDOM_VERIFIERS[mode](random_source)
