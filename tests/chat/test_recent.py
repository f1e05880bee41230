"""Pairs opened by their paths are remembered."""

from pathlib import Path

import pytest

from localspec import paths
from localspec.chat import recent
from localspec.launch import Choice


def model(folder: Path, name: str) -> Path:
    path = folder / name
    path.touch()
    return path


def test_the_latest_comes_first_and_only_once(tmp_path: Path) -> None:
    first = Choice(model(tmp_path, "a.gguf"), model(tmp_path, "d.gguf"))
    second = Choice(model(tmp_path, "b.gguf"), None)
    for choice in (first, second, first):
        recent.add(choice)
    assert recent.read() == [first, second]


def test_files_that_are_gone_are_not_listed(tmp_path: Path) -> None:
    choice = Choice(model(tmp_path, "a.gguf"), None)
    recent.add(choice)
    choice.target.unlink()
    assert recent.read() == []


@pytest.mark.parametrize("text", ["", "{", "3", "[3]", '[{"target": 1}]', "null", '[{"a": 1}]'])
def test_a_damaged_file_is_as_none(text: str) -> None:
    paths.state().mkdir(parents=True)
    (paths.state() / "recent.json").write_text(text)
    assert recent.read() == []


def test_a_folder_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "file" / "data"))
    recent.add(Choice(model(tmp_path, "a.gguf"), None))
    assert recent.read() == []
