"""Statistics of a pair: draft acceptance and throughput.

Every round updates them, and they are kept across runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from localspec.protocol.wire import DEFAULT_DRAFT_LENGTH, SamplingParams, VerifyMode

_WINDOW = 96.0  # Draft tokens that a rate remembers, roughly: older ones decay.
_PRIOR_WEIGHT = 6.0  # Weight of a prior, in draft tokens.
_MODEL_PRIOR = 0.6  # Acceptance rate of a draft model before any measurement.
_POSITION_DECAY = 0.998

# Group by position in the draft.
_POSITION_GROUPS = (0, 1, 2, 3, 3, 4, 4, 4, 4) + (5,) * 16
_CONFIDENCE_PRIORS = [0.1 + 0.08 * i for i in range(11)]
_MATCH_PRIORS = [0.4, 0.5, 0.65, 0.72, 0.88, 0.94]
"""Of the token behind a match.  SmolLM2 135M and Gemma 3 270M, twelve tasks (five are edits),
T 0 and 0.7: 0.57 behind 2 tokens, 0.80 behind 4, 0.90 behind 8, 0.94 behind 16.  Lower here, since
these models repeat themselves.
"""
_PROMPT_PRIORS = [0.65, 0.75, 0.82, 0.86, 0.91, 0.94]
"""The same for a copy of the prompt.  SmolLM2 135M, seven texts to edit in several wordings, T 0.2:
0.84 behind 2 tokens (of the answer itself 0.44), 0.8 behind 4, 0.89 behind 8, 0.95 behind 12.
"""
_MATCH_GROUPS = (0, 0, 0, 1, 2, 3, 3, 4, 4, 4, 4, 4) + (5,) * 5
"""Group by length of the lookup match in tokens; longer ones are in the last."""


class AcceptanceRate:
    """Accepted of drafted tokens; older ones decay."""

    def __init__(self, counts: Sequence[float] = (0, 0)) -> None:
        self._accepted, self._drafted = (float(count) for count in counts)

    def estimate(self, prior: float) -> float:
        return (self._accepted + prior * _PRIOR_WEIGHT) / (
            self._drafted + _PRIOR_WEIGHT
        )

    def cautious_estimate(self, prior: float) -> float:
        """The estimate less its standard error."""
        p = self.estimate(prior)
        return p - math.sqrt(p * (1 - p) / (self._drafted + _PRIOR_WEIGHT))

    def decay(self, factor: float) -> None:
        self._accepted *= factor
        self._drafted *= factor

    def add(self, accepted: float) -> None:
        if self._drafted >= _WINDOW:
            self.decay(1 - 1 / _WINDOW)
        self._accepted += accepted
        self._drafted += 1

    def counts(self) -> list[float]:
        return [round(self._accepted, 2), round(self._drafted, 2)]


class AcceptanceTable:
    """Acceptance probabilities by bucket.

    They are those of a token behind draft tokens that are all accepted.
    """

    def __init__(
        self, priors: Sequence[float], saved_counts: Mapping[str, Any]
    ) -> None:
        self._priors = priors
        self._rates = [
            AcceptanceRate(saved_counts.get(f"b{i}", (0, 0)))
            for i in range(len(priors))
        ]

    def probability(self, bucket: int) -> float:
        return self._rates[bucket].estimate(self._priors[bucket])

    def cautious_probability(self, bucket: int) -> float:
        return self._rates[bucket].cautious_estimate(self._priors[bucket])

    def record(self, bucket: int, accepted: bool) -> None:
        self._rates[bucket].add(accepted)

    def counts(self) -> dict[str, list[float]]:
        return {f"b{i}": rate.counts() for i, rate in enumerate(self._rates)}


class AcceptanceStats:
    """Acceptance of each draft source under one verification method."""

    def __init__(self, saved_counts: Mapping[str, Any] | None = None) -> None:
        saved = defaultdict(dict, saved_counts or {})
        self.model = AcceptanceTable(_CONFIDENCE_PRIORS, saved["model"])
        self.lookup = AcceptanceTable(_MATCH_PRIORS + _PROMPT_PRIORS, saved["lookup"])
        self._by_position = [
            AcceptanceRate(saved["place"].get(str(i), (0, 0))) for i in range(6)
        ]
        self._update_means()

    def mean_probability(self, position: int) -> float:
        """Acceptance probability of a draft token whose confidence is unknown."""
        return self._means[_POSITION_GROUPS[position]]

    def record_model_token(self, position: int, probability: float) -> None:
        """Record the acceptance of a token.

        It is 0 or 1 if the token was verified, and an estimate if it was not drafted.
        All positions decay, so that one with an unlucky start is tried again.
        """
        for rate in self._by_position:
            rate.decay(_POSITION_DECAY)
        self._by_position[_POSITION_GROUPS[position]].add(probability)
        self._update_means()

    def _update_means(self) -> None:
        """The prior of each position is the estimate of the one before it."""
        self._means = []
        mean = _MODEL_PRIOR
        for rate in self._by_position:
            mean = rate.estimate(mean)
            self._means.append(mean)

    def counts(self) -> dict[str, dict[str, list[float]]]:
        means = {str(i): rate.counts() for i, rate in enumerate(self._by_position)}
        return {
            "model": self.model.counts(),
            "lookup": self.lookup.counts(),
            "place": means,
        }


def confidence_bucket(confidence: float) -> int:
    """One of eleven buckets: tenths, and one above 0.98."""
    return 10 if confidence > 0.98 else int(confidence * 10)


def match_bucket(match_length: int, *, in_prompt: bool = False) -> int:
    """`in_prompt`: the match is with the prompt, not with the answer itself."""
    group = _MATCH_GROUPS[min(match_length, len(_MATCH_GROUPS) - 1)]
    if in_prompt:
        return len(_MATCH_PRIORS) + group
    return group


# --- Throughput

_RATE_DECAY = 0.97  # Decay of the throughput per round.
# An answer's throughput starts with this many rounds of plain decoding.
_INITIAL_ROUNDS = 4.0
_MIN_DRAFT_ROUNDS = 6  # Rounds with the draft model before it is judged.
_GAIN_WEIGHT = 0.025
_PLAN_WEIGHT = 25
_MAX_GAIN_ROUNDS = 40
"""Weight of the planned gain in rounds, and of the measured gain at most."""
_BENEFIT_OF_DOUBT = 0.05
"""A pause needs a larger loss a round, in tokens, because it measures nothing."""
_PROBE_TIME_SHARE = 0.01  # Maximum share of time for probes while paused.
_LONG_READING = 32
"""A measured reading of this many tokens counts as much as what was known before."""
_MIN_PROBE_INTERVAL = 4
_MAX_PROBE_INTERVAL = 128


class PairStats(Struct):
    """Statistics of a pair under one verification method and temperature class."""

    acceptance: AcceptanceStats = field(default_factory=AcceptanceStats)
    # Tokens gained per round with the draft model, minus the cost of its time.
    gain: float = 0.0
    draft_rounds: int = 0
    probe_interval: int = _MIN_PROBE_INTERVAL
    rounds_since_draft: int = 0  # Rounds since the draft model was last used.
    reading: float | None = None
    """Cost of a token of text that the draft model reads, in draft passes; None if not
    measured.
    """
    _tokens: float = 0.0
    _ms: float = 0.0

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> PairStats:
        """Stats that `saved` gave in an earlier process.

        The parent has checked them: `SavedPairStats` of `machine.measurements` has the
        same form.
        """
        gains = saved.get("gains", {})
        return cls(
            AcceptanceStats(saved),
            gain=gains.get("gain", 0.0),
            draft_rounds=gains.get("rounds", 0),
            probe_interval=gains.get("interval", _MIN_PROBE_INTERVAL),
            rounds_since_draft=gains.get("since", 0),
            reading=gains.get("reading"),
        )

    def saved(self) -> dict[str, Any]:
        gains = {
            "gain": round(self.gain, 4),
            "rounds": self.draft_rounds,
            "interval": self.probe_interval,
            "since": self.rounds_since_draft,
        }
        if self.reading is not None:
            gains["reading"] = round(self.reading, 4)
        return {**self.acceptance.counts(), "gains": gains}

    def record_score(self, accepted: Sequence[int]) -> None:
        """Record the rounds that an answer would have had with this draft.

        `accepted`: how many draft tokens would have been accepted at each place of the
        answer, whose first token comes from the prompt. From then on the draft counts as
        judged.
        """
        self.draft_rounds = max(self.draft_rounds, _MIN_DRAFT_ROUNDS)
        place = 1
        while place < len(accepted):
            n = min(accepted[place], DEFAULT_DRAFT_LENGTH)
            for position in range(n):
                self.acceptance.record_model_token(position, 1.0)
            if n < DEFAULT_DRAFT_LENGTH:
                self.acceptance.record_model_token(n, 0.0)
            place += n + 1

    def record_reading(self, share: float, n_tokens: int) -> None:
        """Record what reading `n_tokens` of text cost, in draft passes per token."""
        known = share if self.reading is None else self.reading
        self.reading = known + n_tokens / (n_tokens + _LONG_READING) * (share - known)

    # --- throughput of the answer

    def start_answer(self, plain_ms: float) -> None:
        """Reset the throughput to plain decoding; `plain_ms` is 0 if not yet measured."""
        self._tokens = _INITIAL_ROUNDS if plain_ms > 0 else 0.0
        self._ms = _INITIAL_ROUNDS * plain_ms

    def record_round(self, tokens: int, ms: float) -> None:
        self._tokens = self._tokens * _RATE_DECAY + tokens
        self._ms = self._ms * _RATE_DECAY + ms

    def tokens_per_ms(self, plain_ms: float) -> float:
        """Current tokens per millisecond; at least that of plain decoding."""
        plain = 1 / plain_ms
        if not self._ms:
            return plain
        return max(self._tokens / self._ms, plain)

    # --- the draft model

    @property
    def is_unproven(self) -> bool:
        """Whether the draft model was used in too few rounds to judge it."""
        return self.draft_rounds < _MIN_DRAFT_ROUNDS

    @property
    def is_gaining(self) -> bool:
        """Whether the draft model was judged, and gains."""
        return self.gain > 0 and not self.is_unproven

    @property
    def is_promising(self) -> bool:
        """Whether the draft's trials gained so far, or were enough to judge it."""
        return self.gain > 0 or not self.is_unproven

    def expected_gain(self, planned: float) -> float:
        """The planned gain of a round, corrected by the measured gains.

        These are larger where confidence tells easy tokens from hard ones: drafts end
        in time.
        """
        if self.is_unproven:
            return planned
        n = min(self.draft_rounds, _MAX_GAIN_ROUNDS)
        mean = (_PLAN_WEIGHT * planned + n * self.gain) / (_PLAN_WEIGHT + n)
        return mean + _BENEFIT_OF_DOUBT

    def is_probe_due(self, reading: float) -> bool:
        """Whether to try the draft model although it is not profitable.

        `reading`: cost of the text that it has not read, in one-token passes.
        """
        if self.is_unproven:
            return 2 * self.rounds_since_draft >= self.probe_interval
        return (
            self.rounds_since_draft >= self.probe_interval + reading / _PROBE_TIME_SHARE
        )

    def record_draft_gain(
        self, tokens_gained: float, extra_ms: float, plain_ms: float
    ) -> None:
        """Record a round with the draft model.

        `extra_ms` is its time beyond that of a plain round.
        Probes are spaced so that together they take a small share of the time.
        """
        gain = tokens_gained - self.tokens_per_ms(plain_ms) * extra_ms
        self.draft_rounds += 1
        self.gain += max(_GAIN_WEIGHT, 1 / self.draft_rounds) * (gain - self.gain)
        affordable = extra_ms / (_PROBE_TIME_SHARE * plain_ms)
        wait = affordable if gain <= 0 else affordable / 4
        self.probe_interval = int(
            min(max(wait, _MIN_PROBE_INTERVAL), _MAX_PROBE_INTERVAL)
        )


_LOW_TEMPERATURE = 0.5
_HIGH_TEMPERATURE = 1.0
"""Acceptance is counted apart up to, between and beyond these temperatures."""


def stats_key(sampling: SamplingParams, verify: VerifyMode) -> str:
    """Name of the statistics for a verification method and temperature class."""
    if sampling.temperature <= 0:
        return "greedy"
    if sampling.temperature <= _LOW_TEMPERATURE:
        return f"{verify}, low temperature"
    if sampling.temperature <= _HIGH_TEMPERATURE:
        return verify
    return f"{verify}, high temperature"
