"""What is copied from drawn text is its source."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.tui.text.blocks import BlockStack, Paragraph, join_sources
from localspec.tui.text.markdown import MarkdownText, RenderBudget
from localspec.tui.text.source_map import DrawnPlace, SourceMap
from localspec.tui.themes import MarkdownStyle

LOOK = MarkdownStyle("#7aa7f0", "#8b929c", "one-dark")
CODE = (
    "curl -sS 'https://example.com/api/v1/items?foo=1&bar=2&baz=3' -H 'Authorization: "
    "Bearer TOKEN' -H 'Accept: application/json' | jq '.items[] | select(.price > 10) | "
    ".name' | sort -u > /tmp/out.txt\n"
    "for i in 1 2 3; do\n\techo $i\ndone"
)
PROSE = (
    "And a paragraph with **bold words** that is long enough to be wrapped at the width "
    "of the window, at least once, because it goes on and on until it is."
)
ANSWER = f"Run this:\n\n```sh\n{CODE}\n```\n\n{PROSE}\n"


def drawn(text: str, width: int) -> MarkdownText:
    prose = MarkdownText(LOOK)
    prose.write(text)
    prose.finish()
    prose.height(width)
    return prose


def row_text(prose: MarkdownText, row: int) -> str:
    return "".join(segment.text for segment in prose.line(row, {}))


def find_row(prose: MarkdownText, width: int, word: str) -> int:
    rows = range(prose.height(width))
    return next(row for row in rows if word in row_text(prose, row))


@pytest.mark.parametrize("width", [30, 60, 96])
def test_marked_code_is_the_source_without_wraps_blanks_and_changed_tabs(
    width: int,
) -> None:
    prose = drawn(ANSWER, width)
    top = find_row(prose, width, "curl")
    end = find_row(prose, width, "done")
    source = prose.source_map(top)
    assert source.n_rows + source.first_row == end + 1
    assert source.cut(DrawnPlace(top, 0), DrawnPlace(end, width)) == CODE


def test_what_waits_to_be_rendered_is_copied_once_and_whole() -> None:
    numbers_rendered = set()
    for budget in range(0, 3000, 50):
        text = MarkdownText(LOOK, budget=RenderBudget(budget))
        text.write(ANSWER)
        text.finish()
        stack = BlockStack()
        stack.blocks = [text]

        copied = join_sources(stack, stack.height(60))

        assert copied.rstrip("\n") == ANSWER.rstrip("\n")
        numbers_rendered.add(text._n_rendered)
    assert numbers_rendered == {0, 1, 2, 3}


@pytest.mark.parametrize("width", [30, 60, 96])
def test_a_marked_paragraph_is_one_line_with_its_marks(width: int) -> None:
    prose = drawn(ANSWER, width)
    top = find_row(prose, width, "And a")
    source = prose.source_map(top)
    bottom = source.first_row + source.n_rows - 1
    assert source.n_rows > 1
    assert source.cut(DrawnPlace(top, 0), DrawnPlace(bottom, width)) == PROSE


def test_a_part_of_a_line_is_copied_as_it_is_marked() -> None:
    prose = drawn("some **bold** words and `code` here\n", 60)
    row = row_text(prose, 0)
    start = DrawnPlace(0, row.index("bold"))
    end = DrawnPlace(0, row.index(" here"))
    assert prose.source_map(0).cut(start, end) == "bold** words and `code"


def test_a_table_whose_cells_are_wrapped_is_copied_whole() -> None:
    table = "| a | b |\n|---|---|\n| one two three four | five six seven eight |"
    prose = drawn(f"{table}\n", 24)
    assert prose.source_map(3).cut(DrawnPlace(2, 0), DrawnPlace(4, 5)) == table


def test_a_place_has_the_source_position_of_its_character() -> None:
    source = SourceMap("- a **bold** word", [" • a bold", "   word"])
    places = [DrawnPlace(0, 3), DrawnPlace(0, 5), DrawnPlace(1, 3)]
    assert [source.position_at(place) for place in places] == [2, 6, 13]
    assert source.position_at(DrawnPlace(0, 1)) == -1


@settings(deadline=None, max_examples=100)
@given(st.text("ab \t\n漢é*_`'\"", min_size=1, max_size=80), st.integers(4, 30))
def test_all_of_a_paragraph_is_its_source(text: str, width: int) -> None:
    block = Paragraph(text)
    height = block.height(width)
    if not text.strip():
        return
    source = block.source_map(0)
    assert source.n_rows == height
    end = DrawnPlace(height, 0)
    assert source.cut(DrawnPlace(0, 0), end).strip() == text.strip()
