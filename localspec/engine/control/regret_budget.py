"""The regret budget: what an answer may lose to drafting."""

from __future__ import annotations

_SHARE = 0.03  # Share of the answer so far that drafting may lose.
_CAUTION = 1.15  # A draft must be affordable if it costs this many times its estimate.
_MAX_WON = 32.0
"""Upper bound of what drafting has won: it also bounds what a draft that turns bad can lose."""
_MAX_CARRIED = 8.0  # Upper bound of what an answer takes over from the answers before.
_MAX_ADVANCE = 2.5
"""Upper bound of what an answer may lose on the strength of earlier ones, before it has earned it:
3 % of 84 tokens."""
_CARRIED_SHARE = 0.9  # Share that the next answer begins with.


class RegretBudget:
    """The account of one answer. Times are in one-token passes of the target.

    At every moment, the time lost against plain decoding is at most 3 % of the answer so far plus
    what drafting had won in it. What it won in answers before is only an advance on those 3 %:
    drafting may begin at once, but an answer does not pay for another one. Without it, nothing is
    drafted until the rounds without a draft have earned the cost of a draft of which no token is
    accepted.
    """

    def __init__(self, carried_over: float = 0.0) -> None:
        """`carried_over`: from the answer before."""
        self._carried = min(max(carried_over, 0.0), _MAX_CARRIED)
        self._won = self._allowance = 0.0

    @property
    def balance(self) -> float:
        """What the next round may lose."""
        return self._won + max(self._allowance, min(self._carried, _MAX_ADVANCE))

    def can_afford(self, cost: float) -> bool:
        """Whether a round may lose `cost`, its estimate if no draft token is accepted."""
        return cost <= 0 or _CAUTION * cost <= self.balance

    def record_round(self, n_tokens: int, time: float) -> None:
        """Record the tokens that a round emitted, and its time."""
        self._allowance += _SHARE * n_tokens
        self._won = min(self._won + n_tokens - time, _MAX_WON)

    def carry_over(self) -> float:
        """What the next answer begins with: only what drafting won, with decay."""
        return _CARRIED_SHARE * min(max(self._carried + self._won, 0.0), _MAX_CARRIED)
