"""Judges drafts for a target by recorded answers.

What a draft proposes at each position tells the acceptance rate and the speed that it
would reach with every draft length, without running them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, field

from localspec import draft_kinds
from localspec.bench.measurement import record_answer
from localspec.fit.speedup_model import SpeculationCosts, interpolate_curve
from localspec.launch import Engine
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import (
    DraftScore,
    GenerateCommand,
    MeasuredCosts,
    ScoreDraftCommand,
)

DRAFT_LENGTHS = tuple(range(1, 9))


class DraftRates(Struct, frozen=True):
    """What a draft reaches with one draft length."""

    totals: RoundTotals
    tokens_per_second: float


class DraftJudgement(Struct, frozen=True):
    """A draft by its name and kind, with its rates by draft length."""

    name: str
    kind: str
    plain_tps: float
    by_length: dict[int, DraftRates] = field(default_factory=dict)

    @property
    def best_length(self) -> int:
        return max(self.by_length, key=lambda n: self.by_length[n].tokens_per_second)

    @property
    def speedup(self) -> float:
        return self.by_length[self.best_length].tokens_per_second / self.plain_tps

    def to_json(self) -> dict[str, Any]:
        """One of `pair test --json`, described in docs/json.md."""
        return {
            "draft": self.name,
            "kind": self.kind,
            "plain_tps": self.plain_tps,
            "best_length": self.best_length,
            "speedup": self.speedup,
            "by_length": {
                str(n): {
                    "drafted": rates.totals.drafted,
                    "accepted": rates.totals.accepted,
                    "tokens_per_round": rates.totals.mean_accepted_length or 0.0,
                    "tps": rates.tokens_per_second,
                }
                for n, rates in self.by_length.items()
            },
        }


def record_answers(
    engine: Engine, requests: Sequence[GenerateCommand], max_tokens: int
) -> Iterator[ScoreDraftCommand]:
    """Answer the requests until the answers have `max_tokens` together."""
    left = max_tokens
    for request in requests:
        tokens = tuple(record_answer(engine, request).ids)
        yield ScoreDraftCommand(request, tokens)
        left -= len(tokens)
        if left <= 0:
            return


def judge(
    name: str,
    kind: str,
    scored: Sequence[tuple[ScoreDraftCommand, DraftScore]],
    costs: MeasuredCosts,
) -> DraftJudgement:
    """The rates of a draft for every draft length.

    Draft tokens of prompt lookup are free. A block head drafts all tokens of a round in
    one pass, so with draft length 4 one of them costs a quarter of a pass.
    """
    verify_curve = {int(width): cost for width, cost in costs.curve.items()}
    draft_pass = 0.0 if kind == "lookup" else costs.c or 0.0
    is_block_head = draft_kinds.kinds()[kind].drafts_blocks
    by_length = {}
    for draft_length in DRAFT_LENGTHS:
        per_token = draft_pass / draft_length if is_block_head else draft_pass
        round_costs = SpeculationCosts(per_token, verify_curve)
        by_length[draft_length] = _simulate(
            scored, draft_length, round_costs, costs.t1_ms
        )
    return DraftJudgement(name, kind, 1e3 / costs.t1_ms, by_length)


def _simulate(
    scored: Sequence[tuple[ScoreDraftCommand, DraftScore]],
    draft_length: int,
    costs: SpeculationCosts,
    t1_ms: float,
) -> DraftRates:
    """The rounds of the answers again, as a run with this draft length has them.

    For example an answer of 6 tokens, draft length 2, and at each position as many
    accepted as drafted: the prompt gives token 0, a round tokens 1 to 3 (two accepted
    and one of the target), and the last round tokens 4 and 5.
    """
    totals = RoundTotals()
    passes = 0.0  # Time in passes of the target over one token.
    for command, score in scored:
        n_tokens = len(command.tokens)
        position = 1  # The first token comes from the prompt.
        while position < n_tokens:
            n_left = n_tokens - position
            limit = min(draft_length, command.request.max_tokens - position - 1)
            n_drafted = max(0, min(limit, score.drafted[position]))
            n_accepted = min(n_drafted, score.accepted[position])
            if n_accepted >= n_left:
                # The end of the answer is among the accepted tokens.
                n_drafted = n_left
                n_accepted = n_left
            n_emitted = min(n_accepted + 1, n_left)
            passes += n_drafted * costs.c
            passes += interpolate_curve(costs.verify_curve, n_drafted + 1)
            totals.count_round(n_drafted, n_accepted, n_emitted)
            position += n_emitted
    seconds = passes * t1_ms / 1e3
    return DraftRates(totals, totals.tokens / seconds if seconds else 0.0)
