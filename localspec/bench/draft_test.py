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
        """The draft length with the highest speed."""

        def speed(draft_length: int) -> float:
            return self.by_length[draft_length].tokens_per_second

        return max(self.by_length, key=speed)

    @property
    def speedup(self) -> float:
        best = self.by_length[self.best_length]
        return best.tokens_per_second / self.plain_tps

    def to_json(self) -> dict[str, Any]:
        """One of `pair test --json`, described in docs/json.md."""
        return {
            "draft": self.name,
            "kind": self.kind,
            "plain_tps": self.plain_tps,
            "best_length": self.best_length,
            "speedup": self.speedup,
            "by_length": {
                str(draft_length): _rates_to_json(rates)
                for draft_length, rates in self.by_length.items()
            },
        }


def _rates_to_json(rates: DraftRates) -> dict[str, Any]:
    return {
        "drafted": rates.totals.drafted,
        "accepted": rates.totals.accepted,
        "tokens_per_round": rates.totals.mean_accepted_length or 0.0,
        "tps": rates.tokens_per_second,
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
    draft_pass = 0.0
    if kind != "lookup" and costs.c is not None:
        draft_pass = costs.c
    is_block_head = draft_kinds.kinds()[kind].drafts_blocks
    by_length = {}
    for draft_length in DRAFT_LENGTHS:
        per_token = draft_pass
        if is_block_head:
            per_token = draft_pass / draft_length
        round_costs = SpeculationCosts(per_token, verify_curve)
        by_length[draft_length] = _simulate(
            scored, draft_length, round_costs, costs.t1_ms
        )
    plain_tps = 1e3 / costs.t1_ms
    return DraftJudgement(name, kind, plain_tps=plain_tps, by_length=by_length)


def _simulate(
    scored: Sequence[tuple[ScoreDraftCommand, DraftScore]],
    draft_length: int,
    costs: SpeculationCosts,
    t1_ms: float,
) -> DraftRates:
    """Repeat the rounds that a run with this draft length would have had.

    An example is an answer of 6 tokens, with draft length 2 and every draft token
    accepted. The prompt gives token 0. One round gives tokens 1 to 3: two are accepted
    and one is the target's. The last round gives tokens 4 and 5.
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
            totals.count_round(
                drafted=n_drafted, accepted=n_accepted, emitted=n_emitted
            )
            position += n_emitted
    seconds = passes * t1_ms / 1e3
    tokens_per_second = 0.0
    if seconds:
        tokens_per_second = totals.tokens / seconds
    return DraftRates(totals, tokens_per_second)
