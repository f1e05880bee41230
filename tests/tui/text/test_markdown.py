"""Markdown: every character is shown, streamed or at once, and in bounded time."""

from collections import Counter
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from rich.cells import cell_len
from rich.segment import Segment

from localspec.chat import copying
from localspec.chat.markdown_parser import MARKDOWN_PARSER, count_visible
from localspec.tui.text import markdown
from localspec.tui.text.markdown import MarkdownText, SegmentLine
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
    "<p>\nWhole **HTML**, `List<String>`: git clone <url>\n</p>\n\n",
    "[1]: https://a.example/ä 'a title'\n[2]: <https://b.example>\n\n",
    '![a cat](https://c.example/cat.png) [t](https://d.example "hidden") &amp; <https://e.example>\n\n',
    "| a | b |\n|---|---|\n| 1 | 2 | one too many |\n\n",
    "~~~js title=x.js\nlet y\n~~~\n\n",
    "````py\n```\nx\n````\nmore\n\n",
    "> <q>1. quoted</q>\n> - [^1]: note\n\n",
    "- 7) odd\n  <!-- comment -->\n\n",
    "\n\n",
    "``` \nnever closed\n",
)


def write(text: str) -> MarkdownText:
    prose = MarkdownText(LOOK)
    prose.write(text)
    return prose


def lines(prose: MarkdownText, width: int) -> list[str]:
    shown = []
    for y in range(prose.height(width)):
        text = "".join(segment.text for segment in prose.line(y, {}))
        shown.append(text.rstrip())
    return shown


def segments(prose: MarkdownText, width: int) -> list[Segment]:
    found: list[Segment] = []
    for y in range(prose.height(width)):
        found += prose.line(y, {})
    return found


def drawn(chunks: list[str], width: int = 40) -> list[str]:
    """The lines of text that is streamed, and drawn after each chunk."""
    prose = MarkdownText(LOOK)
    for chunk in chunks:
        prose.write(chunk)
        prose.height(width)
    return lines(prose, width)


def cut(text: str, sizes: list[int]) -> list[str]:
    """Chunks of these sizes, and the rest."""
    chunks = []
    rest = text
    for size in sizes:
        chunks.append(rest[:size])
        rest = rest[size:]
    return [*chunks, rest]


def test_paragraphs_are_drawn_with_a_blank_line_between() -> None:
    assert drawn(["one\n\n", "two"]) == ["one", "", "two"]


def test_code_is_drawn_with_its_number_and_language_and_indented() -> None:
    assert drawn(["```py\nx = [", "1,\n    2]"]) == ["  1 py", "  x = [1,", "      2]"]


@pytest.mark.parametrize(
    "tags", ["git clone <url>, List<String>, a < b", "<p>all of it</p>"]
)
def test_tags_are_drawn_as_text(tags: str) -> None:
    assert drawn([tags], 60) == [tags]


def test_a_link_is_drawn_with_its_address_and_cannot_be_followed() -> None:
    prose = write("[text](https://example.org/x)")
    assert lines(prose, 60) == ["text (https://example.org/x)"]
    assert not any(s.style and s.style.link for s in prose.line(0, {}))


def test_text_is_wrapped_again_for_another_width() -> None:
    prose = write("some words that wrap\n\nand more\n")
    assert lines(prose, 10) == ["some words", "that wrap", "", "and more"]
    assert lines(prose, 30) == ["some words that wrap", "", "and more"]


def test_no_text_has_a_background_of_its_own() -> None:
    prose = write("```python\nx = 1\n```\n\n`inline`\n")
    styles = [segment.style for segment in segments(prose, 30) if segment.style]
    assert styles
    assert all(style.bgcolor is None for style in styles)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=6),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.integers(12, 60),
)
def test_however_it_is_cut_it_looks_the_same_and_no_line_is_too_wide(
    blocks: list[str], sizes: list[int], width: int
) -> None:
    text = "".join(blocks)
    shown = drawn([text], width)
    assert drawn(cut(text, sizes), width) == shown
    assert all(cell_len(line) <= width for line in shown)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.sampled_from(BLOCKS)
        | st.text("ab<>[]()!|`~*_#&;:-+.\\/\"' \n1é€漢🙂", max_size=40),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(1, 40), max_size=30),
    st.integers(4, 90),
)
@example(["```\n漢"], [], 4)
def test_every_visible_character_is_shown(
    blocks: list[str], sizes: list[int], width: int
) -> None:
    text = "".join(blocks)
    letters = Counter(markdown._BLOCK_MARKUP.sub("", text))
    visible = count_visible(MARKDOWN_PARSER.parse(text))
    for chunks in ([text], cut(text, sizes)):
        shown = Counter("".join(drawn(chunks, width)))
        assert not letters - shown
    finished_text = write(text)
    finished_text.finish()
    assert not visible - Counter("".join(lines(finished_text, width)))
    finished = write(text)
    finished.finish()
    finished.height(width)
    n_blocks = len(copying.find_code_blocks(text))
    assert finished._n_code_blocks == n_blocks, "a click copies another block"


PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
CONTEXTS = (
    "word x{0}y word",
    "word \\{0} word",
    "word x\\{0}y\\{0}z",
    "5{0}x + 3{0}y and 2{0}pi{0}r",
    "word {0}y z{0}w",
    "{0}{0}x y{0}{0}z",
    "count({0}), sum({0})",
    "(a+b){0}c + d{0}(e)",
    "{{a}}{0}{{b}} + x{0}{{c}}",
    "word {0}.py and {0}.txt",
)


@pytest.mark.parametrize("character", PUNCTUATION)
@pytest.mark.parametrize("context", CONTEXTS)
def test_punctuation_in_prose_is_drawn(character: str, context: str) -> None:
    text = context.format(character)
    encloses_code = character == "`" and "\\" not in text and text.count("`") > 1
    is_heading_or_quote = text[0] in "#>~"
    if encloses_code or is_heading_or_quote:
        return
    shown = "".join(drawn([text], 80))
    assert not Counter(text.replace(" ", "")) - Counter(shown)


def test_names_paths_formulas_and_patterns_are_drawn_as_they_are_written() -> None:
    for text in (
        r"C:\Users\_me\.ssh\#conf and \\server\share and \d+\.\d* and \{1, 2\}",
        r"\(a^2\) and \[ x \\ y \] and $x_1 \, y_2$",
        "5*x + 3*y, 2*pi*r, char **argv, *p++, **kwargs, *args",
        "__init__.py and __main__ and __all__, a~b~~c~~d",
        r"\*literal\* and \_this\_ and \`that\`",
        "α*β*γ and а*б*в",
    ):
        assert drawn([text], 100) == [text]


def test_emphasis_of_words_is_still_markup() -> None:
    text = "**bold**, *star*, _under_, ***both***, ~~gone~~, **Note:** `x`, 这是**粗体**文字"
    assert drawn([text], 100) == [
        "bold, star, under, both, gone, Note: x, 这是粗体文字"
    ]


@given(st.text("ab *_~`[]()\\{}1.|$-", max_size=60))
def test_only_pairs_of_marks_vanish_from_a_line(text: str) -> None:
    source = f"x {text} y"
    lost = Counter(source.replace(" ", "")) - Counter("".join(drawn([source], 200)))
    assert set(lost) <= set("*_~`[]")
    assert all(number % 2 == 0 for mark, number in lost.items() if mark not in "[]")
    assert lost["["] == lost["]"]


def test_the_numbers_of_a_list_stay() -> None:
    source = "1. one\n2. two\n\n10. ten\n7. seven\n"
    numbers = [line.split()[0] for line in drawn([source]) if line]
    assert numbers == ["1", "2", "10", "7"]


@pytest.mark.parametrize(
    "line", ["- item **bold**\n", "| a | b |\n", "word ", "x = 1\n", "> q\n"]
)
def test_a_token_in_a_long_block_costs_no_more_than_in_a_short_one(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[int] = []
    render = markdown._render_block
    plain = markdown._render_plain

    def count_block(source: str, *look: object, **how: object) -> object:
        rendered.append(len(source))
        return render(source, *look, **how)  # type: ignore[arg-type]

    def count_plain(source: str, *look: object) -> object:
        rendered.append(len(source))
        return plain(source, *look)  # type: ignore[arg-type]

    monkeypatch.setattr(markdown, "_render_block", count_block)
    monkeypatch.setattr(markdown, "_render_plain", count_plain)
    beginnings = {"x": "```py\n", "|": "| a | b |\n|---|---|\n"}
    prose = write(beginnings.get(line[0], ""))
    for _ in range(20):
        prose.write(line * (2000 // len(line)))
        prose.height(80)
    assert len(prose._tail) > 30_000
    assert max(rendered) < 8_000


def test_code_is_coloured_afterwards_and_moves_nothing() -> None:
    code = "def f(x):\n\treturn 'a long line of code that wraps'"
    prose = write(f"before\n\n```python\n{code}\n```\n\nend\n")
    plain = lines(prose, 30)
    (block,) = prose.take_uncoloured()
    prose.colour(block, block.render())
    assert lines(prose, 30) == plain
    assert not prose.take_uncoloured()
    assert len({str(segment.style) for segment in segments(prose, 30)}) > 4


def styles_of(block_lines: Sequence[SegmentLine]) -> set[str]:
    """Of the text, not of the blanks."""
    styles: set[str] = set()
    for line in block_lines:
        styles |= {str(segment.style) for segment in line if segment.text.strip()}
    return styles


def test_code_that_takes_a_lexer_long_is_coloured_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "int a = 1;\n" * 200 + "a " * 2000 + "\nint b = 2;"
    prose = write(f"```java\n{code}\n```\n")
    prose.finish()
    plain = lines(prose, 60)
    (block,) = prose.take_uncoloured()
    in_time = styles_of(block.render()[:9])
    monkeypatch.setattr(markdown, "_MAX_COLOURING_SECONDS", 0)
    too_late = styles_of(block.render()[9:])
    prose.colour(block, block.render())
    assert lines(prose, 60) == plain
    assert len(in_time) > 3
    assert len(too_late) == 1


@pytest.mark.parametrize("language", ["mcschema", "sas", "text", ""])
def test_other_languages_are_not_coloured(language: str) -> None:
    prose = write(f"```{language}\n{'<!--' * 100}\n```\n\n")
    prose.finish()
    prose.height(80)
    for block in prose.take_uncoloured():
        assert len(styles_of(block.render()[1:])) == 1


@pytest.mark.long
@pytest.mark.timeout(100)
@pytest.mark.parametrize("language", sorted(markdown._COLOURED_LANGUAGES))
def test_no_text_keeps_a_lexer_busy(language: str) -> None:
    openings = (
        "<", "'", '"', "/", "${", "f'", "/*", "<a ", "a(", "#{", "- ", "a:", "`", "(", "\\",
    )  # fmt: skip
    units = ("a", " ", "\\", "(", "{", "<", "\n", "a ", "${a}")
    for opening, unit in product(openings, units):
        lexer = get_lexer_by_name(language, stripnl=False)
        tokens = lexer.get_tokens(opening + unit * 1_000)
        n_characters = sum(len(text) for _, text in tokens)
        assert n_characters >= 1_000, "the test's time is the limit"
