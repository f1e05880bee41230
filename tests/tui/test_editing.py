"""Undo and redo in the message field, and the user's own editor."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from localspec.tui.app import LocalspecApp
from tests.tui.screens.test_chat import Chat

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(sys.platform == "win32", reason="a shell script is the editor"),
]


async def test_undo_and_redo_also_of_what_was_replaced() -> None:
    async with Chat() as chat:
        await chat.send("first")
        await chat.press(*"abc")
        await chat.press("ctrl+underscore")
        assert chat.typed == ""
        await chat.press("alt+shift+z")
        assert chat.typed == "abc"
        chat.screen.composer.edit_text("something else")
        await chat.press("ctrl+underscore")
        assert chat.typed == "abc"
        await chat.press("ctrl+y")
        assert chat.typed == "something else"


async def test_the_message_is_written_in_the_editor_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nprintf "%s\\n\\033[31mand more\\n" "$(cat "$1")" > "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    monkeypatch.setattr(LocalspecApp, "suspend", lambda _: nullcontext())
    async with Chat() as chat:
        await chat.press(*"draft", "ctrl+g")
        assert chat.typed == "draft\nand more" and not chat.questions
        await chat.press("ctrl+underscore")
        assert chat.typed == "draft"
        monkeypatch.setenv("VISUAL", str(tmp_path / "none"))
        await chat.press("ctrl+g")
        assert "cannot be started" in chat.shown and chat.typed == "draft"
