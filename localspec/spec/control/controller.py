"""Chooses the draft source and length of every round.

The aim is the least time over a person's use of a pair. Two rules decide about the draft
model or head (`_draft_pays`, `_is_probe_due`), and one about copies: the source with the
larger expected gain drafts.

Three rounds by hand. A target with a draft whose pass costs .1 target passes; verifying
1, 2, 3, 4 rows costs 1, 1.1, 1.2, 1.3. Nothing is known of the pair. The prompt has 200
tokens, of which the draft model has read none; reading one costs it .1 draft passes.

1. The first plan. By the prior .67 of the draft tokens are accepted on average, and the
   best fixed length would give 1.51 tokens per pass: that is the rate at which time is
   counted. A draft token then gains .67 - 1.51 * (.1 + .1) = .36, a second one .14 more,
   and a third costs more than it gives: the plan gains .51 tokens a round. Reading 198
   tokens costs 198 * .1 * .1 = 2 passes. An answer is expected to have 120 tokens, which
   take 120 passes without a draft. With two draft tokens a round has 2.11 tokens in 1.4
   passes, so drafting saves 1 - 1.4 / 2.11 = .34 of them, 40 passes. That is more than
   reading costs, and reading costs less than .04 * 120 passes: `RoundPlan("draft", 16, …)`.
2. The draft is sure of its first token (confidence .9: .78 by the prior) and unsure of
   the second (.5: .50). Both are accepted with probability .39, and the row of the
   second costs .1 passes, that is .15 tokens: it is drafted. The target accepts the
   first and rejects the second. They are counted in their buckets, 1 of 1 and 0 of 1.
3. The text has just repeated 4 tokens, and prompt lookup copies the 8 behind them, of
   which 3.5 are expected to be right. They cost 1.51 * .8 = 1.2: a gain of 2.2, more
   than the draft's, so this round copies: `RoundPlan("copy", 8, …)`. Whether the copy
   was right is counted, used or not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from localspec.protocol.events import SpeculationPlan, SpeculationState
from localspec.protocol.wire import MODEL_DRAFT_MAX
from localspec.spec.control.draft_plan import (
    CopyGain,
    DraftCosts,
    DraftPlan,
    PlannedStop,
    plan_drafts,
)
from localspec.spec.control.pair_beliefs import PairBeliefs
from localspec.spec.control.pass_costs import MAX_WIDTH, PassCosts
from localspec.spec.protocols import Draft, Drafter, DraftStopPolicy
from localspec.spec.speculative_loop import RoundResult

_CAUGHT_UP = 2
"""Tokens that a draft reads in the first pass of a round as quickly as one."""
_MAX_CATCH_UP = 8
"""A draft with more tokens to catch up with gives no time of a draft pass."""
_ROUNDS_BETWEEN_PLANS = 16
_ROUNDS_BETWEEN_FIRST_PLANS = 4  # While little is known of the draft.
_PLAN_AGAIN_AT_LOSS = 1.5
"""Passes lost since the last plan with which another one is due at once."""
_READING_MARGIN = 1.3  # Drafting has to win that many times what reading costs.
_MAX_FIRST_READING = 0.04
"""What a draft of which little is known may cost to read, in passes by token of the answer.

Without a draft each of these tokens takes a pass, so it is the most that a first trial
may add to an answer.
"""
_PROBE_SHARE = 0.01  # Of the tokens since the last draft, for a probe.
_MIN_TOKENS_TO_PROBE = 16
_MAX_PROBE_COST = 3.0  # Passes.
_RATE_DECAY = 0.96  # A round, of the recent tokens and passes.
_INITIAL_TOKENS = 10.0  # Of plain decoding, with which an answer's rate begins.
_MAX_CHARGE = 4.0
"""The most that a pass is charged, in its usual times.

After more than that, the machine slept, or another program ran.
"""
_CLEAR_SPEEDUP = 2.0
"""From it on no plain pass is timed: an error is unlikely, the pass dear."""
_MIN_LOOKUP_GAIN = 0.1
"""Copies count as on from this many accepted tokens per round."""
_MIN_MATCH_RATE = 0.3  # From this share of rounds on the text counts as repeating.
_MIN_SPEEDUP_CHANGE = 0.1  # Of the speed-up, for an event.
_USUAL_DRAFT = 3  # Draft tokens of a usual round, to explain a pause.
_WORTHWHILE_SPEEDUP = 1.5
"""If a usual draft gains less when all of it is accepted, a pause is due to the passes."""

RoundSource = Literal["plain", "copy", "draft", "probe"]


class RoundPlan(Struct, frozen=True):
    """What a round does, and why."""

    source: RoundSource
    length: int  # The most draft tokens.
    reason: str  # A sentence with the numbers that decided.


class SpeculationController:
    """A drafter for one answer that chooses between other drafters.

    They are a draft model or head, and prompt lookup.
    """

    def __init__(
        self,
        model_drafter: Drafter | None,
        lookup_drafter: Drafter | None,
        costs: PassCosts,
        beliefs: PairBeliefs,
        *,
        n_draft_read: int = 0,
    ) -> None:
        """The draft has already read `n_draft_read` tokens of the prompt."""
        self._model_drafter = model_drafter
        self._lookup_drafter = lookup_drafter
        self._costs = costs
        self._beliefs = beliefs
        beliefs.start_answer()
        costs.start_answer()
        self._draft_read_to = n_draft_read
        # Tokens of a text that the draft reads: a head only the end.
        self.max_unread = sys.maxsize
        self.max_tokens_left = sys.maxsize  # Upper bound of what the answer still has.
        self.max_drafted = MODEL_DRAFT_MAX  # By the draft model or head.
        self._recent_tokens = _INITIAL_TOKENS
        self._recent_passes = _INITIAL_TOKENS
        self._n_rounds = 0
        self._next_plan_round = 0
        self._lost_passes = 0.0  # Since the last plan.
        # Where it is dear to change the width of passes: what drafting gains if most passes
        # are plain, and if most have the best width. Else both are one.
        self._plan_from_plain: DraftPlan | None = None
        self._draft_plan: DraftPlan | None = None
        # Of this round:
        self._copy = Draft()
        self._is_copy_declined = False  # Because of what the copies before it gained.
        self._planned_copy_gain = 0.0
        self._stop: PlannedStop | None = None  # If the model drafted.
        self._n_to_catch_up = 0
        self.round_plan = RoundPlan("plain", 0, "")
        # What is reported:
        self._draft_is_on = False  # Whether the draft paid when it was last asked.
        self._last_plan: SpeculationPlan | None = None
        self._last_report_round = 0
        self._lookup_gain = 0.0  # Recent accepted tokens per round from prompt lookup.
        self._match_rate = 0.0
        """Recent share of rounds in which prompt lookup found an earlier match."""

    # --- a round

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        self._stop = None
        self._copy = Draft()
        self._is_copy_declined = False
        plan = self._plan_round(tokens, limit)
        self.round_plan = plan
        if plan.source == "copy":
            return replace(self._copy.first(plan.length), reason=plan.reason)
        if plan.source == "plain":
            return Draft(reason=plan.reason)
        return self._draft_with_model(tokens, plan)

    def _plan_round(self, tokens: Sequence[int], limit: int) -> RoundPlan:
        costs = self._costs
        is_unclear = self.speedup < _CLEAR_SPEEDUP
        if costs.needs_plain_pass and is_unclear:
            return RoundPlan("plain", 0, "timing a plain pass")
        from_plain, drafting = self._plans()
        unread = self._count_unread(len(tokens))
        pays = self._model_drafter is not None and self._draft_pays(drafting, unread)
        self._draft_is_on = pays
        draft_gain = drafting.gain + self._beliefs.gain_error

        if self._lookup_drafter is not None:
            self._copy = self._lookup_drafter.propose(tokens, limit)
        alternative = drafting if pays else from_plain
        copied = self._best_copy(alternative)
        copy_gain = copied.gain + self._beliefs.copy_error
        self._is_copy_declined = copied.n > 0 and copy_gain <= 0
        copy_pays = copied.n > 0 and copy_gain > 0

        if copy_pays and (not pays or copy_gain >= draft_gain):
            self._planned_copy_gain = copied.gain
            return RoundPlan("copy", copied.n, self._copy_reason(copied))
        if pays:
            reason = f"the draft gains {draft_gain:.2f} tokens a round"
            return RoundPlan("draft", min(limit, self.max_drafted), reason)
        if self._is_probe_due(from_plain, unread):
            n = self._beliefs.tokens_since_draft
            reason = f"a draft is tried after {n} tokens without"
            return RoundPlan("probe", min(limit, self.max_drafted), reason)
        return RoundPlan("plain", 0, self._plain_reason(draft_gain))

    def _plans(self) -> tuple[DraftPlan, DraftPlan]:
        """What drafting gains from plain rounds on, and at the best width.

        Both are made anew if it is time.
        """
        from_plain = self._plan_from_plain
        drafting = self._draft_plan
        is_due = (
            self._n_rounds >= self._next_plan_round
            or self._lost_passes > _PLAN_AGAIN_AT_LOSS
        )
        if from_plain is None or drafting is None or is_due:
            held_width = 1 if drafting is None else drafting.held_width
            from_plain, drafting = plan_drafts(
                self._beliefs,
                self._costs.in_passes(),
                rate=self.speedup,
                held_width=held_width,
            )
            self._plan_from_plain = from_plain
            self._draft_plan = drafting
            self._next_plan_round = self._n_rounds + _ROUNDS_BETWEEN_PLANS
            self._lost_passes = 0.0
        return from_plain, drafting

    def _best_copy(self, plan: DraftPlan) -> CopyGain:
        copied = self._copy
        return plan.copy_gain(copied.match_length, len(copied.tokens))

    def _draft_pays(self, plan: DraftPlan, n_unread: int) -> bool:
        """Whether the draft is expected to gain, and more than it has to read.

        Reading is an investment in the rest of the answer. It is never charged to the
        gain of a round, or a long prompt would pause a good pair for good.
        """
        beliefs = self._beliefs
        if plan.gain + beliefs.gain_error <= 0:
            return False
        if plan.thresholds.go_on[0] >= 1:
            return False  # Not even a certain first token is worth its pass.
        reading = self._reading_passes(n_unread)
        # Without a draft each token is a pass.
        rest = beliefs.expected_rest(self.max_tokens_left)
        saved = beliefs.own_share * rest * plan.saved_share(beliefs.gain_error)
        if beliefs.is_known:
            return saved > _READING_MARGIN * reading
        # The whole answer: what was read before is paid, and would do for this trial.
        length = beliefs.mean_length + beliefs.answer_tokens
        return saved > reading and reading <= _MAX_FIRST_READING * length

    def _is_probe_due(self, plan: DraftPlan, n_unread: int) -> bool:
        """Whether to draft in any case, to see if the draft has become better.

        All probes together cost a small share of the time. One drafts its first token
        whatever it costs, and more only where these pay: behind a cliff, where 2 rows cost
        2.3 passes and 8 rows 3.2, they do, and a probe shows several tokens.
        """
        n_tokens = self._beliefs.tokens_since_draft
        if self._model_drafter is None or n_tokens < _MIN_TOKENS_TO_PROBE:
            return False
        cost = self._reading_passes(n_unread) + plan.round_cost(1)
        return cost <= _MAX_PROBE_COST and cost < _PROBE_SHARE * n_tokens

    def pays_to_read(self, n_tokens: int) -> bool:
        """Whether the draft is known, and gains more than reading so many tokens costs."""
        if self._model_drafter is None or not self._beliefs.is_known:
            return False
        _, drafting = self._plans()
        return self._draft_pays(drafting, n_tokens)

    def _count_unread(self, n_tokens: int) -> int:
        return min(n_tokens - self._draft_read_to, self.max_unread)

    def _reading_passes(self, n_unread: int) -> float:
        """What reading costs the draft beyond its usual pass, in passes of the target."""
        share = self._beliefs.reading
        if share is None:
            share = self._costs.catch_up_share
        passes = max(0, n_unread - _CAUGHT_UP) * share
        return passes * self._costs.first_draft_ms / self._costs.plain_ms

    def _draft_with_model(self, tokens: Sequence[int], plan: RoundPlan) -> Draft:
        assert self._model_drafter is not None
        planned = self._draft_plan
        if plan.source == "probe":
            planned = self._plan_from_plain
        assert planned is not None
        stop = PlannedStop(planned, plan.length, is_probe=plan.source == "probe")
        self._n_to_catch_up = self._count_unread(len(tokens))
        draft = self._model_drafter.propose(tokens, plan.length, stop)
        self._draft_read_to = len(tokens)
        self._stop = stop
        n = len(draft.tokens)
        if not n:
            return replace(draft, reason=draft.reason or "draft confidence too low")
        reason = f"draft expects {stop.expected_accepted:.1f} of {n} accepted"
        return replace(draft, reason=reason)

    def _copy_reason(self, copied: CopyGain) -> str:
        n_matched = self._copy.match_length
        return (
            f"{n_matched} tokens matched earlier text: "
            f"{copied.expected_right:.1f} of {copied.n} expected right"
        )

    def _plain_reason(self, gain: float) -> str:
        if self._model_drafter is None:
            if self._copy.tokens:
                return "prompt lookup not worthwhile"
            return "no repeated text"
        if gain > 0:
            return "the draft would first have to read the text"
        reason = f"a draft would lose {-gain:.2f} tokens a round"
        if self._is_copy_declined:
            return f"{reason}, and the last copies lost more than they gained"
        return reason

    # --- what it showed

    def record_round(self, result: RoundResult) -> None:
        """Update costs and beliefs with a round's result."""
        costs = self._costs
        beliefs = self._beliefs
        n_tokens = len(result.tokens)
        self._n_rounds += 1
        self.max_tokens_left = max(1, self.max_tokens_left - n_tokens)
        is_copy = self.round_plan.source == "copy" and bool(result.draft.tokens)
        beliefs.record_round(
            n_tokens, has_draft=self._stop is not None, is_copy=is_copy
        )
        self._record_copy(result)
        if self._is_copy_declined:
            beliefs.record_declined_copy()
        if result.width != len(result.draft.tokens) + 1:
            return  # It was the prompt's last batch, whose time says nothing.

        target_ms = result.ms.verify + result.ms.host
        usual_ms = costs.verify_ms[min(result.width, MAX_WIDTH)]
        charged_ms = target_ms
        if costs.is_measured:
            charged_ms = min(target_ms, _MAX_CHARGE * usual_ms)
        draft_ms = self._record_draft_time(result)
        costs.record_pass(result.width, target_ms)
        passes = (charged_ms + draft_ms) / costs.plain_ms
        self._recent_tokens = _RATE_DECAY * self._recent_tokens + n_tokens
        self._recent_passes = _RATE_DECAY * self._recent_passes + passes
        if self._stop is not None:
            self._record_judgement(self._stop, result, passes)
            self._lost_passes += passes - n_tokens
        elif is_copy and self._plan_from_plain is not None:
            gain = result.accepted - self._plan_from_plain.rate * (passes - 1)
            beliefs.record_copy_gain(gain, planned=self._planned_copy_gain)

    def _record_judgement(
        self, stop: PlannedStop, result: RoundResult, passes: float
    ) -> None:
        """Which of the model's draft tokens were accepted, and what the round gained."""
        beliefs = self._beliefs
        plan = self._draft_plan
        assert plan is not None
        n = len(result.draft.tokens)
        # A pass of a draft model with another vocabulary may draft several tokens.
        buckets = [*stop.buckets, *stop.buckets[-1:] * (n - len(stop.buckets))][:n]
        for i, bucket in enumerate(buckets[: result.accepted + 1]):
            beliefs.record_draft_token(bucket, is_accepted=i < result.accepted)
        if stop.refused_bucket is not None and result.accepted == n:
            beliefs.record_confidence(stop.refused_bucket)
        gain = result.accepted - plan.rate * (passes - 1)
        is_probe = self.round_plan.source == "probe"
        beliefs.record_gain(gain, planned=plan.gain, is_probe=is_probe)
        if not beliefs.is_known:
            soon = self._n_rounds + _ROUNDS_BETWEEN_FIRST_PLANS
            self._next_plan_round = min(self._next_plan_round, soon)

    def _record_draft_time(self, result: RoundResult) -> float:
        """Milliseconds of drafting without those of reading a long text."""
        costs = self._costs
        stop = self._stop
        draft_ms = result.ms.draft
        if stop is None or not stop.n_passes:
            return draft_ms
        n_passes = 1 if costs.drafts_blocks else stop.n_passes
        if result.draft.overlap == "hit":
            return draft_ms  # Some of the passes ran during the target's.
        if self._n_to_catch_up <= _MAX_CATCH_UP:
            costs.record_draft(result.draft.decode_seconds * 1e3, n_passes)
            return draft_ms
        usual_ms = costs.draft_passes_ms(n_passes)
        reading_ms = max(0.0, draft_ms - usual_ms)
        share = reading_ms / self._n_to_catch_up / costs.first_draft_ms
        self._beliefs.record_reading(share, self._n_to_catch_up)
        return draft_ms - reading_ms

    def _record_copy(self, result: RoundResult) -> None:
        """Which of the copied tokens were right, used or not."""
        copied = self._copy
        is_match = bool(copied.tokens)
        self._match_rate += 0.1 * (float(is_match) - self._match_rate)
        n_used = 0
        if (result.draft.source or "").startswith("lookup"):
            n_used = result.accepted
        self._lookup_gain += 0.1 * (n_used - self._lookup_gain)
        if not is_match:
            return
        n_right = 0
        for token, emitted in zip(copied.tokens, result.tokens, strict=False):
            if token != emitted:
                break
            n_right += 1
        # Behind the last emitted token nothing is known of the copy.
        n_judged = min(len(copied.tokens), len(result.tokens))
        self._beliefs.record_copy(copied.match_length, n_right, n_judged)

    # --- what is reported

    @property
    def speedup(self) -> float:
        """Recent tokens per one-token pass, at least 1."""
        return max(1.0, self._recent_tokens / self._recent_passes)

    def plan_change(self) -> SpeculationPlan | None:
        """The current plan if its state, reason or speed-up changed, else None."""
        state = self._state()
        last = self._last_plan
        if last is not None and last.state == state:
            if self._n_rounds - self._last_report_round < _ROUNDS_BETWEEN_PLANS:
                return None
            plan = self._report(state)
            change = abs((plan.speedup or 1.0) - (last.speedup or 1.0))
            if plan.why == last.why and change < _MIN_SPEEDUP_CHANGE:
                return None
        else:
            plan = self._report(state)
        self._last_plan = plan
        self._last_report_round = self._n_rounds
        return plan

    def _state(self) -> SpeculationState:
        if self._lookup_gain > _MIN_LOOKUP_GAIN:
            return "on"
        if not self._draft_is_on:
            return "paused"
        return "on" if self._beliefs.is_known else "probing"

    def _report(self, state: SpeculationState) -> SpeculationPlan:
        if state == "probing":
            return SpeculationPlan(state, "measuring draft acceptance", None)
        speedup = round(self.speedup, 2)
        if self._model_drafter is None:
            why = "prompt lookup finds repeated text"
            if state == "paused":
                repeats = self._match_rate > _MIN_MATCH_RATE
                why = "no repeated text yet"
                if repeats:
                    why = "not worth it for this text"
            return SpeculationPlan(state, why, speedup)
        if state == "on":
            return SpeculationPlan(state, "worth it for this text", speedup)
        return SpeculationPlan(state, self._pause_reason(), speedup)

    def _pause_reason(self) -> str:
        """Blames the reading, or the passes if even a perfect draft would hardly pay."""
        plan = self._draft_plan
        if plan is None or not self._costs.is_measured:
            return "not worth it for this text"
        if plan.gain + self._beliefs.gain_error > 0:
            return "the draft would first have to read the text; that costs more than it saves"
        width = _USUAL_DRAFT + 1
        costs: DraftCosts = self._costs.in_passes()
        round_cost = costs.verify[width] + costs.drafting(_USUAL_DRAFT)
        if width / round_cost >= _WORTHWHILE_SPEEDUP:
            return "not worth it for this text"
        return f"here, checking {width} tokens costs {costs.verify[width]:.1f} passes"
