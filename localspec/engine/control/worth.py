"""What guesses are worth, and what they cost, in tokens at the rate at which tokens come now."""

from __future__ import annotations

import math

from localspec.engine.control.costs import Costs
from localspec.engine.control.pace import Experience
from localspec.engine.control.survival import match_bucket
from localspec.engine.protocols import Draft

_HOPELESS = 1e-3
"""A chance that is not followed further."""
_LITTLE = 0.25
"""The share of what a try has cost already that one guess more may cost."""


class Worth:
    """One way of verifying's counts, put against what this machine's passes cost."""

    def __init__(self, costs: Costs, known: Experience) -> None:
        self.costs, self.survival, self.pace = costs, known.survival, known.pace

    @property
    def rate(self) -> float:
        """Tokens per millisecond."""
        return self.pace.rate(self.costs.plain)

    def guessing(self, place: int, chance: float, limit: int) -> float:
        """The most tokens that further guesses of the model would win, less what they cost.

        `place` guesses are drafted and all stand with this `chance`.  It looks past the next
        one, because the verify curve has steps.
        """
        verify, rate = self.costs.verify, self.rate
        step, before = self.costs.draft, verify[place + 1]
        best, won, cost = -math.inf, 0.0, 0.0
        first = 0 if place == 0 else -1  # later passes have nothing to catch up with
        for n in range(place, min(place + limit, len(verify) - 2)):
            chance *= self.survival.mean(n)
            if chance < _HOPELESS:
                break
            won += chance
            cost += self.costs.first_draft if n == first else step
            best = max(best, won - rate * (cost + verify[n + 2] - before))
        return best

    def width_price(self, place: int) -> float:
        """What verifying one guess more costs, in tokens, when `place` are drafted."""
        verify = self.costs.verify
        return self.rate * (verify[place + 2] - verify[place + 1])

    def nearly_free(self, place: int) -> bool:
        """Whether a try that drafted `place` guesses learns more for little: a step was climbed."""
        verify, step = self.costs.verify, self.costs.draft
        so_far = place * step + verify[place + 1] - verify[1]
        return step + verify[place + 2] - verify[place + 1] < _LITTLE * so_far

    def copying(self, copied: Draft, place: int, chance: float) -> tuple[int, float]:
        """How many of these copied guesses to keep behind `place` others, and what they win."""
        if not copied.tokens:
            return 0, 0.0
        verify, rate = self.costs.verify, self.rate
        bucket, table = match_bucket(copied.match), self.survival.lookup
        length, best, won = 0, 0.0, 0.0
        for n in range(min(len(copied.tokens), len(verify) - 2 - place)):
            chance *= table.chance(bucket, n)
            won += chance
            gain = won - rate * (verify[place + n + 2] - verify[place + 1])
            if gain > best:
                length, best = n + 1, gain
        return length, best

    def catching_up(self, n: int) -> float:
        """What it costs that the draft model first reads n guesses of another source."""
        costs = self.costs
        return self.rate * costs.draft * costs.verify[n + 1] / costs.plain
