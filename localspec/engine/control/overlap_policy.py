"""Decides whether drafting overlaps verification, and for how many outcomes of a round.

A round takes V + n d without overlap: a target pass and n draft passes. With it, and if the draft
for the outcome is made already (probability h), it takes max(V, n d'); else V + r + n d, where r is
the rest of the draft pass that runs when the target is done. In both cases the target pass is
slower by the share s. Everything is measured in the rounds themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from localspec.engine.control.pass_costs import MAX_WIDTH, PassCosts
from localspec.engine.speculative_loop import RoundResult
from localspec.lazy_dataclass import dataclass

N_RANKS = 4
"""Of a place, this many tokens are outcomes that can be drafted for."""
FANS = (1, 3, 5)
"""Numbers of outcomes to choose from. On a CPU two cost as much as five."""
_CONFIDENCES = (0.4, 0.6, 0.8, 0.95)
"""Bounds of the buckets of the draft's confidence."""
_RANK_PRIORS = (
    (0.37, 0.19, 0.12, 0.03),
    (0.64, 0.18, 0.08, 0.02),
    (0.62, 0.24, 0.05, 0.01),
    (0.77, 0.10, 0.03, 0.01),
    (0.96, 0.01, 0.01, 0.0),
)
"""Chance of each rank by confidence, of a 700 M target and its 30 M draft at temperature 0.8."""
_HIT_RATE_PRIORS = (0.16, 0.42, 0.58)
"""For each of `FANS`, of the same pair with three draft tokens."""
_PRIOR_WEIGHT = 8.0
_WINDOW = 200.0
_UNKNOWN_CONFIDENCE = 0.7
"""Of the place after a draft: it is known only during the target pass."""
_MIN_GAIN = 0.03
"""Share of a round's time that overlap must be worth."""
_TRIAL_ROUNDS = 8
"""Rounds with and without overlap in turn, to measure how it slows the target's passes."""
_CHECK_INTERVAL = 32
"""While overlap is on, every so many rounds run without it, for the same reason."""
_FIRST_PAUSE, _MAX_PAUSE = 128, 4096
"""Rounds until the next trial after one that showed no gain; doubled each time."""
_WEIGHT = 0.15
_MAX_CHANGE = 2.0
"""Larger changes of a time are clipped: another program was probably running."""


@dataclass(frozen=True, slots=True)
class PlaceRanking:
    """A place of a draft: the draft's confidence, and the likeliest tokens, the drafted first."""

    confidence: float
    tokens: list[int]


class RankStats:
    """How often the target's token is the draft's first, second, … choice, by confidence."""

    def __init__(self) -> None:
        self._counts = [[_PRIOR_WEIGHT * p for p in row] for row in _RANK_PRIORS]
        self._totals = [_PRIOR_WEIGHT] * len(_RANK_PRIORS)

    def probability(self, confidence: float, rank: int) -> float:
        bucket = _bucket(confidence)
        return self._counts[bucket][rank] / self._totals[bucket]

    def record(self, place: PlaceRanking, token: int) -> None:
        """Record the target's token at a place that was verified."""
        bucket = _bucket(place.confidence)
        if self._totals[bucket] > _WINDOW:
            self._totals[bucket] *= 1 - 1 / _WINDOW
            self._counts[bucket] = [n * (1 - 1 / _WINDOW) for n in self._counts[bucket]]
        self._totals[bucket] += 1
        if token in place.tokens:
            self._counts[bucket][place.tokens.index(token)] += 1


def _bucket(confidence: float) -> int:
    return sum(confidence > bound for bound in _CONFIDENCES)


@dataclass(slots=True)
class _Average:
    """A moving average of times; 0 before the first."""

    value: float = 0.0

    def record(self, value: float) -> None:
        if not self.value:
            self.value = value
            return
        low, high = self.value / _MAX_CHANGE, self.value * _MAX_CHANGE
        self.value += _WEIGHT * (min(max(value, low), high) - self.value)


class OverlapPolicy:
    """Of one pair; kept across answers. `is_forced` overlaps every round in which it can."""

    def __init__(self, costs: PassCosts | None = None) -> None:
        self.costs = costs or PassCosts()
        self.is_forced = False
        self._ranks = RankStats()
        self._hit_rates = {
            fan: _Average(prior) for fan, prior in zip(FANS, _HIT_RATE_PRIORS, strict=True)
        }
        """Expected, by number of outcomes."""
        self._pass_ms = {fan: _Average() for fan in FANS}
        """Of a draft pass beside the target, by number of outcomes."""
        self._draft_ms = _Average()
        """Of a draft pass that the target waits for."""
        self._relative = {False: _Average(), True: _Average()}
        """Target passes without and with overlap, relative to the cost by width."""
        self._fan = 0
        """Of the round that runs."""
        self._n_rounds = self._next_trial = 0
        self._pause = _FIRST_PAUSE

    # --- outcomes

    def likely_outcomes(
        self, places: Sequence[PlaceRanking], n_drafted: int, fan: int
    ) -> list[tuple[int, int]]:
        """The `fan` likeliest: number of accepted draft tokens, and rank of the token after them.

        With one outcome, that all are accepted.
        """
        found, reached = [], 1.0
        for i in range(n_drafted):
            place = places[i] if i < len(places) else PlaceRanking(_UNKNOWN_CONFIDENCE, [0])
            for rank in range(1, len(place.tokens)):
                found.append((reached * self._ranks.probability(place.confidence, rank), i, rank))
            reached *= self._ranks.probability(place.confidence, 0)
        for rank in range(N_RANKS):
            probability = reached * self._ranks.probability(_UNKNOWN_CONFIDENCE, rank)
            found.append((probability, n_drafted, rank))
        chain = found[-N_RANKS][0]
        found.sort(reverse=True)
        for n, average in self._hit_rates.items():
            average.record(chain if n == 1 else sum(chance for chance, _, _ in found[:n]))
        if fan == 1:
            return [(n_drafted, 0)]
        return [(i, rank) for _, i, rank in found[:fan]]

    def record_outcome(self, places: Iterable[PlaceRanking], emitted: Sequence[int]) -> None:
        for place, token in zip(places, emitted, strict=False):
            self._ranks.record(place, token)

    # --- times

    def record_passes(self, fan: int, seconds: float) -> None:
        """Record the time of a draft pass beside the target."""
        if fan in self._pass_ms:
            self._pass_ms[fan].record(seconds * 1e3)

    def record_round(self, result: RoundResult) -> None:
        n = len(result.draft.tokens)
        if n and result.width == n + 1:
            usual = self.costs.verify_ms[min(result.width, MAX_WIDTH)]
            self._relative[self._fan > 0].record((result.ms.verify + result.ms.host) / usual)
            if result.draft.overlap != "hit" and result.draft.decode_seconds:
                self._draft_ms.record(result.draft.decode_seconds * 1e3 / n)
        self._fan = 0

    # --- the choice

    def choose_fan(self, n_drafted: int, n_branches: int) -> int:
        """For how many outcomes to draft during this round; 0: for none."""
        fans = [fan for fan in FANS if fan == 1 or fan <= n_branches]
        best = max(fans, key=lambda fan: self._gain(fan, n_drafted))
        self._n_rounds += 1
        self._fan = best if self.is_forced or self._is_on(best, n_drafted) else 0
        return self._fan

    def _is_on(self, fan: int, n_drafted: int) -> bool:
        n_in_trial = self._n_rounds - self._next_trial
        if n_in_trial < 0 or not self._draft_ms.value:
            return False
        least = _MIN_GAIN * (self._plain_ms(n_drafted) + n_drafted * self._draft_ms.value)
        if n_in_trial < _TRIAL_ROUNDS:
            return n_in_trial % 2 == 1 and n_drafted * self._draft_ms.value > least
        if self._gain(fan, n_drafted) > least:
            self._pause = _FIRST_PAUSE
            return self._n_rounds % _CHECK_INTERVAL > 0
        self._next_trial = self._n_rounds + self._pause
        self._pause = min(2 * self._pause, _MAX_PAUSE)
        return False

    def _plain_ms(self, n_drafted: int) -> float:
        """Of a target pass without overlap."""
        return self.costs.verify_ms[n_drafted + 1] * (self._relative[False].value or 1.0)

    def _gain(self, fan: int, n_drafted: int) -> float:
        """Expected milliseconds that overlap saves in a round."""
        target, draft = self._plain_ms(n_drafted), self._draft_ms.value
        ahead = self._pass_ms[fan].value or draft
        total_ahead = (n_drafted + (fan == 1)) * ahead  # one more pass finds the token after it
        hit_rate, rest = self._hit_rates[fan].value, ahead / 2 if total_ahead > target else 0.0
        slowdown = 0.0
        if self._relative[True].value and self._relative[False].value:
            slowdown = max(0.0, self._relative[True].value / self._relative[False].value - 1)
        saved = target + n_drafted * draft - max(target, total_ahead)
        return hit_rate * saved - (1 - hit_rate) * rest - slowdown * target
