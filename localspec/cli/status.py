"""What is said of an answer when it is done, in the person's words."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.protocol.events import Finished, Plan
from localspec.protocol.stats import Totals
from localspec.units import count, milliseconds, per_second, percent


@dataclass(frozen=True, slots=True)
class Answered:
    """The numbers of one answer."""

    finished: Finished
    totals: Totals
    plan: Plan | None
    plain_rate: float | None
    """Tokens a second without speculation, as measured here; None until it is."""
    n_ctx: int
    stopped_ms: float | None = None
    """How long it took to stop, where it was asked to."""

    @property
    def rate(self) -> float | None:
        rate = self.finished.totals.get("timings", {}).get("tokens_per_second")
        return float(rate) if isinstance(rate, int | float) else None

    @property
    def speedup(self) -> float | None:
        if not self.rate or not self.plain_rate or not self.totals.drafted:
            return None
        return self.rate / self.plain_rate

    @property
    def context(self) -> int:
        """Tokens in the context now."""
        known = self.finished.totals
        return int(known.get("prompt_tokens", 0)) + int(known.get("tokens", self.totals.tokens))

    @property
    def unanswered(self) -> bool:
        """Whether it ended before the thinking did."""
        return bool(self.finished.totals.get("thinking", {}).get("open"))

    @property
    def full(self) -> bool:
        return self.finished.reason == "context"


def line(answered: Answered) -> str:
    """The status line: `2.1× plain · 62 % of guesses kept · 79 tok/s · context 1.2k / 16k`."""
    parts = []
    if answered.stopped_ms is not None:
        parts.append(f"stopped in {milliseconds(answered.stopped_ms)}")
    if answered.finished.reason == "length":
        parts.append("limit of tokens reached")
    if answered.full:
        parts.append("context full")
    if answered.unanswered:
        parts.append("stopped in thinking")
    if answered.speedup is not None:
        parts.append(f"{answered.speedup:.1f}× plain")
    if answered.totals.drafted:
        parts.append(f"{percent(answered.totals.acceptance_rate)} of guesses kept")
    elif answered.plan is not None:
        parts.append(f"speculation {answered.plan.state}")
    if answered.rate is not None:
        parts.append(per_second(answered.rate))
    parts.append(f"context {count(answered.context)} / {count(answered.n_ctx)}")
    return " · ".join(parts)


def sentences(answered: Answered) -> str:
    """The same without signs, to be read aloud."""
    told = []
    if answered.stopped_ms is not None:
        told.append(f"Stopped in {answered.stopped_ms:.0f} milliseconds.")
    if answered.finished.reason == "length":
        told.append("The limit of tokens is reached.")
    if answered.full:
        told.append("The context is full.")
    if answered.unanswered:
        told.append("It stopped in its thinking.")
    if answered.totals.drafted:
        kept = f"{answered.totals.accepted} of {answered.totals.drafted} guesses kept"
        faster = "" if answered.speedup is None else f", {answered.speedup:.1f} times plain speed"
        told.append(f"{kept}{faster}.")
    if answered.rate is not None:
        told.append(f"{answered.rate:.0f} tokens per second.")
    told.append(f"Context: {answered.context} of {answered.n_ctx} tokens.")
    return " ".join(told)


def numbers(answered: Answered) -> list[str]:
    """`/stats` in words alone."""
    told = []
    if answered.plan is not None:
        told.append(f"Speculation: {answered.plan.state}, {answered.plan.why}.")
    for kept, times in enumerate(answered.totals.histogram):
        if times:
            often = "Once" if times == 1 else f"{times} times"
            told.append(f"{often} {kept} {'guess' if kept == 1 else 'guesses'} kept.")
    length = answered.totals.mean_accepted_length
    if length is not None:
        told.append(f"{length:.1f} tokens per pass that guessed.")
    return [*told, sentences(answered)]
