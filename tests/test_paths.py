"""Paths as they are typed, and as terminals insert a dropped file."""

import os
import re
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
    escaped = re.sub(r"([^\w/.-])", r"\\\1", path)
    found = [path, f" {path} ", shlex.quote(path), escaped, Path(path).as_uri()]
    if not set('"\\$`') & set(path):
        found.append(f'"{path}"')
    return found


@pytest.mark.skipif(os.name == "nt", reason="POSIX quoting")
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_every_spelling_of_a_path(tmp_path: Path, name: str, exists: bool) -> None:
    path = tmp_path / "a folder" / name
    if exists:
        path.parent.mkdir()
        path.touch()
    # The first two are not quoted: only a path that exists is taken so.
    first = 0 if exists else 2
    for typed in spellings(str(path))[first:]:
        assert parse_typed_path(typed) == str(path), typed
    host = path.as_uri().replace("file://", "file://localhost")
    assert parse_typed_path(f"'{host}'") == str(path)


@pytest.mark.parametrize("typed", ["", "~/x.gguf", "it's", "a b c", "qwen3:8b", "'"])
def test_other_text_stays(typed: str) -> None:
    assert parse_typed_path(typed) == typed


@given(st.text())
def test_no_text_is_an_error(typed: str) -> None:
    parse_typed_path(typed)
