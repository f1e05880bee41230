"""Chooses, every round, who guesses and how much: the most expected tokens per millisecond.

A guess is worth its place while the chance that it stands exceeds what drafting and verifying it
cost, at the rate at which tokens come now (Dinkelbach's rule for a ratio).  Chances are counted
while running, costs are measured; where nothing pays, nothing is drafted, and now and then one
cheap try shows whether that is still so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.engine.costs import Costs
from localspec.engine.loop import Step
from localspec.engine.protocols import Draft, Drafter, Gauge, Law
from localspec.engine.sampling import certain
from localspec.engine.survival import Survival, Table, confidence_bucket, match_bucket
from localspec.protocol.events import Plan

_MEMORY = 0.97
"""What a round leaves of the rate before it."""
_EVIDENCE = 6
"""Rounds of a draft model before its gains are believed more than its counts."""
_GAIN_SHARE = 0.06
_PLANNED = 8.0
"""Rounds that the plan's own expectation counts as, beside the gains that came."""
_TRYING = 0.015
"""The share of the time that tries may take while paused."""
_SHORTEST_WAIT, _LONGEST_WAIT = 4, 64
_FAR_BEHIND = 8
"""Tokens the draft model has to catch up with, from which a draft's time says nothing of a pass."""
_HOPELESS = 1e-3
_CLEAR = 3
"""Tokens that must have stood there before, for a copy to take over from the draft model."""
_SHOWN = 0.1
"""A change of the speed-up that is worth an event."""
_QUIET = 16
"""Rounds between events that tell nothing but the speed-up."""


@dataclass(slots=True)
class Pace:
    """How fast tokens come and whether the draft model pays: kept from answer to answer."""

    tokens: float = 0.0
    ms: float = 0.0
    gain: float = 0.0
    """Tokens won a round by drafting with the model, beyond what its time cost."""
    rounds: int = 0
    wait: int = _SHORTEST_WAIT
    idle: int = 0
    """Rounds since the draft model was last asked."""

    def rate(self, plain_ms: float) -> float:
        """Tokens per millisecond now; never less than plain decoding gives."""
        if self.ms <= 0:
            return 1 / plain_ms
        return max(self.tokens / self.ms, 1 / plain_ms)

    def add(self, tokens: int, ms: float) -> None:
        self.tokens = self.tokens * _MEMORY + tokens
        self.ms = self.ms * _MEMORY + ms


@dataclass(slots=True)
class Experience:
    """What one way of verifying has taught about a pair."""

    survival: Survival = field(default_factory=Survival)
    pace: Pace = field(default_factory=Pace)


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
        self, model: Drafter | None, lookup: Drafter | None, costs: Costs, known: Experience
    ) -> None:
        self._model, self._lookup = model, lookup
        self._costs, self._survival, self._pace = costs, known.survival, known.pace
        self._guesses: list[_Guess] = []
        self._copied = Draft()
        self._growth: _Growth | None = None
        self._behind = 0
        self._trying = False
        self._read_to = 0
        self._round = 0
        self._told = ("", 0.0, 0)
        self._used = 0.0
        """How many of the latest rounds drafted, fading."""
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
        self._copied = self._lookup.propose(tokens, limit) if self._lookup else Draft()
        length, copy_gain = self._copying(self._copied, 0, 1.0)
        model_gain = self.worth(0, 1.0, limit) if self._model is not None else -math.inf
        pays, trying = self._model_pays(model_gain)
        self._trying = trying
        if length and copy_gain > 0 and not trying and (not pays or copy_gain >= model_gain):
            return self._extended_by_model(tokens, limit, self._copy(self._copied, length, 0))
        if pays or trying:
            return self._extended_by_lookup(tokens, limit, self._drafted_by_model(tokens, limit))
        self._pace.idle += 1
        return Draft(reason=self._why_not())

    def _model_pays(self, planned: float) -> tuple[bool, bool]:
        """Whether the draft model pays now; whether it is to be tried although it does not."""
        if self._model is None:
            return False, False
        pace = self._pace
        if pace.rounds < _EVIDENCE:
            return planned > 0, planned <= 0 and pace.idle >= pace.wait
        n = min(pace.rounds, 1 / _GAIN_SHARE)
        expected = (n * pace.gain + _PLANNED * planned) / (n + _PLANNED)
        return expected > 0, expected <= 0 and pace.idle >= pace.wait

    def worth(self, place: int, chance: float, limit: int) -> float:
        """The most tokens that further guesses of the model would win, less what they cost.

        `place` guesses are drafted and all stand with this `chance`.  It looks past the next
        one, because the verify curve has steps.
        """
        verify, rate = self._costs.verify, self._pace.rate(self._costs.plain)
        step, before = self._costs.draft, verify[place + 1]
        best, won, cost = -math.inf, 0.0, 0.0
        for n in range(place, min(place + limit, len(verify) - 2)):
            chance *= self._survival.mean(n)
            if chance < _HOPELESS:
                break
            won += chance
            cost += step
            best = max(best, won - rate * (cost + verify[n + 2] - before))
        return best

    def width_price(self, place: int) -> float:
        """What verifying one guess more costs, in tokens, when `place` are drafted."""
        verify = self._costs.verify
        return self._pace.rate(self._costs.plain) * (verify[place + 2] - verify[place + 1])

    # --- copying ------------------------------------------------------------------------

    def _copying(self, copied: Draft, place: int, chance: float) -> tuple[int, float]:
        """How many of these copied guesses to keep behind `place` others, and what they win."""
        if not copied.tokens:
            return 0, 0.0
        verify, rate = self._costs.verify, self._pace.rate(self._costs.plain)
        bucket, table = match_bucket(copied.match), self._survival.lookup
        length, best, won = 0, 0.0, 0.0
        for n in range(min(len(copied.tokens), len(verify) - 2 - place)):
            chance *= table.chance(bucket, n)
            won += chance
            gain = won - rate * (verify[place + n + 2] - verify[place + 1])
            if gain > best:
                length, best = n + 1, gain
        return length, best

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
        length, gain = self._copying(copied, len(draft.tokens), self._growth.chance)
        if not length or gain <= 0:
            return draft
        return _joined(draft, self._copy(copied, length, len(draft.tokens)))

    def overtakes(self, tokens: Sequence[int], drafted: Sequence[int], place: int) -> bool:
        """Whether copying would now guess as well as the draft model, for nothing."""
        if self._lookup is None or not drafted:
            return False
        copied = self._lookup.propose(tokens, 1, drafted)
        if not copied.tokens or copied.match < _CLEAR:
            return False
        chance = self._survival.lookup.chance(match_bucket(copied.match), 0)
        return chance >= self._survival.mean(place)

    # --- the draft model ----------------------------------------------------------------

    def _drafted_by_model(
        self, tokens: Sequence[int], limit: int, ahead: Sequence[int] = (), chance: float = 1.0
    ) -> Draft:
        assert self._model is not None
        growth = _Growth(self, tokens, list(ahead), chance, limit)
        growth.forced = self._trying
        self._growth = growth
        self._behind = len(tokens) + len(ahead) - self._read_to
        draft = self._model.propose(tokens, limit, ahead, growth)
        self._read_to = len(tokens)
        self._pace.idle = 0
        table = self._survival.model
        for i, bucket in enumerate(growth.buckets[: len(draft.tokens)]):
            self._guesses.append(_Guess(table, bucket, len(ahead) + i, True))
        expected = growth.expected
        reason = f"draft expects {expected:.1f} of {len(draft.tokens)} kept"
        if not draft.tokens:
            reason = "the draft is not sure enough"
        return Draft(
            draft.tokens, draft.laws, draft.source, draft.seconds, draft.match, reason=reason
        )

    def _extended_by_model(self, tokens: Sequence[int], limit: int, draft: Draft) -> Draft:
        n = len(draft.tokens)
        if self._model is None or n >= limit:
            return draft
        chance = 1.0
        for guess in self._guesses:
            chance *= guess.table.chance(guess.bucket, guess.place)
        # The draft model reads the copied guesses in one pass first.
        catching_up = self._costs.draft * self._costs.verify[n + 1] / self._costs.plain
        price = self._pace.rate(self._costs.plain) * catching_up
        if self.worth(n, chance, limit - n) <= price:
            return draft
        return _joined(draft, self._drafted_by_model(tokens, limit - n, draft.tokens, chance))

    # --- learning -----------------------------------------------------------------------

    def learn(self, step: Step) -> None:
        """What came of the round."""
        self._round += 1
        drafted = len(step.draft.tokens)
        total = step.ms.verify + step.ms.host + step.ms.draft
        growth = self._growth
        if step.width == drafted + 1:  # a prompt's last batch says nothing of a round
            self._costs.learn(step.width, step.ms.verify + step.ms.host)
            spent = step.ms.draft
            if growth is not None and growth.passes:
                if self._behind <= _FAR_BEHIND:
                    self._costs.learn_draft(step.ms.draft / growth.passes)
                else:
                    spent = min(spent, 2 * growth.passes * self._costs.draft)
            self._pace.add(len(step.tokens), total - step.ms.draft + spent)
            if growth is not None:
                self._weigh(step, spent)
            self._used = 0.8 * self._used + 0.2 * (drafted > 0)
            self._kept = 0.95 * self._kept + step.accepted
            self._drafted = 0.95 * self._drafted + drafted
        for i, guess in enumerate(self._guesses[: step.accepted + 1]):
            kept = i < step.accepted
            guess.table.learn(guess.bucket, guess.place, kept)
            if guess.modelled:
                self._survival.saw_model(guess.place, float(kept))
        self._learn_of_copies(step)
        self._guesses, self._growth = [], None

    def _weigh(self, step: Step, spent: float) -> None:
        """What drafting with the model won, and when to try again where it did not."""
        pace, plain = self._pace, self._costs.plain
        extra = spent + max(0.0, self._costs.verify[step.width] - plain)
        gain = step.accepted - pace.rate(plain) * extra
        share = max(_GAIN_SHARE, 1 / (pace.rounds + 1))
        pace.gain += share * (gain - pace.gain)
        pace.rounds += 1
        affordable = extra / (_TRYING * plain)
        wait = affordable if gain <= 0 else affordable / 4
        pace.wait = int(min(max(wait, _SHORTEST_WAIT), _LONGEST_WAIT))

    def _learn_of_copies(self, step: Step) -> None:
        """A copy that was not used is compared with what came: that costs nothing."""
        copied = self._copied
        if not copied.tokens or step.draft.source in ("lookup", "lookup+model"):
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
        return "paused" if self._pace.rounds >= _EVIDENCE else "no guess pays"

    def speedup(self) -> float:
        """Tokens per second now, in those of plain decoding."""
        return self._pace.rate(self._costs.plain) * self._costs.plain

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
        speedup = round(self.speedup(), 2)
        if self._model is None:
            if self._used > 0.1 or not self._round:
                return Plan("on", "copying what stood there before", speedup)
            return Plan("paused", "nothing that was said repeats itself", speedup)
        if self._pace.rounds < _EVIDENCE:
            return Plan("probing", "finding out what the draft's guesses are worth", None)
        if self._used > 0.1:
            return Plan(
                "on", f"{self._kept / max(self._drafted, 1e-9):.0%} of guesses kept", speedup
            )
        until = self._round + max(0, self._pace.wait - self._pace.idle)
        return Plan("paused", "the draft's guesses would cost more than they bring", speedup, until)


class _Growth:
    """A draft of the model while it grows; a `Gauge`."""

    def __init__(
        self,
        controller: Controller,
        tokens: Sequence[int],
        ahead: list[int],
        chance: float,
        limit: int,
    ) -> None:
        self._controller, self._tokens = controller, tokens
        self._drafted, self._end = ahead, len(ahead) + limit
        self._own = len(ahead)
        self.chance = chance
        """That all guesses so far stand."""
        self.forced = False
        """Whether the first guess is made whatever it promises: a try."""
        self.expected = 0.0
        self.buckets: list[int] = []
        self.passes = 0

    def wanted(self, confidence: float) -> bool:
        self.passes += 1
        place, bucket = len(self._drafted), confidence_bucket(confidence)
        survival = self._controller._survival
        own = survival.model.chance(bucket, place)
        chance = self.chance * own
        gain = chance - self._controller.width_price(place)
        if gain <= 0:
            gain += max(0.0, self._controller.worth(place + 1, chance, self._end - place - 1))
        if gain <= 0 and not (self.forced and self.passes == 1):
            survival.saw_model(place, own)
            return False
        self.chance = chance
        self.expected += chance
        self.buckets.append(bucket)
        return True

    def more(self, guess: int) -> bool:
        self._drafted.append(guess)
        place = len(self._drafted)
        if place >= self._end:
            return False
        if self._controller.worth(place, self.chance, self._end - place) <= 0:
            return False
        return not self._controller.overtakes(self._tokens, self._drafted, place)


def _joined(first: Draft, second: Draft) -> Draft:
    """One draft after the other; laws for all, where any guess was drawn from one."""
    if not second.tokens:
        return Draft(
            first.tokens,
            first.laws,
            first.source,
            first.seconds + second.seconds,
            first.match,
            first.reason,
        )
    laws: list[Law] | None = None
    if first.laws is not None or second.laws is not None:
        laws = [*_laws(first), *_laws(second)]
    return Draft(
        [*first.tokens, *second.tokens],
        laws,
        f"{first.source}+{second.source}",
        first.seconds + second.seconds,
        max(first.match, second.match),
        f"{first.reason}; {second.reason}",
    )


def _laws(draft: Draft) -> list[Law]:
    return draft.laws if draft.laws is not None else [certain(token) for token in draft.tokens]
