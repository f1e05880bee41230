"""The linear chat with tools: a person is asked, sees results, and turns tools off."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.zoo import RESULT_TEXT, Zoo

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

from tests.support.dialogue import Dialogue

ASKED = "say why:"
TEA = "Green is best."
GREEDY = ("--temperature", "0", "--spec", "lookup")
CTRL_C = "\x03"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "notes"
    made.mkdir()
    (made / "tea").write_text(f"{TEA}\nBlack is good.\n", encoding="utf-8")
    return made


@pytest.fixture
def chat(zoo: Zoo, folder: Path, tmp_path: Path) -> Iterator[Dialogue]:
    data = {
        "LOCALSPEC_DATA_DIR": str(tmp_path / "data"),
        "LOCALSPEC_CONFIG": str(tmp_path / "config.toml"),
    }
    words = ("run", zoo["reader"], *GREEDY, "--folder", folder)
    with Dialogue(*words, env=data) as dialogue:
        dialogue.until("\n> ")
        yield dialogue


def ask(chat: Dialogue) -> str:
    """Asks a question that the model answers with a call; returns what is asked."""
    chat.type("Which tea?\r")
    return chat.until(ASKED)


def test_five_calls_with_each_answer_to_the_question(chat: Dialogue) -> None:
    asked = ask(chat)
    assert "folder.read" in asked
    assert "path: tea" in asked
    once = chat.line("o")
    assert TEA in once
    assert RESULT_TEXT in once

    ask(chat)
    refused = chat.line("n I drink coffee")
    assert "refused" in refused
    assert TEA not in refused
    assert RESULT_TEXT in refused

    ask(chat)
    assert TEA in chat.line("c")

    allowed = chat.line("Which tea?")
    assert "folder.read  path: tea" in allowed
    assert "allowed in this chat" in allowed
    assert "May it?" not in allowed

    chat.line("/clear")
    ask(chat)
    assert TEA in chat.line("a")
    always = chat.line("Which tea?")
    assert "always allowed" in always

    assert "asked before each call" in chat.line("/tools ask folder.read")
    ask(chat)
    chat.line("n")


def test_a_result_is_folded_and_shown_whole_on_request(chat: Dialogue) -> None:
    ask(chat)
    folded = chat.line("o")
    assert "Black" not in folded.replace(f"{TEA} Black is good.", "")
    assert "/tools 1: all of it" in folded
    whole = chat.line("/tools 1")
    assert f"    {TEA}\n    Black is good." in whole
    assert "The chat has 1 call." in chat.line("/tools 2")


def test_a_retried_answer_after_a_call_is_listed_with_its_branches(
    chat: Dialogue,
) -> None:
    ask(chat)
    chat.line("o")
    assert "1.2" not in chat.line("/turns")
    chat.line("/retry")
    listed = chat.line("/turns")
    assert "  1.2  the answer after 1 result of tools  (2 of 2)" in listed
    assert "Branch 1 of turn 1.2: 1 turn." in chat.line("/turns 1.2 1")
    assert "(1 of 2)" in chat.line("/turns")


def test_tools_are_listed_and_turned_off(chat: Dialogue) -> None:
    listed = chat.line("/tools")
    assert "folder.read" in listed
    assert "on: Read lines of a text file" in listed
    assert "folder is off, from the next answer on." in chat.line("/tools off folder")
    assert "off: Read lines of a text file" in chat.line("/tools")
    assert "<tool_call>" in chat.line("Which tea?"), "no tool is offered"
    chat.line("/tools on folder.read")
    ask(chat)
    chat.line("n")
    assert "There is no tool" in chat.line("/tools off nothing")
    assert "/tools cannot be 'x'" in chat.line("/tools x")


def test_a_folder_is_changed_and_taken_away(chat: Dialogue, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert "can ask to read" in chat.line("/folder")
    assert f"search {other}" in chat.line(f"/folder {other}")
    ask(chat)
    assert "cannot be read" in chat.line("o")
    assert "can no longer read" in chat.line("/folder off")
    assert "The model can read no folder." in chat.line("/folder")
    assert "There is no folder" in chat.line(f"/folder {tmp_path}/nowhere")
    assert "The model can call no tools." in chat.line("/tools")


def test_a_new_chat_has_the_folder_of_the_command_line(
    chat: Dialogue, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    chat.line(f"/folder {other}")
    chat.line("/tools off folder.read")

    chat.line("/clear")
    assert str(other) in chat.line("/folder")
    chat.line("/new")

    assert str(folder) in chat.line("/folder")
    ask(chat)
    assert TEA in chat.line("o")


def test_ctrl_c_at_the_question_stops_the_answer(chat: Dialogue) -> None:
    ask(chat)
    chat.press(CTRL_C)
    stopped = chat.until("\n> ")
    assert "stopped" in stopped
    assert TEA not in stopped
    assert "folder.read" in chat.line("/tools")


def test_what_is_typed_ahead_allows_nothing(chat: Dialogue) -> None:
    chat.type("Which tea?\ro\ro\r")
    chat.until(ASKED)
    chat.type("n\r")
    rest = chat.until("\n> ")
    assert "refused" in rest


def test_an_answer_that_was_stopped_at_its_question_has_statistics(
    chat: Dialogue,
) -> None:
    ask(chat)
    chat.press(CTRL_C)
    chat.until("\n> ")
    assert "seed" in chat.line("/stats")
