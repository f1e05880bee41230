"""Chooses, every round, who guesses and how much: the most expected tokens per millisecond.

A guess is worth its place while the chance that it stands exceeds what drafting and verifying it
cost, at the rate at which tokens come now (Dinkelbach's rule for a ratio).  Chances are counted
while running, costs are measured; where nothing pays, nothing is drafted, and now and then one
cheap try shows whether that is still so.
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
"""Tokens the draft model has to catch up with, from which a draft's time says nothing of a pass."""
_CLEAR_MATCH = 3
"""Tokens that must have stood there before, for a copy to take over from the draft model."""
_MIN_SPEEDUP_CHANGE = 0.1
"""A change of the speed-up that is worth an event."""
_MIN_LOOKUP_GAIN = 0.1
"""Tokens a round from which copying counts as speculating."""
_CLEAR_SPEEDUP = 2.0
"""A speed-up that a wrong idea of a plain pass hardly feigns; there one costs most."""
_ROUNDS_BETWEEN_PLANS = 16
"""Rounds between events that tell nothing but the speed-up."""


DraftInput = Literal["tokens", "states", "blocks"]
"""What the draft goes on from: any tokens; the target's hidden states alone, one guess a pass; or
these, with all guesses in one pass."""


@dataclass(frozen=True, slots=True)
class _DraftedToken:
    """Where the counts of one guess are kept."""

    table: AcceptanceTable
    bucket: int
    position: int
    is_from_model: bool


class Controller:
    """A drafter made of drafters, for one answer."""

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
        self._can_extend_lookup, self._drafts_blocks = (
            draft_input == "tokens",
            draft_input == "blocks",
        )
        self._gain = ExpectedGain(costs, pair_stats)
        self._costs, self._acceptance, self._throughput = (
            costs,
            pair_stats.acceptance,
            pair_stats.throughput,
        )
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
        """Tokens won a round by copying, of late."""
        self._n_accepted = self._n_drafted = 0.0

    # --- a round ------------------------------------------------------------------------

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
            return Draft(reason="to see what a plain pass takes")
        self._lookup_draft = (
            self._lookup_drafter.propose(tokens, limit) if self._lookup_drafter else Draft()
        )
        length, copy_gain = self._gain.lookup_gain(self._lookup_draft, 0, 1.0)
        planned = self._gain.model_gain(0, 1.0, limit)
        pays = self._model_drafter is not None and self._throughput.is_profitable(planned)
        trying = self._model_drafter is not None and not pays and self._throughput.is_probe_due()
        self._is_probing, self._model_pays = trying, pays
        if length and copy_gain > 0 and not trying and (not pays or copy_gain >= planned):
            return self._extend_with_model(
                tokens, limit, self._use_lookup(self._lookup_draft, length, 0)
            )
        if pays or trying:
            return self._extend_with_lookup(tokens, limit, self._draft_with_model(tokens, limit))
        self._throughput.rounds_since_draft += 1
        return Draft(reason=self._no_draft_reason())

    # --- copying ------------------------------------------------------------------------

    def _use_lookup(self, lookup_draft: Draft, length: int, position: int) -> Draft:
        bucket, table = match_bucket(lookup_draft.match_length), self._acceptance.lookup
        self._drafted_tokens += [_DraftedToken(table, bucket, n, False) for n in range(length)]
        reason = f"{lookup_draft.match_length} tokens stood there before"
        return Draft(
            lookup_draft.tokens[:length], None, "lookup", 0.0, lookup_draft.match_length, reason
        )

    def _extend_with_lookup(self, tokens: Sequence[int], limit: int, draft: Draft) -> Draft:
        if self._lookup_drafter is None or not draft.tokens or len(draft.tokens) >= limit:
            return draft
        assert self._budget is not None
        copied = self._lookup_drafter.propose(tokens, limit - len(draft.tokens), draft.tokens)
        length, gain = self._gain.lookup_gain(copied, len(draft.tokens), self._budget.probability)
        if not length or gain <= 0:
            return draft
        return join_drafts(draft, self._use_lookup(copied, length, len(draft.tokens)))

    def _lookup_beats_model(self, tokens: Sequence[int], drafted: Sequence[int]) -> bool:
        """Whether copying would now guess as well as the draft model, for nothing."""
        if self._lookup_drafter is None:
            return False
        copied = self._lookup_drafter.propose(tokens, 1, drafted)
        if not copied.tokens or copied.match_length < _CLEAR_MATCH:
            return False
        chance = self._acceptance.lookup.probability(match_bucket(copied.match_length), 0)
        return chance >= self._acceptance.mean_probability(len(drafted))

    # --- the draft model ----------------------------------------------------------------

    def _draft_with_model(
        self,
        tokens: Sequence[int],
        limit: int,
        draft_prefix: Sequence[int] = (),
        prefix_probability: float = 1.0,
    ) -> Draft:
        assert self._model_drafter is not None
        growth = DraftBudget(
            self._gain,
            draft_prefix,
            prefix_probability,
            limit,
            lambda drafted: self._lookup_beats_model(tokens, drafted),
        )
        growth.is_forced = self._is_probing
        self._budget = growth
        self._n_to_catch_up = len(tokens) + len(draft_prefix) - self._draft_read_to
        draft = self._model_drafter.propose(tokens, limit, draft_prefix, growth)
        self._draft_read_to = len(tokens)
        self._throughput.rounds_since_draft = 0
        table = self._acceptance.model
        for i, bucket in enumerate(growth.confidence_buckets[: len(draft.tokens)]):
            self._drafted_tokens.append(_DraftedToken(table, bucket, len(draft_prefix) + i, True))
        reason = f"draft expects {growth.expected_accepted:.1f} of {len(draft.tokens)} kept"
        if not draft.tokens:
            reason = draft.reason or "the draft is not sure enough"
        return replace(draft, reason=reason)

    def _extend_with_model(self, tokens: Sequence[int], limit: int, draft: Draft) -> Draft:
        n = len(draft.tokens)
        if self._model_drafter is None or not self._can_extend_lookup or n >= limit:
            return draft
        chance = 1.0
        for guess in self._drafted_tokens:
            chance *= guess.table.probability(guess.bucket, guess.position)
        if self._gain.model_gain(n, chance, limit - n) <= self._gain.catch_up_cost(n):
            return draft
        return join_drafts(draft, self._draft_with_model(tokens, limit - n, draft.tokens, chance))

    # --- learning -----------------------------------------------------------------------

    def record_round(self, result: RoundResult) -> None:
        """What came of the round."""
        self._n_rounds += 1
        # A prompt's last batch is no round, and a round with a second pass no measure.
        if result.width == len(result.draft.tokens) + 1 and not result.guarded:
            self._record_times(result)
        judged = result.accepted + (not result.guarded)
        for i, guess in enumerate(self._drafted_tokens[:judged]):
            kept = i < result.accepted
            guess.table.record(guess.bucket, guess.position, kept)
            if guess.is_from_model:
                self._acceptance.record_model_token(guess.position, float(kept))
        self._record_unused_lookup(result)
        self._drafted_tokens, self._budget = [], None

    def _record_times(self, result: RoundResult) -> None:
        passed, drafting = result.ms.verify + result.ms.host, result.ms.draft
        self._costs.record_pass(result.width, passed)
        growth = self._budget
        if growth is not None and growth.n_passes:
            passes = 1 if self._drafts_blocks else growth.n_passes
            if self._n_to_catch_up <= _MAX_CATCH_UP:
                self._costs.record_draft(drafting, passes)
            else:  # reading the prompt is paid once
                drafting = min(drafting, 2 * self._costs.draft_passes_ms(passes))
        self._throughput.record_round(len(result.tokens), passed + drafting)
        if growth is not None and not growth.prefix_length:
            plain = self._costs.plain_ms
            extra = drafting + max(0.0, self._costs.verify_ms[result.width] - plain)
            self._throughput.record_draft_gain(result.accepted, extra, plain)
        copied = (result.draft.source or "").startswith("lookup")
        self._lookup_gain = 0.9 * self._lookup_gain + 0.1 * result.accepted * copied
        self._n_accepted = 0.95 * self._n_accepted + result.accepted
        self._n_drafted = 0.95 * self._n_drafted + len(result.draft.tokens)

    def _record_unused_lookup(self, result: RoundResult) -> None:
        """A copy that was not used is compared with what came: that costs nothing."""
        copied = self._lookup_draft
        if not copied.tokens or (result.draft.source or "").startswith("lookup"):
            return
        bucket = match_bucket(copied.match_length)
        for i, (guess, came) in enumerate(zip(copied.tokens, result.tokens, strict=False)):
            self._acceptance.lookup.record(bucket, i, guess == came)
            if guess != came:
                return

    # --- telling ------------------------------------------------------------------------

    def _no_draft_reason(self) -> str:
        if self._model_drafter is None:
            return "no copy pays" if self._lookup_draft.tokens else "no guess"
        return "no guess pays" if self._throughput.is_unproven else "paused"

    def plan_change(self) -> SpeculationPlan | None:
        """The state, when it changed or the speed-up did."""
        plan = self._current_plan()
        state, speedup, told = self._last_plan
        changed = (
            abs((plan.speedup or 1.0) - speedup) >= _MIN_SPEEDUP_CHANGE
            and self._n_rounds - told >= _ROUNDS_BETWEEN_PLANS
        )
        if plan.state == state and not changed:
            return None
        self._last_plan = (plan.state, plan.speedup or 1.0, self._n_rounds)
        return plan

    def _current_plan(self) -> SpeculationPlan:
        speedup = round(self._gain.tokens_per_ms * self._costs.plain_ms, 2)
        if self._model_drafter is None:
            if self._lookup_gain > _MIN_LOOKUP_GAIN:
                return SpeculationPlan("on", "copying what stood there before", speedup)
            return SpeculationPlan("paused", "nothing worth copying stands there yet", speedup)
        if self._throughput.is_unproven:
            return SpeculationPlan(
                "probing", "finding out what the draft's guesses are worth", None
            )
        if self._model_pays or self._lookup_gain > _MIN_LOOKUP_GAIN:
            kept = self._n_accepted / max(self._n_drafted, 1e-9)
            return SpeculationPlan("on", f"{kept:.0%} of guesses kept", speedup)
        until = self._n_rounds + max(
            0, self._throughput.probe_interval - self._throughput.rounds_since_draft
        )
        return SpeculationPlan(
            "paused", "the draft's guesses would cost more than they bring", speedup, until
        )
