"""The command palette finds every action by its ordinary words."""

from typing import Any

import pytest
from textual.command import CommandList, CommandPalette
from textual.pilot import Pilot
from textual.widgets import Input

from localspec.tui import themes
from localspec.tui.screens.chat_settings import ChatSettingsScreen
from tests.support import scenes
from tests.support.app_driver import AppDriver, Chat
from tests.support.scenes import settled
from tests.support.scripted_engine import wait_until

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
    "statistics": "Speculation panel",
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

    def has_searched() -> bool:
        searches = [worker for worker in palette.workers if worker.node is palette]
        return not any(search.is_running for search in searches)

    await wait_until(pilot, has_searched)


async def expect_to_find(driver: AppDriver, actions: dict[str, str]) -> None:
    for words, title in actions.items():
        await look_up(driver.pilot, words)
        await driver.sees(title)


async def test_a_chats_actions_are_found_by_ordinary_words() -> None:
    async with Chat() as chat:
        await expect_to_find(chat, IN_A_CHAT)


async def test_homes_actions_are_found_by_ordinary_words() -> None:
    app = scenes.home()
    async with app.run_test(size=(80, 24)) as pilot:
        await scenes.surveyed(pilot)
        await expect_to_find(AppDriver(pilot), ON_HOME)


async def run_first_match(chat: Chat, words: str) -> None:
    await look_up(chat.pilot, words)
    await settled(chat.pilot)
    await chat.press("enter")
    await settled(chat.pilot)


async def test_a_setting_that_is_found_opens_the_sheet_at_its_field() -> None:
    async with Chat() as chat:
        await run_first_match(chat, "min")
        sheet = chat.top(ChatSettingsScreen)
        assert getattr(sheet.focused, "name", "") == "min_p"


async def test_a_command_that_needs_an_argument_waits_for_it() -> None:
    async with Chat() as chat:
        await run_first_match(chat, "export")
        await chat.wait(lambda: chat.typed == "/save ")


async def test_a_command_that_is_found_is_run() -> None:
    async with Chat() as chat:
        await chat.send("hi")
        await run_first_match(chat, "remove last")
        await chat.wait(lambda: not chat.questions)


async def find_first(chat: Chat, words: str) -> str:
    await look_up(chat.pilot, words)
    first = chat.app.screen.query_one(CommandList).get_option_at_index(0)
    return str(first.prompt).splitlines()[0]


async def test_each_theme_is_the_first_match_of_its_name() -> None:
    async with Chat() as chat:
        for name in themes.THEME_NAMES:
            assert await find_first(chat, name) == f"Theme: {name}"


@pytest.mark.parametrize("lightness", ["light", "dark"])
async def test_a_lightness_finds_the_own_theme_of_that_lightness(
    lightness: str,
) -> None:
    async with Chat() as chat:
        await run_first_match(chat, lightness)
        assert chat.app.theme == f"localspec-{lightness}"
