"""The regret budget: what an answer may lose to drafting."""

from __future__ import annotations

_SHARE = 0.03  # Share of the answer so far that drafting may lose.
_CAUTION = 1.15  # A draft must be affordable if it costs this many times its estimate.
_MAX_WON = 32.0  # Of drafting, which bounds what a draft that turns bad can lose.
# Beyond the account, of drafts that are expected to gain: 3 % of 58 tokens.
_MAX_RISK = 1.75
_TRUST_OF_RIGHT = 0.5
_TRUST_OF_WRONG = -1.0
_MAX_TRUST = 2.0
"""What copies of the prompt may lose besides, by those that were not used: an edit goes on behind a
copy that was rejected whole.  `bench.py regret --texts`: with 4, short answers lose up to 12 %.
"""


class RegretBudget:
    """The account of one answer. Times are in one-token passes of the target.

    At every moment, the time lost against plain decoding is at most 3 % of the answer
    so far plus what drafting had won in it; `_MAX_RISK` more if all drafts were
    expected to gain; and up to `_MAX_TRUST` if copies of the prompt that were not used
    would have been right. A draft of which nothing is known waits until the rounds
    without a draft have earned the cost of a draft of which no token is accepted. What
    copies of the text have won pays for no trial of a draft model: reading the text
    would often cost more than the answer still has to win.
    """

    def __init__(self) -> None:
        self._won = 0.0
        self._allowance = 0.0
        self._won_by_copies = 0.0
        self._trust = 0.0

    @property
    def balance(self) -> float:
        """What the next round may lose."""
        return self._won + self._allowance

    def can_afford(
        self,
        cost: float,
        *,
        gains: bool = False,
        in_prompt: bool = False,
        is_trial: bool = False,
    ) -> bool:
        """Whether a round may lose `cost`, its estimate if no draft token is accepted.

        `gains`: its draft is expected to gain. `in_prompt`: it is a copy of the prompt.
        """
        risk = 0.0
        if gains:
            risk = _MAX_RISK
            if in_prompt:
                risk += self._trust
        balance = self.balance
        if is_trial:
            balance -= self._won_by_copies
        return cost <= 0 or _CAUTION * cost <= balance + risk

    def record_round(
        self, n_tokens: int, time: float, *, is_copy: bool = False
    ) -> None:
        self._allowance += _SHARE * n_tokens
        self._won = min(self._won + n_tokens - time, _MAX_WON)
        if is_copy:
            self._won_by_copies = min(
                max(0.0, self._won_by_copies + n_tokens - time), _MAX_WON
            )

    def record_unused_copy(self, *, is_right: bool) -> None:
        """Record a round without a draft, for which there was a copy of the prompt."""
        change = _TRUST_OF_RIGHT if is_right else _TRUST_OF_WRONG
        trust = self._trust + change
        self._trust = min(max(0.0, trust), _MAX_TRUST)
