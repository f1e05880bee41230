"""A chat of any length costs what is seen of it: turns are counted, not seconds.

What must read the whole chat runs on a thread.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from textual.geometry import Offset
from textual.selection import Selection

from localspec.chat import copying, export
from localspec.chat.conversation import Turn
from localspec.chat.history import ChatHistory, ChatListEntry, SavedChat, SearchHit
from localspec.chat.session import ChatSession
from localspec.models.model_names import PairNames
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.text.turn_text import TranscriptTurn, TurnText
from tests.chat import saved_chats
from tests.support.app_driver import AppDriver, said
from tests.support.scenes import PAIR
from tests.support.scripted_engine import LIMIT, Opening, ScriptedEngine

N_TURNS = 2_000
# Turns in a window of 30 lines, each of which has at least six, and one cut at each edge.
TURNS_IN_WINDOW = 7


def answer_of(number: int) -> str:
    """Of different heights, so that an estimate is wrong for most of them."""
    words = "some words that wrap " * (number * 7 % 40)
    code = f"```python\nprint({number})\n```\n\n" * (number % 3)
    return f"**Answer** {number}\n\n{code}{words}"


class RenderCounter:
    """The turns whose text was made, and how often the text of one was wrapped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_wrapped = 0
        wrap = TurnText.height

        def counted(text: TurnText, width: int) -> int:
            self.n_wrapped += 1
            return wrap(text, width)

        monkeypatch.setattr(TurnText, "height", counted)

    def take(self) -> int:
        count = self.n_wrapped
        self.n_wrapped = 0
        return count


@pytest.fixture
def renders(monkeypatch: pytest.MonkeyPatch) -> RenderCounter:
    return RenderCounter(monkeypatch)


@asynccontextmanager
async def open_long_chat(n_turns: int = N_TURNS) -> AsyncIterator[AppDriver]:
    with closing(ChatHistory.open()) as history:
        saved_chats.put(
            history, *[(f"question {n}?", answer_of(n)) for n in range(n_turns)]
        )
        saved = history.load_chat(1)
    session = ChatSession(PAIR, 1, saved_chat=saved)
    runner = EngineRunner(Opening([ScriptedEngine(said)]))
    options = AppOptions(seed=1)
    app = LocalspecApp(options, runner, lambda: ChatScreen(session, runner, options))
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        driver = AppDriver(pilot)
        await driver.until("ready")
        yield driver


def visible_text(driver: AppDriver) -> list[str]:
    """The lines of the transcript's window."""
    transcript = driver.screen.transcript
    lines = [transcript.render_line(y).text for y in range(transcript.size.height)]
    return [line.strip() for line in lines]


async def test_opening_paging_and_resizing_wrap_the_turns_that_are_seen(
    renders: RenderCounter,
) -> None:
    async with open_long_chat() as driver:
        assert len(driver.screen.transcript.turns) == N_TURNS
        assert renders.take() <= 4 * TURNS_IN_WINDOW  # twice, with margins
        assert f"**Answer** {N_TURNS - 1}".replace("*", "") in driver.shown

        for keys in (
            "pageup", "pageup", "ctrl+home", "pagedown", "ctrl+end", "f2", "f2", "f3",
            "f3",
        ):  # fmt: skip
            await driver.press(keys)
            assert renders.take() <= 4 * TURNS_IN_WINDOW, keys

        await driver.pilot.resize_terminal(60, 20)
        await driver.wait(lambda: driver.screen.transcript._width < 60)
        await driver.pilot.pause()
        assert renders.take() <= 4 * TURNS_IN_WINDOW
        made = [turn for turn in driver.screen.transcript.turns if turn.made_text]
        assert len(made) <= 6 * TURNS_IN_WINDOW


async def test_an_answer_in_a_long_chat_wraps_no_turn_above_the_window(
    renders: RenderCounter,
) -> None:
    async with open_long_chat(200) as driver:
        transcript = driver.screen.transcript
        await driver.send("next")
        made = [turn for turn in transcript.turns if turn.made_text]
        assert len(made) <= 2 * TURNS_IN_WINDOW
        assert "hello." in driver.shown


@pytest.fixture
def made_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of the turns of which a block of the transcript was made."""
    made: list[int] = []
    create = TranscriptTurn.__init__

    def counted(block: TranscriptTurn, turn: Turn, *args: Any) -> None:
        made.append(turn.id)
        create(block, turn, *args)

    monkeypatch.setattr(TranscriptTurn, "__init__", counted)
    return made


@pytest.mark.parametrize("command", ["/undo", "/turns 2000", "/regen", "/edit other?"])
async def test_a_command_on_the_last_turn_of_a_long_chat_leaves_the_others_as_they_are(
    command: str, made_blocks: list[int]
) -> None:
    async with open_long_chat() as driver:
        driver.screen.session.change_settings(overflow="drop")
        made_blocks.clear()

        await driver.send(command)

        assert len(made_blocks) <= 1
        ids = [turn.turn_id for turn in driver.screen.transcript.turns]
        assert ids == [turn.id for turn in driver.screen.session.conversation.turns]


async def test_another_model_shows_its_own_name_above_turns_that_have_none() -> None:
    """A turn that stays in place is made again if its speaker has changed."""
    async with open_long_chat(3) as driver:
        await driver.sees("qwen3-8b")
        driver.screen.session._names = PairNames("qwen3-8b-Q2")

        await driver.send("/undo")

        speakers = {turn.speaker.name for turn in driver.screen.transcript.turns}
        assert speakers == {"qwen3-8b-Q2"}
        await driver.sees("qwen3-8b-Q2")


@pytest.mark.parametrize(
    "action", ["/copy", "/copy all", "/copy 1", "/copy code", "ctrl+o", "alt+1"]
)
async def test_copying_keeps_the_keyboard_free(
    action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rendering a chat of 2,000 turns takes seconds, and a clipboard tool may hang."""
    threads: list[str] = []

    def copy(*_: object) -> str:
        threads.append(threading.current_thread().name)
        return "Copied."

    monkeypatch.setattr(copying, "copy", copy)
    async with open_long_chat(6) as driver:
        if action.startswith("/"):
            await driver.send(action)
        else:
            await driver.press(action)
        await driver.sees("Copied.")

    assert threads == ["background"]


async def test_a_marked_chat_is_copied_by_a_thread_that_lays_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it, and as what was seen is copied."""
    copied: list[str] = []

    def copy(text: str, *_: object) -> str:
        copied.append(text)
        return "Copied."

    monkeypatch.setattr(copying, "copy", copy)
    async with open_long_chat(60) as driver:
        transcript = driver.screen.transcript
        made_before = [turn for turn in transcript.turns if turn.made_text]
        driver.screen.selections = {transcript: Selection(None, None)}
        await driver.press("ctrl+c")
        await driver.sees("Copied.")
        made = [turn for turn in transcript.turns if turn.made_text]
        assert len(made) <= len(made_before) + 1  # the first one

        assert transcript.plain_text  # All turns are wrapped now.
        seen = transcript.get_selection(Selection(None, None))

    assert seen is not None
    assert copied == [seen[0]]
    assert copied[0].count("question ") == 60


@pytest.mark.parametrize("suffix", ["md", "html", "json", "txt"])
async def test_saving_a_file_keeps_the_keyboard_free(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    render = export.render

    def counted(chat: SavedChat, suffix: str) -> str:
        threads.append(threading.current_thread().name)
        return render(chat, suffix)

    monkeypatch.setattr(export, "render", counted)
    async with open_long_chat(6) as driver:
        await driver.send(f"/save {tmp_path}/chat.{suffix}")
        await driver.sees("Saved:")

    assert threads == ["background"]
    assert "question 5?" in (tmp_path / f"chat.{suffix}").read_text()


async def test_a_file_has_the_chat_as_it_was_when_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_started = threading.Event()
    may_render = threading.Event()
    render = export.render

    def wait_and_render(chat: SavedChat, suffix: str) -> str:
        is_started.set()
        assert may_render.wait(LIMIT)
        return render(chat, suffix)

    monkeypatch.setattr(export, "render", wait_and_render)
    async with open_long_chat(3) as driver:
        driver.screen.composer.replace_text(f"/save {tmp_path}/chat.txt")
        await driver.pilot.press("enter")
        await driver.wait(is_started.is_set)
        driver.screen.session.undo()
        driver.screen.session.conversation.ask("later")
        may_render.set()
        await driver.sees("Saved:")

    text = (tmp_path / "chat.txt").read_text()
    assert "question 2?" in text
    assert "later" not in text


async def test_paging_shows_every_line_once_whatever_the_estimates_were() -> None:
    """The pages, laid below each other, are the whole text: none skips, none repeats."""
    async with open_long_chat(40) as driver:
        transcript = driver.screen.transcript
        await driver.press("ctrl+home")
        pages = visible_text(driver)
        while not transcript.following:
            top = round(transcript.scroll_y)
            await driver.press("pagedown")
            n_new = round(transcript.scroll_y) - top
            assert n_new > 0
            pages += visible_text(driver)[-n_new:]
        whole = [line.strip() for line in transcript.plain_text.split("\n")]
        assert pages == whole


async def test_paging_up_through_turns_that_were_never_seen_skips_no_line() -> None:
    async with open_long_chat(40) as driver:
        transcript = driver.screen.transcript
        pages = visible_text(driver)
        above = visible_text(driver)
        while transcript.scroll_y > 0:
            first_seen = above
            await driver.press("pageup")
            above = visible_text(driver)
            if transcript.scroll_y > 0:
                pages = above + pages
            else:  # The last page up is a part of one: it overlaps the page before.
                whole = [line.strip() for line in transcript.plain_text.split("\n")]
                n_new = len(whole) - len(pages)
                assert above[n_new:] == first_seen[: len(above) - n_new]
                pages = above[:n_new] + pages
        assert pages == [line.strip() for line in transcript.plain_text.split("\n")]


async def test_a_resize_keeps_the_turn_that_is_read_at_the_top() -> None:
    async with open_long_chat(200) as driver:
        transcript = driver.screen.transcript
        await driver.press("ctrl+home", *["pagedown"] * 4)
        block, _ = transcript._blocks.locate(round(transcript.scroll_y))
        for width in (60, 120, 80):
            await driver.pilot.resize_terminal(width, 30)
            await driver.wait(lambda: transcript._target_width() == transcript._width)
            await driver.pilot.pause()
            shown, _ = transcript._blocks.locate(round(transcript.scroll_y))
            assert shown == block


async def test_a_hit_in_a_turn_that_was_never_seen_is_shown(
    renders: RenderCounter,
) -> None:
    async with open_long_chat() as driver:
        transcript = driver.screen.transcript
        turn = transcript.turns[700]
        entry = ChatListEntry(1, "", saved_chats.PAIR, N_TURNS, 0.0, 0.0)
        renders.take()
        hit = SearchHit(entry, turn.turn_id, "", ("question 700?",))
        transcript.show_match(hit)
        await driver.sees("question 700?")
        assert renders.take() <= 4 * TURNS_IN_WINDOW


async def test_marked_text_stays_marked_when_turns_above_it_are_wrapped() -> None:
    async with open_long_chat(40) as driver:
        transcript = driver.screen.transcript
        top = round(transcript.scroll_y)
        lines = visible_text(driver)
        row = next(y for y, line in enumerate(lines) if line.startswith("question"))
        start = Offset(0, top + row)
        marked = Selection(start, Offset(40, top + row))
        driver.screen.selections = {transcript: marked}
        await driver.press("pageup", "pageup", "pageup")
        selection = transcript.text_selection
        assert selection is not None
        found = transcript.get_selection(selection)
        assert found is not None
        assert found[0].strip() == lines[row]
