"""▸ marks the selected row of every list, and of every row with a field."""

import ast
from pathlib import Path

import pytest
from textual.content import Content
from textual.widgets.option_list import Option

from localspec import tui
from localspec.tui.widgets.pointer_list import MARK, MarkedList, PointerList
from tests.tui.screen_rows import find_rows, show_widgets
from tests.tui.screen_states import STATES

SOURCES = sorted(Path(tui.__file__).parent.rglob("*.py"))
STATES_WITH_A_SELECTION = (
    "home-full", "home-preferences", "wizard-first", "wizard-second", "chat-room", "chat-turns",
    "chat-settings", "doctor",
)  # fmt: skip


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_list_marks_its_row(source: Path) -> None:
    """A plain OptionList would show the selected row by its background alone."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    plain = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            plain += [node.func]
        elif isinstance(node, ast.ClassDef) and node.name != "MarkedList":
            plain += node.bases
    names = [node.id for node in plain if isinstance(node, ast.Name)]
    assert "OptionList" not in names


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", STATES_WITH_A_SELECTION)
async def test_a_screen_has_one_marked_row(name: str) -> None:
    make, steps = STATES[name]
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await steps(pilot)
        marked = [row for row in find_rows(app.screen) if MARK in row]
    assert len(marked) == 1


async def test_the_mark_is_on_the_first_line_of_a_row_and_follows_it() -> None:
    rows = MarkedList(Option("one\nits second line"), Option("two"))
    async with show_widgets(rows) as pilot:
        first = find_rows(pilot.app.screen)
        await pilot.press("down")
        second = find_rows(pilot.app.screen)
    assert first[:3] == ["▸ one", "  its second line", "  two"]
    assert second[:3] == ["  one", "  its second line", "▸ two"]


async def test_a_scrolled_list_marks_the_row_that_is_selected() -> None:
    options = [Option(f"row {number}") for number in range(50)]
    async with show_widgets(MarkedList(*options)) as pilot:
        await pilot.press("end")
        rows = find_rows(pilot.app.screen)
    assert [row for row in rows if MARK in row] == ["▸ row 49"]


async def test_no_row_is_marked_while_the_pointer_is_removed() -> None:
    names = PointerList[str]("names", str, Content)
    async with show_widgets(names) as pilot:
        names.set_sections([(None, ["one", "two"])])
        names.remove_pointer()
        await pilot.pause()
        assert find_rows(pilot.app.screen)[:2] == ["  one", "  two"]
