"""The command palette finds every action by its ordinary words."""

from typing import Any

from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Input

from localspec.tui.screens.chat_settings import ChatSettingsScreen
from tests.support import scenes
from tests.support.app_driver import Chat
from tests.support.scenes import settled
from tests.support.scripted_engine import painted, wait_until

IN_A_CHAT = {
    "export": "Save the chat to a file",
    "temperature": "Setting: temperature",
    "system prompt": "Set the system prompt",
    "regenerate": "Regenerate the last answer",
    "delete": "Remove the last message",
    "speculation": "Setting: speculation",
    "draft": "Setting: max draft tokens",
    "copy": "Copy the last answer",
    "attach": "Attach a file",
    "benchmark": "Benchmark this pair",
    "branch": "Earlier turns",
    "incognito": "not saved",
    "statistics": "speculation panel",
    "reasoning": "thinking",
    "exit": "Quit",
    "theme": "Theme: localspec-light",
    "settings": "Preferences",
    "troubleshooting": "Diagnostics",
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
    """Sets all words at once: a search for each key would take most of the test's time."""
    if not CommandPalette.is_open(pilot.app):
        await pilot.press("ctrl+p")
        await wait_until(pilot, lambda: CommandPalette.is_open(pilot.app))
    palette = pilot.app.screen
    palette.query_one(Input).value = words
    await pilot.pause()
    await wait_until(
        pilot,
        lambda: not any(w.is_running and w.node is palette for w in palette.workers),
    )


async def expect_to_find(pilot: Pilot[Any], actions: dict[str, str]) -> None:
    for words, title in actions.items():
        await look_up(pilot, words)
        await wait_until(pilot, lambda title=title: title in painted(pilot.app.screen))  # type: ignore[misc]


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
