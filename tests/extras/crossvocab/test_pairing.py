"""Which models draft for another vocabulary, and what the commands say of it."""

import pytest

from localspec import launch
from localspec.errors import UsageError
from tests.support.run_command import localspec
from tests.support.zoo import Zoo


def test_pair_check_names_the_verdict(zoo: Zoo) -> None:
    pair = (zoo["target"], zoo["reordered"])

    done = localspec("pair", "check", *pair, "--json")

    assert done.code == 0
    assert done.document["verdict"] == "cross-vocabulary"


def test_such_a_pair_has_this_drafter_and_no_head(zoo: Zoo) -> None:
    pair = launch.resolve_pair(str(zoo["target"]), "demo")

    launch.check_drafter(pair, "crossvocab")
    reason = "its draft is a model with another vocabulary"
    with pytest.raises(UsageError, match=reason):
        launch.check_drafter(pair, "eagle3")
