"""The glossary in the app is the one in docs/glossary.md."""

from collections.abc import Callable

import pytest

from localspec.tui.app import LocalspecApp
from localspec.tui.screens.help import GLOSSARY
from tests.support import scenes
from tests.support.scripted_engine import painted, wait_until


@pytest.mark.parametrize(
    ("make", "headings"),
    [
        (scenes.home, ("Everywhere", "Slash commands", "Glossary")),
        (scenes.chat, ("Message box", "Everywhere", "Wizard")),
    ],
)
async def test_help_shows_the_keys_of_the_screen_below_first_and_every_term(
    make: Callable[[], LocalspecApp], headings: tuple[str, ...]
) -> None:
    async with make().run_test(size=(120, 300)) as pilot:
        await scenes.settled(pilot)
        await pilot.press("f1")
        await wait_until(pilot, lambda: headings[-1] in painted(pilot.app.screen))
        shown = painted(pilot.app.screen)
    assert sorted(map(shown.index, headings)) == list(map(shown.index, headings))
    for term, meaning in GLOSSARY.items():
        assert f"{term}: {meaning}" in shown
