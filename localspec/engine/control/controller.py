"""Chooses the draft source and length of every round to maximise tokens per millisecond.

A draft token is worth it while its acceptance probability exceeds the cost of drafting and
verifying it, converted to tokens at the current throughput (Dinkelbach's method for a ratio).
Probabilities and costs are measured while running. If nothing is worth it, nothing is drafted,
and an occasional cheap probe checks whether that has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from localspec.engine.control.acceptance_stats import AcceptanceTable, PairStats, match_bucket
from localspec.engine.control.draft_length import DraftBudget, ExpectedGain, join_drafts
from localspec.engine.control.pass_costs import PassCosts
from localspec.engine.protocols import Draft, Drafter, DraftStopPolicy
from localspec.engine.speculative_loop import RoundResult
from localspec.protocol.events import SpeculationPlan

_MAX_CATCH_UP = 8
"""If the draft model has more tokens to catch up with, its time is not used as a pass cost."""
_CLEAR_MATCH = 3
"""Minimum match length for prompt lookup to replace the draft model within a draft."""
_MIN_SPEEDUP_CHANGE = 0.1
"""Minimum change of the speed-up for an event."""
_MIN_LOOKUP_GAIN = 0.1
"""Prompt lookup counts as on from this many accepted tokens per round."""
_CLEAR_SPEEDUP = 2.0
"""From this speed-up on no plain pass is timed: an error is unlikely, and the pass costs most."""
_ROUNDS_BETWEEN_PLANS = 16
"""Minimum rounds between events that only update the speed-up."""


DraftInput = Literal["tokens", "states", "blocks"]
"""What the draft continues from: any tokens; only the target's hidden states, one token per pass;
or hidden states, with all tokens in one pass."""


@dataclass(frozen=True, slots=True)
class _DraftedToken:
    """The statistics cell that one draft token updates."""

    table: AcceptanceTable
    bucket: int
    position: int
    is_from_model: bool


class Controller:
    """A drafter for one answer that combines a draft model or head with prompt lookup."""

    def __init__(
        self,
        model_drafter: Drafter | None,
        lookup_drafter: Drafter | None,
        costs: PassCosts,
        pair_stats: PairStats,
        *,
        draft_input: DraftInput = "tokens",
    ) -> None:
        self._model_drafter, self._lookup_drafter = model_drafter, lookup_drafter
        self._can_extend_lookup = draft_input == "tokens"
        self._drafts_blocks = draft_input == "blocks"
        self._gain = ExpectedGain(costs, pair_stats)
        self._costs = costs
        self._acceptance, self._throughput = pair_stats.acceptance, pair_stats.throughput
        self._throughput.start_answer(costs.plain_ms if costs.is_measured else 0.0)
        self._drafted_tokens: list[_DraftedToken] = []
        self._lookup_draft = Draft()
        self._budget: DraftBudget | None = None
        self._n_to_catch_up = 0
        self._is_probing = self._model_pays = False
        self._draft_read_to = 0
        self._n_rounds = 0
        self._last_plan = ("", 0.0, 0)
        self._lookup_gain = 0.0
        """Recent accepted tokens per round from prompt lookup."""
        self._n_accepted = self._n_drafted = 0.0

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        draft_prefix: Sequence[int] = (),
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        self._drafted_tokens, self._budget = [], None
        if (
            self._costs.needs_plain_pass
            and self._gain.tokens_per_ms * self._costs.plain_ms < _CLEAR_SPEEDUP
        ):
            self._lookup_draft = Draft()
            return Draft(reason="timing a plain pass")
        self._lookup_draft = (
            self._lookup_drafter.propose(tokens, limit) if self._lookup_drafter else Draft()
        )
        length, lookup_gain = self._gain.lookup_gain(self._lookup_draft, 0, 1.0)
        model_gain = self._gain.model_gain(0, 1.0, limit)
        model_pays = self._model_drafter is not None and self._throughput.is_profitable(model_gain)
        is_probing = (
            self._model_drafter is not None and not model_pays and self._throughput.is_probe_due()
        )
        self._is_probing, self._model_pays = is_probing, model_pays
        if (
            length
            and lookup_gain > 0
            and not is_probing
            and (not model_pays or lookup_gain >= model_gain)
        ):
            return self._extend_with_model(
                tokens, limit, self._use_lookup(self._lookup_draft, length)
            )
        if model_pays or is_probing:
            return self._extend_with_lookup(tokens, limit, self._draft_with_model(tokens, limit))
        self._throughput.rounds_since_draft += 1
        return Draft(reason=self._no_draft_reason())

    def _use_lookup(self, lookup_draft: Draft, length: int) -> Draft:
        bucket, table = match_bucket(lookup_draft.match_length), self._acceptance.lookup
        self._drafted_tokens += [_DraftedToken(table, bucket, n, False) for n in range(length)]
        reason = f"{lookup_draft.match_length} tokens matched earlier text"
        return Draft(
            lookup_draft.tokens[:length], None, "lookup", 0.0, lookup_draft.match_length, reason
        )

    def _extend_with_lookup(self, tokens: Sequence[int], limit: int, draft: Draft) -> Draft:
        if self._lookup_drafter is None or not draft.tokens or len(draft.tokens) >= limit:
            return draft
        assert self._budget is not None
        lookup_draft = self._lookup_drafter.propose(tokens, limit - len(draft.tokens), draft.tokens)
        length, gain = self._gain.lookup_gain(
            lookup_draft, len(draft.tokens), self._budget.probability
        )
        if not length or gain <= 0:
            return draft
        return join_drafts(draft, self._use_lookup(lookup_draft, length))

    def _lookup_beats_model(self, tokens: Sequence[int], drafted: Sequence[int]) -> bool:
        """Whether prompt lookup is likely to be as good as the draft model here, at no cost."""
        if self._lookup_drafter is None:
            return False
        lookup_draft = self._lookup_drafter.propose(tokens, 1, drafted)
        if not lookup_draft.tokens or lookup_draft.match_length < _CLEAR_MATCH:
            return False
        bucket = match_bucket(lookup_draft.match_length)
        return self._acceptance.lookup.probability(bucket, 0) >= self._acceptance.mean_probability(
            len(drafted)
        )

    def _draft_with_model(
        self,
        tokens: Sequence[int],
        limit: int,
        draft_prefix: Sequence[int] = (),
        prefix_probability: float = 1.0,
    ) -> Draft:
        assert self._model_drafter is not None
        budget = DraftBudget(
            self._gain,
            draft_prefix,
            prefix_probability,
            limit,
            lambda drafted: self._lookup_beats_model(tokens, drafted),
        )
        budget.is_forced = self._is_probing
        self._budget = budget
        self._n_to_catch_up = len(tokens) + len(draft_prefix) - self._draft_read_to
        draft = self._model_drafter.propose(tokens, limit, draft_prefix, budget)
        self._draft_read_to = len(tokens)
        self._throughput.rounds_since_draft = 0
        table = self._acceptance.model
        for i, bucket in enumerate(budget.confidence_buckets[: len(draft.tokens)]):
            self._drafted_tokens.append(_DraftedToken(table, bucket, len(draft_prefix) + i, True))
        reason = f"draft expects {budget.expected_accepted:.1f} of {len(draft.tokens)} accepted"
        if not draft.tokens:
            reason = draft.reason or "draft confidence too low"
        return replace(draft, reason=reason)

    def _extend_with_model(self, tokens: Sequence[int], limit: int, draft: Draft) -> Draft:
        n = len(draft.tokens)
        if self._model_drafter is None or not self._can_extend_lookup or n >= limit:
            return draft
        probability = 1.0
        for drafted in self._drafted_tokens:
            probability *= drafted.table.probability(drafted.bucket, drafted.position)
        if self._gain.model_gain(n, probability, limit - n) <= self._gain.catch_up_cost(n):
            return draft
        return join_drafts(
            draft, self._draft_with_model(tokens, limit - n, draft.tokens, probability)
        )

    def record_round(self, result: RoundResult) -> None:
        """Update the statistics with a round's result."""
        self._n_rounds += 1
        # Not for the prompt's last batch, nor for a round with a second pass.
        if result.width == len(result.draft.tokens) + 1 and not result.guarded:
            self._record_times(result)
        n_verified = result.accepted + (not result.guarded)
        for i, drafted in enumerate(self._drafted_tokens[:n_verified]):
            accepted = i < result.accepted
            drafted.table.record(drafted.bucket, drafted.position, accepted)
            if drafted.is_from_model:
                self._acceptance.record_model_token(drafted.position, float(accepted))
        self._record_unused_lookup(result)
        self._drafted_tokens, self._budget = [], None

    def _record_times(self, result: RoundResult) -> None:
        target_ms, draft_ms = result.ms.verify + result.ms.host, result.ms.draft
        self._costs.record_pass(result.width, target_ms)
        budget = self._budget
        if budget is not None and budget.n_passes:
            passes = 1 if self._drafts_blocks else budget.n_passes
            if self._n_to_catch_up <= _MAX_CATCH_UP:
                self._costs.record_draft(draft_ms, passes)
            else:  # the prompt's prefill is paid once
                draft_ms = min(draft_ms, 2 * self._costs.draft_passes_ms(passes))
        self._throughput.record_round(len(result.tokens), target_ms + draft_ms)
        if budget is not None and not budget.prefix_length:
            plain = self._costs.plain_ms
            extra = draft_ms + max(0.0, self._costs.verify_ms[result.width] - plain)
            self._throughput.record_draft_gain(result.accepted, extra, plain)
        from_lookup = (result.draft.source or "").startswith("lookup")
        self._lookup_gain = 0.9 * self._lookup_gain + 0.1 * result.accepted * from_lookup
        self._n_accepted = 0.95 * self._n_accepted + result.accepted
        self._n_drafted = 0.95 * self._n_drafted + len(result.draft.tokens)

    def _record_unused_lookup(self, result: RoundResult) -> None:
        """Compare an unused lookup draft with the emitted tokens."""
        lookup_draft = self._lookup_draft
        if not lookup_draft.tokens or (result.draft.source or "").startswith("lookup"):
            return
        bucket = match_bucket(lookup_draft.match_length)
        for i, (drafted, emitted) in enumerate(
            zip(lookup_draft.tokens, result.tokens, strict=False)
        ):
            self._acceptance.lookup.record(bucket, i, drafted == emitted)
            if drafted != emitted:
                return

    def _no_draft_reason(self) -> str:
        if self._model_drafter is None:
            return (
                "prompt lookup not worthwhile" if self._lookup_draft.tokens else "no repeated text"
            )
        return "drafting not worthwhile" if self._throughput.is_unproven else "paused"

    def plan_change(self) -> SpeculationPlan | None:
        """The current plan if its state or speed-up changed, else None."""
        plan = self._current_plan()
        state, speedup, last_round = self._last_plan
        changed = (
            abs((plan.speedup or 1.0) - speedup) >= _MIN_SPEEDUP_CHANGE
            and self._n_rounds - last_round >= _ROUNDS_BETWEEN_PLANS
        )
        if plan.state == state and not changed:
            return None
        self._last_plan = (plan.state, plan.speedup or 1.0, self._n_rounds)
        return plan

    def _current_plan(self) -> SpeculationPlan:
        speedup = round(self._gain.tokens_per_ms * self._costs.plain_ms, 2)
        if self._model_drafter is None:
            if self._lookup_gain > _MIN_LOOKUP_GAIN:
                return SpeculationPlan("on", "prompt lookup", speedup)
            return SpeculationPlan("paused", "no repeated text to copy yet", speedup)
        if self._throughput.is_unproven:
            return SpeculationPlan("probing", "measuring draft acceptance", None)
        if self._model_pays or self._lookup_gain > _MIN_LOOKUP_GAIN:
            percent = 100 * self._n_accepted / max(self._n_drafted, 1e-9)
            return SpeculationPlan("on", f"acceptance rate {percent:.0f} %", speedup)
        until = self._n_rounds + max(
            0, self._throughput.probe_interval - self._throughput.rounds_since_draft
        )
        return SpeculationPlan("paused", "not worth it for this text", speedup, until)
