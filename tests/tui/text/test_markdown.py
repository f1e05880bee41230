"""Markdown: every character is shown, streamed or at once, and in bounded time."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from rich.cells import cell_len

from localspec.chat import copying
from localspec.tui.text import markdown
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


def drawn(chunks: list[str], width: int = 40) -> list[str]:
    prose = MarkdownText(LOOK)
    for chunk in chunks:
        prose.write(chunk)
        prose.height(width)
    return lines(prose, width)


def lines(prose: MarkdownText, width: int) -> list[str]:
    height = prose.height(width)
    return ["".join(s.text for s in prose.line(y, {})).rstrip() for y in range(height)]


def test_what_is_drawn() -> None:
    assert drawn(["one\n\n", "two"]) == ["one", "", "two"]
    assert drawn(["```py\nx = [", "1,\n    2]"]) == ["  1 py", "  x = [1,", "      2]"]
    for tags in ("git clone <url>, List<String>, a < b", "<p>all of it</p>"):
        assert drawn([tags], 60) == [tags]
    prose = MarkdownText(LOOK)
    prose.write("[text](https://example.org/x)")
    assert lines(prose, 60) == ["text (https://example.org/x)"]
    assert not any(s.style and s.style.link for s in prose.line(0, {}))
    prose = MarkdownText(LOOK)
    prose.write("some words that wrap\n\nand more\n")
    assert lines(prose, 10) == ["some words", "that wrap", "", "and more"]
    assert lines(prose, 30) == ["some words that wrap", "", "and more"]


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
def test_however_it_is_cut_it_looks_the_same_and_no_line_is_too_wide(
    blocks: list[str], cuts: list[int], width: int
) -> None:
    text = "".join(blocks)
    chunks, rest = [], text
    for cut in cuts:
        chunks.append(rest[:cut])
        rest = rest[cut:]
    shown = drawn([text], width)
    assert drawn([*chunks, rest], width) == shown
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
    blocks: list[str], cuts: list[int], width: int
) -> None:
    text, rest, chunks = "".join(blocks), "".join(blocks), list[str]()
    for cut in cuts:
        chunks.append(rest[:cut])
        rest = rest[cut:]
    wanted = Counter(markdown._MARKUP.sub("", markdown._LIST_NUMBER.sub("", text)))
    for given_chunks in ([text], [*chunks, rest]):
        assert not wanted - Counter("".join(drawn(given_chunks, width)))
    n_blocks = len(copying.find_code_blocks(text))
    finished = MarkdownText(LOOK)
    finished.write(text)
    finished.finish()
    finished.height(width)
    assert finished._n_code_blocks == n_blocks, "a click copies another block"


@pytest.mark.parametrize(
    "line", ["- item **bold**\n", "| a | b |\n", "word ", "x = 1\n", "> q\n"]
)
def test_a_token_in_a_long_block_costs_no_more_than_in_a_short_one(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[int] = []
    render, plain = markdown._render_block, markdown._render_plain

    def count_block(source: str, *look: object, **how: object) -> object:
        rendered.append(len(source))
        return render(source, *look, **how)  # type: ignore[arg-type]

    def count_plain(source: str, *look: object) -> object:
        rendered.append(len(source))
        return plain(source, *look)  # type: ignore[arg-type]

    monkeypatch.setattr(markdown, "_render_block", count_block)
    monkeypatch.setattr(markdown, "_render_plain", count_plain)
    prose = MarkdownText(LOOK)
    prose.write({"x": "```py\n", "|": "| a | b |\n|---|---|\n"}.get(line[0], ""))
    for _ in range(20):
        prose.write(line * (2000 // len(line)))
        prose.height(80)
    assert len(prose._tail) > 30_000 and max(rendered) < 8_000


def test_code_is_coloured_afterwards_and_moves_nothing() -> None:
    prose = MarkdownText(LOOK)
    prose.write(
        "before\n\n```python\ndef f(x):\n\treturn 'a long line of code that wraps'\n```\n\nend\n"
    )
    plain = lines(prose, 30)
    (block,) = prose.take_uncoloured()
    prose.colour(block, block.render())
    assert lines(prose, 30) == plain and not prose.take_uncoloured()
    assert len({str(s.style) for y in range(len(plain)) for s in prose.line(y, {})}) > 4


def test_code_that_takes_a_lexer_long_is_coloured_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "int a = 1;\n" * 200 + "a " * 2000 + "\nint b = 2;"
    prose = MarkdownText(LOOK)
    prose.write(f"```java\n{code}\n```\n")
    prose.finish()
    plain, (block,) = lines(prose, 60), prose.take_uncoloured()
    styles = [{str(s.style) for line in block.render()[:9] for s in line}]
    monkeypatch.setattr(markdown, "_MAX_COLOURING_SECONDS", 0)
    styles.append(
        {str(s.style) for line in block.render()[9:] for s in line if s.text.strip()}
    )
    prose.colour(block, block.render())
    assert lines(prose, 60) == plain
    assert len(styles[0]) > 3 and len(styles[1]) == 1


@pytest.mark.parametrize("language", ["mcschema", "sas", "text", ""])
def test_other_languages_are_not_coloured(language: str) -> None:
    prose = MarkdownText(LOOK)
    prose.write(f"```{language}\n{'<!--' * 100}\n```\n\n")
    prose.finish()
    prose.height(80)
    for block in prose.take_uncoloured():
        styles = {
            str(s.style) for line in block.render()[1:] for s in line if s.text.strip()
        }
        assert len(styles) == 1


@pytest.mark.long
@pytest.mark.parametrize("language", sorted(markdown._COLOURED_LANGUAGES))
def test_no_text_keeps_a_lexer_busy(language: str) -> None:
    openings = (
        "<",
        "'",
        '"',
        "/",
        "${",
        "f'",
        "/*",
        "<a ",
        "a(",
        "#{",
        "- ",
        "a:",
        "`",
        "(",
        "\\",
    )
    for opening, unit in product(
        openings, ("a", " ", "\\", "(", "{", "<", "\n", "a ", "${a}")
    ):
        lexer = get_lexer_by_name(language, stripnl=False)
        tokens = lexer.get_tokens(opening + unit * 2_000)
        assert sum(len(text) for _, text in tokens) >= 2_000, (
            "the test's time is the limit"
        )
