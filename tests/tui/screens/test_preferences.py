"""Preferences: the file on the screen, changed in place, and at once in use."""

from __future__ import annotations

import socket
import subprocess
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

from localspec import paths
from localspec.config import SETTINGS
from localspec.launch import ResolvedPair
from localspec.tui import app as tui_app
from localspec.tui import key_bindings
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.home_rows import MachineSurvey, refine_survey
from localspec.tui.key_bindings import KEY_BINDINGS
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.preferences import PreferencesScreen
from localspec.tui.terminal import AsciiFilter
from tests.machine.test_rpc import listening, status, worker
from tests.support import scenes
from tests.support.scenes import as_it_is, settled, surveyed
from tests.support.scripted_engine import Opening, ScriptedEngine, painted, ready, wait_until
from tests.support.welcomed import been_here

pytestmark = pytest.mark.asyncio


class Shown:
    """The preferences, opened over Home."""

    def __init__(self, pilot: Pilot[Any], options: AppOptions) -> None:
        self.pilot, self.options = pilot, options

    @property
    def app(self) -> LocalspecApp:
        assert isinstance(self.pilot.app, LocalspecApp)
        return self.pilot.app

    @property
    def words(self) -> str:
        return painted(self.app.screen)

    @property
    def file(self) -> dict[str, Any]:
        path = paths.config_file()
        return tomllib.loads(path.read_text()) if path.exists() else {}

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

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
) -> AsyncIterator[Shown]:
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
        yield Shown(pilot, options)


async def test_the_keys_are_those_of_the_focused_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a text field the arrows move the cursor; what an option sets cannot be changed."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    async with preferences(flags={"HF_HUB_OFFLINE": "--offline"}) as shown:
        assert "←→ change" in shown.words
        await shown.go("answers.temperature")
        assert "←→ change" not in shown.words and "enter save" in shown.words
        await shown.go("keys")
        assert "←→ change" not in shown.words and "enter edit" in shown.words
        await shown.go("network.offline")
        assert "←→ change" not in shown.words


async def test_each_value_has_its_words_and_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCALSPEC_DOWNLOADS_LIMIT", "3")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    flags = {"HF_HUB_OFFLINE": "--offline"}
    async with preferences("[chats]\nkeep = false\n", flags) as shown:
        for words in (
            "theme ‹ localspec-dark › default",
            "save chats off config.toml",
            "offline mode on --offline",
            "download limit (MB/s) 3 LOCALSPEC_DOWNLOADS_L",
            'screen.theme = "localspec-dark"',
            "keyboard shortcuts default",
        ):
            assert words in shown.words
        assert str(paths.config_file())[-20:] in shown.words
        await shown.go("downloads.limit")
        await shown.press("right", "enter")
        assert "LOCALSPEC_DOWNLOADS_LIMIT overrides the file" in shown.words
        assert "limit" not in paths.config_file().read_text()


async def test_a_choice_is_in_the_file_and_on_the_screen_at_once() -> None:
    async with preferences("# mine\n") as shown:
        await shown.press("right")
        assert shown.app.theme == "localspec-light"
        assert paths.config_file().read_text().startswith("# mine\n")
        assert shown.file["screen"]["theme"] == "localspec-light"
        assert "‹ localspec-light › config.toml" in shown.words
        await shown.press("left", "left", "left")
        assert shown.app.theme == "monochrome" and shown.app.has_class("-mono")
        await shown.press("f5")
        assert shown.app.theme == "localspec-dark" and not shown.app.has_class("-mono")
        assert shown.file == {"screen": {}}
        await shown.go("screen.ascii")
        await shown.press("space")
        assert any(isinstance(one, AsciiFilter) for one in shown.app.get_line_filters())
        assert "< on >" in shown.words
        await shown.press("enter")
        assert "‹ off ›" in shown.words


async def test_a_text_is_taken_over_where_one_leaves_it_and_a_wrong_one_is_not() -> None:
    async with preferences() as shown:
        await shown.go("downloads.limit")
        await shown.press(*"fast")
        assert "downloads.limit must be a number of MB/s above 0" in shown.words
        await shown.press("enter")
        assert shown.file == {} and shown.options.download_limit is None
        await shown.go("downloads.limit")
        assert "fast" in shown.words
        await shown.press("2", ",", "5", "up")
        assert shown.file == {"downloads": {"limit": 2.5}}
        assert shown.options.download_limit == 2.5e6
        assert "2.5 config.toml" in shown.words and "must be" not in shown.words
        await shown.press("down", "delete", "tab")  # all of it is selected
        assert shown.file == {"downloads": {}} and shown.options.download_limit is None
        await shown.go("downloads.limit")
        await shown.press("7", "escape")  # what was written last is taken over
        await wait_until(shown.pilot, lambda: isinstance(shown.app.screen, HomeScreen))
        assert shown.file == {"downloads": {"limit": 7}}


async def test_a_folder_must_be_there(tmp_path: Path) -> None:
    async with preferences() as shown:
        await shown.go("models.folder")
        field = shown.app.focused
        assert isinstance(field, Input)
        field.value = str(tmp_path / "nowhere")
        await shown.press("enter")
        assert "There is no folder" in shown.words and shown.file == {}
        await shown.go("models.folder")
        field.value = str(tmp_path)
        await shown.press("enter")
        assert shown.file == {"models": {"folder": str(tmp_path)}}


async def test_other_computers_are_for_the_next_model() -> None:
    async with preferences() as shown:
        await shown.go("run.workers")
        await shown.press(*"a,b,c")
        assert "run.workers must be one or two computers" in shown.words
        await shown.press(*["backspace"] * 2, "enter")
        assert shown.file == {"run": {"workers": "a,b"}}
        request = shown.options.build_load_request(ResolvedPair(Path("t"), Path("d")))
    load = request.load
    assert load.target_settings.workers == ("a:50052", "b:50052")
    assert load.draft_settings.workers == ()
    assert request.can_skip_workers


async def test_home_counts_the_other_computers_that_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = "{}:{}".format(*closed.getsockname())
    with listening(worker(status())) as address:
        survey = refine_survey(MachineSurvey("this computer", workers=(str(address), gone)))
    assert survey.machine_label.endswith(f" · with {address} · without {gone}")
    assert survey.machine_profile is not None
    assert survey.machine_profile.workers == (str(address),)


async def test_a_damaged_file_starts_with_everything_as_it_comes_and_is_left_alone() -> None:
    damaged = "[screen]\ntheme = \n# precious\n"
    paths.config_file().write_text(damaged)
    options = tui_app.load_options()
    app = scenes.home(options)
    async with app.run_test(size=(100, 40)) as pilot:
        await surveyed(pilot)
        assert app.theme == "localspec-dark"
        assert "config.toml:2:9: invalid value. Using the defaults" in painted(app.screen)
        shown = Shown(pilot, options)
        await shown.press("f10", "right")
        assert "Nothing was changed" in shown.words
        assert paths.config_file().read_text() == damaged
        paths.config_file().write_text("[screen]\ntheme = 'high-contrast'\n")  # mended elsewhere
        await shown.press("right", "escape")
        await settled(pilot)
        assert shown.file["screen"]["theme"] != "high-contrast"  # the next after it
        assert "config.toml:" not in painted(app.screen)


async def test_unknown_keys_are_said_in_the_banner() -> None:
    async with preferences("[screen]\ntehme = 'x'\n[keys]\n'chat.sned' = 'f9'\n") as shown:
        assert "unknown setting screen.tehme; did you mean screen.theme?" in shown.words
        assert "did you mean keys.chat.send?" in shown.words
        await shown.press("escape")
        assert "did you mean screen.theme? And 1 more. f10 shows the details." in shown.words


async def test_arrows_and_tab_lead_to_every_value_and_round() -> None:
    async with preferences() as shown:
        reached = []
        for key in islice(cycle(("down", "tab")), len(SETTINGS) + 1):
            reached.append(str(getattr(shown.app.focused, "name", "")))
            await shown.press(key)
        assert reached == [*SETTINGS, "keys"]
        assert shown.app.focused is not None and shown.app.focused.name == reached[0]
        await shown.press("up", "shift+tab")
        assert shown.app.focused.name == reached[-2]


# --- keys -----------------------------------------------------------------------------------------


async def test_keys_of_the_file_count_when_the_editor_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edited = edit_with(monkeypatch, "[keys]\n'home.wizard' = 'z'\n")
    async with preferences() as shown:
        await shown.go("keys")
        await shown.press("enter")
        assert edited == [paths.config_file()] and "1 changed" in shown.words
        await shown.press("escape")
        await wait_until(shown.pilot, lambda: isinstance(shown.app.screen, HomeScreen))
        await settled(shown.pilot)
        assert "z wizard" in shown.words and "w wizard" not in shown.words
        await shown.press("w")
        assert isinstance(shown.app.screen, HomeScreen)
        await shown.press("z")
        assert not isinstance(shown.app.screen, HomeScreen)


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
    async with preferences("[keys]\n'home.wizard' = 'z'\n") as shown:
        await shown.go("keys")
        await shown.press("enter")
        assert why in shown.words
        assert shown.options.keymap == {"home.wizard": "z"}
        edit_with(monkeypatch, "[keys]\n'home.wizard' = 'x'\n")
        await shown.press("enter")
        assert why not in shown.words
        assert shown.options.keymap == {"home.wizard": "x"}


async def test_without_an_editor_it_says_where_the_file_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edit_with(monkeypatch, "")
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    async with preferences(notifications=True) as shown:
        await shown.go("keys")
        await shown.press("enter")
        words = " ".join(shown.words.split())
        assert "No editor found. Set VISUAL or EDITOR. The file is" in words


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


def told(own: dict[str, str]) -> str:
    return " ".join(key_bindings.validate_user_keys(own)[1])


async def test_every_key_of_the_table_may_be_what_it_is() -> None:
    assert [
        why for key in KEY_BINDINGS if (why := key_bindings.check_keys(key.id, key.keys, {}))
    ] == []


async def test_keys_of_the_file() -> None:
    assert (
        key_bindings.validate_user_keys({"chat.panel": "f2", "chat.tokens": "f3"})[1] == ()
    )  # changed places
    assert "also bound to keys.chat.tokens" in told({"chat.panel": "f9", "chat.tokens": "f9"})
    assert "no key called 'ctl+s'" in told({"chat.send": "ctl+s"})
    assert key_bindings.validate_user_keys({"chat.tokens": "f8"}) == ({"chat.tokens": "f8"}, ())
    both = {"doctor.repair": "m", "doctor.mend": "k", "bench.save": "s"}
    assert key_bindings.validate_user_keys(both) == ({"doctor.repair": "m"}, ())


# --- in use ---------------------------------------------------------------------------------------


@asynccontextmanager
async def chatting(text: str) -> AsyncIterator[Shown]:
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
        yield Shown(pilot, options)


def on(screen: Screen[Any]) -> ChatScreen:
    assert isinstance(screen, ChatScreen)
    return screen


async def test_a_new_chat_is_as_it_was_wished() -> None:
    text = "[chats]\nshow_thinking = true\noverflow = 'drop'\nkeep = false\n"
    text += "[answers]\nspec = 'lookup'\ntemperature = 0.1\noverlap = 'off'\n"
    async with chatting(text) as shown:
        chosen = on(shown.app.screen).session.settings
        assert (chosen.spec, chosen.sampling.temperature) == ("lookup", 0.1)
        assert (chosen.overflow, chosen.show_thinking) == ("drop", True)
        choice = on(shown.app.screen).session.pair
        assert shown.options.build_load_request(choice).load.overlap is False
        assert "not saved" in shown.words
        await scenes.asking()(shown.pilot)
        assert "They ask about lists." in shown.words  # what it thought, unfolded
        await shown.press("ctrl+t")
        assert "They ask about lists." not in shown.words
        assert not on(shown.app.screen).session.settings.show_thinking


async def test_thinking_is_folded_as_it_comes_and_a_setting_of_the_chat() -> None:
    async with chatting("") as shown:
        await scenes.asking()(shown.pilot)
        assert "They ask about lists." not in shown.words
        await scenes.asking("/set show_thinking on")(shown.pilot)
        assert "They ask about lists." in shown.words


async def test_over_a_chat_the_answer_goes_on_and_new_keys_count_there_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edit_with(monkeypatch, "[keys]\n'chat.send' = 'alt+s'\n")
    async with chatting("") as shown:
        await shown.press("f10")
        assert isinstance(shown.app.screen, PreferencesScreen)
        await shown.press("f10")  # one is enough
        assert len([one for one in shown.app.screen_stack if one is shown.app.screen]) == 1
        await shown.go("keys")
        await shown.press("enter")
        await shown.go("chats.keep")
        await shown.press("right", "escape")
        await wait_until(shown.pilot, lambda: isinstance(shown.app.screen, ChatScreen))
        await shown.press("a", "enter")
        assert on(shown.app.screen).composer.text == "a\n"  # enter sends no more
        assert on(shown.app.screen).session.recorder.is_saving  # this one was begun before
        await shown.press("ctrl+n")
        assert not on(shown.app.screen).session.recorder.is_saving


async def test_downloads_heed_it_at_once() -> None:
    async with preferences() as shown:
        home = shown.app.screen_stack[-2]
        assert isinstance(home, HomeScreen)
        hub = home._downloads.hub
        assert not hub.offline
        await shown.go("network.offline")
        await shown.press("right")
        assert hub.offline
        await shown.press("right")
        assert not hub.offline
