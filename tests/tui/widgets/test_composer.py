"""Completion of commands and paths in the message field, and the size of a message."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from textual.events import Paste

from localspec.chat import session
from localspec.chat.conversation import Turn
from localspec.tui.app import LocalspecApp
from localspec.tui.widgets import composer
from localspec.tui.widgets.composer import CompletionList
from tests.support.app_driver import Chat, home_app, long, said
from tests.support.scenes import settled
from tests.support.scripted_engine import ScriptedEngine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("import os\n")
    (tmp_path / "notes.txt").write_text("seven\n")
    (tmp_path / "notes.txt.old").write_text("six\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def is_open(chat: Chat) -> bool:
    return chat.screen.query_one(CompletionList).display


async def typed(chat: Chat, text: str) -> None:
    keys = {"/": "slash", " ": "space"}
    await chat.press(*[keys.get(character, character) for character in text])


def attached(chat: Chat) -> list[str]:
    return [file.name for file in chat.screen.session.pending_attachments]


async def test_a_slash_lists_the_commands_and_enter_takes_one() -> None:
    async with Chat() as chat:
        await typed(chat, "/")
        assert is_open(chat)
        assert "/model [NAME [DRAFT]] Answer with another model" in chat.shown
        await typed(chat, "th")
        await chat.press("enter")
        assert chat.typed == "/think "
        assert not chat.questions
        await chat.press("down", "enter")
        assert chat.typed == "/think off"
        await chat.press("enter")
        assert chat.screen.session.settings.think is False
        assert chat.typed == ""
        assert not is_open(chat)


async def test_what_is_whole_is_run_at_once_however_fast_it_is_typed() -> None:
    async with Chat() as chat:
        await chat.press(*"/undo", "enter")
        await chat.sees("The chat is empty")
        keys = ["slash", *"set", "space", *"top_k", "space", "7", "enter"]
        await chat.press(*keys)
        assert chat.screen.session.settings.sampling.top_k == 7


async def test_a_path_is_completed_folder_by_folder(folder: Path) -> None:
    async with Chat() as chat:
        await typed(chat, "/read s")
        await chat.press("tab")
        assert chat.typed == "/read src/"
        assert is_open(chat)
        await chat.press("tab", "enter")
        assert attached(chat) == ["main.py"]


async def test_a_whole_path_is_read_though_there_is_a_longer_one(folder: Path) -> None:
    async with Chat() as chat:
        await typed(chat, "/read notes.txt")
        assert is_open(chat), "notes.txt.old begins alike"
        await chat.press("enter")
        assert attached(chat) == ["notes.txt"]


async def test_a_new_name_is_not_replaced_by_that_of_a_file(folder: Path) -> None:
    async with Chat(ScriptedEngine(said)) as chat:
        await chat.send("hi")
        await typed(chat, "/save no")
        assert is_open(chat)
        await chat.press(".", "t", "x", "t", "enter")
        assert (folder / "no.txt").exists()
        assert (folder / "notes.txt").read_text() == "seven\n"


async def test_escape_closes_the_list_until_more_is_typed() -> None:
    async with Chat() as chat:
        await typed(chat, "/mo")
        await chat.press("escape")
        assert not is_open(chat)
        assert chat.typed == "/mo"
        assert chat.on_top
        await typed(chat, "d")
        assert is_open(chat)


async def test_up_goes_through_earlier_messages_and_lists_nothing() -> None:
    async with Chat() as chat:
        await chat.send("first")
        await chat.send("/think on")
        for earlier in ("/think on", "first"):
            await chat.press("up")
            assert chat.typed == earlier
            assert not is_open(chat)


async def test_the_mouse_takes_a_completion() -> None:
    async with Chat() as chat:
        await typed(chat, "/st")
        await chat.pilot.click(CompletionList, offset=(3, 0))
        assert chat.typed == "/stats"
        assert chat.screen.composer.has_focus


async def test_a_message_and_its_files_are_counted_against_what_is_left(
    folder: Path,
) -> None:
    (folder / "long.txt").write_text("word " * 8000)
    async with Chat(ScriptedEngine(long)) as chat:
        await typed(chat, "four")
        await chat.sees("about 1 token, 8.2k left")
        await chat.press("enter")
        await chat.until("ready")
        assert "about" not in chat.shown
        await chat.send("/read long.txt")
        await chat.sees("about 4.2k tokens, 8.0k left")
        size = chat.screen.session.estimate_tokens("")
        assert size > 40_000 / 9.5, "as many bytes a token as in the answer"


async def test_undo_and_redo_of_what_is_typed() -> None:
    async with Chat() as chat:
        await chat.send("first")
        await chat.press(*"abc")
        await chat.press("ctrl+underscore")
        assert chat.typed == ""
        await chat.press("alt+shift+z")
        assert chat.typed == "abc"


async def test_undo_and_redo_of_a_text_that_was_replaced() -> None:
    async with Chat() as chat:
        await chat.press(*"abc")
        chat.screen.composer.edit_text("something else")
        await chat.press("ctrl+underscore")
        assert chat.typed == "abc"
        await chat.press("ctrl+y")
        assert chat.typed == "something else"


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script is the editor")
async def test_the_message_is_written_in_the_editor_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The editor's text is sanitized, and undo removes it."""
    editor = tmp_path / "editor.sh"
    editor.write_text(
        '#!/bin/sh\nprintf "%s\\n\\033[31mand more\\n" "$(cat "$1")" > "$1"\n'
    )
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    monkeypatch.setattr(LocalspecApp, "suspend", lambda _: nullcontext())
    async with Chat() as chat:
        await chat.press(*"draft", "ctrl+g")
        assert chat.typed == "draft\nand more"
        assert not chat.questions
        await chat.press("ctrl+underscore")
        assert chat.typed == "draft"


async def test_an_editor_that_cannot_be_started_leaves_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", str(tmp_path / "none"))
    monkeypatch.setattr(LocalspecApp, "suspend", lambda _: nullcontext())
    async with Chat() as chat:
        await chat.press(*"draft", "ctrl+g")
        assert "cannot be started" in chat.shown
        assert chat.typed == "draft"


# --- texts that are too long for the field
# ---------------------------------------------------------------------------------

LONG_TEXTS = {
    "5 MB of lines": "word word\n" * 500_000,
    "a line of 1 MB": "x" * 1_000_000,
    "100,000 rows": "| a | b |\n" * 100_000,
    "50,000 marks": "[" * 50_000,
    "line feeds only": "\n" * 1_000,
    "carriage returns only": "\r" * 1_000,
    "Chinese of more bytes than the field has": "漢" * 7_000,
}


async def paste(chat: Chat, text: str) -> None:
    chat.app.post_message(Paste(text))
    await chat.pilot.pause()


@pytest.mark.parametrize("name", LONG_TEXTS)
async def test_a_long_paste_becomes_a_file(name: str) -> None:
    text = LONG_TEXTS[name].replace("\r", "\n")
    async with Chat() as chat:
        await paste(chat, LONG_TEXTS[name])
        await chat.wait(lambda: attached(chat))
        assert attached(chat) == ["pasted-1.txt"]
        assert chat.screen.session.pending_attachments[0].text == text
        assert chat.typed == ""
        await chat.sees("+ pasted-1.txt")


async def test_a_paste_that_the_field_can_hold_stays_in_it() -> None:
    text = "word word\n" * 300
    async with Chat() as chat:
        await paste(chat, text)
        assert chat.typed == text
        assert not attached(chat)


async def test_pastes_that_are_long_together_become_a_file_from_then_on() -> None:
    async with Chat() as chat:
        await paste(chat, "a" * 15_000)
        await paste(chat, "b" * 15_000)
        await chat.wait(lambda: attached(chat))
        assert chat.typed == "a" * 15_000
        assert chat.screen.session.pending_attachments[0].text == "b" * 15_000


async def test_each_long_paste_has_a_name_of_its_own() -> None:
    async with Chat() as chat:
        for number in (1, 2, 3):
            await paste(chat, "x" * 30_000)
            await chat.sees(f"pasted-{number}.txt")
        assert attached(chat) == ["pasted-1.txt", "pasted-2.txt", "pasted-3.txt"]


async def test_a_long_paste_has_no_control_characters() -> None:
    async with Chat() as chat:
        await paste(chat, "\x1b[31mred\x07 \u202eback\n" * 10_000)
        await chat.wait(lambda: attached(chat))
        # Direction controls are sent as typed.
        text = "red \u202eback\n" * 10_000
        assert chat.screen.session.pending_attachments[0].text == text


async def test_enter_waits_for_a_paste_that_is_being_attached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting: list[Callable[[], None]] = []
    monkeypatch.setattr(
        composer, "run_on_thread", lambda _, __, work, **___: waiting.append(work)
    )
    async with Chat() as chat:
        await paste(chat, "x" * 30_000)
        await typed(chat, "what is it?")
        await chat.press("enter")
        assert chat.typed == "what is it?"
        assert not chat.questions
        waiting[0]()
        await chat.wait(lambda: attached(chat))
        await chat.press("enter")
        await chat.until("ready")
        assert len(chat.questions) == 1


@pytest.mark.parametrize("how", ["edit", "restore", "draft"])
async def test_a_long_text_from_elsewhere_becomes_a_file_too(how: str) -> None:
    """Such as a question of a chat that an earlier version saved."""
    async with Chat() as chat:
        if how == "edit":
            chat.screen.composer.edit_text("x" * 30_000)
        elif how == "restore":
            chat.screen.composer.restore_text("x" * 30_000)
        else:
            chat.screen.composer.replace_text("x" * 30_000)
        await chat.wait(lambda: attached(chat))
        assert attached(chat) == ["message-1.txt"]
        assert chat.typed == ""


async def test_a_long_paste_into_a_field_of_one_line_is_cut() -> None:
    async with home_app() as home:
        await home.press("slash")
        home.app.post_message(Paste("x" * 1_000_000))
        await home.pilot.pause()
        assert len(home.home._search.value) == 2_000


async def test_the_size_of_a_message_counts_its_files_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At each key only what is typed is counted again."""
    async with Chat() as chat:
        await paste(chat, "word " * 20_000)
        await chat.wait(lambda: attached(chat))
        formatted: list[Turn] = []
        monkeypatch.setattr(session, "format_question", formatted.append)
        await typed(chat, "abc")
        assert not formatted
        n_tokens = chat.screen.session.estimate_tokens("abc")
    assert n_tokens >= 20_000


@pytest.mark.parametrize("n_lines", range(1, 11))
async def test_a_notification_covers_no_line_of_the_message(n_lines: int) -> None:
    async with Chat() as chat:
        await chat.pilot.resize_terminal(80, 24)
        chat.screen.composer.replace_text("\n".join(["a line"] * n_lines))
        chat.app.notify("A notice of two lines.\nThis is the second.", timeout=60)
        await chat.sees("This is the second")
        await settled(chat.pilot)
        rack = chat.screen.query_one("ToastRack").region
        typing = chat.screen.query_one("#typing").region
        assert typing.height == min(n_lines, 7) + 2
        assert rack.bottom <= typing.y


async def test_a_notification_covers_no_completion() -> None:
    async with Chat() as chat:
        await chat.pilot.resize_terminal(80, 24)
        chat.app.notify("A notice of two lines.\nThis is the second.", timeout=60)
        await chat.press("slash")
        await chat.sees("This is the second", "/model")
        await settled(chat.pilot)
        completions = chat.screen.composer.completions.region
        assert chat.screen.query_one("ToastRack").region.bottom <= completions.y
