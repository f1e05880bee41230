"""Preferences: the file on the screen, changed in place, and at once in use."""

from __future__ import annotations

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

from localspec import paths
from localspec.config import SETTINGS
from localspec.launch import ResolvedPair
from localspec.tui import app as tui_app
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.preferences import PreferencesScreen
from localspec.tui.terminal import AsciiFilter
from tests.support import scenes
from tests.support.app_driver import AppDriver
from tests.support.scenes import as_it_is, settled, surveyed
from tests.support.scripted_engine import Opening, ScriptedEngine, painted, ready, wait_until
from tests.support.welcomed import been_here


class Preferences(AppDriver):
    """The preferences, opened over Home."""

    def __init__(self, pilot: Pilot[Any], options: AppOptions) -> None:
        super().__init__(pilot)
        self.options = options

    @property
    def file(self) -> dict[str, Any]:
        path = paths.config_file()
        return tomllib.loads(path.read_text()) if path.exists() else {}

    async def go(self, key: str) -> None:
        """To a value."""
        self.app.screen.set_focus(next(w for w in self.app.screen.focus_chain if w.name == key))
        await self.pilot.pause()


@pytest.fixture(autouse=True)
def started_before() -> None:
    been_here(paths.data_dir())


@asynccontextmanager
async def preferences(
    text: str | None = None, flags: dict[str, str] | None = None, *, notifications: bool = False
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


async def test_each_value_has_its_words_its_keys_and_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a text field the arrows move the cursor; what an option sets cannot be changed."""
    monkeypatch.setenv("LOCALSPEC_DOWNLOADS_LIMIT", "3")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    flags = {"HF_HUB_OFFLINE": "--offline"}
    async with preferences("[chats]\nkeep = false\n", flags) as page:
        for words in (
            "theme ‹ localspec-dark › default",
            "save chats off config.toml",
            "offline mode on --offline",
            "download limit (MB/s) 3 LOCALSPEC_DOWNLOADS_L",
            'screen.theme = "localspec-dark"',
            "keyboard shortcuts default",
        ):
            assert words in page.shown
        assert str(paths.config_file())[-20:] in page.shown and "←→ change" in page.shown
        for key in ("answers.temperature", "keys", "network.offline"):
            await page.go(key)
            assert "←→ change" not in page.shown
        await page.go("downloads.limit")
        await page.press("right", "enter")
        assert "LOCALSPEC_DOWNLOADS_LIMIT overrides the file" in page.shown
        assert "limit" not in paths.config_file().read_text()


async def test_a_choice_is_in_the_file_and_on_the_screen_at_once() -> None:
    async with preferences("# mine\n") as page:
        await page.press("right")
        assert page.app.theme == "localspec-light"
        assert paths.config_file().read_text().startswith("# mine\n")
        assert page.file["screen"]["theme"] == "localspec-light"
        assert "‹ localspec-light › config.toml" in page.shown
        await page.press("left", "left", "left")
        assert page.app.theme == "monochrome" and page.app.has_class("-mono")
        await page.press("f5")
        assert page.app.theme == "localspec-dark" and not page.app.has_class("-mono")
        assert page.file == {"screen": {}}
        await page.go("screen.ascii")
        await page.press("space")
        assert any(isinstance(one, AsciiFilter) for one in page.app.get_line_filters())
        assert "< on >" in page.shown
        await page.press("enter")
        assert "‹ off ›" in page.shown


async def test_a_text_is_taken_over_where_one_leaves_it_and_a_wrong_one_is_not() -> None:
    async with preferences() as page:
        await page.go("downloads.limit")
        await page.press(*"fast")
        assert "downloads.limit must be a number of MB/s above 0" in page.shown
        await page.press("enter")
        assert page.file == {} and page.options.download_limit is None
        await page.go("downloads.limit")
        assert "fast" in page.shown
        await page.press("2", ",", "5", "up")
        assert page.file == {"downloads": {"limit": 2.5}}
        assert page.options.download_limit == 2.5e6
        assert "2.5 config.toml" in page.shown and "must be" not in page.shown
        await page.press("down", "delete", "tab")  # all of it is selected
        assert page.file == {"downloads": {}} and page.options.download_limit is None
        await page.go("downloads.limit")
        await page.press("7", "escape")  # what was written last is taken over
        await page.reaches(HomeScreen)
        assert page.file == {"downloads": {"limit": 7}}


async def test_a_folder_must_be_there(tmp_path: Path) -> None:
    async with preferences() as page:
        await page.go("models.folder")
        field = page.app.focused
        assert isinstance(field, Input)
        field.value = str(tmp_path / "nowhere")
        await page.press("enter")
        assert "There is no folder" in page.shown and page.file == {}
        await page.go("models.folder")
        field.value = str(tmp_path)
        await page.press("enter")
        assert page.file == {"models": {"folder": str(tmp_path)}}


async def test_other_computers_are_for_the_next_model() -> None:
    async with preferences() as page:
        await page.go("run.workers")
        await page.press(*"a,b,c")
        assert "run.workers must be one or two computers" in page.shown
        await page.press(*["backspace"] * 2, "enter")
        assert page.file == {"run": {"workers": "a,b"}}
        request = page.options.build_load_request(ResolvedPair(Path("t"), Path("d")))
    load = request.load
    assert load.target_settings.workers == ("a:50052", "b:50052")
    assert load.draft_settings.workers == ()
    assert request.can_skip_workers


async def test_a_damaged_file_starts_with_everything_as_it_comes_and_is_left_alone() -> None:
    damaged = "[screen]\ntheme = \n# precious\n"
    paths.config_file().write_text(damaged)
    options = tui_app.load_options()
    app = scenes.home(options)
    async with app.run_test(size=(100, 40)) as pilot:
        await surveyed(pilot)
        assert app.theme == "localspec-dark"
        assert "config.toml:2:9: invalid value. Using the defaults" in painted(app.screen)
        page = Preferences(pilot, options)
        await page.press("f10", "right")
        assert "Nothing was changed" in page.shown
        assert paths.config_file().read_text() == damaged
        paths.config_file().write_text("[screen]\ntheme = 'high-contrast'\n")  # mended elsewhere
        await page.press("right", "escape")
        await settled(pilot)
        assert page.file["screen"]["theme"] != "high-contrast"  # the next after it
        assert "config.toml:" not in painted(app.screen)


async def test_unknown_keys_are_said_in_the_banner() -> None:
    async with preferences("[screen]\ntehme = 'x'\n[keys]\n'chat.sned' = 'f9'\n") as page:
        assert "unknown setting screen.tehme; did you mean screen.theme?" in page.shown
        assert "did you mean keys.chat.send?" in page.shown
        await page.press("escape")
        assert "did you mean screen.theme? And 1 more. f10 shows the details." in page.shown


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


# --- keys -----------------------------------------------------------------------------------------


async def test_keys_of_the_file_count_when_the_editor_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edited = edit_with(monkeypatch, "[keys]\n'home.wizard' = 'z'\n")
    async with preferences() as page:
        await page.go("keys")
        await page.press("enter")
        assert edited == [paths.config_file()] and "1 changed" in page.shown
        await page.press("escape")
        await page.reaches(HomeScreen)
        await settled(page.pilot)
        assert "z wizard" in page.shown and "w wizard" not in page.shown
        await page.press("w")
        assert page.is_on(HomeScreen)
        await page.press("z")
        assert not page.is_on(HomeScreen)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("'home.wizard' = 'enter'", "keys.home.wizard: enter is needed for the list."),
        ("'chat.panel' = 'p'", "keys.chat.panel: p is needed for typing."),
        ("'home.wizard' = 'y'\n'home.open' = 'y'", "y is also bound to keys.home.open."),
        ("'home.wizard' = 'nothing'", "There is no key called 'nothing'."),
        ("'home.wizard' =", "config.toml:2:"),
    ],
)
async def test_wrong_keys_are_said_and_the_old_ones_stay(
    text: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_with(monkeypatch, f"[keys]\n{text}\n")
    async with preferences("[keys]\n'home.wizard' = 'z'\n") as page:
        await page.go("keys")
        await page.press("enter")
        assert why in page.shown
        assert page.options.keymap == {"home.wizard": "z"}
        edit_with(monkeypatch, "[keys]\n'home.wizard' = 'x'\n")
        await page.press("enter")
        assert why not in page.shown
        assert page.options.keymap == {"home.wizard": "x"}


async def test_without_an_editor_it_says_where_the_file_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edit_with(monkeypatch, "")
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    async with preferences(notifications=True) as page:
        await page.go("keys")
        await page.press("enter")
        assert "No editor found. Set VISUAL or EDITOR. The file is" in page.shown


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


# --- in use ---------------------------------------------------------------------------------------


@asynccontextmanager
async def chatting(text: str) -> AsyncIterator[Preferences]:
    """Home, with the demo opened in a chat that waits for its first question."""
    paths.config_file().write_text(text)
    options = tui_app.load_options()
    loaded = ready(chats=True, thinking=("<think>", "</think>"))
    engines = [ScriptedEngine(scenes.thought, scenes.thought, ready=loaded)]
    runner = EngineRunner(Opening(engines))
    app = LocalspecApp(
        options, runner, lambda: HomeScreen(runner, options, MachineSurvey, None, as_it_is)
    )
    async with app.run_test(size=(110, 40)) as pilot:
        await settled(pilot)
        await pilot.press("enter")
        await scenes.opened(pilot)
        yield Preferences(pilot, options)


async def test_a_new_chat_is_as_it_was_wished() -> None:
    text = "[chats]\nshow_thinking = true\noverflow = 'drop'\nkeep = false\n"
    text += "[answers]\nspec = 'lookup'\ntemperature = 0.1\noverlap = 'off'\n"
    async with chatting(text) as page:
        chosen = page.screen.session.settings
        assert (chosen.spec, chosen.sampling.temperature) == ("lookup", 0.1)
        assert (chosen.overflow, chosen.show_thinking) == ("drop", True)
        choice = page.screen.session.pair
        assert page.options.build_load_request(choice).load.overlap is False
        assert "not saved" in page.shown
        await scenes.asking()(page.pilot)
        assert "They ask about lists." in page.shown  # what it thought, unfolded
        await page.press("ctrl+t")
        assert "They ask about lists." not in page.shown
        assert not page.screen.session.settings.show_thinking


async def test_over_a_chat_the_answer_goes_on_and_new_keys_count_there_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edit_with(monkeypatch, "[keys]\n'chat.send' = 'alt+s'\n")
    async with chatting("") as page:
        await page.press("f10")
        assert page.is_on(PreferencesScreen)
        await page.press("f10")  # one is enough
        assert len([one for one in page.app.screen_stack if one is page.app.screen]) == 1
        await page.go("keys")
        await page.press("enter")
        await page.go("chats.keep")
        await page.press("right", "escape")
        await page.reaches(ChatScreen)
        await page.press("a", "enter")
        assert page.screen.composer.text == "a\n"  # enter sends no more
        assert page.screen.session.recorder.is_saving  # this one was begun before
        await page.press("ctrl+n")
        assert not page.screen.session.recorder.is_saving


async def test_downloads_heed_it_at_once() -> None:
    async with preferences() as page:
        home = page.app.screen_stack[-2]
        assert isinstance(home, HomeScreen)
        hub = home._downloads.hub
        assert not hub.offline
        await page.go("network.offline")
        await page.press("right")
        assert hub.offline
        await page.press("right")
        assert not hub.offline
