"""Chooses the draft source and length of every round.

The aim is the largest number of tokens per millisecond.
A draft token is worth it while its acceptance probability exceeds the cost of drafting
and verifying it, converted to tokens at the current throughput (Dinkelbach's method for
a ratio). Probabilities and costs are measured while running. If nothing is worth it,
nothing is drafted, and an occasional cheap probe checks whether that has changed.
Nothing is drafted that the regret budget does not cover.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from localspec.protocol.events import SpeculationPlan, SpeculationState
from localspec.spec.control.expected_gain import ExpectedGain, GainStopPolicy
from localspec.spec.control.pair_stats import PairStats, match_bucket
from localspec.spec.control.pass_costs import MAX_WIDTH, PassCosts
from localspec.spec.control.regret_budget import RegretBudget
from localspec.spec.protocols import Draft, Drafter, DraftStopPolicy
from localspec.spec.speculative_loop import RoundResult

_MAX_CATCH_UP = 8
"""A draft model with more tokens to catch up with gives no time of a draft pass."""
# The most that a pass is charged, in its usual times: after more than that, the machine
# slept, or another program ran.
_MAX_CHARGE = 4.0
_MIN_SPEEDUP_CHANGE = 0.1  # Minimum change of the speed-up for an event.
# Prompt lookup counts as on from this many accepted tokens per round.
_MIN_LOOKUP_GAIN = 0.1
_MIN_MATCH_RATE = 0.3  # From this share of rounds on the text counts as repeating.
# From it on no plain pass is timed: an error is unlikely, the pass dear.
_CLEAR_SPEEDUP = 2.0
_USUAL_DRAFT = 3  # Draft tokens of a usual round, to explain a pause.
_WORTHWHILE_SPEEDUP = 1.5
"""If a usual draft gains less when all of it is accepted, a pause is due to the passes."""
# Tokens at the end of a prompt that are no text to copy: a question, its frame.
_PROMPT_END = 12
# A draft of several tokens must be affordable if it costs this many times as much.
_RESERVE = 1.5
_MIN_READING_ROUNDS = 32  # Rounds over which a draft's reading of the text is spread.
# Until a model that is not worth it is considered again: this takes time.
_ROUNDS_OF_PAUSE = 4
_ROUNDS_BETWEEN_PLANS = 16  # At least, if only the reason or the speed-up is new.


class SpeculationController:
    """A drafter for one answer that chooses between other drafters.

    They are a draft model or head, and prompt lookup.
    """

    def __init__(
        self,
        model_drafter: Drafter | None,
        lookup_drafter: Drafter | None,
        costs: PassCosts,
        pair_stats: PairStats,
        *,
        n_prompt: int = 0,
        n_draft_read: int = 0,
    ) -> None:
        """The draft has already read `n_draft_read` of the `n_prompt` tokens."""
        self._model_drafter = model_drafter
        self._lookup_drafter = lookup_drafter
        self._costs = costs
        self._stats = pair_stats
        self._gain = ExpectedGain(costs, pair_stats)
        plain_ms = 0.0
        if costs.is_measured:
            plain_ms = costs.plain_ms
        pair_stats.start_answer(plain_ms)
        costs.start_answer()
        self._regret = RegretBudget()
        self._lookup_draft = Draft()
        self._n_copyable = n_prompt - _PROMPT_END
        # Of this round, if the model drafted.
        self._stop_policy: GainStopPolicy | None = None
        self._buckets: list[int] = []  # Confidence bucket of each of its draft tokens.
        self._is_probing = False
        self._model_pays = False
        self._has_drafted = False
        self._draft_read_to = n_draft_read
        self._n_to_catch_up = 0
        # Tokens of a text that the draft reads: a head only the end.
        self.max_unread = sys.maxsize
        self._is_reading_free = False
        self._is_reading_too_dear = False
        """Whether the draft model may read a long text free of charge, or not at all."""
        self.max_tokens_left = sys.maxsize  # Upper bound of what the answer still has.
        self._n_rounds = 0
        self._last_plan_round = 0
        self._plan_again_at = 0
        self._last_plan: SpeculationPlan | None = None
        self._lookup_gain = 0.0  # Recent accepted tokens per round from prompt lookup.
        self._match_rate = 0.0
        """Recent share of rounds in which prompt lookup found an earlier match."""

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        self._stop_policy = None
        self._buckets = []
        self._lookup_draft = Draft()
        costs = self._costs
        if (
            costs.change_ms
            and self._model_drafter
            and not self._stats.rounds_since_draft
        ):
            costs.hold_best_width(self._stats.acceptance.mean_probability)
        is_unclear = self._gain.tokens_per_ms * costs.plain_ms < _CLEAR_SPEEDUP
        if costs.needs_plain_pass and is_unclear:
            return Draft(reason="timing a plain pass")
        if self._lookup_drafter is not None:
            self._lookup_draft = self._lookup_drafter.propose(tokens, limit)
        copied = self._lookup_draft
        n_copied, lookup_gain = self._gain.lookup_gain(
            copied, limit, self._regret, in_prompt=copied.copied_from < self._n_copyable
        )
        limit = self._plan_model(len(tokens), limit)
        is_lookup_better = n_copied > 0 and not self._is_probing
        if self._model_pays:
            is_lookup_better &= lookup_gain >= self._gain.model_gain(0, 1.0, limit)
        if is_lookup_better:
            reason = f"{copied.match_length} tokens matched earlier text"
            return replace(copied, tokens=copied.tokens[:n_copied], reason=reason)
        if self._model_pays or self._is_probing:
            return self._draft_with_model(tokens, limit)
        self._stats.rounds_since_draft += 1
        return Draft(reason=self._no_draft_reason())

    def pays_to_read(self, n_tokens: int, limit: int) -> bool:
        """Whether the draft was tried, and is expected to gain more than reading costs."""
        gain = self._stats.expected_gain(self._gain.model_gain(0, 1.0, limit))
        return self._stats.is_promising and gain > self._reading_cost(n_tokens)

    def _reading_ms(self, n_tokens: int) -> float:
        share = self._stats.reading
        share = self._costs.catch_up_share if share is None else share
        return n_tokens * share * self._costs.first_draft_ms

    def _reading_cost(self, n_tokens: int) -> float:
        """Tokens that a round loses if the draft reads `n_tokens` of text.

        An answer is expected to go on for as many rounds as it has had, or to its upper
        bound.
        """
        n_rounds = min(max(_MIN_READING_ROUNDS, self._n_rounds), self.max_tokens_left)
        return self._gain.tokens_per_ms * self._reading_ms(n_tokens) / n_rounds

    def _plan_model(self, n_tokens: int, limit: int) -> int:
        """Decide whether to draft with the model, and return the longest draft.

        It is the longest that is affordable.
        A draft that pays only when it is longer than affordable has to wait. One that
        fails leaves a part of the budget to the next, unless it is a single token.
        """
        self._model_pays = False
        self._is_probing = False
        costs = self._costs
        stats = self._stats
        if self._model_drafter is None or self._n_rounds < self._plan_again_at:
            return 0
        gain = stats.expected_gain(self._gain.model_gain(0, 1.0, limit))
        n_unread = n_tokens - self._draft_read_to
        # else, the price of reading is a guess: all of the text is counted
        if stats.is_promising:
            n_unread = min(n_unread, self.max_unread)
        reading_ms = self._reading_ms(n_unread)
        if gain <= 0 and not stats.is_probe_due(reading_ms / costs.plain_ms):
            self._plan_again_at = self._n_rounds + _ROUNDS_OF_PAUSE
            return 0
        self._is_reading_free = stats.is_promising and gain > self._reading_cost(
            n_unread
        )
        is_charged = n_unread > _MAX_CATCH_UP and not self._is_reading_free
        loss = reading_ms / costs.plain_ms if is_charged else 0.0
        affordable = self._affordable_length(
            limit, lambda n: loss + costs.draft_loss(n)
        )
        self._is_reading_too_dear = loss > 0 and not affordable
        with_reserve = self._affordable_length(
            affordable, lambda n: _RESERVE * (loss + costs.draft_loss(n))
        )
        affordable = max(min(affordable, 1), with_reserve)
        self._model_pays = gain > 0 and (
            affordable == limit or self._gain.model_gain(0, 1.0, affordable) > 0
        )
        self._is_probing = gain <= 0 and affordable > 0
        return affordable

    def _affordable_length(self, limit: int, loss: Callable[[int], float]) -> int:
        """The longest draft whose loss the regret budget covers, at most `limit`."""
        can_afford = partial(
            self._regret.can_afford,
            gains=self._stats.is_gaining,
            is_trial=self._stats.is_unproven,
        )
        if limit < 1 or can_afford(loss(limit)):
            return limit
        return next(n for n in range(limit) if not can_afford(loss(n + 1)))

    def _draft_with_model(self, tokens: Sequence[int], limit: int) -> Draft:
        assert self._model_drafter is not None
        policy = GainStopPolicy(self._gain, limit, is_probe=self._is_probing)
        self._n_to_catch_up = min(len(tokens) - self._draft_read_to, self.max_unread)
        draft = self._model_drafter.propose(tokens, limit, policy)
        self._draft_read_to = len(tokens)
        self._stats.rounds_since_draft = 0
        n = len(draft.tokens)
        buckets = policy.confidence_buckets
        # A pass of a draft model with another vocabulary may draft several tokens.
        self._buckets = [*buckets, *buckets[-1:] * (n - len(buckets))][:n]
        self._stop_policy = policy
        if not n:
            return replace(draft, reason=draft.reason or "draft confidence too low")
        reason = f"draft expects {policy.expected_accepted:.1f} of {n} accepted"
        return replace(draft, reason=reason)

    def record_round(self, result: RoundResult) -> None:
        """Update the statistics with a round's result."""
        costs = self._costs
        n_tokens = len(result.tokens)
        self._n_rounds += 1
        self.max_tokens_left = max(1, self.max_tokens_left - n_tokens)
        target_ms = result.ms.verify + result.ms.host
        draft_ms = result.ms.draft
        charged_ms = min(
            target_ms, _MAX_CHARGE * costs.verify_ms[min(result.width, MAX_WIDTH)]
        )
        charged_ms += draft_ms
        # else it was the prompt's last batch
        if result.width == len(result.draft.tokens) + 1:
            charged_ms -= self._record_times(result, target_ms)
        passes: float = n_tokens
        if result.draft.tokens or draft_ms:
            passes = charged_ms / costs.steady_plain_ms
            self._has_drafted = True
        elif self._has_drafted:
            passes += costs.last_change_ms / costs.plain_ms
        is_copy = (result.draft.source or "").startswith("lookup")
        self._regret.record_round(n_tokens, passes, is_copy=is_copy)
        acceptance = self._stats.acceptance
        for i, bucket in enumerate(self._buckets[: result.accepted + 1]):
            acceptance.model.record(bucket, i < result.accepted)
            acceptance.record_model_token(i, float(i < result.accepted))
        copied = self._lookup_draft
        match = copied.match_length
        in_prompt = copied.copied_from < self._n_copyable
        if in_prompt and copied.tokens and not result.draft.tokens:
            self._regret.record_unused_copy(
                is_right=copied.tokens[0] == result.tokens[0]
            )
        for token, emitted in zip(copied.tokens, result.tokens, strict=False):
            bucket = match_bucket(match, in_prompt=in_prompt)
            acceptance.lookup.record(bucket, token == emitted)
            match += 1
            if token != emitted:
                break
        self._match_rate *= 0.9
        if self._lookup_draft.tokens:
            self._match_rate += 0.1

    def _record_times(self, result: RoundResult, target_ms: float) -> float:
        """Record the times, and return those that are not charged.

        They are the draft model's for reading a long text, if that is free.
        """
        costs = self._costs
        stats = self._stats
        policy = self._stop_policy
        draft_ms = result.ms.draft
        reading_ms = 0.0
        costs.record_pass(result.width, target_ms)
        if policy is not None and policy.n_passes:
            n_passes = 1 if costs.drafts_blocks else policy.n_passes
            if result.draft.overlap == "hit":
                pass  # some of the passes ran during the target's
            elif self._n_to_catch_up <= _MAX_CATCH_UP:
                costs.record_draft(result.draft.decode_seconds * 1e3, n_passes)
            else:
                usual_ms = costs.draft_passes_ms(n_passes)
                share = (
                    max(0.0, draft_ms - usual_ms)
                    / self._n_to_catch_up
                    / costs.first_draft_ms
                )
                stats.record_reading(share, self._n_to_catch_up)
                usual_ms = min(draft_ms, 2 * usual_ms)
                reading_ms = draft_ms - usual_ms
                draft_ms = usual_ms
        stats.record_round(len(result.tokens), target_ms + draft_ms)
        if policy is not None:
            plain = costs.plain_ms
            extra_ms = draft_ms + max(0.0, costs.verify_ms[result.width] - plain)
            stats.record_draft_gain(result.accepted, extra_ms, plain)
        is_copy = (result.draft.source or "").startswith("lookup")
        n_copied = result.accepted if is_copy else 0
        self._lookup_gain = 0.9 * self._lookup_gain + 0.1 * n_copied
        return reading_ms if self._is_reading_free else 0.0

    def _no_draft_reason(self) -> str:
        if self._model_drafter is None:
            if self._lookup_draft.tokens:
                return "prompt lookup not worthwhile"
            return "no repeated text"
        is_on = self._stats.is_unproven or self._lookup_gain > _MIN_LOOKUP_GAIN
        return "drafting not worthwhile" if is_on else "paused"

    def plan_change(self) -> SpeculationPlan | None:
        """The current plan if its state, reason or speed-up changed, else None."""
        state = self._state()
        last = self._last_plan
        if last is not None and last.state == state:
            if self._n_rounds - self._last_plan_round < _ROUNDS_BETWEEN_PLANS:
                return None
            plan = self._plan(state)
            change = abs((plan.speedup or 1.0) - (last.speedup or 1.0))
            if plan.why == last.why and change < _MIN_SPEEDUP_CHANGE:
                return None
        else:
            plan = self._plan(state)
        self._last_plan = plan
        self._last_plan_round = self._n_rounds
        return plan

    def _state(self) -> SpeculationState:
        is_given_up = self._stats.gain < 0 and self._is_reading_too_dear
        is_copying = self._lookup_gain > _MIN_LOOKUP_GAIN
        if (
            self._model_drafter
            and self._stats.is_unproven
            and not (is_given_up or is_copying)
        ):
            return "probing"
        return "on" if self._model_pays or is_copying else "paused"

    def _plan(self, state: SpeculationState) -> SpeculationPlan:
        if state == "probing":
            return SpeculationPlan(state, "measuring draft acceptance", None)
        speedup = round(self._gain.tokens_per_ms * self._costs.plain_ms, 2)
        if self._model_drafter is None:
            if state == "on":
                return SpeculationPlan(
                    state, "prompt lookup finds repeated text", speedup
                )
            repeats = self._match_rate > _MIN_MATCH_RATE
            why = "not worth it for this text" if repeats else "no repeated text yet"
            return SpeculationPlan(state, why, speedup)
        if state == "on":
            return SpeculationPlan(state, "worth it for this text", speedup)
        if self._stats.is_unproven:
            why = "the draft would first have to read the text; that costs more than it saves"
            return SpeculationPlan(state, why, speedup)
        until = self._n_rounds + max(
            0, self._stats.probe_interval - self._stats.rounds_since_draft
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
