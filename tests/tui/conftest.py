"""Snapshots are compared only with the Python and Textual versions they were made with."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pytest
import textual.app
import textual.pilot
from textual._context import active_app
from textual._styles_cache import StylesCache
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.css.types import CSSLocation
from textual.message_pump import MessagePump
from textual.widgets import Input

from localspec import paths
from localspec.chat import copying
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens import chat, home, log, measurement, serve, wizard
from localspec.tui.text import call_text
from localspec.tui.widgets import call_question, transcript
from tests.tui.screen_states import SHELF

MADE_WITH = ((3, 11), "8.2.8")
"""Python and Textual (exact in pyproject.toml)."""
HERE = (sys.version_info[:2], version("textual"))


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    pictures = [item for item in items if item.get_closest_marker("pictures")]
    if HERE == MADE_WITH or not pictures:
        return
    made_with = "Python {}.{} and Textual {}".format(*MADE_WITH[0], MADE_WITH[1])
    if config.getoption("--snapshot-update"):
        raise pytest.UsageError(f"Pictures are accepted with {made_with} only.")
    for item in pictures:
        item.add_marker(
            pytest.mark.skip(reason=f"pictures are compared with {made_with}")
        )


async def wait_for_idle(min_sleep: float = 0.0, max_sleep: float = 2.0) -> None:
    """Waits until only timers, threads and files can give the event loop work.

    Textual's own function waits until the process uses no CPU for 20 ms. That is long,
    and on a busy machine, where the process does not get the CPU, it says nothing. This
    one does not wait for Textual's timers of a resize and of a redraw, 8 and 17 ms: it
    does what they would do.
    """
    app = active_app.get()
    loop = cast(Any, asyncio.get_running_loop())
    until = time.monotonic() + max_sleep
    while time.monotonic() < until:
        await asyncio.sleep(0)
        if loop._ready:
            continue
        if app._resize_timer is not None:
            app._check_resize()
        elif app.screen_stack and app.screen_stack[-1]._update_timer._active.is_set():
            app.screen_stack[-1]._on_timer_update()
        else:
            return


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, whose name is on no picture, and a catalogue made for them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", "data")
    monkeypatch.setenv("LOCALSPEC_CONFIG", "config.toml")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    Path("shelf.yaml").write_text(SHELF)
    monkeypatch.setattr(paths, "catalog_file", lambda: Path("shelf.yaml"))


@pytest.fixture(autouse=True)
def pilot_asks_the_event_loop_whether_it_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (textual.app, textual.pilot):
        monkeypatch.setattr(module, "wait_for_idle", wait_for_idle)


@pytest.fixture(autouse=True, scope="session")
def apps_share_parsed_styles() -> Iterator[None]:
    """Parsing the same style sheets for each app took two fifths of the time."""
    parsed: dict[tuple[object, ...], list[RuleSet]] = {}
    parse_rules = Stylesheet._parse_rules

    def parse_once(
        stylesheet: Stylesheet,
        css: str,
        read_from: CSSLocation,
        is_default_rules: bool = False,
        tie_breaker: int = 0,
        scope: str = "",
    ) -> list[RuleSet]:
        arguments = (css, read_from, is_default_rules, tie_breaker, scope)
        key = (frozenset(stylesheet._variables.items()), *arguments)
        if key not in parsed:
            parsed[key] = parse_rules(stylesheet, *arguments)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_once)
        yield


@pytest.fixture(autouse=True)
def nothing_kept_of_closed_apps() -> Iterator[None]:
    """Textual 8.2.8 caches the last rendering of 1,000 widgets, also of closed apps."""
    yield
    StylesCache.get_inner_outer.cache_clear()


class ImmediateWorker:
    def __init__(self, pump: MessagePump, name: str) -> None:
        pass

    def submit(self, work: Callable[[], None], *, failed: object) -> None:
        work()


@pytest.fixture(autouse=True)
def code_is_coloured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "LatestOnlyWorker", ImmediateWorker)


@pytest.fixture(autouse=True)
def no_long_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person waits a second after an answer; the chat has a test of it."""
    monkeypatch.setattr(chat, "LATE_ESCAPE_SECONDS", 0.0)
    monkeypatch.setattr(chat, "TYPING_SECONDS", 0.0)
    monkeypatch.setattr(call_question, "MIN_ASKED_SECONDS", 0.0)
    # No picture has the seconds of a call that runs.
    monkeypatch.setattr(call_text, "SHOWN_SECONDS", float("inf"))
    short = 0.04
    monkeypatch.setattr(chat, "FIGURES_SECONDS", short)
    monkeypatch.setattr(chat, "SERVER_POLL_SECONDS", short)
    monkeypatch.setattr(home, "_DOWNLOAD_POLL_SECONDS", short)
    monkeypatch.setattr(log, "_POLL_SECONDS", short)
    monkeypatch.setattr(measurement, "_FRAME_SECONDS", short)
    monkeypatch.setattr(serve, "_DRAW_SECONDS", short)
    monkeypatch.setattr(wizard, "_DIAL_SETTLE_SECONDS", short)


@pytest.fixture(autouse=True)
def no_cursor_blinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Textual's palette it blinks: on a busy machine the screen never settles."""
    monkeypatch.setattr(Input.cursor_blink, "_default", False)


@pytest.fixture(autouse=True)
def engines_end_with_their_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads of an open engine would keep Textual's pilot from becoming idle."""
    runners: list[EngineRunner] = []
    begin = EngineRunner.__init__

    def begun(runner: EngineRunner, *opener: Any) -> None:
        begin(runner, *opener)
        runners.append(runner)

    monkeypatch.setattr(EngineRunner, "__init__", begun)
    yield
    for runner in runners:
        runner.close()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []

    def copy(text: str, write: object) -> str:
        texts.append(text)
        return "Copied."

    monkeypatch.setattr(copying, "copy", copy)
    return texts
