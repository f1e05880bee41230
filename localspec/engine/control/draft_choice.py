"""Chooses between two drafts of one target, round by round, by what each is expected to gain."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.engine.control.controller import Controller
from localspec.engine.protocols import Draft, DraftStopPolicy
from localspec.engine.speculative_loop import RoundResult
from localspec.protocol.events import SpeculationPlan

_CLEAR_GAIN = 0.05
"""Tokens a round by which another draft must be better: changing makes the new one read."""


class DraftChoice:
    """A drafter for one answer, made of a `Controller` for each draft.

    Gains are tokens less the time they take at the current throughput, so those of different drafts
    can be compared. The draft that is expected to gain most is used; the others are tried now and
    then, at most as often as a paused draft is. All controllers charge one regret budget.
    """

    def __init__(self, controllers: Sequence[Controller]) -> None:
        """The first is preferred until another is known to gain more."""
        self._controllers = controllers
        self._best = self._chosen = controllers[0]
        for controller in controllers[1:]:
            controller.regret = controllers[0].regret

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        draft_prefix: Sequence[int] = (),
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        best_value = self._best.draft_value(len(tokens), limit)
        for controller in self._controllers:
            value = controller.draft_value(len(tokens), limit)
            if value > best_value + _CLEAR_GAIN:
                self._best, best_value = controller, value
        others = [controller for controller in self._controllers if controller is not self._best]
        due = (controller for controller in others if controller.is_trial_due(tokens, limit))
        self._chosen = next(due, self._best)
        return self._chosen.propose(tokens, limit, draft_prefix, stop_policy)

    def record_round(self, result: RoundResult) -> None:
        """Update the statistics of all drafts with a round's result."""
        self._chosen.record_round(result)
        for controller in self._controllers:
            if controller is not self._chosen:
                controller.observe_round(result)

    def plan_change(self) -> SpeculationPlan | None:
        """As `Controller.plan_change`, of the best draft."""
        return self._best.plan_change()
