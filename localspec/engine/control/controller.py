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

from localspec.engine.control.costs import Costs
from localspec.engine.control.growth import Growth, joined
from localspec.engine.control.pace import Experience
from localspec.engine.control.survival import Table, match_bucket
from localspec.engine.control.worth import Worth
from localspec.engine.loop import Step
from localspec.engine.protocols import Draft, Drafter, Gauge
from localspec.protocol.events import Plan

_FAR_BEHIND = 8
"""Tokens the draft model has to catch up with, from which a draft's time says nothing of a pass."""
_CLEAR = 3
"""Tokens that must have stood there before, for a copy to take over from the draft model."""
_SHOWN = 0.1
"""A change of the speed-up that is worth an event."""
_COPYING = 0.1
"""Tokens a round from which copying counts as speculating."""
_BEYOND_DOUBT = 2.0
"""A speed-up that a wrong idea of a plain pass hardly feigns; there one costs most."""
_QUIET = 16
"""Rounds between events that tell nothing but the speed-up."""


Drafts = Literal["tokens", "states", "blocks"]
"""What the draft goes on from: any tokens; the target's hidden states alone, one guess a pass; or
these, with all guesses in one pass."""


@dataclass(frozen=True, slots=True)
class _Guess:
    """Where the counts of one guess are kept."""

    table: Table
    bucket: int
    place: int
    modelled: bool


class Controller:
    """A drafter made of drafters, for one answer."""

    def __init__(
        self,
        model: Drafter | None,
        lookup: Drafter | None,
        costs: Costs,
        known: Experience,
        *,
        drafts: Drafts = "tokens",
    ) -> None:
        self._model, self._lookup = model, lookup
        self._extends, self._at_once = drafts == "tokens", drafts == "blocks"
        self._worth = Worth(costs, known)
        self._costs, self._survival, self._pace = costs, known.survival, known.pace
        self._pace.begin(costs.plain if costs.known else 0.0)
        self._guesses: list[_Guess] = []
        self._copied = Draft()
        self._growth: Growth | None = None
        self._behind = 0
        self._trying = self._pays = False
        self._read_to = 0
        self._round = 0
        self._told = ("", 0.0, 0)
        self._copies = 0.0
        """Tokens won a round by copying, of late."""
        self._kept = self._drafted = 0.0

    # --- a round ------------------------------------------------------------------------

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        ahead: Sequence[int] = (),
        gauge: Gauge | None = None,
    ) -> Draft:
        self._guesses, self._growth = [], None
        if self._costs.forgotten and self._worth.rate * self._costs.plain < _BEYOND_DOUBT:
            self._copied = Draft()
            return Draft(reason="to see what a plain pass takes")
        self._copied = self._lookup.propose(tokens, limit) if self._lookup else Draft()
        length, copy_gain = self._worth.copying(self._copied, 0, 1.0)
        planned = self._worth.guessing(0, 1.0, limit)
        pays = self._model is not None and self._pace.pays(planned)
        trying = self._model is not None and not pays and self._pace.due()
        self._trying, self._pays = trying, pays
        if length and copy_gain > 0 and not trying and (not pays or copy_gain >= planned):
            return self._extended_by_model(tokens, limit, self._copy(self._copied, length, 0))
        if pays or trying:
            return self._extended_by_lookup(tokens, limit, self._drafted_by_model(tokens, limit))
        self._pace.idle += 1
        return Draft(reason=self._why_not())

    # --- copying ------------------------------------------------------------------------

    def _copy(self, copied: Draft, length: int, place: int) -> Draft:
        bucket, table = match_bucket(copied.match), self._survival.lookup
        self._guesses += [_Guess(table, bucket, n, False) for n in range(length)]
        reason = f"{copied.match} tokens stood there before"
        return Draft(copied.tokens[:length], None, "lookup", 0.0, copied.match, reason)

    def _extended_by_lookup(self, tokens: Sequence[int], limit: int, draft: Draft) -> Draft:
        if self._lookup is None or not draft.tokens or len(draft.tokens) >= limit:
            return draft
        assert self._growth is not None
        copied = self._lookup.propose(tokens, limit - len(draft.tokens), draft.tokens)
        length, gain = self._worth.copying(copied, len(draft.tokens), self._growth.chance)
        if not length or gain <= 0:
            return draft
        return joined(draft, self._copy(copied, length, len(draft.tokens)))

    def _overtaken(self, tokens: Sequence[int], drafted: Sequence[int]) -> bool:
        """Whether copying would now guess as well as the draft model, for nothing."""
        if self._lookup is None:
            return False
        copied = self._lookup.propose(tokens, 1, drafted)
        if not copied.tokens or copied.match < _CLEAR:
            return False
        chance = self._survival.lookup.chance(match_bucket(copied.match), 0)
        return chance >= self._survival.mean(len(drafted))

    # --- the draft model ----------------------------------------------------------------

    def _drafted_by_model(
        self, tokens: Sequence[int], limit: int, ahead: Sequence[int] = (), chance: float = 1.0
    ) -> Draft:
        assert self._model is not None
        growth = Growth(
            self._worth, ahead, chance, limit, lambda drafted: self._overtaken(tokens, drafted)
        )
        growth.forced = self._trying
        self._growth = growth
        self._behind = len(tokens) + len(ahead) - self._read_to
        draft = self._model.propose(tokens, limit, ahead, growth)
        self._read_to = len(tokens)
        self._pace.idle = 0
        table = self._survival.model
        for i, bucket in enumerate(growth.buckets[: len(draft.tokens)]):
            self._guesses.append(_Guess(table, bucket, len(ahead) + i, True))
        reason = f"draft expects {growth.expected:.1f} of {len(draft.tokens)} kept"
        if not draft.tokens:
            reason = draft.reason or "the draft is not sure enough"
        return replace(draft, reason=reason)

    def _extended_by_model(self, tokens: Sequence[int], limit: int, draft: Draft) -> Draft:
        n = len(draft.tokens)
        if self._model is None or not self._extends or n >= limit:
            return draft
        chance = 1.0
        for guess in self._guesses:
            chance *= guess.table.chance(guess.bucket, guess.place)
        if self._worth.guessing(n, chance, limit - n) <= self._worth.catching_up(n):
            return draft
        return joined(draft, self._drafted_by_model(tokens, limit - n, draft.tokens, chance))

    # --- learning -----------------------------------------------------------------------

    def learn(self, step: Step) -> None:
        """What came of the round."""
        self._round += 1
        # A prompt's last batch is no round, and a round with a second pass no measure.
        if step.width == len(step.draft.tokens) + 1 and not step.guarded:
            self._learn_times(step)
        judged = step.accepted + (not step.guarded)
        for i, guess in enumerate(self._guesses[:judged]):
            kept = i < step.accepted
            guess.table.learn(guess.bucket, guess.place, kept)
            if guess.modelled:
                self._survival.saw_model(guess.place, float(kept))
        self._learn_of_copies(step)
        self._guesses, self._growth = [], None

    def _learn_times(self, step: Step) -> None:
        passed, drafting = step.ms.verify + step.ms.host, step.ms.draft
        self._costs.learn(step.width, passed)
        growth = self._growth
        if growth is not None and growth.passes:
            passes = 1 if self._at_once else growth.passes
            if self._behind <= _FAR_BEHIND:
                self._costs.learn_draft(drafting, passes)
            else:  # reading the prompt is paid once
                drafting = min(drafting, 2 * self._costs.drafting(passes))
        self._pace.add(len(step.tokens), passed + drafting)
        if growth is not None and not growth.start:
            plain = self._costs.plain
            extra = drafting + max(0.0, self._costs.verify[step.width] - plain)
            self._pace.weigh(step.accepted, extra, plain)
        copied = (step.draft.source or "").startswith("lookup")
        self._copies = 0.9 * self._copies + 0.1 * step.accepted * copied
        self._kept = 0.95 * self._kept + step.accepted
        self._drafted = 0.95 * self._drafted + len(step.draft.tokens)

    def _learn_of_copies(self, step: Step) -> None:
        """A copy that was not used is compared with what came: that costs nothing."""
        copied = self._copied
        if not copied.tokens or (step.draft.source or "").startswith("lookup"):
            return
        bucket = match_bucket(copied.match)
        for i, (guess, came) in enumerate(zip(copied.tokens, step.tokens, strict=False)):
            self._survival.lookup.learn(bucket, i, guess == came)
            if guess != came:
                return

    # --- telling ------------------------------------------------------------------------

    def _why_not(self) -> str:
        if self._model is None:
            return "no copy pays" if self._copied.tokens else "no guess"
        return "no guess pays" if self._pace.unproven else "paused"

    def news(self) -> Plan | None:
        """The state, when it changed or the speed-up did."""
        plan = self._plan()
        state, speedup, told = self._told
        changed = abs((plan.speedup or 1.0) - speedup) >= _SHOWN and self._round - told >= _QUIET
        if plan.state == state and not changed:
            return None
        self._told = (plan.state, plan.speedup or 1.0, self._round)
        return plan

    def _plan(self) -> Plan:
        speedup = round(self._worth.rate * self._costs.plain, 2)
        if self._model is None:
            if self._copies > _COPYING:
                return Plan("on", "copying what stood there before", speedup)
            return Plan("paused", "nothing worth copying stands there yet", speedup)
        if self._pace.unproven:
            return Plan("probing", "finding out what the draft's guesses are worth", None)
        if self._pays or self._copies > _COPYING:
            kept = self._kept / max(self._drafted, 1e-9)
            return Plan("on", f"{kept:.0%} of guesses kept", speedup)
        until = self._round + max(0, self._pace.wait - self._pace.idle)
        return Plan("paused", "the draft's guesses would cost more than they bring", speedup, until)
