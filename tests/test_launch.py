"""From what a person typed to the files that will run."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec import launch
from localspec.errors import ModelFileError, NotFoundError
from localspec.paths import data
from tests.zoo import Zoo

DEMO = data() / "demo"


@pytest.mark.parametrize("model", [None, "demo"])
def test_nothing_said_is_the_demo(model: str | None) -> None:
    choice = launch.choose(model, "auto")
    assert (choice.target, choice.draft) == (DEMO / "demo-target.gguf", DEMO / "demo-draft.gguf")
    assert choice.spec == "model"
    assert choice.why


def test_no_draft_for_the_demo_takes_its_way_of_speculating_too() -> None:
    choice = launch.choose("demo", "none")
    assert (choice.draft, choice.spec, choice.why) == (None, "auto", "")


def test_another_draft_for_the_demo(zoo: Zoo) -> None:
    choice = launch.choose("demo", str(zoo["stranger"]))
    assert (choice.draft, choice.spec, choice.why) == (zoo["stranger"], "auto", "")


def test_the_demos_draft_for_a_file(zoo: Zoo) -> None:
    choice = launch.choose(str(zoo["target"]), "demo")
    assert (choice.target, choice.draft) == (zoo["target"], DEMO / "demo-draft.gguf")


@pytest.mark.parametrize("draft", ["auto", "none"])
def test_a_file_alone(zoo: Zoo, draft: str) -> None:
    choice = launch.choose(str(zoo["target"]), draft)
    assert (choice.target, choice.draft, choice.spec) == (zoo["target"], None, "auto")


def test_a_file_in_this_directory_is_named_absolutely(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "plain-name").write_bytes(zoo["target"].read_bytes())
    monkeypatch.chdir(tmp_path)
    assert launch.choose("plain-name", "none").target == tmp_path / "plain-name"


def test_a_home_directory_is_found(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.gguf").write_bytes(zoo["target"].read_bytes())
    assert launch.choose("~/mine.gguf", "~/mine.gguf").draft == tmp_path / "mine.gguf"


@pytest.mark.parametrize("name", ["demmo", "", "DEMO", "\x1b[31mred"])
def test_an_unknown_name_is_told_the_known_ones(name: str) -> None:
    if not name:
        assert launch.choose(name, "auto").spec == "model"
        return
    with pytest.raises(NotFoundError, match="no pair called") as failure:
        launch.choose(name, "auto")
    assert "demo" in failure.value.hint
    assert "\x1b" not in failure.value.message


@pytest.mark.parametrize(
    "name", ["absent.gguf", "./absent", "folder\\absent", "~no-such-person/a.gguf"]
)
def test_a_path_that_is_not_there(name: str) -> None:
    with pytest.raises(NotFoundError, match="There is no file"):
        launch.choose(name, "auto")


@pytest.mark.parametrize("draft", ["absent.gguf", "absent", ""])
def test_a_draft_that_is_not_there(draft: str) -> None:
    with pytest.raises((NotFoundError, ModelFileError)):
        launch.choose("demo", draft)


def test_both_files_are_looked_at_before_anything_is_loaded(tmp_path: Path, zoo: Zoo) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(ModelFileError, match=r"notes\.txt is a text file"):
        launch.choose(str(text), "auto")
    with pytest.raises(ModelFileError, match=r"notes\.txt is a text file"):
        launch.choose(str(zoo["target"]), str(text))
