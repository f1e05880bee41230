"""Totals over rounds.

Every report counts drafted and accepted tokens with these classes, as vLLM defines them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from localspec.protocol.events import Round


class DraftTotals(Struct):
    """Draft tokens of some rounds, of one source, or at one position of the drafts."""

    rounds: int = 0  # Rounds with a draft.
    drafted: int = 0
    accepted: int = 0
    draft_ms: float = 0.0

    def count(
        self, drafted: int, accepted: int, draft_ms: float = 0.0, rounds: int = 1
    ) -> None:
        self.rounds += rounds
        self.drafted += drafted
        self.accepted += accepted
        self.draft_ms += draft_ms

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None


class RoundTotals(DraftTotals):
    """Sums over the rounds of one answer, or of several."""

    tokens: int = 0
    plain_rounds: int = 0  # Rounds without a draft.
    emitted_speculating: int = 0  # Tokens that rounds with a draft emitted.
    histogram: list[int] = field(default_factory=list)
    """Number of rounds with a draft in which 0, 1, 2, … tokens were accepted."""
    verified: list[int] = field(default_factory=list)
    """Number of rounds with a draft in which 0, 1, 2, … tokens were accepted or rejected.

    The token after the accepted ones was rejected, unless all were accepted or the answer
    ended before. Of four draft tokens with one accepted, two are verified.
    """
    by_source: dict[str, DraftTotals] = field(default_factory=dict)
    host_ms: float = 0.0
    overlapped: int = 0
    """Rounds whose draft was continued during the target pass before."""
    overlap_hits: int = 0  # Those in which what was drafted then could be used.

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> RoundTotals:
        totals = cls()
        for event in rounds:
            totals.add(event)
        return totals

    def add(self, event: Round) -> None:
        self.host_ms += event.ms.host
        if event.overlap:
            self.overlapped += 1
        if event.overlap == "hit":
            self.overlap_hits += 1
        self.count_round(
            drafted=event.drafted,
            accepted=event.accepted,
            emitted=len(event.tokens),
            draft_ms=event.ms.draft,
            source=event.source or "?",
        )

    def count_round(
        self,
        *,
        drafted: int,
        accepted: int,
        emitted: int,
        draft_ms: float = 0.0,
        source: str = "?",
    ) -> None:
        self.tokens += emitted
        if not drafted:
            self.plain_rounds += 1
            return
        self.count(drafted, accepted, draft_ms)
        self.emitted_speculating += emitted
        n_verified = accepted
        if accepted < drafted and accepted < emitted:
            n_verified += 1
        _increment(self.histogram, accepted)
        _increment(self.verified, n_verified)
        of_source = self.by_source.setdefault(source, DraftTotals())
        of_source.count(drafted, accepted, draft_ms)

    @property
    def by_position(self) -> list[DraftTotals]:
        """For each position of a draft, how many tokens were verified and accepted there.

        A token is verified only if all before it are accepted.
        """
        totals: list[DraftTotals] = []
        for position in range(1, len(self.verified)):
            n_verified = sum(self.verified[position:])
            n_accepted = sum(self.histogram[position:])
            totals.append(
                DraftTotals(rounds=n_verified, drafted=n_verified, accepted=n_accepted)
            )
        return totals

    @property
    def mean_accepted_length(self) -> float | None:
        """τ: emitted tokens per target pass that verified a draft."""
        return self.emitted_speculating / self.rounds if self.rounds else None

    @property
    def passes(self) -> int:
        """All passes of the target; a plain one gives one token."""
        return self.rounds + self.plain_rounds

    @property
    def tokens_per_pass(self) -> float | None:
        return self.tokens / self.passes if self.passes else None

    def sources_to_json(self) -> dict[str, dict[str, int]]:
        return {
            name: {"drafted": source.drafted, "accepted": source.accepted}
            for name, source in self.by_source.items()
        }

    def to_json(self) -> dict[str, Any]:
        """The `speculation` object of `run --json`."""
        host_ms = self.host_ms / self.passes if self.passes else None
        body: dict[str, Any] = {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": _rounded(self.acceptance_rate),
            "mean_accepted_length": _rounded(self.mean_accepted_length),
            "histogram": list(self.histogram),
            "by_source": self.sources_to_json(),
            "host_ms_per_round": _rounded(host_ms),
            "paused_rounds": self.plain_rounds,
        }
        if self.overlapped:
            body["overlap"] = {"rounds": self.overlapped, "hits": self.overlap_hits}
        return body


def _increment(counts: list[int], i: int) -> None:
    """Count one more at index `i`, for which the list may be too short."""
    counts += [0] * (i + 1 - len(counts))
    counts[i] += 1


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
