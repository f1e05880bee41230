"""The command palette finds every action by its ordinary words."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from textual.command import CommandPalette
from textual.events import Paste
from textual.pilot import Pilot
from textual.widgets import Input

from localspec.tui.screens.chat_settings import ChatSettingsScreen
from tests.support import scenes
from tests.support.scenes import settled
from tests.support.scripted_engine import painted, wait_until
from tests.tui import test_saved_chats as kept
from tests.tui.screens.test_chat import Chat

pytestmark = pytest.mark.asyncio

IN_A_CHAT = {
    "export": "Save the chat to a file",
    "temperature": "Setting: temperature",
    "system prompt": "Set the system prompt",
    "instructions": "Set the system prompt",
    "regenerate": "Regenerate the last answer",
    "retry": "Regenerate the last answer",
    "delete": "Remove the last message",
    "undo": "Remove the last message",
    "speculation": "Setting: speculation",
    "draft": "Setting: max draft tokens",
    "copy": "Copy the last answer",
    "clipboard": "Copy the last answer",
    "attach": "Attach a file",
    "upload": "Attach a file",
    "benchmark": "Benchmark this pair",
    "branch": "Earlier turns",
    "incognito": "not saved",
    "statistics": "speculation panel",
    "reasoning": "thinking",
    "exit": "Quit",
    "theme": "Theme: localspec-light",
    "dark": "Theme: localspec-dark",
    "settings": "Preferences",
    "troubleshooting": "Diagnostics",
    "model": "model",
    "context": "when the context is full",
}
ON_HOME = {
    "download": "Find a pair for this computer",
    "delete": "Delete the chat",
    "verify": "does not change the output",
    "gguf": "Open model files",
    "search": "Search pairs",
}


async def look_up(pilot: Pilot[Any], words: str) -> None:
    """Pastes the words: a search for each key would take most of the test's time."""
    await pilot.press("ctrl+p")
    await wait_until(pilot, lambda: CommandPalette.is_open(pilot.app))
    palette = pilot.app.screen
    field = palette.query_one(Input)
    field.post_message(Paste(words))
    await wait_until(pilot, lambda: field.value == words)
    await wait_until(
        pilot, lambda: not any(w.is_running and w.node is palette for w in palette.workers)
    )


def is_painted(pilot: Pilot[Any], text: str) -> bool:
    return text in painted(pilot.app.screen)


async def expect_to_find(pilot: Pilot[Any], actions: dict[str, str]) -> None:
    """The palette shows these titles for these words."""
    for words, title in actions.items():
        await look_up(pilot, words)
        await wait_until(pilot, partial(is_painted, pilot, title))
        await pilot.press("escape")
        await wait_until(pilot, lambda: not CommandPalette.is_open(pilot.app))


async def test_a_chats_actions_are_found_by_ordinary_words() -> None:
    async with Chat() as chat:
        await expect_to_find(chat.pilot, IN_A_CHAT)


async def test_homes_actions_are_found_by_ordinary_words() -> None:
    app = scenes.home()
    async with app.run_test(size=(80, 24)) as pilot:
        await scenes.surveyed(pilot)
        await expect_to_find(pilot, ON_HOME)


async def test_what_is_found_is_done() -> None:
    """A setting opens at its field; a command that needs words waits for them."""
    async with Chat() as chat:
        await chat.send("hi")

        async def run(words: str) -> None:
            await look_up(chat.pilot, words)
            await settled(chat.pilot)
            await chat.press("enter")
            await settled(chat.pilot)

        await run("min")
        assert isinstance(chat.app.screen, ChatSettingsScreen)
        assert getattr(chat.app.screen.focused, "name", "") == "min_p"
        await chat.press("escape")
        await run("export")
        await wait_until(chat.pilot, lambda: chat.typed == "/save ")
        await run("remove last")
        await wait_until(chat.pilot, lambda: not chat.questions)


# --- titles and matches -----------------------------------------------------------------------


async def test_a_renamed_chat_has_its_new_title_everywhere() -> None:
    async with kept.app() as one:
        await one.press("enter")
        await one.until("ready")
        await one.send("first words")
        await one.press("escape")
        chat_id = one.history.find_last_id()
        one.history.rename_chat(chat_id, "A better title")
        await one.press("w", "escape")
        one.home.fill_list()
        await settled(one.pilot)
        assert "A better title" in one.shown
        await one.press("down", "enter")
        await one.until("ready")
        assert "A better title" in one.shown
        await one.send("more")
        assert "A better title" in one.shown
    async with kept.app() as again:
        await again.press("down", "enter")
        await again.until("ready")
        assert "A better title" in again.shown


async def test_a_search_hit_opens_at_the_match() -> None:
    """Also on a branch that was not shown."""
    async with kept.app() as one:
        await one.press("enter")
        await one.until("ready")
        await one.send("the marmalade question")
        await one.press("f6")
        await one.send("another way")
        for n in range(12):
            await one.send(f"filler {n}")
        assert "marmalade" not in one.shown.split("filler")[1]
        await one.press("escape", "slash", *"marmalade")
        await wait_until(one.pilot, lambda: "In your chats" in one.shown)
        await one.press("enter")
        await one.until("ready")
        assert "the marmalade question" in one.shown


async def test_show_names_model_and_context() -> None:
    async with Chat() as chat:
        await chat.send("hi")
        await chat.send("/show")
        assert "qwen3-8b + qwen3-0.6b" in chat.shown
        assert "context: 28 of 8,192 tokens" in chat.shown


# --- key lines --------------------------------------------------------------------------------


def hints(chat: Chat) -> set[str]:
    """Of the last line."""
    line = chat.app.screen._compositor.render_strips()[-1].text
    return {hint.strip() for hint in line.split("  ") if hint.strip()}


async def test_key_lines_are_not_cut_in_the_middle_of_a_word() -> None:
    async with Chat() as chat:
        await chat.send("hi")
        for keys in ((), ("f2",), ("escape", "f7")):
            await chat.press(*keys)
            await chat.pilot.resize_terminal(300, 24)
            await settled(chat.pilot)
            whole = hints(chat)
            for width in (40, 60, 80):
                await chat.pilot.resize_terminal(width, 24)
                await settled(chat.pilot)
                assert hints(chat) and hints(chat) <= whole
