"""Overlapped drafters, for the laws of every drafter."""

from collections.abc import Callable

from localspec.spec.prepared_answer import PreparedAnswer
from localspec.spec.protocols import Drafter, Verifier
from tests.extras.overlapped.fakes import ScheduledWorker, overlapped_drafter
from tests.support.fake_models import BranchingModel


def _overlapped(
    fan: int, n_checks: int
) -> Callable[[Verifier, PreparedAnswer, list[int]], Drafter]:
    """Makes a drafter that drafts ahead for `fan` outcomes.

    Each of its jobs is stopped after `n_checks` checks.
    """

    def make_drafter(
        verifier: Verifier, answer: PreparedAnswer, _text: list[int]
    ) -> Drafter:
        worker = ScheduledWorker(lambda: (True, n_checks))
        return overlapped_drafter(
            BranchingModel(2), verifier, answer, worker=worker, fan=fan
        )

    return make_drafter


GUESSERS = {
    "overlapped": _overlapped(1, 1000),
    "overlapped, five outcomes": _overlapped(5, 1000),
    "overlapped, stopped early": _overlapped(3, 3),
}
