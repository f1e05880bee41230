"""What a check for losslessness found, folded into a verdict and a document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from localspec.bench.equality import Compared, Divergence, Sums
from localspec.bench.uniformity import LEVEL, SEEN, Sample
from localspec.protocol.events import Token
from localspec.protocol.wire import VerifyMode

MODES: tuple[VerifyMode, ...] = ("coupled", "rejection", "block")
"""The ways of verifying that are sampled."""
TOLERANCE = 4
"""A near-tie is at most so many times as wide as passes of different widths disagree."""

Part = Literal["widths", "greedy", "seeded", "sampled"]
Verdict = Literal["lossless", "near-ties", "divergent"]


@dataclass(frozen=True, slots=True)
class Doing:
    """What comes next, or how far it is."""

    part: Part
    what: str
    share: float = 0.0
    """Of the part that is done."""
    verify: VerifyMode | None = None
    """Which way of verifying is sampled."""


@dataclass(frozen=True, slots=True)
class Widths:
    """How far passes of different widths move a logit here."""

    difference: float


@dataclass(frozen=True, slots=True)
class Equality:
    """One prompt was compared: greedy, or seeded."""

    part: Part
    compared: Compared


@dataclass(frozen=True, slots=True)
class Sampled:
    """One way of verifying was sampled: as far as it goes by now."""

    sample: Sample


Finding = Doing | Widths | Equality | Sampled


@dataclass
class Report:
    """Findings, folded."""

    difference: float | None = None
    greedy: Sums = field(default_factory=Sums)
    seeded: Sums = field(default_factory=Sums)
    samples: dict[VerifyMode, Sample] = field(default_factory=dict)
    whole: bool = False
    """Whether nothing was left out."""

    def take(self, finding: Finding) -> None:
        if isinstance(finding, Widths):
            self.difference = finding.difference
        elif isinstance(finding, Equality):
            (self.greedy if finding.part == "greedy" else self.seeded).add(finding.compared)
        elif isinstance(finding, Sampled):
            self.samples[finding.sample.verify] = finding.sample

    @property
    def limit(self) -> float:
        """The widest near-tie, in logits."""
        return TOLERANCE * (self.difference or 0.0)

    @property
    def divergences(self) -> list[Divergence]:
        return self.greedy.divergences + self.seeded.divergences

    @property
    def drafted(self) -> int:
        """Guesses that were looked at."""
        sampled = sum(sample.drafted for sample in self.samples.values())
        return self.greedy.drafted + self.seeded.drafted + sampled

    @property
    def verdict(self) -> Verdict | None:
        """None where it is not whole, and nothing was found so far."""
        explained = all(each.near_tie(self.limit) for each in self.divergences)
        bent = any(sample.bent(len(MODES)) for sample in self._counted())
        if not explained or bent:
            return "divergent"
        if not self.whole:
            return None
        return "near-ties" if self.divergences else "lossless"

    def _counted(self) -> Iterable[Sample]:
        """A first alarm of a test is confirmed before it counts; an impossible token counts."""
        return (s for s in self.samples.values() if s.again or s.impossible)

    def document(self) -> dict[str, Any]:
        """As JSON; docs/json.md describes it."""
        return {
            "verdict": self.verdict,
            "difference": self.difference,
            "limit": None if self.difference is None else self.limit,
            "guesses": self.drafted,
            "greedy": self._equality(self.greedy),
            "seeded": self._equality(self.seeded),
            "sampled": _sampled(list(self.samples.values())),
            "whole": self.whole,
        }

    def _equality(self, sums: Sums) -> dict[str, Any]:
        divergences = [self._divergence(each) for each in sums.divergences]
        return asdict(sums) | {"divergences": divergences}

    def _divergence(self, each: Divergence) -> dict[str, Any]:
        return {
            "prompt": each.prompt,
            "spec": each.way.spec,
            "draft_length": each.way.draft_length,
            "position": each.position,
            "margin": each.margin,
            "width": each.width,
            "replayed": each.replayed,
            "near_tie": each.near_tie(self.limit),
            "plain": _token(each.plain),
            "speculative": _token(each.speculative),
        }


def _token(token: Token | None) -> dict[str, Any] | None:
    return None if token is None else {"id": token.id, "text": token.text}


def _sampled(samples: list[Sample]) -> dict[str, Any]:
    known = [sample.p for sample in samples if sample.p is not None]
    shifts = [shift for sample in samples if (shift := sample.shift(len(MODES))) is not None]
    return {
        "test": "chi-square of the probability integral transform",
        "p": min(1.0, min(known) * len(known)) if known else None,
        "level": LEVEL,
        "power": {"shift": max(shifts), "probability": SEEN} if shifts else None,
        "modes": [_mode(sample) for sample in samples],
    }


def _mode(sample: Sample) -> dict[str, Any]:
    return {
        "verify": sample.verify,
        "tokens": sample.tokens,
        "drafted": sample.drafted,
        "accepted": sample.accepted,
        "impossible": sample.impossible,
        "bins": sample.bins,
        "p": sample.p,
        "shift": sample.shift(len(MODES)),
        "again": sample.again,
    }
