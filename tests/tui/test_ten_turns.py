"""A chat of ten turns in a real terminal: all edits are there after a restart."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

if shutil.which("tmux") is None:
    pytest.skip("there is no tmux", allow_module_level=True)

from localspec.chat.conversation import Conversation, Turn
from localspec.chat.history import ChatHistory, SavedChat
from localspec.protocol.events import GenerationFinished, Prefill
from tests.support.tmux import ENTER, ESCAPE, PROMPT, Tmux, context
from tests.tui.test_journeys import GREETING, ask, transcript

QUESTIONS = ("import os", "x = 1", "y = 2", "def f(n):", "class A:")
LONG = "class TestList(unittest.TestCase):"
"""A prompt with a long answer."""
SYSTEM = "# A module of small functions."
LAST = 11
"""The turn after the restart."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Tmux]:
    with Tmux((80, 24), tmp_path) as tmux:
        yield tmux


def kept(data: Path) -> SavedChat:
    """The saved chat, read while the app has it open."""
    with closing(ChatHistory.open(data / "chats" / "chats.sqlite")) as history:
        (listed,) = history.list_chats()
        return history.load_chat(listed.id)


# --- steps ------------------------------------------------------------------------------------


def command(tmux: Tmux, line: str, told: str) -> None:
    tmux.type(line)
    tmux.press(ENTER)
    tmux.wait_for(told)


def edit_the_third(tmux: Tmux, question: str) -> str:
    """Edits the third of four turns in the turns sheet."""
    tmux.press("F8")
    tmux.wait_for("enter edit")
    tmux.press("Up", ENTER)
    tmux.wait_for(lambda seen: f"│ {QUESTIONS[2]} " in seen and "enter edit" not in seen)

    def cleared(seen: str) -> bool:
        """The sheet may still have the keyboard, so the key is pressed again."""
        if f"│ {QUESTIONS[2]} " in seen:
            tmux.press("C-u")
            return False
        return True

    tmux.wait_for(cleared)
    return asked(tmux, question)


def asked(tmux: Tmux, question: str) -> str:
    """Asks; the context may become shorter."""
    before = tmux.screen.splitlines()[-1]
    tmux.type(question)
    tmux.press(ENTER)
    return tmux.wait_for(lambda seen: before not in seen and "first token" in seen)


def regenerate(tmux: Tmux) -> str:
    before = reused(tmux.screen)
    tmux.press("F5")
    return tmux.wait_for(lambda seen: reused(seen) not in (0, before) and "first token" in seen)


def stop_in_the_middle(tmux: Tmux, question: str) -> None:
    before = context(tmux.screen)
    tmux.type(question)
    tmux.press(ENTER)
    tmux.wait_for(lambda seen: context(seen) > before + 20)
    tmux.press(ESCAPE)
    tmux.wait_for(lambda seen: re.search(r"stopped in \d+ ms", seen))


def reused(screen: str) -> int:
    """Reused tokens, from the status bar."""
    found = re.search(r"reused (\d+)", screen)
    return int(found[1]) if found else 0


# --- what was read for it ---------------------------------------------------------------------


def read(turn: Turn) -> Prefill:
    """The last prefill event of a turn."""
    return [event for event in turn.events if isinstance(event, Prefill)][-1]


def known(conversation: Conversation, turn: Turn) -> int:
    """Tokens in the engine's cache when the turn was asked, without the last token."""
    if turn.parent is None:
        return 0
    before = conversation.turn(turn.parent)
    return read(before).total + len(before.tokens) - 1


def assert_only_what_is_new_was_read(conversation: Conversation, whole: set[int]) -> None:
    """Except for turns after a new system prompt or a restart."""
    for turn in conversation.all_turns:
        prefill, had = read(turn), known(conversation, turn)
        (end,) = [event for event in turn.events if isinstance(event, GenerationFinished)]
        assert end.totals["reused_tokens"] == prefill.reused
        if turn.id in whole:
            assert prefill.reused <= 1, turn.question  # the token that begins all texts
        else:
            assert prefill.reused >= had, turn.question
            assert prefill.total - prefill.reused <= len(turn.question) + 2, turn.question


# --- the journey ------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_ten_turns_and_all_of_it_is_there_next_time(shell: Tmux, tmp_path: Path) -> None:
    shell.run()
    shell.wait_for("Ready to run")
    shell.press(ENTER)
    shell.wait_for(GREETING)
    ten_turns(shell)
    before, first = leave_with(shell, tmp_path / "before.md")
    chat = kept(tmp_path)
    questions = [turn.question for turn in chat.conversation.turns]
    assert questions == [*QUESTIONS[:2], "z = 3", *QUESTIONS[3:], LONG, *QUESTIONS[1:]]
    assert chat.conversation.turns[5].finish_reason == "cancelled"
    assert len(chat.conversation.all_turns) == 13  # ten, and what the edit and f5 left behind
    shell.run()
    shell.wait_for("Recent chats")
    shell.press("Down", ENTER)
    shell.wait_for(lambda seen: transcript(seen) == transcript(before) and "ctx" in seen)
    assert shell.screen.splitlines()[0].split() == before.splitlines()[0].split()
    _, again = leave_with(shell, tmp_path / "after.md")
    assert again == first
    assert kept(tmp_path).conversation.all_turns == chat.conversation.all_turns
    go_on(shell)
    shell.press("C-q")
    shell.wait_for(PROMPT.strip())
    conversation = kept(tmp_path).conversation
    assert conversation.all_turns[: len(chat.conversation.all_turns)] == chat.conversation.all_turns
    assert conversation.system == SYSTEM
    renewed, resumed = conversation.turns[4], conversation.turns[10]
    assert resumed.question == "and so"
    assert_only_what_is_new_was_read(conversation, {1, renewed.id, resumed.id})


def ten_turns(tmux: Tmux) -> None:
    command(tmux, "/set max_tokens 24", "max_tokens: 24")
    contexts = [context(ask(tmux, question)) for question in QUESTIONS[:4]]
    assert reused(tmux.screen) >= contexts[2] - 1
    for seen in (edit_the_third(tmux, "z = 3"), regenerate(tmux)):
        assert reused(seen) >= contexts[1] - 1
    ask(tmux, QUESTIONS[3])
    command(tmux, f"/system {SYSTEM}", "System prompt: # A module")
    command(tmux, "/spec off", "spec: off")
    asked(tmux, QUESTIONS[4])
    command(tmux, "/stats", "turned off")
    assert "OFF" in tmux.screen
    command(tmux, "/stats", "first token")
    command(tmux, "/spec auto", "spec: auto")
    command(tmux, "/set max_tokens 900", "max_tokens: 900")
    stop_in_the_middle(tmux, LONG)
    command(tmux, "/set max_tokens 24", "max_tokens: 24")
    for question in QUESTIONS[1:]:
        before = context(tmux.screen)
        assert reused(ask(tmux, question)) >= before - 1


def leave_with(tmux: Tmux, file: Path) -> tuple[str, str]:
    """Exports and quits; returns the last screen and the file."""
    tmux.wait_for("enter send")
    command(tmux, f"/export {file}", "Saved:")
    seen = tmux.wait_for(lambda seen: "Saved:" not in seen)
    tmux.press("C-q")
    tmux.wait_for(PROMPT.strip())
    return seen, file.read_text(encoding="utf-8")


def go_on(tmux: Tmux) -> None:
    tmux.run()
    tmux.wait_for("Recent chats")
    tmux.press("Down", ENTER)
    tmux.wait_for("ctx")
    asked(tmux, "and so")
    before = context(tmux.screen)
    assert reused(ask(tmux, "on")) >= before - 1
