"""Totals over the rounds of an answer, for `--stats`, `--json` and the speculation panel."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from localspec.lazy_dataclass import dataclass
from localspec.protocol.events import Round


@dataclass(slots=True)
class RoundTotals:
    """Sums over the rounds of one answer, defined as in llama.cpp and vLLM."""

    tokens: int = 0
    rounds: int = 0
    """Rounds with a draft."""
    drafted: int = 0
    accepted: int = 0
    plain_rounds: int = 0
    """Rounds without a draft."""
    emitted_speculating: int = 0
    histogram: list[int] = field(default_factory=list)
    """Number of rounds with a draft in which 0, 1, 2, … tokens were accepted."""
    by_source: dict[str, dict[str, int]] = field(default_factory=dict)
    host_ms: float = 0.0
    overlapped: int = 0
    """Rounds whose draft was continued during the target pass before."""
    overlap_hits: int = 0
    """Those in which what was drafted then could be used."""

    def add(self, event: Round) -> None:
        self.tokens += len(event.tokens)
        self.host_ms += event.ms.host
        self.overlapped += event.overlap != ""
        self.overlap_hits += event.overlap == "hit"
        if not event.drafted:
            self.plain_rounds += 1
            return
        self.rounds += 1
        self.drafted += event.drafted
        self.accepted += event.accepted
        self.emitted_speculating += len(event.tokens)
        self.histogram += [0] * (event.accepted + 1 - len(self.histogram))
        self.histogram[event.accepted] += 1
        source = self.by_source.setdefault(event.source or "?", {"drafted": 0, "accepted": 0})
        source["drafted"] += event.drafted
        source["accepted"] += event.accepted

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """τ: emitted tokens per target pass that verified a draft."""
        return self.emitted_speculating / self.rounds if self.rounds else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Over all passes of the target; a plain pass gives 1."""
        passes = self.rounds + self.plain_rounds
        return self.tokens / passes if passes else None

    @property
    def host_ms_per_round(self) -> float | None:
        passes = self.rounds + self.plain_rounds
        return self.host_ms / passes if passes else None

    def to_json(self) -> dict[str, Any]:
        """The `speculation` object of `run --json`."""
        overlap = {"rounds": self.overlapped, "hits": self.overlap_hits}
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": _rounded(self.acceptance_rate),
            "mean_accepted_length": _rounded(self.mean_accepted_length),
            "histogram": list(self.histogram),
            "by_source": {name: dict(counts) for name, counts in self.by_source.items()},
            "host_ms_per_round": _rounded(self.host_ms_per_round),
            "paused_rounds": self.plain_rounds,
        } | ({"overlap": overlap} if self.overlapped else {})


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
