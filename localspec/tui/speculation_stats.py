"""Statistics for the speculation panel, computed from events."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.protocol.events import Event, GenerationFinished, Prefill, Round, SpeculationPlan
from localspec.protocol.round_totals import RoundTotals

RECENT_ROUNDS = 48
"""Number of rounds in the sparkline and in the figures labelled `now`."""


@dataclass(slots=True)
class SpeculationStats:
    """Of one chat: `totals` over all answers, `recent_rounds` of the current answer."""

    plain_speed: float | None = None
    """Tokens per second without speculation; None until it has been measured."""
    plan: SpeculationPlan | None = None
    totals: RoundTotals = field(default_factory=RoundTotals)
    recent_rounds: deque[Round] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))
    first_token_ms: float | None = None
    reused_tokens: int = 0
    prompt_tokens: int = 0
    prefill: Prefill | None = None
    """Set while the prompt is read."""
    answer_tokens: int = 0
    """Tokens of the current answer."""

    def start_answer(self) -> None:
        self.recent_rounds.clear()
        self.prefill = None
        self.first_token_ms = None
        self.answer_tokens = 0

    def add_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Round):
                self.totals.add(event)
                self.recent_rounds.append(event)
                self.prefill = None
                self.answer_tokens += len(event.tokens)
            elif isinstance(event, SpeculationPlan):
                self.plan = event
            elif isinstance(event, Prefill):
                self.prefill = event
                self.prompt_tokens, self.reused_tokens = event.total, event.reused
            elif isinstance(event, GenerationFinished):
                self.prefill = None
                timings = event.totals.get("timings", {})
                self.first_token_ms = timings.get("first_token_ms")

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    @property
    def recent_drafted(self) -> int:
        return sum(r.drafted for r in self.recent_rounds)

    @property
    def recent_accepted(self) -> int:
        return sum(r.accepted for r in self.recent_rounds)

    @property
    def recent_acceptance_rate(self) -> float | None:
        return self.recent_accepted / self.recent_drafted if self.recent_drafted else None

    @property
    def acceptance_rate(self) -> float | None:
        return self.totals.acceptance_rate

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens per pass of the target; a plain pass gives 1."""
        passes = self.totals.rounds + self.totals.plain_rounds
        return self.totals.tokens / passes if passes else None

    @property
    def tokens_per_second(self) -> float | None:
        """Over the recent rounds, without the first of an answer, which reads the prompt."""
        rounds = [r for r in self.recent_rounds if r.n > 0]
        ms = sum(r.ms.draft + r.ms.verify + r.ms.host for r in rounds)
        return sum(len(r.tokens) for r in rounds) * 1e3 / ms if ms > 0 else None

    @property
    def speedup(self) -> float | None:
        """Speed relative to plain decoding."""
        if self.plan is not None and self.plan.speedup is not None:
            return self.plan.speedup
        speed = self.tokens_per_second
        return speed / self.plain_speed if speed and self.plain_speed else None

    @property
    def draft_shares(self) -> list[tuple[str, float]]:
        """Share of the draft tokens by source, the largest first."""
        drafted = self.totals.drafted
        counts = ((name, c["drafted"]) for name, c in self.totals.by_source.items())
        return [(name, n / drafted) for name, n in sorted(counts, key=lambda c: -c[1]) if drafted]
