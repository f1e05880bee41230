"""The speed of an answer: its tokens after the first, divided by their time."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from math import sqrt

from msgspec import Struct

from localspec.protocol.events import Round

_MIN_ROUNDS = 8
"""Rounds before a speed is compared, or is a standard that needs no other."""
_MIN_PLAIN_ROUNDS = 3
"""Rounds without a draft before they have a speed; few make its range wide."""
_RANGE_ERRORS = 2.0
"""Half the width of a range, in standard errors: it covers about 95 %."""
_KNOWN_PLAIN_ERROR = 0.05
"""Half the range of a plain speed that was measured elsewhere, as a share of it."""
_ROUGH_FROM = 0.1
"""A speed-up is rough if its range is wider than this share of it on both sides."""
_PASS_TOLERANCE = 1.1
"""How much longer than a pass that checks a draft a pass of one token may seem."""


class Speedup(Struct, frozen=True):
    """Speed relative to plain decoding, with a 95 % range."""

    value: float
    low: float
    high: float

    @property
    def is_rough(self) -> bool:
        return self.high - self.low >= 2 * _ROUGH_FROM * self.value


class DecodeSpeed:
    """Sums over the rounds of an answer that were timed.

    The first round also reads the prompt, and a forced one takes 0 ms: neither is
    counted. A round costs the same to add however long the answer is.
    """

    def __init__(self) -> None:
        self.n_tokens = 0
        self.ms = 0.0
        self._n_rounds = 0
        self._plain_ms: list[float] = []
        """The times of the rounds without a draft, the shortest first."""
        self._plain_sum = 0.0
        self._plain_squared = 0.0
        self._check_ms: list[float] = []
        """The times of the rounds with a draft but without drafting, as `_plain_ms`."""
        self._guessing_tokens = 0
        self._guessing_ms = 0.0

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> DecodeSpeed:
        speed = cls()
        for event in rounds:
            speed.add(event)
        return speed

    def add(self, event: Round) -> None:
        ms = event.ms.total
        if event.n == 0 or ms <= 0:
            return
        n_tokens = len(event.tokens)
        self.n_tokens += n_tokens
        self.ms += ms
        self._n_rounds += 1
        if event.drafted:
            insort(self._check_ms, ms - event.ms.draft)
        if event.drafted or event.ms.draft > 0:
            self._guessing_tokens += n_tokens
            self._guessing_ms += ms
        if not event.drafted:
            insort(self._plain_ms, ms)
            self._plain_sum += ms
            self._plain_squared += ms * ms

    @property
    def is_comparable(self) -> bool:
        """Whether enough rounds were timed to compare the speed with another."""
        return self._n_rounds >= _MIN_ROUNDS

    @property
    def tokens_per_second(self) -> float | None:
        """None until a round is timed."""
        return 1e3 * self.n_tokens / self.ms if self.ms else None

    @property
    def plain_tokens_per_second(self) -> float | None:
        """That of the median round without a draft; None if there are too few."""
        n_plain = len(self._plain_ms)
        if n_plain < _MIN_PLAIN_ROUNDS:
            return None
        return 1e3 / self._plain_ms[n_plain // 2]

    @property
    def has_steady_plain(self) -> bool:
        """Whether enough rounds without a draft were timed to need no other standard."""
        return len(self._plain_ms) >= _MIN_ROUNDS

    def contradicts(self, plain_speed: float) -> bool:
        """Whether this answer's passes are too fast for `plain_speed`.

        A pass that checks a draft takes at least as long as one of one token. So a plain
        speed of 67 tok/s (15 ms) that was measured beside other programs does not hold
        for an answer whose drafts were checked in 8 ms.
        """
        if not self._check_ms:
            return False
        check_ms = self._check_ms[len(self._check_ms) // 2]
        return 1e3 / plain_speed > _PASS_TOLERANCE * check_ms

    def guessing_gain(self, plain_speed: float) -> float:
        """The milliseconds that the rounds with guesses saved; negative if they lost.

        At 50 tok/s, a round of 30 ms that gives three tokens saves 30 ms.
        """
        return 1e3 * self._guessing_tokens / plain_speed - self._guessing_ms

    @property
    def _plain_error(self) -> float:
        """Half the range of `plain_tokens_per_second`, as a share of it.

        Of few rounds the range is wider, about as by Student's t: for three rounds it
        is four standard errors. Of 50, 60 and 70 ms the standard error is 5.8 ms, so
        the share is 4 * 5.8 / 60 = 0.38.
        """
        n_plain = len(self._plain_ms)
        if n_plain < _MIN_PLAIN_ROUNDS:
            return 0.0
        mean = self._plain_sum / n_plain
        variance = (self._plain_squared / n_plain - mean * mean) / (n_plain - 1)
        n_errors = _RANGE_ERRORS + 4 / (n_plain - 1)
        return n_errors * sqrt(max(0.0, variance)) / mean

    def compare(self, plain_speed: float | None) -> Speedup | None:
        """The speed-up over `plain_speed`, in tokens per second.

        None if too few rounds were timed, or if `plain_speed` is not known.

        The time of the answer is measured, so the range is that of the plain speed. It
        is computed from the rounds if `plain_speed` is their `plain_tokens_per_second`,
        and `_KNOWN_PLAIN_ERROR` if that was measured elsewhere.
        """
        if not self.is_comparable or not plain_speed:
            return None
        error = _KNOWN_PLAIN_ERROR
        is_own_standard = plain_speed == self.plain_tokens_per_second
        if is_own_standard:
            error = self._plain_error
        ratio = 1e3 * self.n_tokens / self.ms / plain_speed
        return Speedup(
            value=ratio, low=ratio * max(0.0, 1 - error), high=ratio * (1 + error)
        )
