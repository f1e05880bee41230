"""Paths as they are typed, and as terminals insert a dropped file."""

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.paths import parse_typed_path

NAMES = (
    "model.gguf",
    "my model.gguf",
    "it's a model.gguf",
    "ä % #1?.gguf",
    '"q".gguf',
    "a\\b",
)


def spellings(path: str) -> list[str]:
    """GNOME, KDE, macOS, iTerm, Windows Terminal, file managers' copies, and by hand."""
    escaped = "".join(c if c.isalnum() or c in "/._-" else f"\\{c}" for c in path)
    quoted = [f'"{path}"'] if not set('"\\$`') & set(path) else []
    return [path, f" {path} ", shlex.quote(path), escaped, Path(path).as_uri(), *quoted]


@pytest.mark.skipif(os.name == "nt", reason="POSIX quoting")
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_every_spelling_of_a_path(tmp_path: Path, name: str, exists: bool) -> None:
    path = tmp_path / "a folder" / name
    if exists:
        path.parent.mkdir()
        path.touch()
    for typed in spellings(str(path))[0 if exists else 2 :]:
        assert parse_typed_path(typed) == str(path), typed
    host = path.as_uri().replace("file://", "file://localhost")
    assert parse_typed_path(f"'{host}'") == str(path)


@pytest.mark.parametrize("typed", ["", "~/x.gguf", "it's", "a b c", "qwen3:8b", "'"])
def test_other_text_stays(typed: str) -> None:
    assert parse_typed_path(typed) == typed


@given(st.text())
def test_no_text_is_an_error(typed: str) -> None:
    parse_typed_path(typed)
