"""The option of overlapped drafting: on the command line and in config.toml."""

from pathlib import Path

import pytest

from localspec import launch
from tests.support.run_command import hello
from tests.support.zoo import HELLO_TEXT, Zoo

GIVEN = ("--spec", "model", "--threads", "1", "--json")


@pytest.fixture
def preference(tmp_path: Path) -> None:
    """config.toml turns overlap on."""
    (tmp_path / "config.toml").write_text('[answers]\noverlap = "on"\n')


@pytest.mark.usefixtures("preference")
def test_the_preference_holds_for_runs(zoo: Zoo) -> None:
    run = hello(zoo, *GIVEN)

    assert run.document["speculation"]["overlap"]["rounds"] > 0


@pytest.mark.usefixtures("preference")
def test_the_preference_is_ignored_with_a_method_that_cannot_overlap(zoo: Zoo) -> None:
    run = hello(zoo, *GIVEN, "--verify", "rejection")

    assert run.code == 0
    assert run.document["text"] == HELLO_TEXT
    assert "overlap" not in run.document["speculation"]


def test_the_option_is_refused_with_a_method_that_cannot_overlap(zoo: Zoo) -> None:
    given = (*GIVEN, "--verify", "rejection", "--overlap", "on")

    run = hello(zoo, *given)

    assert "verification rejection" in run.document["error"]["message"]


def test_the_preference_holds_for_loads_and_for_suggestions(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[answers]\noverlap = true\n")

    wishes = launch.saved_criteria("chat", 4096, "q8_0").wishes

    assert wishes.load.overlap is True
