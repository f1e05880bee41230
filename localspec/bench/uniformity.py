"""Whether sampled tokens follow the target's own law, by the probability integral transform.

A token t of a law p becomes F(before t) + v p(t), with v even in [0, 1).  If every token was drawn
from its law these numbers are even in [0, 1) and independent, whatever the laws were (Rosenblatt
1952), so one chi-square test serves all places of all answers.  "Before" is taken twice: by id,
and from the likeliest down.  The second sees what guessing wrongly does, which is to favour the
likely or the unlikely; by id that would even out from place to place.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from localspec.bench import chisquare
from localspec.bench.answers import Answer, Engine, answer, replayed
from localspec.protocol.wire import Generate, Replayed, Sampling, VerifyMode

LEVEL = 1e-3
"""Of a false alarm, all tests together; one that alarms must do so again with other seeds."""
SEEN = 0.9
"""How likely the shift that is told is to be seen, by both rounds."""
_PER_BIN = 20
"""Tokens expected in a bin: from there on the tail is honest (reliability.md 5.4)."""
_MOST_BINS = 20
_NATURES = (
    Sampling(temperature=0.8),
    Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
)
"""As `run` samples, and with nothing cut off, in turns."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How many tokens to draw for one way of verifying, of how many an answer, in what time."""

    least: int = 200
    most: int = 2000
    answer: int = 64
    seconds: float = 20.0
    answers: int = 200
    """The most, where they end at once."""


@dataclass(slots=True)
class Sample:
    """Tokens drawn under one way of verifying, each as its place in [0, 1)."""

    verify: VerifyMode
    by_id: list[float] = field(default_factory=list)
    by_rank: list[float] = field(default_factory=list)
    impossible: int = 0
    """Tokens that the law does not hold at all."""
    drafted: int = 0
    accepted: int = 0
    again: bool = False
    """Whether a first sample alarmed, and this is the second."""

    def add(self, said: Answer, target: Replayed, rng: random.Random) -> None:
        self.drafted += said.drafted
        self.accepted += said.accepted
        self.impossible += sum(p <= 0 for p in target.probability)
        for p, below, above in zip(target.probability, target.below, target.above, strict=True):
            self.by_id.append(below + rng.random() * p)
            self.by_rank.append(above + rng.random() * p)

    @property
    def tokens(self) -> int:
        return len(self.by_id)

    @property
    def bins(self) -> int:
        """0 where there is too little for a test."""
        bins = min(_MOST_BINS, self.tokens // _PER_BIN)
        return bins if bins > 1 else 0

    @property
    def p(self) -> float | None:
        """The smaller of both tests, doubled for being two."""
        if not self.bins:
            return None
        return min(1.0, 2 * min(_p(places, self.bins) for places in (self.by_id, self.by_rank)))

    def bent(self, ways: int) -> bool:
        """Whether this alarms, where as many ways of verifying are looked at."""
        p = self.p
        return self.impossible > 0 or (p is not None and p < LEVEL / ways)

    def shift(self, ways: int) -> float | None:
        """The total variation between the bins that both rounds would have seen."""
        if not self.bins:
            return None
        return chisquare.shift_seen(self.tokens, self.bins, LEVEL / (2 * ways), SEEN**0.5)


def _p(places: Sequence[float], bins: int) -> float:
    counts = [0] * bins
    for place in places:
        counts[min(int(place * bins), bins - 1)] += 1  # a rounded sum may reach 1
    return chisquare.tail(chisquare.statistic(counts), bins - 1)


def draw(
    engine: Engine,
    sample: Sample,
    spec: str,
    texts: Sequence[str],
    amount: Amount,
    seed: int,
) -> Iterator[Sample]:
    """Fill the sample, yielding it after every answer; seeds count up from `seed`."""
    rng = random.Random(seed)
    until = time.monotonic() + amount.seconds
    for n in range(amount.answers):
        enough = sample.tokens >= amount.least and time.monotonic() > until
        if enough or sample.tokens >= amount.most:
            return
        nature = _NATURES[n % len(_NATURES)]
        sampling = Sampling(
            nature.temperature, nature.top_k, nature.top_p, nature.min_p, seed=seed + n
        )
        text = texts[(n // len(_NATURES)) % len(texts)]
        request = Generate(
            text,
            sampling,
            amount.answer,
            verify=sample.verify,
            spec=spec,
            draft_length=4,
        )
        said = answer(engine, request)
        sample.add(said, replayed(engine, said), rng)
        yield sample
