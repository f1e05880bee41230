"""How often a guess stands, counted while running: by source, confidence and place in its draft."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_WINDOW = 96.0
"""Guesses that a count remembers, about: older ones fade."""
_CELL_PRIOR_WEIGHT = 6.0
"""Guesses after which a cell's own rate counts as much as what is believed without it."""
_BUCKET_PRIOR_WEIGHT = 6.0
_MODEL_PRIOR = 0.6
"""A draft model's chance before anything was seen."""
_POSITION_DECAY = 0.998

_POSITION_GROUPS = (0, 1, 2, 3, 3, 4, 4, 4, 4) + (5,) * 16
"""The group of a guess's place in its draft."""
_MATCH_GROUPS = (0, 0, 0, 1, 2, 3, 3, 4, 4, 4, 4, 4) + (5,) * 5
"""The group of a match by its length in tokens."""
_N_MATCH_BUCKETS = 6


class AcceptanceRate:
    """Kept of tried, fading, and what is believed before any was tried."""

    def __init__(self, prior: float, prior_weight: float, counts: Sequence[float] = (0, 0)) -> None:
        self.accepted, self.drafted = (float(count) for count in counts)
        self._prior, self._prior_weight = prior, prior_weight

    def estimate(self, prior: float | None = None) -> float:
        start = self._prior if prior is None else prior
        return (self.accepted + start * self._prior_weight) / (self.drafted + self._prior_weight)

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
    """Chances that a guess stands when all before it do, by how sure its source was, and place.

    A cell without counts of its own falls back on its bucket's, and that on `believed`.
    """

    def __init__(self, priors: Sequence[float], saved_counts: dict[str, list[float]]) -> None:
        self._buckets = [
            AcceptanceRate(b, _BUCKET_PRIOR_WEIGHT, saved_counts.get(f"b{i}", (0, 0)))
            for i, b in enumerate(priors)
        ]
        self._cells: dict[tuple[int, int], AcceptanceRate] = {}
        for name, counts in saved_counts.items():
            bucket, dot, place = name.partition(".")
            if dot and int(bucket) < len(priors):
                self._cells[int(bucket), int(place)] = AcceptanceRate(
                    0.5, _CELL_PRIOR_WEIGHT, counts
                )

    def probability(self, bucket: int, position: int) -> float:
        whole = self._buckets[bucket].estimate()
        cell = self._cells.get((bucket, _POSITION_GROUPS[position]))
        return whole if cell is None else cell.estimate(whole)

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
    """What a controller has seen of every source under one way of verifying."""

    def __init__(self, saved_counts: dict[str, dict[str, list[float]]] | None = None) -> None:
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
        """Chance of the draft model's next guess at this place, before its confidence is known."""
        return self._means[_POSITION_GROUPS[position]]

    def record_model_token(self, position: int, probability: float) -> None:
        """A guess was made or declined there, believed to stand with this chance, or known to.

        All places fade, so that one which an unlucky start made look bad is tried again.
        """
        for rate in self._by_position:
            rate.decay(_POSITION_DECAY)
        self._by_position[_POSITION_GROUPS[position]].add(probability)
        self._update_means()

    def _update_means(self) -> None:
        """A place that was rarely reached is believed to be like the one before it."""
        self._means = []
        believed = _MODEL_PRIOR
        for rate in self._by_position:
            believed = rate.estimate(believed)
            self._means.append(believed)

    def counts(self) -> dict[str, dict[str, list[float]]]:
        means = {
            str(i): [round(r.accepted, 2), round(r.drafted, 2)]
            for i, r in enumerate(self._by_position)
        }
        return {"model": self.model.counts(), "lookup": self.lookup.counts(), "place": means}


def confidence_bucket(confidence: float) -> int:
    """One of eleven: by tenths, and the very sure apart."""
    return 10 if confidence > 0.98 else int(confidence * 10)


def match_bucket(match_length: int) -> int:
    return (
        _MATCH_GROUPS[match_length] if match_length < len(_MATCH_GROUPS) else _N_MATCH_BUCKETS - 1
    )


# --- How fast tokens come, and whether the draft model pays for its time.

_RATE_DECAY = 0.97
"""What a round leaves of the rate before it."""
_INITIAL_ROUNDS = 4.0
"""Rounds of plain decoding that an answer's rate begins with."""
_MIN_DRAFT_ROUNDS = 6
"""Rounds of a draft model before its gains are believed more than its counts."""
_GAIN_WEIGHT = 0.025
_BENEFIT_OF_DOUBT = 0.5
"""Standard errors by which a loss must be sure for a pause: a pause learns nothing."""
_PLAN_PRECISION = 10.0
"""What the plan's own expectation weighs, beside the gains that came by their precision."""
_MIN_GAIN_VARIANCE = 0.05
"""The least variance of gains that is believed."""
_PROBE_TIME_SHARE = 0.01
"""The share of the time that tries may take while paused."""
_INITIAL_PROBE_TIME_SHARE = 0.02
_MIN_PROBE_INTERVAL, _MAX_PROBE_INTERVAL = 4, 256


@dataclass(slots=True)
class ThroughputStats:
    """How fast tokens come and whether the draft model pays: kept from answer to answer."""

    tokens: float = 0.0
    ms: float = 0.0
    gain: float = 0.0
    """Tokens won a round by drafting with the model, beyond what its time cost."""
    gain_variance: float = 1.0
    """Variance of those gains."""
    draft_rounds: int = 0
    probe_interval: int = _MIN_PROBE_INTERVAL
    rounds_since_draft: int = 0
    """Rounds since the draft model was last asked."""

    def tokens_per_ms(self, plain_ms: float) -> float:
        """Tokens per millisecond now; never less than plain decoding gives."""
        if self.ms <= 0:
            return 1 / plain_ms
        return max(self.tokens / self.ms, 1 / plain_ms)

    def start_answer(self, plain_ms: float) -> None:
        """A new answer: how fast tokens came in the last one says little of this one.

        `plain_ms` 0: what a pass costs is not known yet.
        """
        self.tokens, self.ms = (
            (_INITIAL_ROUNDS, _INITIAL_ROUNDS * plain_ms) if plain_ms else (0.0, 0.0)
        )

    def record_round(self, tokens: int, ms: float) -> None:
        self.tokens = self.tokens * _RATE_DECAY + tokens
        self.ms = self.ms * _RATE_DECAY + ms

    @property
    def is_unproven(self) -> bool:
        """Whether too few rounds of the draft model were seen to judge it by them."""
        return self.draft_rounds < _MIN_DRAFT_ROUNDS

    def is_profitable(self, expected_gain: float) -> bool:
        """Whether drafting with the model pays, where the plan expects to win so many tokens."""
        if self.is_unproven:
            return expected_gain > 0
        precision = min(self.draft_rounds, 1 / _GAIN_WEIGHT) / self.gain_variance
        expected = (precision * self.gain + _PLAN_PRECISION * expected_gain) / (
            precision + _PLAN_PRECISION
        )
        return expected + _BENEFIT_OF_DOUBT / math.sqrt(precision + _PLAN_PRECISION) > 0

    def is_probe_due(self) -> bool:
        """Whether the draft model is to be tried although it does not pay: ever more rarely."""
        wait = float(self.probe_interval)
        if self.is_unproven:
            wait = max(
                _MIN_PROBE_INTERVAL * 2**self.draft_rounds,
                wait * _PROBE_TIME_SHARE / _INITIAL_PROBE_TIME_SHARE,
            )
        return self.rounds_since_draft >= wait

    def record_draft_gain(self, tokens_won: float, extra_ms: float, plain_ms: float) -> None:
        """A round with the draft model won so many tokens and took so much longer than a plain one.

        Tries are spaced so that together they take a small share of the time.
        """
        gain = tokens_won - self.tokens_per_ms(plain_ms) * extra_ms
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
    """What one way of verifying has taught about a pair."""

    acceptance: AcceptanceStats = field(default_factory=AcceptanceStats)
    throughput: ThroughputStats = field(default_factory=ThroughputStats)
