"""What speculation gives in a chat: speeds beside plain decoding, acceptance, draft
sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from msgspec import Struct, field

from localspec.chat.answer import AnswerDelta, GeneratedAnswer
from localspec.fit import speedup_model
from localspec.protocol.events import Event, Prefill, Round, SpeculationPlan
from localspec.protocol.round_totals import DraftTotals, RoundTotals
from localspec.protocol.wire import MeasuredCosts

RECENT_ROUNDS = 32  # In the strip, a column each, and in the figures labelled `now`.
MIN_DRAFTED = 10  # Below this number of draft tokens no acceptance rate is shown.
# Rounds before a speed is compared, and plain rounds before they are the standard.
_MIN_ROUNDS = 8
_RANGE_ERRORS = 2.0  # Half the width of a range, in standard errors: about 95 %.
# A speed-up whose range is narrower on both sides is shown without it.
_KNOWN_WITHIN = 0.1


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
    """Compare the tokens per second of rounds with plain decoding; None if too little
    is known.

    The standard is the rounds' own plain ones if there are enough, since they ran under
    the same conditions, else `plain_speed`.
    """
    timed = _timed_rounds(rounds)
    plain_speed = _own_plain_speed(timed) or plain_speed
    if len(timed) < _MIN_ROUNDS or not plain_speed:
        return None
    seconds = sum(r.ms.total for r in timed) / 1e3
    rate = sum(len(r.tokens) for r in timed) / seconds
    squares = sum((len(r.tokens) - rate * r.ms.total / 1e3) ** 2 for r in timed)
    error = _RANGE_ERRORS * sqrt(squares * len(timed) / (len(timed) - 1)) / seconds
    low, high = max(0.0, rate - error), rate + error
    return Speedup(rate / plain_speed, low / plain_speed, high / plain_speed)


def _timed_rounds(rounds: Sequence[Round]) -> list[Round]:
    """Without the first of an answer, which reads the prompt, and forced ones, which
    take 0 ms.
    """
    return [r for r in rounds if r.n > 0 and r.ms.total > 0]


def _own_plain_speed(timed: Sequence[Round]) -> float | None:
    plain = sorted(r.ms.total for r in timed if not r.drafted)
    return 1e3 / plain[len(plain) // 2] if len(plain) >= _MIN_ROUNDS else None


def known_rate(totals: DraftTotals) -> float | None:
    """The acceptance rate; None while too few tokens were drafted."""
    return totals.acceptance_rate if totals.drafted >= MIN_DRAFTED else None


class SpeculationStats(Struct):
    """Statistics of a chat: totals over all answers, the others of the current or last
    one.
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
        """Until the answer reports its own, the plan and prompt size of the previous
        one hold.
        """
        plan, prefill = self.plan, self._prefill
        self.show_answer(answer)
        self._previous_plan, self._previous_prefill = plan, prefill

    def show_answer(self, answer: GeneratedAnswer) -> None:
        """For another branch of the chat: the last answer that it shows, or an empty
        one.
        """
        self._keep_speed()
        self._previous_plan = self._previous_prefill = None
        self.answer = answer

    def for_new_chat(self) -> SpeculationStats:
        """For a chat with the same pair, whose speeds are known."""
        self._keep_speed()
        return SpeculationStats(self.measured, _last_speeds=dict(self._last_speeds))

    def _keep_speed(self) -> None:
        if (speed := self.tokens_per_second) is not None:
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
        until = (self.plan and self.plan.until) or 0
        left = until - len(self.answer.rounds)
        return left if left > 0 else None

    @property
    def tokens_per_second(self) -> float | None:
        """Over the recent rounds, without the first of an answer, which reads the
        prompt.
        """
        timed = _timed_rounds(self.recent_rounds)
        ms = sum(r.ms.total for r in timed)
        return 1e3 * sum(len(r.tokens) for r in timed) / ms if ms else None

    @property
    def speculative_speed(self) -> float | None:
        """Now, or of the last answer with speculation if it is off."""
        return self._last_speeds.get(False) if self.is_off else self.tokens_per_second

    @property
    def plain_speed(self) -> float | None:
        """Tokens per second without speculation, from the nearest measurement there is."""
        own = _own_plain_speed(_timed_rounds(self.recent_rounds))
        measured = (
            1e3 / self.measured.t1_ms
            if self.measured and self.measured.t1_ms > 0
            else None
        )
        return own or self._last_speeds.get(True) or measured

    @property
    def speedup(self) -> Speedup | None:
        """Of the recent rounds; of the last answer with speculation if it is off."""
        plain = self.plain_speed
        if not self.is_off:
            return measure_speedup(self.recent_rounds, plain)
        ratio = (self.speculative_speed or 0.0) / plain if plain else 0.0
        return Speedup(ratio, ratio, ratio) if ratio else None

    @property
    def break_even_rate(self) -> float | None:
        """The acceptance rate from which drafting pays here; above 1 if none does."""
        return (
            None
            if self.measured is None
            else speedup_model.break_even_rate(self.measured)
        )

    @property
    def draft_sources(self) -> list[tuple[str, DraftTotals]]:
        """Those with the most draft tokens first; drafts of several sources as `mixed`."""
        sources: dict[str, DraftTotals] = {}
        # a round may add one meanwhile
        for name, counts in list(self.totals.by_source.items()):
            source = sources.setdefault("mixed" if "+" in name else name, DraftTotals())
            source.count(
                counts.drafted, counts.accepted, counts.draft_ms, counts.rounds
            )
        return sorted(sources.items(), key=lambda item: -item[1].drafted)
