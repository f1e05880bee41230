"""The logs on the screen: their ends, as they grow; found in, copied, harmless."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from localspec import paths
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens import log
from localspec.tui.screens.log import LogScreen
from localspec.tui.widgets.log_view import LogView
from tests.support import scenes
from tests.support.scenes import settled
from tests.support.scripted_engine import painted, wait_until


def write(text: str, name: str = "engine.log", mode: str = "a") -> Path:
    path = paths.data_dir() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode, encoding="utf-8") as file:
        file.write(text)
    return path


def numbered(count: int, first: int = 0) -> str:
    return "".join(
        f"2026-01-01 10:00:{n % 60:02} 4242 llama_model_loader: line {n}\n"
        for n in range(first, first + count)
    )


@asynccontextmanager
async def opened(size: tuple[int, int] = (80, 24)) -> AsyncIterator[Pilot[Any]]:
    async with scenes.home().run_test(size=size, notifications=True) as pilot:
        await scenes.surveyed(pilot)
        await pilot.press("ctrl+l")
        await settled(pilot)
        assert isinstance(pilot.app.screen, LogScreen)
        yield pilot


def shown(pilot: Pilot[Any]) -> str:
    return painted(pilot.app.screen)


def tail(pilot: Pilot[Any]) -> LogView:
    return pilot.app.screen.query_one(LogView)


@pytest.mark.asyncio
async def test_an_empty_log_says_what_would_be_there_and_where() -> None:
    async with opened((120, 24)) as pilot:
        assert "messages while a model loads" in shown(pilot)
        assert str(paths.data_dir() / "engine.log") in shown(pilot)
        await pilot.press("c")
        assert "Nothing to copy." in shown(pilot)
        write(numbered(3))
        await wait_until(pilot, lambda: "line 2" in shown(pilot) and "3 lines" in shown(pilot))
        await pilot.press("ctrl+l")
        assert not isinstance(pilot.app.screen, LogScreen)


@pytest.mark.asyncio
async def test_it_follows_its_end_until_one_scrolls_away() -> None:
    write(numbered(100))
    async with opened() as pilot:
        assert "line 99" in shown(pilot)
        assert tail(pilot).vertical_scrollbar.position == tail(pilot).scroll_y > 0
        write(numbered(5, 100))
        await wait_until(pilot, lambda: "line 104" in shown(pilot))
        await pilot.press("pageup")
        await settled(pilot)
        before = tail(pilot).scroll_y
        write(numbered(50, 105))
        await wait_until(pilot, lambda: len(tail(pilot).lines) == 155)
        await settled(pilot)
        assert tail(pilot).scroll_y == before and "line 154" not in shown(pilot)
        await pilot.press("G")
        await settled(pilot)
        write(numbered(1, 155))
        await wait_until(pilot, lambda: "line 155" in shown(pilot))


@pytest.mark.asyncio
async def test_a_log_that_was_begun_anew_is_read_anew() -> None:
    path = write(numbered(30))
    async with opened() as pilot:
        path.replace(path.with_name("engine.log.1"))
        write(numbered(2, 900))
        await wait_until(pilot, lambda: "line 901" in shown(pilot))
        assert "line 29" not in shown(pilot)
        await pilot.press("tab")
        await wait_until(pilot, lambda: "line 29" in shown(pilot))


@pytest.mark.asyncio
async def test_the_other_log_is_our_own() -> None:
    write("ZeroDivisionError: of something\n", "crash.log")
    async with opened() as pilot:
        await pilot.press("tab", "tab")
        await wait_until(pilot, lambda: "ZeroDivisionError" in shown(pilot))
        assert "crash.log" in shown(pilot)
        await pilot.press("tab")
        await wait_until(pilot, lambda: "llama.cpp's messages" in shown(pilot))


@pytest.mark.asyncio
async def test_what_is_looked_for_is_found_whatever_its_case() -> None:
    write(numbered(300).replace("line 7\n", "CUDA error [red]here[/red]\n"))
    write("a cuda ERROR at the end\n")
    write(numbered(60, 300))
    async with opened() as pilot:
        await pilot.press("slash", *"cuda", "space", *"error")
        await wait_until(pilot, lambda: "2 of 2 matches" in shown(pilot))
        assert "a cuda ERROR at the end" in shown(pilot)
        await pilot.press("enter", "n")
        await wait_until(pilot, lambda: "1 of 2 matches" in shown(pilot))
        assert "CUDA error [red]here[/red]" in shown(pilot)
        await pilot.press("N")
        await wait_until(pilot, lambda: "2 of 2 matches" in shown(pilot))
        await pilot.press("slash", "x")
        await wait_until(pilot, lambda: "no matches" in shown(pilot))
        await pilot.press("escape")  # out of the field
        await wait_until(pilot, lambda: "361 lines" in shown(pilot) and "line 359" in shown(pilot))
        assert isinstance(pilot.app.screen, LogScreen)
        await pilot.press("q")
        assert not isinstance(pilot.app.screen, LogScreen)


@pytest.mark.asyncio
async def test_only_the_end_of_a_large_log_is_read() -> None:
    write("the very first\n" + numbered(60_000))
    size = (paths.data_dir() / "engine.log").stat().st_size
    assert size > 3 * log._TAIL_BYTES
    async with opened() as pilot:
        lines = tail(pilot).lines
        assert sum(map(len, lines)) <= log._TAIL_BYTES < size
        assert lines[-1].endswith("line 59999") and lines[0].startswith("2026-")
        assert "the last 512 KiB" in shown(pilot)


@pytest.mark.asyncio
async def test_what_is_written_there_is_harmless() -> None:
    write("\x1b[31mred\x1b[0m \x1b]0;title\x07and \u202eback\n\x9b2Jnothing\t|\n[bold]markup\n")
    async with opened() as pilot:
        assert tail(pilot).lines[0] == "red and \ufffdback"
        assert "nothing" in tail(pilot).lines[1] and "\x9b" not in tail(pilot).lines[1]
        assert "[bold]markup" in shown(pilot)


@pytest.mark.asyncio
async def test_long_lines_and_wide_letters_are_wrapped() -> None:
    write("x" * 500 + "END\n" + "漢字" * 60 + "終\n")
    async with opened((60, 24)) as pilot:
        assert "END" in shown(pilot) and "終" in shown(pilot)
        await pilot.resize_terminal(100, 24)
        await settled(pilot)
        assert "END" in shown(pilot) and "終" in shown(pilot)


@pytest.mark.asyncio
async def test_it_is_copied(copied: list[str]) -> None:

    write(numbered(3))
    async with opened() as pilot:
        await pilot.press("c")
        assert copied == [numbered(3).rstrip("\n")]


# --- pictures -----------------------------------------------------------------------------

SAID = "".join(
    f"2026-01-01 10:00:{n % 60:02} 4242 "
    + (f"llama_model_loader: - kv {n:3}: tokenizer.ggml.key_{n} arr[str,151936] = a, b, c, …\n")
    for n in range(80)
)


def app() -> LocalspecApp:
    options = AppOptions(seed=1)
    return LocalspecApp(options, EngineRunner(), lambda: LogScreen(options))


def having(*keys: str) -> scenes.Steps:
    async def steps(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        for key in keys:
            await pilot.press(key)
            await settled(pilot)

    return steps


@pytest.mark.pictures
@pytest.mark.parametrize("moment", ["full", "found"])
def test_log(
    snap_compare: Callable[..., bool],
    moment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", "data")  # whose path is shown
    write(SAID)
    keys = ("slash", "k", "e", "y", "_", "7", "enter", "n") if moment == "found" else ()
    assert snap_compare(app(), run_before=having(*keys))
