"""Overlapped drafters, for the laws of every drafter."""

from collections.abc import Callable

from localspec.spec.prepared_answer import PreparedAnswer
from localspec.spec.protocols import Drafter, Verifier
from tests.extras.overlapped.fakes import ScheduledWorker, overlapped_drafter
from tests.support.fake_models import BranchingModel


def _overlapped(
    fan: int, n_checks: int
) -> Callable[[Verifier, PreparedAnswer, list[int]], Drafter]:
    """Drafts ahead for `fan` outcomes; each job is stopped after some checks."""
    return lambda verifier, what, text: overlapped_drafter(
        BranchingModel(2),
        verifier,
        what,
        ScheduledWorker(lambda: (True, n_checks)),
        fan=fan,
    )


GUESSERS = {
    "overlapped": _overlapped(1, 1000),
    "overlapped, five outcomes": _overlapped(5, 1000),
    "overlapped, stopped early": _overlapped(3, 3),
}
