"""docs/quality/habits.md: what people type by habit does what the table says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from localspec.chat import copying
from tests.support.scripted_engine import ScriptedEngine, wait_until
from tests.tui.screens.test_chat import Chat, said

PAGE = Path(__file__).parents[2] / "docs" / "quality" / "habits.md"
ENDS = "(ends)"


class Habit(NamedTuple):
    typed: str
    shown: str


def habits() -> Iterator[Habit]:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 4:
            yield Habit(cells[0].strip("`"), cells[3].strip("`"))


def test_there_are_twenty() -> None:
    rows = list(habits())
    assert len(rows) >= 20 and len({row.typed for row in rows}) == len(rows)
    text = PAGE.read_text(encoding="utf-8")
    assert len(re.findall(r"^\| `", text, re.MULTILINE)) == len(rows)


@pytest.mark.asyncio
@pytest.mark.parametrize("habit", habits(), ids=lambda habit: habit.typed)
async def test_a_habit(habit: Habit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(copying, "copy", lambda *_: "Copied.")
    async with Chat(ScriptedEngine(said)) as chat:
        if habit.typed not in ("escape", "//usr"):
            await chat.send("first question")
        if habit.typed == "ctrl+j":
            await chat.press(*"hello")
        if habit.typed.startswith("/"):
            chat.screen.composer.replace_text(habit.typed)
            await chat.press("enter")
        else:
            await chat.press(habit.typed)
        if habit.shown == ENDS:
            assert not chat.app.is_running or chat.app._exit
            return
        await wait_until(chat.pilot, lambda: habit.shown in chat.shown)
        expected = {"ctrl+j": "hello\n", "up": "first question"}.get(habit.typed, "")
        assert chat.typed == expected
