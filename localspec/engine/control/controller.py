"""Chooses the draft source and length of every round to maximise tokens per millisecond.

A draft token is worth it while its acceptance probability exceeds the cost of drafting and
verifying it, converted to tokens at the current throughput (Dinkelbach's method for a ratio).
Probabilities and costs are measured while running. If nothing is worth it, nothing is drafted,
and an occasional cheap probe checks whether that has changed. Nothing is drafted that the regret
budget does not cover.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from localspec.engine.control.expected_gain import ExpectedGain, GainStopPolicy
from localspec.engine.control.pair_stats import AcceptanceTable, PairStats, match_bucket
from localspec.engine.control.pass_costs import MAX_WIDTH, PassCosts
from localspec.engine.control.regret_budget import RegretBudget
from localspec.engine.drafters.draft_sampler import join_drafts
from localspec.engine.protocols import Draft, Drafter, DraftStopPolicy
from localspec.engine.speculative_loop import RoundResult
from localspec.lazy_dataclass import dataclass
from localspec.protocol.events import SpeculationPlan, SpeculationState

_MAX_CATCH_UP = 8
"""If the draft model has more tokens to catch up with, its time is not used as a pass cost."""
_MAX_CHARGE = 4.0
"""A pass that takes more than this many times its usual time is charged only this: the machine
slept, or another program ran."""
_CLEAR_MATCH = 3
"""Minimum match length for prompt lookup to replace the draft model within a draft."""
_MIN_SPEEDUP_CHANGE = 0.1
"""Minimum change of the speed-up for an event."""
_MIN_LOOKUP_GAIN = 0.1
"""Prompt lookup counts as on from this many accepted tokens per round."""
_MIN_MATCH_RATE = 0.3
"""From this share of rounds on the text counts as repeating."""
_CLEAR_SPEEDUP = 2.0
"""From this speed-up on no plain pass is timed: an error is unlikely, and the pass costs most."""
_USUAL_DRAFT = 3
"""Draft tokens of a usual round, to explain a pause."""
_WORTHWHILE_SPEEDUP = 1.5
"""If a usual draft gains less when all of it is accepted, the passes are the reason for a pause."""
_RESERVE = 1.5
"""A draft longer than the shortest one must be affordable if it costs this many times as much."""
_MIN_READING_ROUNDS = 32
"""Rounds over which a draft's reading of the text is spread."""
_ROUNDS_BETWEEN_PLANS = 16
"""Minimum rounds between events that only update the reason or the speed-up."""


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


class SpeculationController:
    """A drafter for one answer that combines a draft model or head with prompt lookup."""

    def __init__(
        self,
        model_drafter: Drafter | None,
        lookup_drafter: Drafter | None,
        costs: PassCosts,
        pair_stats: PairStats,
        *,
        draft_input: DraftInput = "tokens",
        n_draft_read: int = 0,
    ) -> None:
        """`n_draft_read`: tokens of the prompt that the draft model has read already."""
        self._model_drafter, self._lookup_drafter = model_drafter, lookup_drafter
        self._can_extend_lookup = draft_input == "tokens"
        self._drafts_blocks = draft_input == "blocks"
        self._gain = ExpectedGain(costs, pair_stats)
        self._costs = costs
        self._acceptance, self._throughput = pair_stats.acceptance, pair_stats.throughput
        self._throughput.start_answer(costs.plain_ms if costs.is_measured else 0.0)
        if pair_stats.reading is not None:
            costs.use_measured_reading(pair_stats.reading)
        self._drafted_tokens: list[_DraftedToken] = []
        self._lookup_draft = Draft()
        self._stop_policy: GainStopPolicy | None = None
        self._pair_stats = pair_stats
        self.regret = RegretBudget(pair_stats.won)
        self._n_to_catch_up = 0
        self._is_probing = self._model_pays = False
        self._draft_read_to = n_draft_read
        self.max_unread = sys.maxsize
        """The most tokens that the draft reads of a text: a head may read the end only."""
        self._is_reading_free = self._is_reading_too_dear = False
        """Whether the draft model may read a long text at no account's expense, or not at all."""
        self.max_tokens_left = sys.maxsize
        """Upper bound of what the answer still has."""
        self._n_rounds = self._last_plan_round = 0
        self._last_plan: SpeculationPlan | None = None
        self._lookup_gain = 0.0
        """Recent accepted tokens per round from prompt lookup."""
        self._match_rate = 0.0
        """Recent share of rounds in which prompt lookup found the last tokens in earlier text."""

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        draft_prefix: Sequence[int] = (),
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        self._drafted_tokens, self._stop_policy = [], None
        if self._costs.change_ms and self._model_drafter is not None:
            self._costs.hold_best_width(self._acceptance.mean_probability)
        if (
            self._costs.needs_plain_pass
            and self._gain.tokens_per_ms * self._costs.plain_ms < _CLEAR_SPEEDUP
        ):
            self._lookup_draft = Draft()
            return Draft(reason="timing a plain pass")
        self._lookup_draft = (
            self._lookup_drafter.propose(tokens, limit) if self._lookup_drafter else Draft()
        )
        affordable_lookup = self._limit_lookup(limit)
        length, lookup_gain = self._gain.lookup_gain(affordable_lookup, 0, 1.0)
        model_limit = self._plan_model(tokens, limit)
        if (
            length
            and lookup_gain > 0
            and not self._is_probing
            and (not self._model_pays or lookup_gain >= self._gain.model_gain(0, 1.0, model_limit))
        ):
            return self._extend_with_model(
                tokens, model_limit, self._use_lookup(affordable_lookup, length)
            )
        if self._model_pays or self._is_probing:
            draft = self._draft_with_model(tokens, model_limit)
            return self._extend_with_lookup(tokens, len(affordable_lookup.tokens), draft)
        self._throughput.rounds_since_draft += 1
        return Draft(reason=self._no_draft_reason())

    def _reading_cost(self, n_tokens: int) -> float:
        """The cost of reading what the draft has not read, in tokens a round.

        An answer is expected to go on for as many rounds as it has had, or to its upper bound.
        """
        reading_ms = self._costs.catch_up_ms(self._count_unread(n_tokens))
        n_rounds = min(max(_MIN_READING_ROUNDS, self._n_rounds), self.max_tokens_left)
        return self._gain.tokens_per_ms * reading_ms / n_rounds

    def is_worthwhile(self, limit: int) -> bool:
        """Whether the draft was tried, and is expected to gain."""
        gain = self._gain.model_gain(0, 1.0, limit)
        return self._is_promising and self._throughput.is_profitable(gain)

    @property
    def _is_promising(self) -> bool:
        """Whether the draft's trials gained so far, or were enough to judge it."""
        return self._throughput.gain > 0 or not self._throughput.is_unproven

    def _plan_model(self, tokens: Sequence[int], limit: int) -> int:
        """Decide whether to draft with the model; return the longest draft that is affordable.

        A draft that pays only when it is longer than affordable has to wait. One that fails leaves
        a part of the budget to the next, unless it is as short as a probe.
        """
        self._model_pays = self._is_probing = False
        if self._model_drafter is None:
            return 0
        throughput = self._throughput
        gain = self._gain.model_gain(0, 1.0, limit)
        pays = throughput.is_profitable(gain)
        if not pays and not throughput.is_probe_due():
            return 0
        self._is_reading_free = self._is_promising and throughput.is_profitable(
            gain, self._reading_cost(len(tokens))
        )
        loss = 0.0 if self._is_reading_free else self._catch_up_loss(len(tokens))
        affordable = self._affordable_length(limit, lambda n: loss + self._costs.draft_loss(n))
        self._is_reading_too_dear = loss > 0 and not affordable
        affordable = max(
            min(affordable, self._gain.min_probe_length()),
            self._affordable_length(
                affordable, lambda n: _RESERVE * (loss + self._costs.draft_loss(n))
            ),
        )
        if pays:
            self._model_pays = affordable == limit or (
                affordable > 0 and self._gain.model_gain(0, 1.0, affordable) > 0
            )
        else:
            self._is_probing = affordable >= min(limit, self._gain.min_probe_length())
        return affordable

    def _catch_up_loss(self, n_tokens: int) -> float:
        """The loss of the draft model reading the text that it has not read, if it is much."""
        n = self._count_unread(n_tokens)
        return self._costs.catch_up_ms(n) / self._costs.plain_ms if n > _MAX_CATCH_UP else 0.0

    def _count_unread(self, n_tokens: int) -> int:
        """Tokens that a draft would read; for a head never tried, whose price is a guess, all."""
        n = n_tokens - self._draft_read_to
        return min(n, self.max_unread) if self._is_promising else n

    def _affordable_length(self, limit: int, loss: Callable[[int], float]) -> int:
        """The longest draft, at most `limit` tokens, whose loss the regret budget covers."""
        if limit < 1 or self.regret.can_afford(loss(limit)):
            return limit
        return next(n for n in range(limit) if not self.regret.can_afford(loss(n + 1)))

    def _limit_lookup(self, limit: int) -> Draft:
        """The lookup draft as far as the regret budget covers its verification."""
        draft = self._lookup_draft
        if not draft.tokens:
            return draft
        n = self._affordable_length(min(limit, len(draft.tokens)), self._costs.verify_loss)
        return replace(draft, tokens=draft.tokens[:n])

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
        assert self._stop_policy is not None
        lookup_draft = self._lookup_drafter.propose(tokens, limit - len(draft.tokens), draft.tokens)
        length, gain = self._gain.lookup_gain(
            lookup_draft, len(draft.tokens), self._stop_policy.probability
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
        budget = GainStopPolicy(
            self._gain,
            draft_prefix,
            prefix_probability,
            limit,
            lambda drafted: self._lookup_beats_model(tokens, drafted),
        )
        budget.is_forced = self._is_probing
        self._stop_policy = budget
        n_unread = len(tokens) + len(draft_prefix) - self._draft_read_to
        self._n_to_catch_up = min(n_unread, self.max_unread)
        draft = self._model_drafter.propose(tokens, limit, draft_prefix, budget)
        self._draft_read_to = len(tokens)
        self._throughput.rounds_since_draft = 0
        table = self._acceptance.model
        buckets = budget.confidence_buckets
        if buckets and len(draft.tokens) > len(buckets):  # a pass may draft several tokens
            buckets = [*buckets, *buckets[-1:] * (len(draft.tokens) - len(buckets))]
        for i, bucket in enumerate(buckets[: len(draft.tokens)]):
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
        self.max_tokens_left = max(1, self.max_tokens_left - len(result.tokens))
        most_ms = _MAX_CHARGE * self._costs.verify_ms[min(result.width, MAX_WIDTH)]
        free_ms = 0.0
        if result.width == len(result.draft.tokens) + 1:  # else it is the prompt's last batch
            free_ms = self._record_times(result)
        self._charge_budget(result, min(result.ms.verify + result.ms.host, most_ms), free_ms)
        for i, drafted in enumerate(self._drafted_tokens[: result.accepted + 1]):
            accepted = i < result.accepted
            drafted.table.record(drafted.bucket, drafted.position, accepted)
            if drafted.is_from_model:
                self._acceptance.record_model_token(drafted.position, float(accepted))
        self._record_unused_lookup(result)
        self._match_rate = 0.9 * self._match_rate + 0.1 * bool(self._lookup_draft.tokens)
        self._drafted_tokens, self._stop_policy = [], None

    def _charge_budget(self, result: RoundResult, target_ms: float, free_ms: float) -> None:
        """Charge a round that drafted; `free_ms` of its draft time are not charged."""
        n_tokens, draft_ms = len(result.tokens), result.ms.draft
        passes = n_tokens + self._costs.last_change_ms / self._costs.plain_ms
        if result.draft.tokens or draft_ms:
            passes = (target_ms + draft_ms - free_ms) / self._costs.steady_plain_ms
        self.regret.record_round(n_tokens, passes)
        self._pair_stats.won = self.regret.carry_over()

    def _record_times(self, result: RoundResult) -> float:
        """Record the times; return those of the draft model reading a long text at no charge."""
        costs, budget = self._costs, self._stop_policy
        target_ms, draft_ms, reading_ms = result.ms.verify + result.ms.host, result.ms.draft, 0.0
        costs.record_pass(result.width, target_ms)
        if budget is not None and budget.n_passes:
            passes = 1 if self._drafts_blocks else budget.n_passes
            if result.draft.overlap == "hit":
                pass  # some of the passes ran during the target's
            elif self._n_to_catch_up <= _MAX_CATCH_UP:
                costs.record_draft(result.draft.decode_seconds * 1e3, passes)
            else:
                usual_ms = min(draft_ms, 2 * costs.draft_passes_ms(passes))
                costs.record_catch_up(draft_ms, self._n_to_catch_up, passes)
                self._pair_stats.reading = costs.catch_up_share
                draft_ms, reading_ms = usual_ms, draft_ms - usual_ms
        self._throughput.record_round(len(result.tokens), target_ms + draft_ms)
        if budget is not None and not budget.prefix_length:
            plain = costs.plain_ms
            extra = draft_ms + max(0.0, costs.verify_ms[result.width] - plain)
            self._throughput.record_draft_gain(result.accepted, extra, plain)
        from_lookup = (result.draft.source or "").startswith("lookup")
        self._lookup_gain = 0.9 * self._lookup_gain + 0.1 * result.accepted * from_lookup
        return reading_ms if self._is_reading_free else 0.0

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
        is_on = self._throughput.is_unproven or self._lookup_gain > _MIN_LOOKUP_GAIN
        return "drafting not worthwhile" if is_on else "paused"

    def plan_change(self) -> SpeculationPlan | None:
        """The current plan if its state, reason or speed-up changed, else None."""
        state, last = self._state(), self._last_plan
        if last is not None and last.state == state:
            if self._n_rounds - self._last_plan_round < _ROUNDS_BETWEEN_PLANS:
                return None
            plan = self._plan(state)
            change = abs((plan.speedup or 1.0) - (last.speedup or 1.0))
            if plan.why == last.why and change < _MIN_SPEEDUP_CHANGE:
                return None
        else:
            plan = self._plan(state)
        self._last_plan, self._last_plan_round = plan, self._n_rounds
        return plan

    def _state(self) -> SpeculationState:
        is_given_up = self._throughput.gain < 0 and self._is_reading_too_dear
        if self._model_drafter and self._throughput.is_unproven and not is_given_up:
            return "probing"
        is_on = self._model_pays or self._lookup_gain > _MIN_LOOKUP_GAIN
        return "on" if is_on else "paused"

    def _plan(self, state: SpeculationState) -> SpeculationPlan:
        if state == "probing":
            return SpeculationPlan(state, "measuring draft acceptance", None)
        speedup = round(self._gain.tokens_per_ms * self._costs.plain_ms, 2)
        if self._model_drafter is None:
            if state == "on":
                return SpeculationPlan(state, "prompt lookup finds repeated text", speedup)
            repeats = self._match_rate > _MIN_MATCH_RATE
            why = "not worth it for this text" if repeats else "no repeated text yet"
            return SpeculationPlan(state, why, speedup)
        if state == "on":
            return SpeculationPlan(state, "worth it for this text", speedup)
        if self._throughput.is_unproven:
            why = "here, reading the text costs the draft too much"
            return SpeculationPlan(state, why, speedup)
        until = self._n_rounds + max(
            0, self._throughput.probe_interval - self._throughput.rounds_since_draft
        )
        return SpeculationPlan(state, self._pause_reason(), speedup, until)

    def _pause_reason(self) -> str:
        """Blames the passes if even a draft that is always accepted would hardly pay."""
        width = _USUAL_DRAFT + 1
        best = width / (1 + self._costs.draft_loss(_USUAL_DRAFT))
        if best >= _WORTHWHILE_SPEEDUP:
            return "not worth it for this text"
        passes = self._costs.verify_ms[width] / self._costs.plain_ms
        return f"here, checking {width} tokens costs {passes:.1f} passes"
