"""What speculation gives in a chat: speed-up, acceptance rate, draft sources."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from msgspec import Struct, field

from localspec.chat.answer import (
    AnswerDelta,
    AnswerFigures,
    GeneratedAnswer,
    with_plain_speed,
)
from localspec.chat.decode_speed import DecodeSpeed, Speedup
from localspec.fit import speedup_model
from localspec.protocol.events import (
    Event,
    GenerationFinished,
    Prefill,
    Round,
    SpeculationPlan,
)
from localspec.protocol.round_totals import DraftTotals, RoundTotals
from localspec.protocol.wire import MeasuredCosts

RECENT_ROUNDS = 32
"""The rounds of the panel's strip, a column each, and of what happens now."""
MIN_DRAFTED = 10
"""Below this number of draft tokens no acceptance rate is shown."""


def known_rate(totals: DraftTotals) -> float | None:
    """The acceptance rate; None while too few tokens were drafted."""
    return totals.acceptance_rate if totals.drafted >= MIN_DRAFTED else None


class SpeculationStats(Struct):
    """Statistics of a chat.

    `totals` are those of all answers. Everything else is about the answer that is being
    generated or, between two answers, about the last one. If it calls tools, its figures
    are those of all its steps, and its plan and prompt those of the last one.
    """

    # Pass costs of the pair; None until they are measured.
    measured: MeasuredCosts | None = None
    totals: RoundTotals = field(default_factory=RoundTotals)
    answer: GeneratedAnswer = field(default_factory=GeneratedAnswer)
    _previous_plan: SpeculationPlan | None = None
    _previous_prefill: Prefill | None = None
    _last_speeds: dict[bool, float] = field(default_factory=dict)
    """Tokens per second of the last answers, by whether anything was drafted."""

    @classmethod
    def of_rounds(
        cls, rounds: Sequence[Round], plain_speed: float | None = None
    ) -> SpeculationStats:
        """Of an answer whose other events are not needed.

        `plain_speed`: what to compare it with if its own rounds do not say it.
        """
        stats = cls()
        figures = AnswerFigures.of(rounds)
        stats.answer.rounds = figures.rounds
        stats.answer.totals = figures.totals
        stats.answer.decode_speed = figures.decode_speed
        if plain_speed is not None:
            stats._last_speeds[False] = plain_speed
        return stats

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

    def copy_for_playback(self) -> SpeculationStats:
        """For an answer that has just been started, and is shown later than it arrives.

        What is shown of it is added to the copy.
        """
        answer = GeneratedAnswer()
        answer.continue_from(self.answer.earlier_steps)
        return SpeculationStats(
            self.measured,
            totals=deepcopy(self.totals),
            answer=answer,
            _previous_plan=self.plan,
            _previous_prefill=self._prefill,
            _last_speeds=dict(self._last_speeds),
        )

    def for_new_chat(self) -> SpeculationStats:
        """For a chat with the same pair, whose speeds are known."""
        self._keep_speed()
        return SpeculationStats(self.measured, _last_speeds=dict(self._last_speeds))

    def _keep_speed(self) -> None:
        """Remember the speed of an answer before another one is shown."""
        figures = self.figures
        speed = figures.decode_speed.tokens_per_second
        if speed is not None and figures.decode_speed.is_comparable:
            self._last_speeds[bool(figures.totals.drafted)] = speed

    def add(self, event: Event) -> AnswerDelta:
        """The delta of an end says what the answer is compared with."""
        if isinstance(event, Round):
            self.totals.add(event)
        plain_speed = self.plain_speed
        if isinstance(event, GenerationFinished) and plain_speed is not None:
            event = with_plain_speed(event, plain_speed)
        return self.answer.add(event)

    @property
    def figures(self) -> AnswerFigures:
        """Of the answer, with all its steps."""
        return self.answer.figures

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
        return self.figures.rounds[-RECENT_ROUNDS:]

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
        """The speed of the answer; None until a round is timed."""
        return self.figures.decode_speed.tokens_per_second

    @property
    def recent_tokens_per_second(self) -> float | None:
        return DecodeSpeed.of(self.recent_rounds).tokens_per_second

    @property
    def speculative_speed(self) -> float | None:
        """Of the answer, or of the last one with speculation if it is off."""
        if self.is_off:
            return self._last_speeds.get(True)
        return self.tokens_per_second

    @property
    def plain_speed(self) -> float | None:
        """Tokens per second without speculation, from the nearest measurement there is.

        That is the answer itself if speculation is off, else its own rounds without a
        draft if they are many, else the last answer without speculation, else those few
        rounds, else the pair's pass costs. What was measured elsewhere and contradicts
        this answer's passes is not used. When the answer ends it is saved with it.
        """
        saved = self.answer.plain_tokens_per_second
        if saved is not None:
            return saved
        if self.is_off and self.tokens_per_second is not None:
            return self.tokens_per_second
        own_speed = self.figures.decode_speed
        own = own_speed.plain_tokens_per_second
        if own is not None and own_speed.has_steady_plain:
            return own
        last = self._last_speeds.get(False)
        if last and not own_speed.contradicts(last):
            return last
        if own is not None:
            return own
        if self.measured is None or self.measured.t1_ms <= 0:
            return None
        stored = 1e3 / self.measured.t1_ms
        return None if own_speed.contradicts(stored) else stored

    @property
    def speedup(self) -> Speedup | None:
        """Of the answer; of the last one with speculation if it is off.

        None if nothing was drafted, or too little to compare.
        """
        plain = self.plain_speed
        if not self.is_off:
            if not self.figures.totals.drafted:
                return None
            return self.figures.decode_speed.compare(plain)
        if not self.figures.decode_speed.is_comparable:
            return None
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
