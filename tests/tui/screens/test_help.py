"""The glossary in the app is the one in docs/glossary.md."""

from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.screens.help import GLOSSARY, HelpScreen
from tests.support import scenes
from tests.support.scripted_engine import painted


async def test_help_shows_every_term() -> None:
    app: LocalspecApp = scenes.home(AppOptions(seed=1))
    async with app.run_test(size=(120, 300)) as pilot:
        await scenes.surveyed(pilot)
        await pilot.press("f1")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        shown = painted(app.screen)
    headings = [shown.index(heading) for heading in ("Everywhere", "Slash commands", "Glossary")]
    assert headings == sorted(headings)
    for term, meaning in GLOSSARY.items():
        assert f"{term}: {meaning}" in shown


async def test_the_keys_of_the_screen_below_come_first() -> None:
    app: LocalspecApp = scenes.chat()
    async with app.run_test(size=(120, 300)) as pilot:
        await scenes.settled(pilot)
        await pilot.press("f1")
        await pilot.pause()
        shown = painted(app.screen)
    headings = [shown.index(heading) for heading in ("Message box", "Everywhere", "Wizard")]
    assert headings == sorted(headings)
