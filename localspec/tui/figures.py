"""The numbers of the speculation panel, folded from events."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.protocol.events import Event, Finished, Plan, Prefill, Round
from localspec.protocol.stats import Totals

RECENT = 48
"""Rounds of the sparkline, and of what is called `now`."""


@dataclass(slots=True)
class Figures:
    """Of one chat: `totals` over all answers, `recent` over the last rounds of this one."""

    plain: float | None = None
    """Tokens a second without speculation, as measured here; None until it is."""
    plan: Plan | None = None
    totals: Totals = field(default_factory=Totals)
    recent: deque[Round] = field(default_factory=lambda: deque(maxlen=RECENT))
    first_token_ms: float | None = None
    reused: int = 0
    prompt: int = 0
    reading: Prefill | None = None
    """The prompt while it is being read."""
    answered: int = 0
    """Tokens of this answer."""

    def begin(self) -> None:
        """Another answer."""
        self.recent.clear()
        self.reading = None
        self.first_token_ms = None
        self.answered = 0

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Round):
                self.totals.add(event)
                self.recent.append(event)
                self.reading = None
                self.answered += len(event.tokens)
            elif isinstance(event, Plan):
                self.plan = event
            elif isinstance(event, Prefill):
                self.reading = event
                self.prompt, self.reused = event.total, event.reused
            elif isinstance(event, Finished):
                self.reading = None
                timings = event.totals.get("timings", {})
                self.first_token_ms = timings.get("first_token_ms")

    @property
    def context(self) -> int:
        """Tokens in the target's context."""
        return self.prompt + self.answered

    @property
    def kept_now(self) -> float | None:
        drafted = sum(r.drafted for r in self.recent)
        return sum(r.accepted for r in self.recent) / drafted if drafted else None

    @property
    def kept(self) -> float | None:
        return self.totals.acceptance_rate

    @property
    def per_pass(self) -> float | None:
        """Tokens per pass of the target, over the rounds that drafted."""
        return self.totals.mean_accepted_length

    @property
    def speed(self) -> float | None:
        """Tokens a second over the recent rounds; the first, which reads the prompt, left out."""
        rounds = [r for r in self.recent if r.n > 0]
        ms = sum(r.ms.draft + r.ms.verify + r.ms.host for r in rounds)
        return sum(len(r.tokens) for r in rounds) * 1e3 / ms if ms > 0 else None

    @property
    def gain(self) -> float | None:
        """How many times as fast as plain decoding."""
        if self.plan is not None and self.plan.speedup is not None:
            return self.plan.speedup
        speed = self.speed
        return speed / self.plain if speed and self.plain else None

    @property
    def sources(self) -> list[tuple[str, float]]:
        """Who guessed, and which share of all guesses; the most first."""
        drafted = self.totals.drafted
        counts = ((name, c["drafted"]) for name, c in self.totals.by_source.items())
        return [(name, n / drafted) for name, n in sorted(counts, key=lambda c: -c[1]) if drafted]
