"""The pairs that were opened lately, and the one of the last run."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec import data_files, launch, paths
from localspec.errors import NotFoundError
from localspec.launch import ResolvedPair, recent_pairs
from localspec.launch.recent_pairs import DefaultPair
from localspec.models import model_lookup
from tests.models import packagefile
from tests.support import tinygguf
from tests.support.zoo import Zoo


def model(folder: Path, name: str) -> Path:
    path = folder / name
    path.touch()
    return path


def test_the_latest_comes_first_and_only_once(tmp_path: Path) -> None:
    first = ResolvedPair(model(tmp_path, "a.gguf"), model(tmp_path, "d.gguf"))
    second = ResolvedPair(model(tmp_path, "b.gguf"), None)
    for pair in (first, second, first):
        recent_pairs.add(pair)
    assert recent_pairs.load() == [first, second]
    second.target.unlink()
    assert recent_pairs.load() == [first], "files that are gone are not listed"


def test_the_last_pair_is_opened_again(tmp_path: Path) -> None:
    assert recent_pairs.load_last() is None
    assert recent_pairs.resolve_default(None, "auto") == DefaultPair("demo", "auto")
    recent_pairs.save_last("qwen3-8b", "auto")
    recent_pairs.save_last("llama-3.1-8b", "llama-3.2-1b")
    last = DefaultPair("llama-3.1-8b", "llama-3.2-1b", "the last one used")
    assert recent_pairs.resolve_default(None, "auto") == last
    assert recent_pairs.resolve_default(None, "none") == last._replace(draft="none")
    assert recent_pairs.resolve_default("other", "auto") == DefaultPair("other", "auto")
    recent_pairs.save_last("demo", "none")
    assert recent_pairs.resolve_default(None, "auto") == DefaultPair("demo", "none")
    file = model(tmp_path, "a.gguf")
    recent_pairs.save_last(str(file), "none")
    assert recent_pairs.load_last() == (str(file), "none")
    (tmp_path / "config.toml").write_text('[run]\npair = "qwen3-8b"\n')
    configured = DefaultPair("qwen3-8b", "auto", "the default model of your settings")
    assert recent_pairs.resolve_default(None, "auto") == configured, (
        "before the last one used"
    )
    file.unlink()
    assert recent_pairs.load_last() is None


@pytest.mark.parametrize(
    "text", ["", "{", "3", "[3]", '[{"target": 1}]', "null", '{"model": 1}']
)
def test_a_damaged_file_is_as_none(text: str) -> None:
    paths.data_dir().mkdir(parents=True, exist_ok=True)
    for name in ("recent.json", "last.json"):
        (paths.data_dir() / name).write_text(text)
    assert recent_pairs.load() == [] and recent_pairs.load_last() is None


def test_references_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(model(tmp_path, "a.gguf"))
    assert launch.make_portable_refs(target, "auto") == (target, "auto")
    assert launch.make_portable_refs("qwen3-8b", "auto") == ("qwen3-8b", "auto")
    demo = paths.package_data_dir() / "demo"
    monkeypatch.chdir(demo)
    assert launch.make_portable_refs("demo-target.gguf", "none") == (
        "demo-target",
        "none",
    )
    bundled = launch.make_portable_refs("demo-target", str(demo / "demo-draft.gguf"))
    assert bundled == ("demo-target", "demo-draft")
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "auto"):  # a reference and a word, not these files
        model(tmp_path, name)
    assert launch.make_portable_refs("demo", "auto") == ("demo", "auto")


def test_a_file_that_was_opened_by_its_path_is_found_by_its_name(
    tmp_path: Path,
) -> None:
    path = tinygguf.llama(0).write(tmp_path / "my-own-Q8_0.gguf")

    def by_name(name: str) -> Path:
        return launch.resolve_pair(name, "none").target

    with pytest.raises(NotFoundError, match="no entry"):
        by_name("my-own-Q8_0")
    pair = replace(ResolvedPair(path, None), requested_refs=(str(path), "auto"))
    recent_pairs.add_if_path(pair, str(path))
    assert by_name("my-own-Q8_0") == by_name("my-own") == path
    assert ("my-own-Q8_0", "0.5 MB, opened by path") in model_lookup.list_installed()
    (tmp_path / "elsewhere").mkdir()
    twin = tinygguf.llama(0).write(tmp_path / "elsewhere" / "my-own-Q8_0.gguf")
    recent_pairs.add(ResolvedPair(twin, None))
    with pytest.raises(NotFoundError, match="several files"):
        by_name("my-own-Q8_0")
    names = [name for name, _ in model_lookup.list_installed()]
    assert {str(path), str(twin)} <= set(names), "paths, where names are not enough"


@pytest.fixture
def toy(tmp_path: Path, zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> str:
    """The model of the package, by its path."""
    folder = tmp_path / "packages"
    return str(packagefile.install(folder, zoo["chatty"], monkeypatch))


def test_models_that_came_with_localspec_are_no_others(toy: str) -> None:
    for used in (toy, "demo", "demo+eagle3", toy):
        recent_pairs.save_last(used, "auto")

    assert not recent_pairs.has_used_another_model()


def test_another_model_is_remembered_for_ever(toy: str, zoo: Zoo) -> None:
    for used in (str(zoo["target"]), toy, "demo", toy):
        recent_pairs.save_last(used, "auto")

    assert recent_pairs.has_used_another_model()


def test_a_model_that_an_earlier_version_used_counts(
    toy: str, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(data_files, "write_mark", lambda *_: None)
        recent_pairs.save_last(str(zoo["target"]), "auto")

    recent_pairs.save_last(toy, "auto")

    assert recent_pairs.has_used_another_model()
