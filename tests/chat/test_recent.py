"""The list of recently opened pairs."""

from pathlib import Path

import pytest

from localspec import paths
from localspec.launch import ResolvedPair, recent_pairs


def model(folder: Path, name: str) -> Path:
    path = folder / name
    path.touch()
    return path


def test_the_latest_comes_first_and_only_once(tmp_path: Path) -> None:
    first = ResolvedPair(model(tmp_path, "a.gguf"), model(tmp_path, "d.gguf"))
    second = ResolvedPair(model(tmp_path, "b.gguf"), None)
    for choice in (first, second, first):
        recent_pairs.add(choice)
    assert recent_pairs.load() == [first, second]


def test_files_that_are_gone_are_not_listed(tmp_path: Path) -> None:
    choice = ResolvedPair(model(tmp_path, "a.gguf"), None)
    recent_pairs.add(choice)
    choice.target.unlink()
    assert recent_pairs.load() == []


@pytest.mark.parametrize("text", ["", "{", "3", "[3]", '[{"target": 1}]', "null", '[{"a": 1}]'])
def test_a_damaged_file_is_as_none(text: str) -> None:
    paths.data_dir().mkdir(parents=True)
    (paths.data_dir() / "recent.json").write_text(text)
    assert recent_pairs.load() == []


def test_a_folder_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "file" / "data"))
    recent_pairs.add(ResolvedPair(model(tmp_path, "a.gguf"), None))
    assert recent_pairs.load() == []
