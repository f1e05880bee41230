"""Copying: by the terminal where there is no clipboard tool, else in the tool's encoding."""

from pathlib import Path

import pytest

from localspec.chat import copying

TEXT = "café → 漢字 🙂\n"


def test_a_terminal_is_asked_to_copy() -> None:
    written: list[str] = []
    elsewhere = {
        "SSH_CONNECTION": "1",
        "DISPLAY": ":0",
    }  # no clipboard of the other computer
    assert "does not say" in copying.copy("hello", written.append, elsewhere)
    assert written == ["\x1b]52;c;aGVsbG8=\x07"]
    assert copying.copy("x" * 100_000, written.append, elsewhere) == ""
    assert copying.copy("hello", None, elsewhere) == ""


@pytest.mark.parametrize(
    ("tool", "environment", "expected"),
    [
        # clip.exe takes anything else for text in the console's code page.
        (
            "clip.exe",
            {"WSL_DISTRO_NAME": "Ubuntu"},
            b"\xff\xfe" + TEXT.encode("utf-16-le"),
        ),
        ("wl-copy", {"WAYLAND_DISPLAY": "w"}, TEXT.encode()),
        ("xclip", {"DISPLAY": ":0"}, TEXT.encode()),
        ("xsel", {"DISPLAY": ":0"}, TEXT.encode()),
        ("tmux", {"TMUX": "t"}, TEXT.encode()),
    ],
)
def test_each_tool_gets_its_encoding(
    tool: str,
    environment: dict[str, str],
    expected: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = tmp_path / "received"
    program = tmp_path / tool
    program.write_text(f"#!/bin/sh\n/bin/cat > {received}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tool in copying.copy(TEXT, None, environment)
    assert received.read_bytes() == expected


def test_pbcopy_reads_utf_8_without_a_locale() -> None:
    assert copying._PBCOPY.environment == {"LC_CTYPE": "UTF-8"}
