"""A frame of an answer draws what has changed, and that is what the screen shows."""

from collections.abc import Iterable
from typing import Any

import pytest
from rich.cells import cell_len
from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip

from localspec.tui.app import LocalspecApp
from localspec.tui.screens import chat as chat_screen
from localspec.tui.widgets.screen_frame import StatusBar
from localspec.tui.widgets.speculation_panel import SpeculationPanel
from localspec.tui.widgets.text_view import TextView
from tests.support.app_driver import Chat
from tests.support.scenes import settled
from tests.support.scripted_engine import Gate, Script, ScriptedEngine, answer
from tests.tui.screen_rows import find_rows

NEVER = 3600.0  # Seconds.


class Painted:
    """The cells of a terminal, as the updates of parts of the screen have left them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cells: dict[tuple[int, int], str] = {}
        self.regions: list[set[int]] = []
        """The rows of each update."""
        display = LocalspecApp._display

        def record(app: LocalspecApp, screen: Screen[Any], update: Any) -> None:
            if isinstance(update, ChopsUpdate):
                self._paint(update)
            elif update is not None:
                self._paint_all(screen)
            display(app, screen, update)

        monkeypatch.setattr(LocalspecApp, "_display", record)

    def _paint(self, update: ChopsUpdate) -> None:
        self.regions.append({y for y, _, _ in update.spans})
        for y, first, last in update.spans:
            for x, strip in update.chops[y].items():
                if strip is not None:
                    self._write(y, x, strip, range(first, last))

    def _paint_all(self, screen: Screen[Any]) -> None:
        for y, strip in enumerate(screen._compositor.render_strips()):
            self._write(y, 0, strip, range(strip.cell_length))

    def _write(self, y: int, x: int, strip: Strip, columns: range) -> None:
        for character in strip.text:
            if x in columns:
                self.cells[x, y] = character
            x += cell_len(character)

    def rows(self, width: int, height: int) -> list[str]:
        lines = []
        for y in range(height):
            line = "".join(self.cells.get((x, y), " ") for x in range(width))
            lines.append(line.rstrip())
        return lines


def long_answer() -> Script:
    """Prose that wraps, a list, code and a table: the end of each changes as it grows."""
    prose = "Some words that go on and on, so that a line is full. "
    code = "```python\ndef f(x):\n    return x\n```\n\n"
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    text = (prose * 4 + "\n\n- one\n- two\n\n" + code + table) * 5
    return answer([text[start : start + 7] for start in range(0, len(text), 7)])


@pytest.mark.parametrize(
    "keys",
    [["f2"], ["f3", "f3"], ["pageup", "pageup", "pagedown"], ["pageup", "ctrl+end"]],
    ids=" ".join,
)
async def test_what_frames_have_painted_is_what_the_screen_shows(
    monkeypatch: pytest.MonkeyPatch, keys: list[str]
) -> None:
    terminal = Painted(monkeypatch)
    gate = Gate()

    def script() -> Script:
        events = list(long_answer())
        middle = len(events) // 2
        yield from events[:middle]
        yield gate
        yield from events[middle:]

    async with Chat(ScriptedEngine(script)) as chat:
        await chat.begin("a question")
        for key in ["x", *keys, "y"]:
            await chat.press(key)
        gate.set()
        await chat.press("z")
        await chat.until("ready")
        await settled(chat.pilot)

        width, height = chat.screen.size
        assert terminal.rows(width, height) == find_rows(chat.screen)


async def test_a_part_of_the_screen_is_drawn_as_textual_draws_it() -> None:
    async with Chat(ScriptedEngine(long_answer)) as chat:
        await chat.send("a question")
        await settled(chat.pilot)
        compositor = chat.screen._compositor
        width, height = chat.screen.size
        crops = [
            Region(0, 0, width, height),
            Region(3, 5, 20, 1),
            Region(width - 1, 0, 1, height),
            Region(0, height - 1, width, 1),
            Region(10, 4, 60, 9),
        ]
        for crop in crops:
            assert shown_in(compositor._get_renders(crop), crop) == shown_in(
                Compositor._get_renders(compositor, crop), crop
            )


def shown_in(
    renders: Iterable[tuple[Region, Region, list[Strip]]], crop: Region
) -> dict[tuple[int, int], str]:
    """The text of each row of each widget within a part of the screen."""
    found = {}
    for number, (region, clip, strips) in enumerate(renders):
        shown = region.intersection(clip)
        if not shown.overlaps(crop):
            continue
        for y, strip in zip(shown.line_range, strips, strict=True):
            if y in crop.line_range:
                found[y, number] = strip.text
    # Which widgets are left out differs, and so do the numbers: the order counts.
    return {
        (y, position): found[y, number]
        for y in crop.line_range
        for position, number in enumerate(
            sorted(number for row, number in found if row == y)
        )
    }


async def test_a_word_at_the_end_draws_no_row_above_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_screen, "FIGURES_SECONDS", NEVER)
    gates = [Gate(), Gate()]

    def script() -> Script:
        events = answer(["First paragraph.\n\n", *["Second "] * 3, "last", " word"])
        yield from events[:-2]
        yield gates[0]
        yield events[-2]
        yield gates[1]
        yield events[-1]

    async with Chat(ScriptedEngine(script), show_guesses=False) as chat:
        await chat.begin("a question")
        await chat.sees("Second")
        await settled(chat.pilot)
        drawn: list[int] = []
        render_line = TextView.render_line

        def count(view: TextView, y: int) -> Strip:
            drawn.append(y)
            return render_line(view, y)

        monkeypatch.setattr(TextView, "render_line", count)
        gates[0].set()
        await chat.wait(lambda: drawn)

        assert len(set(drawn)) <= 2
        gates[1].set()
        await chat.until("ready")


async def test_figures_are_drawn_a_few_times_a_second_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_screen, "FIGURES_SECONDS", NEVER)
    drawn: list[str] = []
    draw = SpeculationPanel.draw_session

    def count(panel: SpeculationPanel, session: Any, stats: Any, phase: Any) -> None:
        drawn.append(phase)
        draw(panel, session, stats, phase)

    monkeypatch.setattr(SpeculationPanel, "draw_session", count)

    async with Chat(ScriptedEngine(long_answer)) as chat:
        drawn.clear()
        await chat.send("a question")

        assert drawn.count("answering") <= 2  # At the beginning; and where it scrolls.
        assert drawn[-1] == "ready"
        totals = chat.screen.session.stats.answer.totals
        guesses = f"{totals.accepted} of {totals.drafted}"
        assert guesses in str(chat.screen.query_one(StatusBar).content)
