"""Texts of any length: no key waits while they are shown, wherever they come from.

No seconds are asserted. The longest step of the event loop is compared with that of the
same keys and an ordinary text: before there was a budget it was a hundred times as long.
"""

from __future__ import annotations

import asyncio
import gc
import time
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from localspec.chat.conversation import Attachment
from localspec.chat.history import ChatHistory
from localspec.chat.session import ChatSession
from localspec.errors import StorageError
from localspec.protocol.events import Notice
from localspec.tui import scheduling
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.notices import copy_text, show_notice
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.log import LogScreen
from localspec.tui.text import markdown
from localspec.tui.text.blocks import Paragraph, TokenText
from localspec.tui.text.markdown import MarkdownText, RenderBudget
from localspec.tui.text.wrapping import CharacterRows, WrappedText, slice_text
from localspec.tui.themes import MarkdownStyle
from localspec.tui.widgets import transcript
from tests.chat import saved_chats
from tests.support.app_driver import AppDriver, Chat, said
from tests.support.scenes import PAIR
from tests.support.scripted_engine import Opening, ScriptedEngine, answer

LOOK = MarkdownStyle("#7aa7f0", "#8b929c", "one-dark")
MIXED = "# Head\n\nSome **bold** words.\n\n- a\n- b\n\n```python\nprint(1)\n```\n\n"
LONG_TEXTS = {
    "5 MB of Markdown": MIXED * (5_000_000 // len(MIXED)),
    "a line of 1 MB": "x" * 1_000_000,
    "a table of 100,000 rows": "| a | b |\n|---|---|\n" + "| c | d |\n" * 100_000,
    "a table of 100,000 characters": "| a | b |\n|---|---|\n" + "| c | d |\n" * 10_000,
    "50,000 nested quotes": "> " * 50_000,
    "50,000 nested brackets": "[" * 50_000,
    "a list of 50,000 items": "- item\n" * 50_000,
    "1,000,000 line feeds": "\n" * 1_000_000,
    "code of 5 MB that is never closed": "```python\n" + "x = 1\n" * 800_000,
    "fences only": "```\n" * 50_000,
    "Chinese of 1 MB without a blank": "漢字" * 170_000,
}
ORDINARY = MIXED * 8
KEYS = ("pageup", "ctrl+home", "pagedown", "f2", "left", "f2", "ctrl+end", "a")
MAX_RATIO = 12
"""Of the longest step with a long text to that with an ordinary one."""


class LongestStep:
    """CPU time of the event loop between two chances for a key: load adds nothing."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def take(self) -> float:
        seconds = self.seconds
        self.seconds = 0.0
        return seconds


@contextmanager
def measure_steps() -> Iterator[LongestStep]:
    longest = LongestStep()
    run = events.Handle._run

    def timed(handle: events.Handle) -> None:
        began = time.thread_time()
        run(handle)
        longest.seconds = max(longest.seconds, time.thread_time() - began)

    gc.collect()
    gc.disable()  # What other tests have left would be counted.
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(events.Handle, "_run", timed)
            yield longest
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def work_is_on_threads(
    code_is_coloured_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is outside of tests."""
    monkeypatch.setattr(transcript, "LatestOnlyWorker", scheduling.LatestOnlyWorker)


async def show_stored(question: str, text: str) -> float:
    """Opens a chat with an answer, and looks around; returns the longest step."""
    with closing(ChatHistory.open()) as history:
        location = saved_chats.put(history, (question, text))
        saved = history.load_chat(location.chat_id)
    session = ChatSession(PAIR, 1, saved_chat=saved)
    runner = EngineRunner(Opening([ScriptedEngine(said)]))
    options = AppOptions(seed=1)
    app = LocalspecApp(options, runner, lambda: ChatScreen(session, runner, options))
    with measure_steps() as longest:
        async with app.run_test(size=(100, 30)) as pilot:
            await AppDriver(pilot).wait(lambda: chat_of(app).phase == "ready")
            for key in KEYS:
                await pilot.press(key)
                await pilot.pause()
            await pilot.resize_terminal(60, 20)
            await asyncio.sleep(0.3)
    return longest.take()


def chat_of(app: LocalspecApp) -> ChatScreen:
    assert isinstance(app.screen, ChatScreen)
    return app.screen


@pytest.fixture(scope="module")
def ordinary_step() -> list[float]:
    """The longest step with an ordinary text, once it was measured."""
    return []


@pytest.mark.parametrize("name", LONG_TEXTS)
async def test_a_stored_answer_of_any_length_holds_no_key(
    name: str, ordinary_step: list[float]
) -> None:
    if not ordinary_step:
        await show_stored("why?", ORDINARY)  # the first one compiles style sheets
        ordinary_step.append(await show_stored("why?", ORDINARY))
    step = await show_stored("why?", LONG_TEXTS[name])
    assert step < MAX_RATIO * ordinary_step[0]


def attach(chat: Chat, text: str) -> None:
    chat.screen.session.add_attachment(Attachment("long.txt", text))
    chat.screen.draw()


def attach_with_long_name(chat: Chat, text: str) -> None:
    chat.screen.session.add_attachment(Attachment(text, "short"))
    chat.screen.draw()


def show_error(chat: Chat, text: str) -> None:
    chat.screen.transcript.show_error(StorageError(text, text), ["enter reload"])
    chat.screen.draw()


def notify(chat: Chat, text: str) -> None:
    show_notice(chat.screen, Notice("warning", "long", text, text))


def show_title(chat: Chat, text: str) -> None:
    chat.screen.session.recorder.title = text
    chat.screen.draw()


def show_log(chat: Chat, text: str) -> None:
    screen = chat.app.screen
    assert isinstance(screen, LogScreen)
    screen._tail.set_lines(text[-512 * 1024 :].split("\n"))


PLACES: dict[str, tuple[tuple[str, ...], Callable[[Chat, str], None]]] = {
    "an attachment": ((), attach),
    "the name of an attachment": ((), attach_with_long_name),
    "an error": ((), show_error),
    "a notification": ((), notify),
    "a title": ((), show_title),
    "the log": (("ctrl+l",), show_log),
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_text_of_any_length_holds_no_key_wherever_it_is_shown(
    place: str,
) -> None:
    keys, show = PLACES[place]
    async with Chat() as chat:
        await chat.press(*keys)

        async def measure(text: str) -> float:
            with measure_steps() as longest:
                show(chat, text)
                await chat.pilot.pause()
                await chat.press("a", "b")
            chat.screen.session.pending_attachments = ()
            chat.app.clear_notifications()
            return longest.take()

        ordinary = max(await measure(ORDINARY), 0.01)
        slow: dict[str, float] = {}
        for name, text in LONG_TEXTS.items():
            # The shorter of two: something else may have happened in one.
            step = min(await measure(text), await measure(text))
            if step > MAX_RATIO * ordinary:
                slow[name] = step
    assert slow == {}


@pytest.mark.parametrize("name", LONG_TEXTS)
async def test_thinking_of_any_length_holds_no_key(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unfolded, it is cut into rows if it is too long to be wrapped by words."""
    wrapped: list[int] = []
    append = WrappedText.append

    def count(text: WrappedText, part: str, owner: int) -> None:
        wrapped.append(len(part))
        append(text, part, owner)

    monkeypatch.setattr(WrappedText, "append", count)
    block = Paragraph(LONG_TEXTS[name])
    block.height(80)
    assert sum(wrapped) <= 16_000
    assert block.height(80) <= 25_000


# --- by construction: what one frame renders
# ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_a_frame_renders_no_more_than_its_budget(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[int] = []
    render = markdown._render_block

    def count(source: str, *look: object, **how: object) -> object:
        costs.append(markdown._render_cost(source))
        return render(source, *look, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(markdown, "_render_block", count)
    budget = RenderBudget()
    text = MarkdownText(LOOK, budget=budget)
    text.write(LONG_TEXTS[name][-200_000:])
    for width in (80, 60):
        budget.refill()
        costs.clear()
        text.height(width)
        # The open block is rendered besides: at most twice its limit, and its kept part.
        limit = markdown._FRAME_BUDGET + 4 * markdown._MAX_REDRAWN_COST
        assert sum(costs) <= limit
    text.finish()
    budget.refill()
    costs.clear()
    text.height(80)
    assert sum(costs) <= markdown._FRAME_BUDGET


def finished(source: str, *, with_budget: bool) -> list[str]:
    """The lines of a text when all of it is rendered, by frames or by the thread."""
    budget = RenderBudget() if with_budget else None
    text = MarkdownText(LOOK, budget=budget)
    text.write(source)
    text.finish()
    text.height(80)
    while (block := text.take_unrendered()) is not None:
        text.show_rendered(block.render())
    n_lines = text.height(80)
    lines = [text.line(y, {}) for y in range(n_lines)]
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def test_what_a_thread_renders_looks_as_if_a_frame_had_rendered_it() -> None:
    source = MIXED * 200
    assert finished(source, with_budget=True) == finished(source, with_budget=False)


def test_the_code_blocks_of_a_long_answer_are_numbered_through() -> None:
    lines = finished(MIXED * 200, with_budget=True)
    numbers = [line.split()[0] for line in lines if line.endswith(" python")]
    assert numbers == [str(number) for number in range(1, 201)]


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_every_row_of_a_long_text_is_drawn_until_it_is_rendered(name: str) -> None:
    source = LONG_TEXTS[name][-200_000:]
    text = MarkdownText(LOOK, budget=RenderBudget())
    text.write(source)
    text.finish()
    n_lines = text.height(80)
    drawn = 0
    for y in range(n_lines):
        for segment in text.line(y, {}):
            drawn += len(segment.text.replace(" ", ""))
    visible = sum(not character.isspace() for character in source)
    marks = sum(source.count(mark) for mark in "#*`|->")
    assert drawn >= visible - marks


def test_what_is_read_stays_when_the_block_above_it_is_rendered() -> None:
    text = MarkdownText(LOOK, budget=RenderBudget())
    text.write("- item\n" * 100 + "\nThe end of it.\n" + "words " * 2_000 + "\n")
    text.finish()
    n_lines = text.height(80)
    end = next(
        y
        for y in range(n_lines)
        if "The end" in "".join(s.text for s in text.line(y, {}))
    )
    block = text.take_unrendered()
    assert block is not None
    moved = text.show_rendered(block.render())
    text.height(80)
    assert moved is not None
    shown = "".join(segment.text for segment in text.line(end + moved.by, {}))
    assert moved.first > end or "The end" in shown


def test_rows_are_never_too_wide_and_hold_all_of_the_text() -> None:
    for text in ("x" * 500, "漢" * 500, "a\tb" * 200, "é" * 70, "ab\n\n" * 50):
        rows = CharacterRows(text, 40).rows
        assert all(len(row) <= 40 for row in rows)
        joined = "".join(rows).replace(" ", "")
        assert joined == text.replace("\n", "").replace("\t", "")


def test_the_token_view_wraps_the_tokens_around_its_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrapped: list[str] = []
    append = WrappedText.append

    def count(text: WrappedText, part: str, owner: int) -> None:
        wrapped.append(part)
        append(text, part, owner)

    rounds = answer(["word "] * 30_000)
    text = TokenText("")
    for event in rounds:
        text.extend(getattr(event, "tokens", ()))
    monkeypatch.setattr(WrappedText, "append", count)
    for cursor in (None, 29_999, 100, 15_000):
        wrapped.clear()
        text.cursor = cursor
        text.height(80)
        assert len(wrapped) <= 8_002
        if cursor is not None:
            assert any(
                run.owner == cursor
                for line in range(text.height(80))
                for run in text._wrapped.lines[line]  # type: ignore[union-attr]
            )


async def test_a_long_text_is_copied_whole(copied: list[str]) -> None:
    text = LONG_TEXTS["a table of 100,000 rows"]
    async with Chat() as chat:
        copy_text(chat.app, lambda: text)
        await chat.wait(lambda: copied)
    assert copied == [text]


def test_a_piece_of_a_long_text_ends_with_a_line_where_it_can() -> None:
    text = ("word " * 30 + "\n") * 2_000 + "x" * 120_000
    pieces = list(slice_text(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 50_000
    assert all(piece.endswith("\n") for piece in pieces[:6])


def test_what_a_screen_shows_in_one_line_is_bounded() -> None:
    """By construction: only these files clean a line in another way, for other uses."""
    folder = Path(scheduling.__file__).parent
    found = {
        path.name
        for path in folder.rglob("*.py")
        if "multiline=False" in path.read_text(encoding="utf-8")
    }
    # What the terminal gets is as long as the screen is wide; a server's name is a file's.
    assert found == {"wrapping.py", "terminal.py", "engine_runner.py"}
