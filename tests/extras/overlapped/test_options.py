"""The option of overlapped drafting: on the command line and in config.toml."""

from pathlib import Path

from localspec import launch
from tests.support.run_command import hello
from tests.support.zoo import HELLO_TEXT, Zoo


def test_overlap_is_kept_for_runs_and_given_way_to(zoo: Zoo, tmp_path: Path) -> None:
    """A method that cannot overlap is refused with --overlap on, but not for a kept
    preference.
    """
    (tmp_path / "config.toml").write_text('[answers]\noverlap = "on"\n')
    given = ("--spec", "model", "--threads", "1", "--json")
    kept = hello(zoo, *given)
    assert kept.document["speculation"]["overlap"]["rounds"] > 0
    other = hello(zoo, *given, "--verify", "rejection")
    assert other.code == 0 and other.document["text"] == HELLO_TEXT
    assert "overlap" not in other.document["speculation"]
    refused = hello(zoo, *given, "--verify", "rejection", "--overlap", "on")
    assert "verification rejection" in refused.document["error"]["message"]


def test_the_preference_holds_for_loads_and_for_suggestions(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[answers]\noverlap = true\n")

    wishes = launch.saved_criteria("chat", 4096, "q8_0").wishes

    assert wishes.load.overlap is True
