"""The mouse does what the keys do: key hints, rows, scrolling, addresses."""

from __future__ import annotations

import pytest
from textual.events import MouseScrollUp

from localspec.tui.key_bindings import find_key_hint
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.chat_settings import ChatSettingsScreen
from localspec.tui.screens.help import HelpScreen
from localspec.tui.widgets.pointer_list import PointerList
from localspec.tui.widgets.screen_frame import KeyLine, StatusBar
from localspec.tui.widgets.transcript import Transcript
from tests.support.scenes import settled
from tests.support.scripted_engine import ScriptedEngine, answer, wait_until
from tests.tui import test_saved_chats as kept
from tests.tui.screens.test_chat import Chat, long

pytestmark = pytest.mark.asyncio


async def test_a_click_on_a_key_hint_is_the_key() -> None:
    async with Chat() as chat:
        chat.screen.composer.replace_text("hello")
        line = chat.screen.query_one(StatusBar)
        await chat.pilot.click(StatusBar, offset=(line.render_line(0).text.index("send"), 0))
        await wait_until(chat.pilot, lambda: chat.questions == ["hello"])
        await chat.until("ready")
        await settled(chat.pilot)
        await chat.pilot.click(StatusBar, offset=(line.render_line(0).text.index("tokens"), 0))
        await wait_until(chat.pilot, lambda: chat.screen.transcript.token_view)
        await chat.press("f2", "f4")
        assert isinstance(chat.app.screen, ChatSettingsScreen)
        await settled(chat.pilot)
        hint = chat.app.screen.query(".hint").last()
        await chat.pilot.click(hint, offset=(hint.render_line(0).text.index("esc"), 0))
        await wait_until(chat.pilot, lambda: chat.on_top)


async def test_home_by_mouse_alone() -> None:
    async with kept.app() as one:
        keys = one.home.query_one(KeyLine)
        await one.pilot.click(KeyLine, offset=(keys.render_line(0).text.index("f1"), 0))
        await wait_until(one.pilot, lambda: isinstance(one.pilot.app.screen, HelpScreen))
        await one.press("escape")
        rows = one.home.query_one(PointerList)
        await one.pilot.click(PointerList, offset=(8, rows.get_option_index("0") + 1))
        await one.until("ready")
        assert isinstance(one.pilot.app.screen, ChatScreen)


async def test_the_wheel_scrolls_the_transcript() -> None:
    async with Chat(ScriptedEngine(long)) as chat:
        await chat.send("hi")
        assert chat.screen.transcript.following
        await chat.pilot._post_mouse_events([MouseScrollUp], Transcript, button=0)
        await wait_until(chat.pilot, lambda: not chat.screen.transcript.following)


async def test_a_click_on_an_address_opens_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on its second line; other words do nothing."""
    address = "https://example.org/" + "a-long-path/" * 12
    opened: list[str] = []
    words = ["See ", address, " and ", "<https://example.org/b>", ".\n"]
    async with Chat(ScriptedEngine(lambda: answer(words))) as chat:
        monkeypatch.setattr(chat.app, "open_url", opened.append)
        await chat.send("hi")
        lines = chat.screen.transcript.plain_text.splitlines()
        rows = [n for n, line in enumerate(lines) if "long-path" in line]
        assert len(rows) > 1
        for row in rows[:2]:
            column = lines[row].index("long-path")
            await chat.pilot.click(Transcript, offset=(column, row))
        assert opened == [address.rstrip("/") + "/"] * 2
        row = next(n for n, line in enumerate(lines) if line.strip() == "hi")
        await chat.pilot.click(Transcript, offset=(lines[row].index("hi"), row))
        assert len(opened) == 2


@pytest.mark.parametrize(
    ("x", "key"),
    [(0, "enter"), (8, "enter"), (12, "left"), (13, "right"), (16, "right"), (24, "escape")],
)
async def test_which_key_a_hint_shows(x: int, key: str) -> None:
    assert find_key_hint("enter send  ←→ change  esc back", x) == key
    assert find_key_hint("ctx 28 / 8.2k   / find", 18) == "slash"
    assert find_key_hint("ctx 28 / 8.2k", 2) == ""
