"""Statistics of draft acceptance and throughput, updated every round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from localspec.lazy_dataclass import dataclass
from localspec.protocol.wire import DEFAULT_DRAFT_LENGTH, SamplingParams, VerifyMode

_WINDOW = 96.0
"""Draft tokens that a rate remembers, roughly: older ones decay."""
_CELL_PRIOR_WEIGHT = 6.0
"""Weight of the prior of a cell, in draft tokens."""
_BUCKET_PRIOR_WEIGHT = 6.0
_MODEL_PRIOR = 0.6
"""Acceptance rate of a draft model before any measurement."""
_POSITION_DECAY = 0.998

_POSITION_GROUPS = (0, 1, 2, 3, 3, 4, 4, 4, 4) + (5,) * 16
"""Group by position in the draft."""
_MATCH_GROUPS = (0, 0, 0, 1, 2, 3, 3, 4, 4, 4, 4, 4) + (5,) * 5
"""Group by length of the lookup match in tokens."""
_N_MATCH_BUCKETS = 6


class AcceptanceRate:
    """Accepted of drafted tokens, with decay and a prior."""

    def __init__(self, prior: float, prior_weight: float, counts: Sequence[float] = (0, 0)) -> None:
        self.accepted, self.drafted = (float(count) for count in counts)
        self._prior, self._prior_weight = prior, prior_weight

    def estimate(self, prior: float | None = None) -> float:
        prior = self._prior if prior is None else prior
        return (self.accepted + prior * self._prior_weight) / (self.drafted + self._prior_weight)

    def decay(self, factor: float) -> None:
        self.accepted *= factor
        self.drafted *= factor

    def add(self, accepted: float) -> None:
        if self.drafted >= _WINDOW:
            self.accepted *= 1 - 1 / _WINDOW
            self.drafted *= 1 - 1 / _WINDOW
        self.accepted += accepted
        self.drafted += 1


class AcceptanceTable:
    """Conditional acceptance probabilities by confidence bucket and position in the draft.

    They hold if all draft tokens before are accepted. A cell without counts falls back to its
    bucket's rate, and that to its prior.
    """

    def __init__(self, priors: Sequence[float], saved_counts: dict[str, list[float]]) -> None:
        self._buckets = [
            AcceptanceRate(b, _BUCKET_PRIOR_WEIGHT, saved_counts.get(f"b{i}", (0, 0)))
            for i, b in enumerate(priors)
        ]
        self._cells: dict[tuple[int, int], AcceptanceRate] = {}
        for name, counts in saved_counts.items():
            bucket, dot, position = name.partition(".")
            if dot and int(bucket) < len(priors):
                self._cells[int(bucket), int(position)] = AcceptanceRate(
                    0.5, _CELL_PRIOR_WEIGHT, counts
                )

    def probability(self, bucket: int, position: int) -> float:
        bucket_rate = self._buckets[bucket].estimate()
        cell = self._cells.get((bucket, _POSITION_GROUPS[position]))
        return bucket_rate if cell is None else cell.estimate(bucket_rate)

    def record(self, bucket: int, position: int, accepted: bool) -> None:
        self._buckets[bucket].add(accepted)
        self._cells.setdefault(
            (bucket, _POSITION_GROUPS[position]), AcceptanceRate(0.5, _CELL_PRIOR_WEIGHT)
        ).add(accepted)

    def counts(self) -> dict[str, list[float]]:
        rates = {f"b{i}": rate for i, rate in enumerate(self._buckets)}
        rates |= {f"{b}.{p}": rate for (b, p), rate in self._cells.items()}
        return {
            k: [round(r.accepted, 2), round(r.drafted, 2)] for k, r in rates.items() if r.drafted
        }


class AcceptanceStats:
    """Acceptance of each draft source under one verification method."""

    def __init__(self, saved_counts: Mapping[str, Any] | None = None) -> None:
        saved_counts = saved_counts or {}
        self.model = AcceptanceTable(
            [0.1 + 0.08 * i for i in range(11)], saved_counts.get("model", {})
        )
        self.lookup = AcceptanceTable(
            [0.25, 0.4, 0.5, 0.6, 0.7, 0.8], saved_counts.get("lookup", {})
        )
        means = saved_counts.get("place", {})
        self._by_position = [
            AcceptanceRate(_MODEL_PRIOR, _CELL_PRIOR_WEIGHT, means.get(str(i), (0, 0)))
            for i in range(6)
        ]
        self._update_means()

    def mean_probability(self, position: int) -> float:
        """Acceptance probability of the model's next draft token, its confidence unknown."""
        return self._means[_POSITION_GROUPS[position]]

    def record_model_token(self, position: int, probability: float) -> None:
        """Record a token that was verified (0 or 1), or not drafted (its estimated probability).

        All positions decay, so that one with an unlucky start is tried again.
        """
        for rate in self._by_position:
            rate.decay(_POSITION_DECAY)
        self._by_position[_POSITION_GROUPS[position]].add(probability)
        self._update_means()

    def record_score(self, accepted: Sequence[int]) -> None:
        """Record rounds of an answer, of which `accepted` tokens would have been accepted at each
        place; the first token comes from the prompt.
        """
        place = 1
        while place < len(accepted):
            n = min(accepted[place], DEFAULT_DRAFT_LENGTH)
            for position in range(n):
                self.record_model_token(position, 1.0)
            if n < DEFAULT_DRAFT_LENGTH:
                self.record_model_token(n, 0.0)
            place += n + 1

    def _update_means(self) -> None:
        """The prior of each position is the estimate of the one before it."""
        self._means = []
        mean = _MODEL_PRIOR
        for rate in self._by_position:
            mean = rate.estimate(mean)
            self._means.append(mean)

    def counts(self) -> dict[str, dict[str, list[float]]]:
        means = {
            str(i): [round(r.accepted, 2), round(r.drafted, 2)]
            for i, r in enumerate(self._by_position)
        }
        return {"model": self.model.counts(), "lookup": self.lookup.counts(), "place": means}


def confidence_bucket(confidence: float) -> int:
    """One of eleven buckets: tenths, and one above 0.98."""
    return 10 if confidence > 0.98 else int(confidence * 10)


def match_bucket(match_length: int) -> int:
    return (
        _MATCH_GROUPS[match_length] if match_length < len(_MATCH_GROUPS) else _N_MATCH_BUCKETS - 1
    )


# --- Throughput

_RATE_DECAY = 0.97
"""Decay of the throughput per round."""
_INITIAL_ROUNDS = 4.0
"""An answer's throughput starts with this many rounds of plain decoding."""
_MIN_DRAFT_ROUNDS = 6
"""Rounds with the draft model before its measured gains are used."""
_GAIN_WEIGHT = 0.025
_SAVED_WEIGHT = 0.75
"""Weight of rounds from an earlier process."""
_BENEFIT_OF_DOUBT = 0.5
"""A pause needs a loss of this many standard errors, because nothing is measured during one."""
_PLAN_PRECISION = 10.0
"""Weight of the planned gain against the measured gains, which weigh their precision."""
_JUDGED_GAIN_VARIANCE = 10.0
"""Of a draft whose acceptance was judged on recorded answers: the plan counts, not gains."""
_MIN_GAIN_VARIANCE = 0.05
"""Lower bound of the variance of gains."""
_LOW_TEMPERATURE, _HIGH_TEMPERATURE = 0.5, 1.0
"""Acceptance depends on the temperature: up to, between and beyond these it is counted apart."""
_PROBE_TIME_SHARE = 0.01
"""Maximum share of time for probes while paused."""
_INITIAL_PROBE_TIME_SHARE = 0.02
_MIN_PROBE_INTERVAL, _MAX_PROBE_INTERVAL = 4, 256


@dataclass(slots=True)
class ThroughputStats:
    """Tokens per millisecond, and the measured gain of the draft model; kept across answers."""

    tokens: float = 0.0
    ms: float = 0.0
    gain: float = 0.0
    """Tokens gained per round with the draft model, minus the cost of its time."""
    gain_variance: float = 1.0
    draft_rounds: int = 0
    probe_interval: int = _MIN_PROBE_INTERVAL
    rounds_since_draft: int = 0
    """Rounds since the draft model was last used."""

    @classmethod
    def from_saved(cls, saved: Mapping[str, float]) -> ThroughputStats:
        """Stats that `saved` gave in an earlier process; they count less than new ones."""
        stats = cls()
        if rounds := int(saved.get("rounds", 0)):
            stats.draft_rounds = max(min(rounds, _MIN_DRAFT_ROUNDS), int(_SAVED_WEIGHT * rounds))
            stats.gain, stats.gain_variance = saved["gain"], saved["variance"]
            stats.probe_interval = int(saved["interval"])
            stats.rounds_since_draft = int(saved["since"])
        return stats

    def saved(self) -> dict[str, float]:
        return {
            "gain": round(self.gain, 4),
            "variance": round(self.gain_variance, 4),
            "rounds": self.draft_rounds,
            "interval": self.probe_interval,
            "since": self.rounds_since_draft,
        }

    def tokens_per_ms(self, plain_ms: float) -> float:
        """Current tokens per millisecond; at least that of plain decoding."""
        if self.ms <= 0:
            return 1 / plain_ms
        return max(self.tokens / self.ms, 1 / plain_ms)

    def start_answer(self, plain_ms: float) -> None:
        """Reset the throughput to plain decoding; `plain_ms` is 0 if not yet measured."""
        self.tokens, self.ms = (
            (_INITIAL_ROUNDS, _INITIAL_ROUNDS * plain_ms) if plain_ms else (0.0, 0.0)
        )

    def record_round(self, tokens: int, ms: float) -> None:
        self.tokens = self.tokens * _RATE_DECAY + tokens
        self.ms = self.ms * _RATE_DECAY + ms

    @property
    def is_unproven(self) -> bool:
        """Whether the draft model was used in too few rounds to judge it."""
        return self.draft_rounds < _MIN_DRAFT_ROUNDS

    def record_judged(self) -> None:
        """Record that the acceptance was counted on recorded answers: the plan rests on it."""
        if self.is_unproven:
            self.draft_rounds, self.gain_variance = _MIN_DRAFT_ROUNDS, _JUDGED_GAIN_VARIANCE

    def is_profitable(self, planned_gain: float, cost: float = 0.0) -> bool:
        """Whether to draft with the model, if the plan expects to gain `planned_gain` tokens.

        `cost` in tokens is what the round costs beyond the plan.
        """
        if self.is_unproven:
            return planned_gain > cost
        doubt = _BENEFIT_OF_DOUBT / math.sqrt(self._measured_precision + _PLAN_PRECISION)
        return self.expected_gain(planned_gain) + doubt > cost

    def expected_gain(self, planned_gain: float) -> float:
        """The planned gain, corrected by the measured gains."""
        if self.is_unproven:
            return planned_gain
        precision = self._measured_precision
        measured = precision * self.gain + _PLAN_PRECISION * planned_gain
        return measured / (precision + _PLAN_PRECISION)

    @property
    def _measured_precision(self) -> float:
        return min(self.draft_rounds, 1 / _GAIN_WEIGHT) / self.gain_variance

    def is_probe_due(self) -> bool:
        """Whether to try the draft model although it is not profitable; increasingly rarely."""
        wait = float(self.probe_interval)
        if self.is_unproven:
            wait = max(
                _MIN_PROBE_INTERVAL * 2**self.draft_rounds,
                wait * _PROBE_TIME_SHARE / _INITIAL_PROBE_TIME_SHARE,
            )
        return self.rounds_since_draft >= wait

    def record_draft_gain(self, tokens_gained: float, extra_ms: float, plain_ms: float) -> None:
        """Record a round with the draft model: tokens gained, and extra time over a plain round.

        Probes are spaced so that together they take a small share of the time.
        """
        gain = tokens_gained - self.tokens_per_ms(plain_ms) * extra_ms
        share = max(_GAIN_WEIGHT, 1 / (self.draft_rounds + 1))
        self.gain_variance += share * ((gain - self.gain) ** 2 - self.gain_variance)
        self.gain_variance = max(self.gain_variance, _MIN_GAIN_VARIANCE)
        self.gain += share * (gain - self.gain)
        self.draft_rounds += 1
        affordable = extra_ms / (_PROBE_TIME_SHARE * plain_ms)
        wait = affordable if gain <= 0 else affordable / 4
        self.probe_interval = int(min(max(wait, _MIN_PROBE_INTERVAL), _MAX_PROBE_INTERVAL))


@dataclass(slots=True)
class PairStats:
    """Statistics of a pair under one verification method and temperature class."""

    acceptance: AcceptanceStats = field(default_factory=AcceptanceStats)
    throughput: ThroughputStats = field(default_factory=ThroughputStats)
    won: float = 0.0
    """What drafting has won for the next answer (see `RegretBudget.carry_over`)."""
    reading: float | None = None
    """Cost of a token of text that the draft model reads, in draft passes; None if not measured."""

    def record_score(self, accepted: Sequence[int]) -> None:
        """As `AcceptanceStats.record_score`; from then on the draft counts as tried."""
        self.acceptance.record_score(accepted)
        self.throughput.record_judged()

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> PairStats:
        """Stats that `saved` gave in an earlier process."""
        gains = saved.get("gains", {})
        won = float(gains.get("won", 0.0))
        reading = gains.get("reading")
        return cls(AcceptanceStats(saved), ThroughputStats.from_saved(gains), won, reading)

    def saved(self) -> dict[str, Any]:
        gains = self.throughput.saved() | {"won": round(self.won, 3)}
        if self.reading is not None:
            gains["reading"] = round(self.reading, 4)
        return {**self.acceptance.counts(), "gains": gains}


def stats_key(sampling: SamplingParams, verify: VerifyMode) -> str:
    """Name of the statistics for a verification method and temperature class."""
    if sampling.temperature <= 0:
        return "greedy"
    if sampling.temperature <= _LOW_TEMPERATURE:
        return f"{verify}, low temperature"
    return verify if sampling.temperature <= _HIGH_TEMPERATURE else f"{verify}, high temperature"
