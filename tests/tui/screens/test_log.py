"""The logs on the screen: their ends, as they grow; found in, copied, harmless."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from textual.geometry import Offset
from textual.selection import Selection

from localspec import paths
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens import log
from localspec.tui.screens.log import LogScreen
from localspec.tui.widgets.log_view import LogView
from tests.support import scenes
from tests.support.app_driver import AppDriver
from tests.support.scenes import settled


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


class LogDriver(AppDriver):
    @property
    def view(self) -> LogView:
        return self.app.screen.query_one(LogView)


@asynccontextmanager
async def opened(size: tuple[int, int] = (80, 24)) -> AsyncIterator[LogDriver]:
    async with scenes.home().run_test(size=size, notifications=True) as pilot:
        await scenes.surveyed(pilot)
        driver = LogDriver(pilot)
        await driver.press("ctrl+l")
        await settled(pilot)
        assert driver.is_on(LogScreen)
        yield driver


async def test_an_empty_log_says_what_would_be_there_and_where(
    copied: list[str],
) -> None:
    async with opened((120, 24)) as tail:
        await tail.sees("messages while a model loads")
        assert str(paths.data_dir() / "engine.log") in tail.shown
        await tail.press("c")
        await tail.sees("Nothing to copy.")
        assert copied == []


async def test_what_is_written_meanwhile_is_shown_counted_and_copied(
    copied: list[str],
) -> None:
    async with opened((120, 24)) as tail:
        write(numbered(3))
        await tail.sees("line 2", "3 lines")
        await tail.press("c")
        assert copied == [numbered(3).rstrip("\n")]


async def test_the_key_that_opens_the_log_closes_it() -> None:
    async with opened() as tail:
        await tail.press("ctrl+l")
        assert not tail.is_on(LogScreen)


async def test_it_begins_at_its_end_and_follows_it() -> None:
    write(numbered(100))
    async with opened() as tail:
        await tail.sees("line 99")
        assert tail.view.vertical_scrollbar.position == tail.view.scroll_y > 0
        write(numbered(5, 100))
        await tail.sees("line 104")


async def test_it_stays_where_one_scrolls_to() -> None:
    write(numbered(100))
    async with opened() as tail:
        await tail.sees("line 99")
        await tail.press("pageup")
        await settled(tail.pilot)
        before = tail.view.scroll_y
        write(numbered(50, 100))
        await tail.wait(lambda: len(tail.view.lines) == 150)
        await settled(tail.pilot)
        assert tail.view.scroll_y == before
        assert "line 149" not in tail.shown


async def test_it_follows_again_when_one_goes_to_its_end() -> None:
    write(numbered(100))
    async with opened() as tail:
        await tail.sees("line 99")
        await tail.press("pageup", "G")
        await settled(tail.pilot)
        write(numbered(1, 100))
        await tail.sees("line 100")


async def test_a_log_that_was_begun_anew_is_read_anew() -> None:
    path = write(numbered(30))
    async with opened() as tail:
        path.replace(path.with_name("engine.log.1"))
        write(numbered(2, 900))
        await tail.sees("line 901")
        assert "line 29" not in tail.shown


async def test_tab_leads_to_the_other_logs_and_round() -> None:
    write(numbered(2, 900))
    write(numbered(30), "engine.log.1")
    write("ZeroDivisionError: of something\n", "crash.log")
    async with opened() as tail:
        await tail.sees("line 901")
        await tail.press("tab")
        await tail.sees("line 29")
        await tail.press("tab")
        await tail.sees("ZeroDivisionError", "crash.log")
        await tail.press("tab")
        await tail.sees("line 901")


@asynccontextmanager
async def searched() -> AsyncIterator[LogDriver]:
    """A log in which two lines have the words, in different cases."""
    write(numbered(300).replace("line 7\n", "CUDA error [red]here[/red]\n"))
    write("a cuda ERROR at the end\n")
    write(numbered(60, 300))
    async with opened() as tail:
        await tail.press("slash", *"cuda", "space", *"error")
        await tail.sees("2 of 2 matches")
        yield tail


async def test_a_search_shows_the_last_match_whatever_its_case() -> None:
    async with searched() as tail:
        await tail.sees("a cuda ERROR at the end")


async def test_keys_lead_from_match_to_match_and_round() -> None:
    async with searched() as tail:
        await tail.press("enter", "n")
        await tail.sees("1 of 2 matches", "CUDA error [red]here[/red]")
        await tail.press("N")
        await tail.sees("2 of 2 matches")


async def test_words_that_are_nowhere_have_no_matches() -> None:
    async with searched() as tail:
        await tail.press("x")
        await tail.sees("no matches")


async def test_escape_ends_the_search_and_then_leaves() -> None:
    async with searched() as tail:
        await tail.press("escape")
        await tail.sees("361 lines", "line 359")
        assert tail.is_on(LogScreen)
        await tail.press("q")
        assert not tail.is_on(LogScreen)


async def test_only_the_end_of_a_large_log_is_read() -> None:
    write("the very first\n" + numbered(60_000))
    size = (paths.data_dir() / "engine.log").stat().st_size
    assert size > 3 * log._TAIL_BYTES
    async with opened() as tail:
        lines = tail.view.lines
        assert sum(map(len, lines)) <= log._TAIL_BYTES < size
        assert lines[-1].endswith("line 59999") and lines[0].startswith("2026-")
        await tail.sees("the last 0.5 MB")


async def test_what_is_written_there_is_harmless() -> None:
    write(
        "\x1b[31mred\x1b[0m \x1b]0;title\x07and \u202eback\n\x9b2Jnothing\t|\n[bold]markup\n"
    )
    async with opened() as tail:
        assert tail.view.lines[0] == "red and \ufffdback"
        assert "nothing" in tail.view.lines[1] and "\x9b" not in tail.view.lines[1]
        await tail.sees("[bold]markup")


SAID = "".join(
    f"2026-01-01 10:00:{n % 60:02} 4242 "
    + (
        f"llama_model_loader: - kv {n:3}: tokenizer.ggml.key_{n} arr[str,151936] = a, b, c, …\n"
    )
    for n in range(80)
)


def marked(tail: LogDriver, start: tuple[int, int], end: tuple[int, int]) -> str:
    selection = Selection(Offset(*start), Offset(*end))
    found = tail.view.get_selection(selection)
    assert found is not None
    return found[0]


async def test_a_line_that_is_wrapped_is_copied_whole_and_with_its_tabs(
    copied: list[str],
) -> None:
    line = "a\tb\t" + "word " * 40 + "end"
    write(f"{line}\nsecond\n")
    async with opened() as tail:
        await tail.sees("second")
        assert marked(tail, (1, 0), (79, 2)) == line
        await tail.press("c")
        assert copied == [f"{line}\nsecond"]


async def test_what_is_marked_in_the_log_begins_and_ends_where_the_mouse_was() -> None:
    write("first line\na\tb c\n漢字 wide\n")
    async with opened() as tail:
        await tail.sees("wide")
        assert marked(tail, (1, 0), (6, 0)) == "first"
        assert marked(tail, (7, 0), (6, 1)) == "line\na\tb"
        assert marked(tail, (1, 1), (3, 2)) == "a\tb c\n漢字"


def app() -> LocalspecApp:
    options = AppOptions(seed=1)
    return LocalspecApp(options, EngineRunner(), lambda: LogScreen(options))
