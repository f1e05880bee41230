"""Resolving model and draft arguments to checked files."""

from pathlib import Path

import pytest

from localspec import launch, paths
from localspec.errors import NotFoundError, UsageError
from localspec.launch import recent_pairs
from localspec.models.model_lookup import NotDownloadedError
from localspec.paths import package_data_dir
from tests.support.zoo import Zoo

DEMO = package_data_dir() / "demo"
TARGET = DEMO / "demo-target.gguf"
DRAFT = DEMO / "demo-draft.gguf"
HEAD = DEMO / "demo-eagle3.gguf"


def test_references_to_the_demo_pair_resolve_to_its_files() -> None:
    for model, draft, files, spec in [
        (None, "auto", (TARGET, DRAFT), "model"),
        ("demo", "auto", (TARGET, DRAFT), "model"),
        ("demo", "none", (TARGET, None), "auto"),
        (str(TARGET), "demo", (TARGET, DRAFT), "auto"),
    ]:
        pair = launch.resolve_pair(model, draft)
        assert pair.files == files
        assert pair.spec == spec
        assert bool(pair.spec_reason) == (spec == "model")


def test_a_second_draft_that_was_saved_is_not_used() -> None:
    """Earlier versions could draft with two.

    A pair of last.json or a saved chat may name both.
    """
    refs = (str(TARGET), f"{DRAFT},{HEAD}")
    recent_pairs.save_last(*refs)
    assert recent_pairs.resolve_default(None, "auto")[:2] == refs

    pair = launch.resolve_pair(*refs)

    assert pair.draft == DRAFT
    assert pair.draft_notice == f"A pair has one draft: {HEAD} is not used."
    one_draft = ("demo-target", "demo-draft")
    assert pair.portable_refs == one_draft
    assert launch.make_portable_refs(*refs) == one_draft


def test_a_file_with_a_comma_in_its_name_is_one_draft(tmp_path: Path) -> None:
    with_comma = tmp_path / "a,b.gguf"
    with_comma.write_bytes(DRAFT.read_bytes())
    pair = launch.resolve_pair("demo", str(with_comma))
    assert pair.draft == with_comma
    assert pair.draft_notice == ""


@pytest.mark.parametrize("draft", ["auto", "none"])
def test_a_path_needs_no_catalogue(zoo: Zoo, draft: str) -> None:
    paths.user_catalog_file().write_text("models: [", encoding="utf-8")
    path = str(zoo["target"])
    pair = launch.resolve_pair(path, draft)
    assert (pair.target, pair.draft, pair.spec) == (zoo["target"], None, "auto")
    assert launch.make_portable_refs(path, draft) == (path, draft)
    with pytest.raises(UsageError, match="is damaged"):
        launch.resolve_pair("demo", draft)


def test_files_are_found_by_a_relative_path_and_by_one_from_home(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(zoo["target"].read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert launch.resolve_pair("mine.gguf", "none").target == file
    assert launch.resolve_pair("~/mine.gguf", "~/mine.gguf").draft == file


def test_an_unknown_name_has_the_closest_in_its_hint() -> None:
    with pytest.raises(NotFoundError, match="no entry demmo") as failure:
        launch.resolve_pair("demmo", "auto")
    assert "demo" in failure.value.hint


def test_files_that_are_absent_are_not_found() -> None:
    for name in ("absent.gguf", "./absent", "folder\\absent", "~no-such-person/a.gguf"):
        with pytest.raises(NotFoundError, match="There is no file"):
            launch.resolve_pair(name, "auto")
    for draft in ("absent.gguf", "absent", ""):
        with pytest.raises((NotFoundError, UsageError)):
            launch.resolve_pair("demo", draft)


def test_a_draft_of_the_catalogue_can_be_downloaded(zoo: Zoo) -> None:
    with pytest.raises(NotDownloadedError) as missing:
        launch.resolve_pair(str(zoo["target"]), "qwen3-0.6b")
    assert missing.value.pull_reference == "qwen3-0.6b"


def test_an_error_about_a_name_is_safe_to_print() -> None:
    with pytest.raises(NotFoundError) as failure:
        launch.resolve_pair("\x1b[31mred", "auto")
    assert "\x1b" not in failure.value.message + failure.value.hint


def test_a_padded_vocabulary_and_the_target_itself_can_draft(zoo: Zoo) -> None:
    target = str(zoo["target"])
    assert launch.resolve_pair(target, str(zoo["padded"])).draft == zoo["padded"]
    assert launch.resolve_pair(target, target).draft == zoo["target"]
