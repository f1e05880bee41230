"""Markdown on a terminal: however it arrives, the screen ends up the same.

`Screen` is a terminal that knows only the sequences that the view writes.
"""

import itertools
import re
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localspec.chat.markdown_parser import MARKDOWN_PARSER, count_visible
from localspec.cli.markdown_view import MarkdownView
from localspec.report.lines import cell_width

_SEQUENCE = re.compile(r"\x1b\[(\d*)([A-Za-z])|\x1b\[[0-9;]*m|\r|\n|.", re.DOTALL)

PARTS = [
    "# A heading of some words\n\n",
    "Some **bold words**, *others*, `code` and ~~struck~~ text.\n",
    "Paths: C:\\dir\\new, a*b*c, __init__, count(*), 2 * 3.\n\n",
    "[a link](https://example.org/path)\n\n",
    "- one\n- two words\n  - nested\n\n- loose\n",
    "3. three\n4. four\n",
    "> quoted words\n> more\n\n",
    "```python\ndef f(x):\n\treturn x + 1000000000000000000000000\n```\n\n",
    "```\nopen to the end\n",
    "| a | long heading |\n|---|---|\n| 1 | two words |\n| 3 | four |\n\n",
    "---\n\n",
    "你好世界这是一个很长的中文句子。\n\n",
    "<b>tags</b> &amp; entities\n\n",
    "unclosed **bold and `code\n\n",
]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=5).map("".join)
CHARACTERS = st.text(st.sampled_from("ab *_`~#>|-1.[]()\\\n你"), max_size=60)


class Screen:
    """Rows of cells without a limit; the cursor cannot leave the last `height` rows.

    A line that is too wide goes on in the next row, as on a terminal.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.rows: list[str] = [""]
        self.continued: set[int] = (
            set()
        )  # Rows that go on with the line of the one before.
        self.row = 0
        self.column = 0

    @property
    def lines(self) -> list[str]:
        lines: list[str] = []
        for number, row in enumerate(self.rows):
            if number in self.continued:
                lines[-1] += row
            else:
                lines.append(row)
        return lines

    @property
    def too_wide(self) -> list[str]:
        return [line for line in self.lines if cell_width(line) > self.width]

    def write(self, text: str) -> None:
        for match in _SEQUENCE.finditer(text):
            self._apply(match[0], match[1], match[2])

    def _apply(self, written: str, number: str | None, command: str | None) -> None:
        if command == "A":
            self.row -= int(number or 1)
            assert self.row > len(self.rows) - 1 - self.height, "above the screen"
        elif command == "K":
            self.rows[self.row] = self._before_cursor()
            self.continued.discard(self.row)
        elif written == "\n":
            self._go_to_next_row()
        elif written == "\r":
            self.column = 0
        elif not written.startswith("\x1b"):
            if self.column + cell_width(written) > self.width:
                self._go_to_next_row()
                self.continued.add(self.row)
            row = self._before_cursor()
            assert row == self.rows[self.row], "it overwrites what is there"
            self.rows[self.row] = row + written
            self.column += cell_width(written)

    def _go_to_next_row(self) -> None:
        self.row += 1
        self.column = 0
        if self.row == len(self.rows):
            self.rows.append("")

    def _before_cursor(self) -> str:
        row = ""
        for character in self.rows[self.row]:
            if cell_width(row) < self.column:
                row += character
        return row


def shown(chunks: list[str], width: int = 40, height: int = 10) -> Screen:
    screen = Screen(width, height)
    clock = itertools.count(0, 10)  # Every part is a frame.
    view = MarkdownView(
        screen.write, size=lambda: (width, height), clock=lambda: float(next(clock))
    )
    for chunk in chunks:
        view.add(chunk)
    view.finish()
    return screen


def cut(text: str, sizes: list[int]) -> list[str]:
    parts = []
    for size in sizes:
        parts.append(text[:size])
        text = text[size:]
    return [*parts, text]


@given(TEXTS, st.lists(st.integers(1, 9), max_size=60), st.integers(20, 60))
@settings(deadline=None)
def test_however_it_is_cut_it_looks_the_same(
    text: str, sizes: list[int], width: int
) -> None:
    whole = shown([text], width)
    assert shown(cut(text, sizes), width).rows == whole.rows


@given(st.one_of(TEXTS, CHARACTERS), st.integers(12, 60))
@example("[]()", 12)
@example("see [](https://example.org)", 60)
@settings(deadline=None)
def test_every_visible_character_is_shown(text: str, width: int) -> None:
    visible = count_visible(MARKDOWN_PARSER.parse(text))
    found = Counter("".join(shown([text], width).rows))
    assert not {each: n for each, n in (visible - found).items() if n > 0}


@given(st.one_of(TEXTS, CHARACTERS), st.integers(12, 60))
@settings(deadline=None)
def test_no_line_but_one_of_code_is_wider_than_the_terminal(
    text: str, width: int
) -> None:
    code = [
        line.replace("\t", "    ")
        for token in MARKDOWN_PARSER.parse(text)
        if token.type in ("fence", "code_block")
        for line in token.content.split("\n")
    ]
    for line in shown([text], width).too_wide:
        assert any(line.endswith(one) for one in code if one), line


def test_a_line_of_code_stays_whole_so_that_it_can_be_copied() -> None:
    code = "x = " + "1 + " * 30 + "1"
    screen = shown([f"```\n{code}\n```\n\nafter"], width=40)
    assert screen.lines == ["```", code, "```", "", "after", ""]


def test_while_it_grows_a_line_of_code_is_as_wide_as_the_terminal() -> None:
    """Else the rows that it takes could not be counted, and drawn again."""
    screen = Screen(40, 10)
    view = MarkdownView(screen.write, size=lambda: (40, 10), clock=lambda: 0.0)
    view.add("```\n" + "x = 1;" * 20)
    assert not screen.too_wide


def test_a_block_taller_than_the_screen_is_written_whole_at_its_end() -> None:
    items = "".join(f"- item {n}\n" for n in range(40))
    screen = shown(cut(items, [7] * 80), height=8)
    assert screen.rows[:-1] == [f"• item {n}" for n in range(40)]


def test_what_is_before_the_last_block_is_not_drawn_again() -> None:
    written: list[str] = []
    view = MarkdownView(written.append, size=lambda: (40, 10), clock=lambda: 0.0)
    view.add("First paragraph.\n\nSecond")
    written.clear()
    view._next_frame_at = 0.0
    view.add(" one")
    assert written == [" one"], "only what is new"


@pytest.mark.parametrize(
    ("markdown", "rows"),
    [
        ("a\nb", ["a", "b"]),
        ("a\n\nb", ["a", "", "b"]),
        ("1. x\n2. y", ["1. x", "2. y"]),
        ("- a\n\n- b", ["• a", "", "• b"]),
        ("> q", ["│ q"]),
        ("```py\nx\n```", ["```py", "x", "```"]),
        ("```py\nx", ["```py", "x"]),
        ("[a](b)", ["a (b)"]),
        ("|a|b|\n|-|-|\n|1|2|", ["a  b", "─  ─", "1  2"]),
        ("|a|b|\n|-:|-|\n|1|2|\n|100|3|", ["  a  b", "───  ─", "  1  2", "100  3"]),
        ("*a* 2*b*c", ["a 2*b*c"]),
    ],
)
def test_blocks(markdown: str, rows: list[str]) -> None:
    assert shown([markdown]).rows == [*rows, ""]


def test_a_resized_terminal_gets_the_block_again_below() -> None:
    size = [40, 10]
    written: list[str] = []
    view = MarkdownView(
        written.append, size=lambda: (size[0], size[1]), clock=lambda: 0.0
    )
    view.add("some words that are here")
    size[0] = 12
    view.finish()
    assert written[-1].startswith("\n")
    assert "some words" in written[-1]
