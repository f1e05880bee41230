"""Streaming Markdown looks the same as Markdown rendered at once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.tui.text.markdown import MarkdownText
from localspec.tui.themes import MarkdownStyle

LOOK = MarkdownStyle("#7aa7f0", "#8b929c", "one-dark")
BLOCKS = (
    "A paragraph with **bold** and `code`,\nover two lines.\n\n",
    "# A heading\n\n",
    "Underlined\n===\n\n",
    "- one\n- two\n  more of two\n\n  a paragraph of two\n- three\n\n",
    "1. first\n2. second\n\n",
    "```python\ndef f(x):\n\n    return x\n```\n\n",
    "    indented code\n\n",
    "> quoted\n> twice\n\n",
    "| a | b |\n|---|---|\n| 1 | 漢字 |\n\n",
    "---\n\n",
    "[a link](https://example.org/) and ~~gone~~\n\n",
    "<b>html</b>\n\n",
    "\n\n",
    "``` \nnever closed\n",
)


def drawn(chunks: list[str], width: int = 40) -> list[str]:
    prose = MarkdownText(LOOK)
    for chunk in chunks:
        prose.write(chunk)
        prose.height(width)
    return lines(prose, width)


def lines(prose: MarkdownText, width: int) -> list[str]:
    height = prose.height(width)
    return ["".join(s.text for s in prose.line(y, {})).rstrip() for y in range(height)]


def test_blocks_stand_apart_and_nothing_stands_around_them() -> None:
    assert drawn(["one\n\n", "two"]) == ["one", "", "two"]


def test_an_open_fence_is_shown_as_it_comes() -> None:
    assert drawn(["```py\nx = [", "1,\n    2]"]) == ["  1 py", "  x = [1,", "      2]"]


def test_a_link_shows_its_address_and_nothing_else() -> None:
    prose = MarkdownText(LOOK)
    prose.write("[text](https://example.org/x)")
    prose.height(60)
    segments = prose.line(0, {})
    assert "".join(s.text for s in segments).rstrip() == "text (https://example.org/x)"
    assert not any(s.style and s.style.link for s in segments)


def test_no_ground_of_its_own() -> None:
    prose = MarkdownText(LOOK)
    prose.write("```python\nx = 1\n```\n\n`inline`\n")
    height = prose.height(30)
    styles = [s.style for y in range(height) for s in prose.line(y, {}) if s.style]
    assert styles and all(style.bgcolor is None for style in styles)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=6),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.integers(12, 60),
)
def test_however_it_is_cut_it_looks_the_same(
    blocks: list[str], cuts: list[int], width: int
) -> None:
    text = "".join(blocks)
    chunks, rest = [], text
    for cut in cuts:
        chunks.append(rest[:cut])
        rest = rest[cut:]
    assert drawn([*chunks, rest], width) == drawn([text], width)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=6), st.integers(4, 60))
def test_no_line_is_wider_than_the_view(blocks: list[str], width: int) -> None:
    prose = MarkdownText(LOOK)
    prose.write("".join(blocks))
    height = prose.height(width)
    for y in range(height):
        assert sum(s.cell_length for s in prose.line(y, {})) <= width


def test_another_width_draws_everything_anew() -> None:
    prose = MarkdownText(LOOK)
    prose.write("some words that wrap\n\nand more\n")
    assert lines(prose, 10) == ["some words", "that wrap", "", "and more"]
    assert lines(prose, 30) == ["some words that wrap", "", "and more"]
