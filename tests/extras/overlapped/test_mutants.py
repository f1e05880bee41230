"""The checks can fail: bugs planted in overlapped drafting are caught."""

from functools import partial

import pytest

from localspec.extras.overlapped.drafter import OverlappedDrafter
from localspec.spec.prefix_cache import BranchCache
from tests.extras.overlapped import test_drafter
from tests.spec.test_mutants import Mutant, check_that_it_is_caught

MUTANTS = {
    "a branch starts one token early": Mutant(
        BranchCache.add_branch,
        "self._n_text + len(outcome) - 1",
        "self._n_text + len(outcome) - 2",
        partial(test_drafter.test_every_draft_is_the_same_as_without_overlap, 5),
    ),
    "a branch goes on from an old row": Mutant(
        OverlappedDrafter._next_token,
        "branch.rows[-1]",
        "branch.rows[0]",
        test_drafter.test_a_draft_that_is_always_right_is_always_there_already,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, mutant: Mutant
) -> None:
    check_that_it_is_caught(monkeypatch, mutant)
