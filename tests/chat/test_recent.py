"""The list of recently opened pairs."""

from dataclasses import replace
from pathlib import Path

import pytest

from localspec import launch, paths
from localspec.errors import NotFoundError
from localspec.launch import ResolvedPair, recent_pairs
from localspec.models import model_lookup
from tests import tinygguf


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


def test_a_file_that_was_opened_by_its_path_is_found_by_its_name(tmp_path: Path) -> None:
    path = tinygguf.llama(0).write(tmp_path / "my-own-Q8_0.gguf")
    assert launch_by_name("my-own-Q8_0") is None
    pair = replace(ResolvedPair(path, None), requested_refs=(str(path), "auto"))
    recent_pairs.add_if_path(pair)
    assert launch_by_name("my-own-Q8_0") == launch_by_name("my-own") == path
    assert ("my-own-Q8_0", "0.5 MB, opened by path") in model_lookup.list_installed()
    (tmp_path / "elsewhere").mkdir()
    twin = tinygguf.llama(0).write(tmp_path / "elsewhere" / "my-own-Q8_0.gguf")
    recent_pairs.add(ResolvedPair(twin, None))
    with pytest.raises(NotFoundError, match="several files"):
        launch_by_name("my-own-Q8_0")
    names = [name for name, _ in model_lookup.list_installed()]
    assert {str(path), str(twin)} <= set(names), "paths, where names are not enough"


@pytest.mark.parametrize("name", ["my own model", "Modèle (2)"])
def test_a_name_that_no_id_could_have_opens_a_file_of_the_model_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(tmp_path / "models"))
    path = tinygguf.llama(0).write(tmp_path / "models" / f"{name}.gguf")
    assert launch_by_name(name) == path
    assert name in [listed for listed, _ in model_lookup.list_installed()]
    assert launch_by_name(f"{name} too") is None


def launch_by_name(name: str) -> Path | None:
    try:
        return launch.resolve_pair(name, "none").target
    except NotFoundError as error:
        if "several" in error.message:
            raise
        return None
