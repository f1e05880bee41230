"""Collects the results of a losslessness check: verdict and JSON."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field, to_builtins

from localspec.bench.measurement import RecordedAnswer
from localspec.bench.sampling_check import (
    DETECTION_POWER,
    SIGNIFICANCE_LEVEL,
    TokenSample,
)
from localspec.protocol.events import EngineReady, Token
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import VerifyMode

LosslessVerdict = Literal["lossless", "divergent"]


class Divergence(Struct, frozen=True):
    """The first token of a speculative answer that its passes alone do not give."""

    prompt: int
    spec: str
    draft_length: int | None
    position: int  # The answer's first token is 0.
    width: int  # Tokens in the pass that produced it.
    speculative: Token | None  # None: the answer ends here.
    expected: int | None
    """Id of the token that the pass gives without speculation.

    None: plain decoding ends here.
    """


class ComparisonTotals(Struct):
    """Speculative answers, compared with their own passes and with plain decoding."""

    prompts: int = 0
    answers: int = 0
    equal: int = 0  # Prompts whose answers all have plain decoding's text.
    different: int = 0  # Answers with another text.
    tokens: int = 0
    drafted: int = 0
    divergences: list[Divergence] = field(default_factory=list)

    def add_answer(self, answer: RecordedAnswer, plain: RecordedAnswer) -> None:
        self.answers += 1
        if answer.ids != plain.ids:
            self.different += 1
        self.tokens += len(answer.ids)
        self.drafted += RoundTotals.of(answer.rounds).drafted

    def add(self, other: ComparisonTotals) -> None:
        self.prompts += other.prompts
        self.answers += other.answers
        self.equal += other.equal
        self.different += other.different
        self.tokens += other.tokens
        self.drafted += other.drafted
        self.divergences += other.divergences


class VerifyReport(Struct):
    greedy: ComparisonTotals = field(default_factory=ComparisonTotals)
    seeded: ComparisonTotals = field(default_factory=ComparisonTotals)
    by_mode: dict[VerifyMode, TokenSample] = field(default_factory=dict)
    is_complete: bool = False  # All parts have run to their end.
    has_picture: bool = False  # Whether a prompt has a picture: the model sees.
    has_call: bool = False  # Whether an answer calls a tool.

    @property
    def samples(self) -> list[TokenSample]:
        return list(self.by_mode.values())  # a copy: another thread may add one

    @property
    def divergences(self) -> list[Divergence]:
        return self.greedy.divergences + self.seeded.divergences

    @property
    def drafted(self) -> int:
        n_sampled = sum(sample.totals.drafted for sample in self.samples)
        return self.greedy.drafted + self.seeded.drafted + n_sampled

    @property
    def verdict(self) -> LosslessVerdict | None:
        """None if the check is not complete and has found nothing wrong so far."""
        has_wrong_sample = any(sample.is_wrong for sample in self.samples)
        if self.divergences or has_wrong_sample:
            return "divergent"
        if not self.is_complete:
            return None
        return "lossless"

    def to_json(self) -> dict[str, Any]:
        """Described in docs/json.md."""
        return {
            "verdict": self.verdict,
            "guesses": self.drafted,
            "greedy": _totals_to_json(self.greedy),
            "seeded": _totals_to_json(self.seeded),
            "sampled": _samples_to_json(self.samples),
            "whole": self.is_complete,
            "picture": self.has_picture,
            "call": self.has_call,
        }


def report_to_json(report: VerifyReport, ready: EngineReady) -> dict[str, Any]:
    """`verify --json`, described in docs/json.md."""
    return {"schema": 1, "model": ready.model, "draft": ready.draft} | report.to_json()


def _totals_to_json(totals: ComparisonTotals) -> dict[str, Any]:
    body: dict[str, Any] = to_builtins(totals)
    for divergence in body["divergences"]:
        if token := divergence["speculative"]:
            divergence["speculative"] = {"id": token["id"], "text": token["text"]}
    return body


def _samples_to_json(samples: list[TokenSample]) -> dict[str, Any]:
    modes = [_sample_to_json(sample) for sample in samples]

    p_values = [mode["p"] for mode in modes if mode["p"] is not None]
    p = None
    if p_values:
        # Bonferroni: the smallest of several p-values, times their number.
        p = min(1.0, min(p_values) * len(p_values))

    shifts = [mode["shift"] for mode in modes if mode["shift"] is not None]
    power = None
    if shifts:
        power = {"shift": max(shifts), "probability": DETECTION_POWER}

    return {
        "test": "chi-square of the probability integral transform",
        "p": p,
        "level": SIGNIFICANCE_LEVEL,
        "power": power,
        "modes": modes,
    }


def _sample_to_json(sample: TokenSample) -> dict[str, Any]:
    return {
        "verify": sample.verify,
        "tokens": sample.tokens,
        "drafted": sample.totals.drafted,
        "accepted": sample.totals.accepted,
        "impossible": sample.impossible,
        "bins": sample.bins,
        "p": sample.p_value,
        "shift": sample.detectable_shift,
        "again": sample.is_confirmation,
    }
