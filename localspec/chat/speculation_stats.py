"""What speculation gives in a chat: speed-up, acceptance rate, draft sources."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from msgspec import Struct, field

from localspec.chat.answer import AnswerDelta, GeneratedAnswer
from localspec.fit import speedup_model
from localspec.protocol.events import Event, Prefill, Round, SpeculationPlan
from localspec.protocol.round_totals import DraftTotals, RoundTotals
from localspec.protocol.wire import MeasuredCosts

RECENT_ROUNDS = 32
"""The rounds of the panel's strip, a column each, and of the figures labelled `now`."""
MIN_DRAFTED = 10
"""Below this number of draft tokens no acceptance rate is shown."""
_MIN_ROUNDS = 8
"""Rounds before a speed is compared, and plain rounds before they are the standard."""
_RANGE_ERRORS = 2.0
"""Half the width of a range, in standard errors: it covers about 95 %."""
_KNOWN_WITHIN = 0.1
"""A speed-up is shown as one number if its range is at most this wide on both sides."""


class Speedup(Struct, frozen=True):
    """Speed relative to plain decoding, with a 95 % range."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """`2.1×`; `1.8–2.4×` while little is known."""
        if self.high - self.low < 2 * _KNOWN_WITHIN:
            return f"{self.value:.1f}×"
        return f"{self.low:.1f}–{self.high:.1f}×"

    @property
    def in_words(self) -> str:
        """For a screen reader."""
        return f"{str(self).rstrip('×').replace('–', ' to ')} times"


def measure_speedup(
    rounds: Sequence[Round], plain_speed: float | None
) -> Speedup | None:
    """Compare the tokens per second of rounds with plain decoding.

    The standard is the rounds' own plain ones if there are enough, since they ran under
    the same conditions, else `plain_speed`. Returns None if too little is known.

    The rate is a ratio of two sums over rounds, tokens and seconds. Its standard error
    comes from the residuals: how far the tokens of each round are from what the rate
    predicts for its time. With 10 rounds of 100 ms, half of which gave 1 token and half
    3, the rate is 20 tokens/s, each residual is 1 token, and the error of the rate is
    sqrt(10 * 10 / 9) / 1 s = 3.3 tokens/s.
    """
    timed = _timed_rounds(rounds)
    plain_speed = _own_plain_speed(timed) or plain_speed
    if len(timed) < _MIN_ROUNDS or not plain_speed:
        return None
    n_rounds = len(timed)
    seconds = sum(each.ms.total for each in timed) / 1e3
    rate = sum(len(each.tokens) for each in timed) / seconds
    squares = sum(
        (len(each.tokens) - rate * each.ms.total / 1e3) ** 2 for each in timed
    )
    error = _RANGE_ERRORS * sqrt(squares * n_rounds / (n_rounds - 1)) / seconds
    return Speedup(
        value=rate / plain_speed,
        low=max(0.0, rate - error) / plain_speed,
        high=(rate + error) / plain_speed,
    )


def _timed_rounds(rounds: Sequence[Round]) -> list[Round]:
    """Those that decode.

    The first of an answer also reads the prompt, and forced ones take 0 ms.
    """
    return [each for each in rounds if each.n > 0 and each.ms.total > 0]


def _own_plain_speed(timed: Sequence[Round]) -> float | None:
    """Tokens per second of the median plain round; None if there are too few."""
    plain = sorted(each.ms.total for each in timed if not each.drafted)
    if len(plain) < _MIN_ROUNDS:
        return None
    return 1e3 / plain[len(plain) // 2]


def known_rate(totals: DraftTotals) -> float | None:
    """The acceptance rate; None while too few tokens were drafted."""
    return totals.acceptance_rate if totals.drafted >= MIN_DRAFTED else None


class SpeculationStats(Struct):
    """Statistics of a chat.

    `totals` are those of all answers. Everything else is about the answer that is being
    generated or, between two answers, about the last one.
    """

    # Pass costs of the pair; None until they are measured.
    measured: MeasuredCosts | None = None
    totals: RoundTotals = field(default_factory=RoundTotals)
    answer: GeneratedAnswer = field(default_factory=GeneratedAnswer)
    _previous_plan: SpeculationPlan | None = None
    _previous_prefill: Prefill | None = None
    _last_speeds: dict[bool, float] = field(default_factory=dict)
    """Tokens per second of the last answers, by whether speculation was off."""

    def start_answer(self, answer: GeneratedAnswer) -> None:
        """Begin an answer. It shows the last one's plan and prompt size at first.

        So the panel does not go blank until the engine reports those of this answer.
        """
        previous_plan = self.plan
        previous_prefill = self._prefill
        self.show_answer(answer)
        self._previous_plan = previous_plan
        self._previous_prefill = previous_prefill

    def show_answer(self, answer: GeneratedAnswer) -> None:
        """Show the last answer of another branch, which may be empty."""
        self._keep_speed()
        self._previous_plan = None
        self._previous_prefill = None
        self.answer = answer

    def for_new_chat(self) -> SpeculationStats:
        """For a chat with the same pair, whose speeds are known."""
        self._keep_speed()
        return SpeculationStats(self.measured, _last_speeds=dict(self._last_speeds))

    def _keep_speed(self) -> None:
        """Remember the speed of an answer before another one is shown."""
        speed = self.tokens_per_second
        if speed is not None:
            self._last_speeds[self.is_off] = speed

    def add(self, event: Event) -> AnswerDelta:
        if isinstance(event, Round):
            self.totals.add(event)
        return self.answer.add(event)

    @property
    def plan(self) -> SpeculationPlan | None:
        return self.answer.plan or self._previous_plan

    @property
    def is_off(self) -> bool:
        return self.plan is not None and self.plan.state == "off"

    @property
    def _prefill(self) -> Prefill | None:
        return self.answer.prefill or self._previous_prefill

    @property
    def prefill(self) -> Prefill | None:
        """None unless the prompt is being read."""
        return self.answer.prefill if self.answer.is_reading_prompt else None

    @property
    def reused_tokens(self) -> int:
        return self._prefill.reused if self._prefill else 0

    @property
    def context_tokens(self) -> int:
        if self.answer.prefill is None and self._previous_prefill is not None:
            return self._previous_prefill.total
        return self.answer.context_tokens

    @property
    def recent_rounds(self) -> Sequence[Round]:
        return self.answer.rounds[-RECENT_ROUNDS:]

    @property
    def recent(self) -> RoundTotals:
        return RoundTotals.of(self.recent_rounds)

    @property
    def rounds_to_next_trial(self) -> int | None:
        """Rounds until a paused drafter is tried again; None if unknown or due."""
        if self.plan is None or not self.plan.until:
            return None
        left = self.plan.until - len(self.answer.rounds)
        return left if left > 0 else None

    @property
    def tokens_per_second(self) -> float | None:
        """Of the recent rounds; None until one is timed."""
        timed = _timed_rounds(self.recent_rounds)
        ms = sum(each.ms.total for each in timed)
        if not ms:
            return None
        return 1e3 * sum(len(each.tokens) for each in timed) / ms

    @property
    def speculative_speed(self) -> float | None:
        """Now, or of the last answer with speculation if it is off."""
        if self.is_off:
            return self._last_speeds.get(False)
        return self.tokens_per_second

    @property
    def plain_speed(self) -> float | None:
        """Tokens per second without speculation, from the nearest measurement there is.

        That is the recent rounds, else the last answer without speculation, else the
        pair's pass costs.
        """
        recent = _own_plain_speed(_timed_rounds(self.recent_rounds))
        known = recent or self._last_speeds.get(True)
        if known:
            return known
        if self.measured is None or self.measured.t1_ms <= 0:
            return None
        return 1e3 / self.measured.t1_ms

    @property
    def speedup(self) -> Speedup | None:
        """Of the recent rounds; of the last answer with speculation if it is off."""
        plain = self.plain_speed
        if not self.is_off:
            return measure_speedup(self.recent_rounds, plain)
        if not self.speculative_speed or not plain:
            return None
        ratio = self.speculative_speed / plain
        return Speedup(ratio, ratio, ratio)

    @property
    def break_even_rate(self) -> float | None:
        """The acceptance rate from which drafting pays with this pair.

        It is above 1 if no rate does.
        """
        if self.measured is None:
            return None
        return speedup_model.break_even_rate(self.measured)

    @property
    def draft_sources(self) -> list[tuple[str, DraftTotals]]:
        """Those with the most draft tokens first; drafts of several sources as `mixed`."""
        sources: dict[str, DraftTotals] = {}
        # A copy: the answer's thread may add a source meanwhile.
        for name, counts in list(self.totals.by_source.items()):
            shown = "mixed" if "+" in name else name
            source = sources.setdefault(shown, DraftTotals())
            source.count(
                counts.drafted, counts.accepted, counts.draft_ms, counts.rounds
            )
        return sorted(sources.items(), key=lambda item: -item[1].drafted)
