"""Preferences: the file on the screen, changed in place, and at once in use."""

import subprocess
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input
from textual.widgets._toast import Toast

from localspec import paths
from localspec.config import SETTINGS
from localspec.config.options import THEMES
from localspec.tui import app as tui_app
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.preferences import PreferencesScreen
from localspec.tui.terminal import AsciiFilter
from tests.support import scenes
from tests.support.app_driver import AppDriver
from tests.support.run_command import been_here
from tests.support.scenes import settled, surveyed
from tests.support.scripted_engine import Opening, ScriptedEngine, ready, wait_until


class Preferences(AppDriver):
    def __init__(self, pilot: Pilot[Any], options: AppOptions) -> None:
        super().__init__(pilot)
        self.options = options

    @property
    def file(self) -> dict[str, Any]:
        path = paths.config_file()
        return tomllib.loads(path.read_text()) if path.exists() else {}

    async def go(self, key: str) -> None:
        self.app.screen.set_focus(
            next(w for w in self.app.screen.focus_chain if w.name == key)
        )
        await self.pilot.pause()


@pytest.fixture(autouse=True)
def started_before() -> None:
    been_here(paths.data_dir())


@asynccontextmanager
async def preferences(
    text: str | None = None,
    flags: dict[str, str] | None = None,
    *,
    notifications: bool = False,
) -> AsyncIterator[Preferences]:
    if text is not None:
        paths.config_file().write_text(text)
    options = tui_app.load_options(flags)
    options.seed = 1
    app = scenes.home(options)
    async with app.run_test(size=(100, 40), notifications=notifications) as pilot:
        await surveyed(pilot)
        await pilot.press("f10")
        await wait_until(pilot, lambda: isinstance(app.screen, PreferencesScreen))
        await pilot.pause()
        yield Preferences(pilot, options)


OFFLINE_FLAG = {"HF_HUB_OFFLINE": "--offline"}


@pytest.fixture
def set_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two values do not come from the file: a limit, and an option of the command."""
    monkeypatch.setenv("LOCALSPEC_DOWNLOADS_LIMIT", "3")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


async def test_each_value_has_its_words_and_where_it_comes_from(
    set_elsewhere: None,
) -> None:
    async with preferences("[chats]\nkeep = false\n", OFFLINE_FLAG) as page:
        for words in (
            "theme ‹ localspec-dark › default",
            "save chats off config.toml",
            "offline mode on --offline",
            "download limit (MB/s) 3 LOCALSPEC_DOWNLOADS_L",
            'screen.theme = "localspec-dark"',
            "keyboard shortcuts default",
        ):
            await page.sees(words)
        assert str(paths.config_file())[-20:] in page.shown


async def test_arrows_are_offered_only_where_they_change_something(
    set_elsewhere: None,
) -> None:
    """They move the cursor of a text field."""
    async with preferences(flags=OFFLINE_FLAG) as page:
        assert "←→ change" in page.shown
        for key in ("answers.temperature", "keys", "network.offline"):
            await page.go(key)
            assert "←→ change" not in page.shown


async def test_what_a_variable_sets_cannot_be_changed(set_elsewhere: None) -> None:
    async with preferences("[chats]\nkeep = false\n") as page:
        await page.go("downloads.limit")
        await page.press("right", "enter")
        await page.sees("LOCALSPEC_DOWNLOADS_LIMIT overrides the file")
        assert "limit" not in paths.config_file().read_text()


async def test_a_choice_is_in_the_file_and_on_the_screen_at_once() -> None:
    async with preferences("# mine\n") as page:
        await page.press("right")
        assert page.app.theme == "localspec-light"
        assert paths.config_file().read_text().startswith("# mine\n")
        assert page.file["screen"]["theme"] == "localspec-light"
        await page.sees("‹ localspec-light › config.toml")


async def test_a_choice_before_the_first_is_the_last() -> None:
    async with preferences() as page:
        await page.press("left")
        assert page.app.theme == THEMES[-1]


async def test_monochrome_marks_rows_without_colour() -> None:
    async with preferences() as page:
        await page.press(*["right"] * THEMES.index("monochrome"))
        assert page.app.theme == "monochrome"
        assert page.app.has_class("-mono")


async def test_f5_takes_a_value_out_of_the_file() -> None:
    async with preferences("[screen]\ntheme = 'monochrome'\n") as page:
        assert page.app.has_class("-mono")
        await page.press("f5")
        assert page.app.theme == "localspec-dark"
        assert not page.app.has_class("-mono")
        assert page.file == {"screen": {}}


async def test_symbols_of_ascii_are_drawn_at_once() -> None:
    async with preferences() as page:
        await page.go("screen.ascii")
        await page.press("space")
        assert any(isinstance(one, AsciiFilter) for one in page.app.get_line_filters())
        await page.sees("< on >")
        await page.press("enter")
        await page.sees("‹ off ›")


async def test_the_hub_is_offline_as_soon_as_it_is_chosen() -> None:
    async with preferences() as page:
        home = page.app.screen_stack[-2]
        assert isinstance(home, HomeScreen)
        hub = home._downloads.hub
        assert not hub.offline
        await page.go("network.offline")
        for is_offline in (True, False):
            await page.press("right")
            assert hub.offline == is_offline


@pytest.mark.parametrize(
    ("key", "wrong", "why", "right", "value"),
    [
        ("downloads.limit", "fast", "must be a number of MB/s above 0", "2,5", 2.5),
        ("models.folder", "{}/nowhere", "There is no folder", "{}", "{}"),
    ],
)
async def test_a_text_is_taken_over_where_one_leaves_it_and_a_wrong_one_is_not(
    key: str, wrong: str, why: str, right: str, value: object, tmp_path: Path
) -> None:
    section, name = key.split(".")
    value = value.format(tmp_path) if isinstance(value, str) else value
    async with preferences() as page:
        await page.go(key)
        field = page.app.focused
        assert isinstance(field, Input)
        field.value = wrong.format(tmp_path)
        if key != "models.folder":  # which may be half typed
            await page.sees(why)
        await page.press("enter")
        await page.sees(why)
        assert page.file == {} and page.options.download_limit is None
        await page.go(key)
        assert field.value == wrong.format(tmp_path)
        field.value = right.format(tmp_path)
        await page.press("up")
        assert page.file == {section: {name: value}} and why not in page.shown
        await page.sees("config.toml")
        if key == "downloads.limit":
            assert page.options.download_limit == 2.5e6
        await page.press("down", "delete", "tab")  # all of it is selected
        assert page.file == {section: {}} and page.options.download_limit is None
        await page.go(key)
        field.value = right.format(tmp_path)
        await page.press("escape")  # what was written last is taken over
        await page.reaches(HomeScreen)
        assert page.file == {section: {name: value}}


async def test_unknown_keys_are_said_here_and_at_home() -> None:
    async with preferences(
        "[screen]\ntehme = 'x'\n[keys]\n'chat.sned' = 'f9'\n"
    ) as page:
        await page.sees("unknown setting screen.tehme; did you mean screen.theme?")
        await page.sees("did you mean keys.chat.send?")
        await page.press("escape")
        await page.sees("did you mean screen.theme? And 1 more. f10 shows the details.")


DAMAGED_FILE = "[screen]\ntheme = \n# precious\n"


@asynccontextmanager
async def damaged_preferences() -> AsyncIterator[Preferences]:
    """Home, after a start with a file that cannot be read."""
    paths.config_file().write_text(DAMAGED_FILE)
    options = tui_app.load_options()
    async with scenes.home(options).run_test(size=(100, 40)) as pilot:
        await surveyed(pilot)
        yield Preferences(pilot, options)


async def test_a_damaged_file_is_named_and_left_alone() -> None:
    async with damaged_preferences() as page:
        assert page.app.theme == "localspec-dark"
        await page.sees("config.toml:2:9: invalid value. Using the defaults")
        await page.press("f10", "right")
        await page.sees("Nothing was changed")
        assert paths.config_file().read_text() == DAMAGED_FILE


async def test_a_file_that_was_repaired_elsewhere_is_changed_again() -> None:
    async with damaged_preferences() as page:
        await page.press("f10", "right")
        await page.sees("Nothing was changed")
        paths.config_file().write_text("[screen]\ntheme = 'high-contrast'\n")
        await page.press("right", "escape")
        await settled(page.pilot)
        assert page.file["screen"]["theme"] != "high-contrast"  # the next after it
        await page.wait(lambda: "config.toml:" not in page.shown)


async def test_arrows_and_tab_lead_to_every_value_and_round() -> None:
    async with preferences() as page:
        reached = []
        for key in islice(cycle(("down", "tab")), len(SETTINGS) + 1):
            reached.append(str(getattr(page.app.focused, "name", "")))
            await page.press(key)
        assert reached == [*SETTINGS, "keys"]
        assert page.app.focused is not None and page.app.focused.name == reached[0]
        await page.press("up", "shift+tab")
        assert page.app.focused.name == reached[-2]


WRONG_KEYS = {
    "'home.wizard' = 'enter'": "keys.home.wizard: enter is needed for the list.",
    "'home.wizard' = 'y'\n'home.open' = 'y'": "y is also bound to keys.home.open.",
    "'home.wizard' =": "config.toml:2:",
}


def read_notifications(page: AppDriver) -> str:
    """Their text, without that of the page, which is beside them."""
    toasts = page.app.screen.query(Toast)
    return " ".join(str(toast.render()) for toast in toasts)


async def test_without_an_editor_the_file_with_the_keys_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with preferences("[keys]\n'home.wizard' = 'x'\n", notifications=True) as page:
        await page.go("keys")
        monkeypatch.setenv("PATH", "")
        for name in ("VISUAL", "EDITOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(LocalspecApp, "suspend", lambda _: nullcontext())
        await page.press("enter")
        words = "No editor found. Set VISUAL or EDITOR. The file is"
        await page.wait(lambda: words in read_notifications(page))


@pytest.mark.parametrize("text", WRONG_KEYS)
async def test_wrong_keys_of_the_file_are_said_and_change_nothing(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with preferences("[keys]\n'home.wizard' = 'x'\n", notifications=True) as page:
        await page.go("keys")
        edit_with(monkeypatch, f"[keys]\n{text}\n")
        await page.press("enter")
        await page.sees(WRONG_KEYS[text])
        assert page.options.keymap == {"home.wizard": "x"}


async def test_keys_of_the_file_count_when_the_editor_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with preferences("[keys]\n'home.wizard' = 'x'\n", notifications=True) as page:
        await page.go("keys")
        wrong, why = next(iter(WRONG_KEYS.items()))
        edit_with(monkeypatch, f"[keys]\n{wrong}\n")
        await page.press("enter")
        await page.sees(why)
        edited = edit_with(monkeypatch, "[keys]\n'home.wizard' = 'z'\n")
        await page.press("enter")
        page.app.clear_notifications()
        assert edited == [paths.config_file()]
        assert "1 changed" in page.shown
        await page.wait(lambda: why not in page.shown)
        await page.press("escape")
        await page.reaches(HomeScreen)
        await settled(page.pilot)
        assert "z wizard" in page.shown
        assert "w wizard" not in page.shown
        await page.press("w")
        assert page.is_on(HomeScreen)
        await page.press("z")
        assert not page.is_on(HomeScreen)


def edit_with(monkeypatch: pytest.MonkeyPatch, text: str) -> list[Path]:
    """An editor that writes this text; what it was opened with."""
    opened: list[Path] = []

    def edit(command: Sequence[str], **_: Any) -> None:
        opened.append(Path(command[-1]))
        opened[-1].write_text(text)

    monkeypatch.setenv("EDITOR", "ed")
    monkeypatch.setattr(subprocess, "run", edit)
    monkeypatch.setattr(LocalspecApp, "suspend", lambda _: nullcontext())
    return opened


@asynccontextmanager
async def chatting(text: str) -> AsyncIterator[Preferences]:
    """Home, with the demo opened in a chat that waits for its first question."""
    paths.config_file().write_text(text)
    options = tui_app.load_options()
    loaded = ready(chats=True, thinking=("<think>", "</think>"))
    engines = [ScriptedEngine(scenes.thought, scenes.thought, ready=loaded)]
    app = scenes.home(options, None, MachineSurvey, opening=Opening(engines))
    async with app.run_test(size=(110, 40)) as pilot:
        await settled(pilot)
        await pilot.press("enter")
        await scenes.opened(pilot)
        yield Preferences(pilot, options)


async def test_a_new_chat_is_as_it_was_wished() -> None:
    text = "[chats]\nshow_thinking = true\noverflow = 'drop'\nkeep = false\n"
    text += "[answers]\nspec = 'lookup'\ntemperature = 0.1\n"
    async with chatting(text) as page:
        chosen = page.screen.session.settings
        assert (chosen.spec, chosen.sampling.temperature) == ("lookup", 0.1)
        assert (chosen.overflow, chosen.show_thinking) == ("drop", True)
        await page.sees("not saved")
        await scenes.asking()(page.pilot)
        await page.sees("They ask about lists.")  # what it thought, unfolded
        await page.press("ctrl+t")
        assert "They ask about lists." not in page.shown
        assert not page.screen.session.settings.show_thinking


async def test_over_a_chat_the_preferences_open_once() -> None:
    async with chatting("") as page:
        await page.press("f10")
        assert page.is_on(PreferencesScreen)
        await page.press("f10")
        screens = [one for one in page.app.screen_stack if one is page.app.screen]
        assert len(screens) == 1


async def test_new_keys_count_in_the_chat_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edit_with(monkeypatch, "[keys]\n'chat.send' = 'alt+s'\n'chat.tokens' = 'f8'\n")
    async with chatting("") as page:
        await page.press("f10")
        await page.go("keys")
        await page.press("enter", "escape")
        await page.reaches(ChatScreen)
        await page.press("a", "enter")
        assert page.screen.composer.text == "a\n"  # enter sends no more
        await page.sees("alt+s send")
        await page.press("f8")
        assert not page.screen.transcript.colours


async def test_chats_that_begin_later_are_saved_as_was_chosen() -> None:
    async with chatting("") as page:
        await page.press("f10")
        await page.go("chats.keep")
        await page.press("right", "escape")
        await page.reaches(ChatScreen)
        assert page.screen.session.recorder.is_saving  # this one was begun before
        await page.press("ctrl+n")
        assert not page.screen.session.recorder.is_saving


@pytest.mark.parametrize(
    ("value", "is_slow"), [("", True), ("false", False), ("true", True)]
)
def test_the_demo_is_slow_unless_the_preference_says_no(
    value: str, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_SCREEN_SLOW_MOTION", value)

    options = tui_app.load_options()

    assert options.demo_slow_motion == is_slow
    assert options.slow_motion == (value == "true")
