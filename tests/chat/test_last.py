"""The pair of the last run."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec import launch, paths
from localspec.chat import recent
from localspec.cli import choosing


def test_none_was_run() -> None:
    assert recent.last() is None
    assert choosing.again(None, "auto") == ("demo", "auto")


def test_the_last_one_is_opened_again() -> None:
    recent.used("qwen3-8b", "auto")
    recent.used("llama-3.1-8b", "llama-3.2-1b")
    assert choosing.again(None, "auto") == ("llama-3.1-8b", "llama-3.2-1b")
    assert choosing.again(None, "none") == ("llama-3.1-8b", "none")
    assert choosing.again("other", "auto") == ("other", "auto")


def test_a_file_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF")
    recent.used(str(file), "none")
    assert recent.last() == (str(file), "none")
    file.unlink()
    assert recent.last() is None


def test_files_are_meant_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    target = str(tmp_path / "a.gguf")
    assert launch.lasting(target, "auto") == (target, "auto")
    assert launch.lasting("qwen3-8b", "auto") == ("qwen3-8b", "auto")


def test_a_bundled_file_is_meant_wherever_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(paths.data() / "demo")
    assert launch.lasting("demo-target.gguf", "none") == ("demo-target", "none")
    draft = str(paths.data() / "demo" / "demo-draft.gguf")
    assert launch.lasting("demo-target", draft) == ("demo-target", "demo-draft")


def test_words_and_ids_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "auto"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert launch.lasting("demo", "auto") == ("demo", "auto")


def test_a_damaged_file_is_as_good_as_none() -> None:
    paths.state().mkdir(parents=True, exist_ok=True)
    for said in ("", "[]", "{}", '{"model": 1}', "\x00"):
        (paths.state() / "last.json").write_text(said, encoding="utf-8")
        assert recent.last() is None
