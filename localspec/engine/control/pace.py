"""How fast tokens come, and whether the draft model pays for its time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from localspec.engine.control.survival import Survival

_MEMORY = 0.97
"""What a round leaves of the rate before it."""
_START = 4.0
"""Rounds of plain decoding that an answer's rate begins with."""
_EVIDENCE = 6
"""Rounds of a draft model before its gains are believed more than its counts."""
_GAIN_SHARE = 0.025
_BENEFIT_OF_DOUBT = 0.5
"""Standard errors by which a loss must be sure for a pause: a pause learns nothing."""
_PLANNED = 10.0
"""What the plan's own expectation weighs, beside the gains that came by their precision."""
_STEADY = 0.05
"""The least variance of gains that is believed."""
_TRYING = 0.01
"""The share of the time that tries may take while paused."""
_TRYING_AT_FIRST = 0.02
_SHORTEST_WAIT, _LONGEST_WAIT = 4, 256


@dataclass(slots=True)
class Pace:
    """How fast tokens come and whether the draft model pays: kept from answer to answer."""

    tokens: float = 0.0
    ms: float = 0.0
    gain: float = 0.0
    """Tokens won a round by drafting with the model, beyond what its time cost."""
    spread: float = 1.0
    """Variance of those gains."""
    rounds: int = 0
    wait: int = _SHORTEST_WAIT
    idle: int = 0
    """Rounds since the draft model was last asked."""

    def rate(self, plain_ms: float) -> float:
        """Tokens per millisecond now; never less than plain decoding gives."""
        if self.ms <= 0:
            return 1 / plain_ms
        return max(self.tokens / self.ms, 1 / plain_ms)

    def begin(self, plain_ms: float) -> None:
        """A new answer: how fast tokens came in the last one says little of this one.

        `plain_ms` 0: what a pass costs is not known yet.
        """
        self.tokens, self.ms = (_START, _START * plain_ms) if plain_ms else (0.0, 0.0)

    def add(self, tokens: int, ms: float) -> None:
        self.tokens = self.tokens * _MEMORY + tokens
        self.ms = self.ms * _MEMORY + ms

    @property
    def unproven(self) -> bool:
        """Whether too few rounds of the draft model were seen to judge it by them."""
        return self.rounds < _EVIDENCE

    def pays(self, planned: float) -> bool:
        """Whether drafting with the model pays, where the plan expects to win so many tokens."""
        if self.unproven:
            return planned > 0
        precision = min(self.rounds, 1 / _GAIN_SHARE) / self.spread
        expected = (precision * self.gain + _PLANNED * planned) / (precision + _PLANNED)
        return expected + _BENEFIT_OF_DOUBT / math.sqrt(precision + _PLANNED) > 0

    def due(self) -> bool:
        """Whether the draft model is to be tried although it does not pay: ever more rarely."""
        wait = float(self.wait)
        if self.unproven:
            wait = max(_SHORTEST_WAIT * 2**self.rounds, wait * _TRYING / _TRYING_AT_FIRST)
        return self.idle >= wait

    def weigh(self, won: float, ms: float, plain_ms: float) -> None:
        """A round with the draft model won so many tokens and took so much longer than a plain one.

        Tries are spaced so that together they take a small share of the time.
        """
        gain = won - self.rate(plain_ms) * ms
        share = max(_GAIN_SHARE, 1 / (self.rounds + 1))
        self.spread += share * ((gain - self.gain) ** 2 - self.spread)
        self.spread = max(self.spread, _STEADY)
        self.gain += share * (gain - self.gain)
        self.rounds += 1
        affordable = ms / (_TRYING * plain_ms)
        wait = affordable if gain <= 0 else affordable / 4
        self.wait = int(min(max(wait, _SHORTEST_WAIT), _LONGEST_WAIT))


@dataclass(slots=True)
class Experience:
    """What one way of verifying has taught about a pair."""

    survival: Survival = field(default_factory=Survival)
    pace: Pace = field(default_factory=Pace)
