"""The pair of the last run."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec import launch, paths
from localspec.launch import recent_pairs


def test_none_was_run() -> None:
    assert recent_pairs.load_last() is None
    assert recent_pairs.resolve_default(None, "auto") == ("demo", "auto")


def test_the_last_one_is_opened_again() -> None:
    recent_pairs.save_last("qwen3-8b", "auto")
    recent_pairs.save_last("llama-3.1-8b", "llama-3.2-1b")
    assert recent_pairs.resolve_default(None, "auto") == ("llama-3.1-8b", "llama-3.2-1b")
    assert recent_pairs.resolve_default(None, "none") == ("llama-3.1-8b", "none")
    assert recent_pairs.resolve_default("other", "auto") == ("other", "auto")


def test_a_file_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF")
    recent_pairs.save_last(str(file), "none")
    assert recent_pairs.load_last() == (str(file), "none")
    file.unlink()
    assert recent_pairs.load_last() is None


def test_files_are_meant_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    target = str(tmp_path / "a.gguf")
    assert launch.make_portable_refs(target, "auto") == (target, "auto")
    assert launch.make_portable_refs("qwen3-8b", "auto") == ("qwen3-8b", "auto")


def test_a_bundled_file_is_meant_wherever_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(paths.package_data_dir() / "demo")
    assert launch.make_portable_refs("demo-target.gguf", "none") == ("demo-target", "none")
    draft = str(paths.package_data_dir() / "demo" / "demo-draft.gguf")
    assert launch.make_portable_refs("demo-target", draft) == ("demo-target", "demo-draft")


def test_words_and_ids_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "auto"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert launch.make_portable_refs("demo", "auto") == ("demo", "auto")


def test_a_damaged_file_is_as_good_as_none() -> None:
    paths.data_dir().mkdir(parents=True, exist_ok=True)
    for said in ("", "[]", "{}", '{"model": 1}', "\x00"):
        (paths.data_dir() / "last.json").write_text(said, encoding="utf-8")
        assert recent_pairs.load_last() is None
