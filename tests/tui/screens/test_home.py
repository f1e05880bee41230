"""Home: its lists scroll, and what it lists first."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.chat.session import ChatSession
from localspec.models.local_files.local_model import LocalModel
from localspec.tui.dialogs.turns import TurnsScreen
from localspec.tui.home_rows import HomeRow, MachineSurvey
from localspec.tui.widgets.pointer_list import PointerList
from tests.support import scenes
from tests.support.scripted_engine import painted
from tests.tui.screens.test_chat import Chat

pytestmark = pytest.mark.asyncio
MODELS = tuple(
    LocalModel(
        Path(f"/models/file-{n}.gguf"),
        10**9,
        None,
        f"file-{n}.gguf",
        None,
        None,
        False,
        "folder",
        True,
    )
    for n in range(14)
)


@pytest.mark.parametrize("size", [(80, 20), (80, 24), (120, 30), (60, 15), (40, 10)])
async def test_the_pointer_is_always_on_the_screen(size: tuple[int, int]) -> None:
    app = scenes.home(None, scenes.Still(), lambda: MachineSurvey(scenes.MACHINE, MODELS))
    async with app.run_test(size=size) as pilot:
        await scenes.surveyed(pilot)
        rows: PointerList[HomeRow] = app.screen.query_one(PointerList)
        assert "Downloads" in painted(app.screen) and len(rows.rows) > 18
        for key in ["up", *["down"] * (len(rows.rows) + 1), "up", "home", "end"]:
            await pilot.press(key)
            await pilot.pause()
            row = rows.highlighted_row
            assert row is not None and f"▸ {row.name[:3]}" in painted(app.screen), (key, row)


@pytest.mark.parametrize("size", [(80, 24), (60, 12)])
async def test_the_selected_turn_is_always_on_the_screen(size: tuple[int, int]) -> None:
    async with Chat() as chat:
        await chat.pilot.resize_terminal(*size)
        session: ChatSession = chat.screen.session
        for n in range(30):
            session.conversation.ask(f"question-{n}.")
        await chat.press("f8")
        assert isinstance(chat.app.screen, TurnsScreen)
        for n in range(29, 0, -1):
            assert f"question-{n}." in chat.shown
            await chat.press("up")
