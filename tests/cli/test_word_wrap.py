"""Text is broken between words, no line is wider than the terminal, nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.cli.word_wrap import StyledText, WordWriter, render_line, wrap
from localspec.report.lines import cell_width

# Words, wide and combining characters, emoji with a selector, blanks and line ends.
TEXTS = st.text(
    st.sampled_from(
        "abc-/.\t \n\xa0" + "你好、。ａ" + "é" + "e\u0301" + "⚠\ufe0f" + "👍" + "한"
    ),
    max_size=120,
)
WIDTHS = st.integers(2, 40)


def lines_of(text: str, width: int) -> list[str]:
    return [render_line(line) for line in wrap([StyledText(text)], width)]


def written(parts: list[str], width: int) -> str:
    """What a writer that never redraws has written, with its line ends."""
    out: list[str] = []
    writer = WordWriter(
        lambda: width, lambda _: out.append("\n"), write_part=out.append
    )
    for part in parts:
        writer.write(StyledText(part))
    writer.end()
    return "".join(out)


def cut(text: str, sizes: list[int]) -> list[str]:
    parts = []
    for size in sizes:
        parts.append(text[:size])
        text = text[size:]
    return [*parts, text]


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 8, ["one two", "three"]),
        ("one two three", 7, ["one two", "three"]),
        ("  indented text", 10, ["  indented", "text"]),
        ("a\n\nb", 8, ["a", "", "b"]),
        ("incomprehensible", 6, ["incomp", "rehens", "ible"]),
        ("see incomprehensible", 6, ["see", "incomp", "rehens", "ible"]),
        ("你好世界", 5, ["你好", "世界"]),
        ("你好。世界", 4, ["你", "好。", "世界"]),
        ("no\xa0break here", 9, ["no\xa0break", "here"]),
        ("trailing   ", 20, ["trailing"]),
        ("", 20, []),
    ],
)
def test_lines(text: str, width: int, lines: list[str]) -> None:
    assert lines_of(text, width) == lines


@given(TEXTS, WIDTHS)
def test_no_character_is_lost_and_no_line_is_too_wide(text: str, width: int) -> None:
    lines = lines_of(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(cell_width(line) <= width for line in lines)


@given(TEXTS, WIDTHS, st.integers(0, 12))
def test_nor_is_an_indented_one(text: str, width: int, n: int) -> None:
    lines = wrap([StyledText(text)], width, indent=(StyledText(" " * n),))
    texts = [render_line(line) for line in lines]
    assert "".join("".join(texts).split()) == "".join(text.split())
    assert all(cell_width(line) <= width for line in texts)


@given(TEXTS, WIDTHS, st.lists(st.integers(0, 5), max_size=30))
def test_a_text_that_arrives_in_parts_is_broken_as_a_whole(
    text: str, width: int, sizes: list[int]
) -> None:
    lines = lines_of(text, width)
    expected = "".join(f"{line}\n" for line in lines)
    assert written(cut(text, sizes), width) == expected


@given(st.text("ab \n你", max_size=60), WIDTHS)
def test_words_that_fit_on_a_line_are_whole(text: str, width: int) -> None:
    words = [word for word in text.split() if word.isascii() and len(word) <= width]
    found = " ".join(lines_of(text, width)).split()
    assert all(word in found for word in words)


def test_later_lines_are_indented() -> None:
    lines = wrap([StyledText("one two three")], 8, indent=(StyledText("  "),))
    assert [render_line(line) for line in lines] == ["one two", "  three"]


def test_a_style_lasts_over_a_line_end() -> None:
    bold = "\x1b[1m"
    lines = wrap([StyledText("one two", bold)], 4)
    assert [render_line(line) for line in lines] == [
        "\x1b[1mone\x1b[0m",
        "\x1b[1mtwo\x1b[0m",
    ]
