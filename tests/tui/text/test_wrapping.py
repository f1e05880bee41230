"""Incremental wrapping gives the same lines as wrapping the whole text."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from localspec.tui.text.wrapping import WrappedText

TEXTS = st.lists(
    st.text(st.sampled_from("ab cd\n\t漢字é👍 .,-"), max_size=9), min_size=1, max_size=20
)
WIDTHS = st.integers(2, 30)


def wrapped(texts: list[str], width: int) -> WrappedText:
    lines = WrappedText(width)
    for owner, text in enumerate(texts):
        lines.append(text, owner)
    return lines


def shown(lines: WrappedText) -> list[str]:
    return ["".join(run.text for run in line) for line in lines.lines]


def test_words_move_on_whole() -> None:
    assert shown(wrapped(["the quick brown fox"], 9)) == ["the quick", "brown fox"]


def test_a_word_of_several_tokens_moves_as_one() -> None:
    assert shown(wrapped(["a ", "fib", "on", "acci"], 8)) == ["a ", "fibonacc", "i"]
    assert shown(wrapped(["ab ", "fi", "bo", "na"], 8)) == ["ab ", "fibona"]


def test_indentation_and_empty_lines_stay() -> None:
    assert shown(wrapped(["if x:\n", "    y\n\n", "z"], 20)) == ["if x:", "    y", "", "z"]


def test_a_cursor_finds_the_line_of_a_word_that_moved() -> None:
    lines = wrapped(["ab ", "fi", "bo", "na"], 8)
    assert [lines.start_lines[i] for i in range(4)] == [0, 1, 1, 1]


@given(TEXTS, WIDTHS)
def test_no_line_is_wider_than_the_view(texts: list[str], width: int) -> None:
    assert all(cell_len(line) <= width for line in shown(wrapped(texts, width)))


@given(TEXTS, WIDTHS)
def test_nothing_but_space_is_ever_lost(texts: list[str], width: int) -> None:
    seen = "".join("".join(shown(wrapped(texts, width))).split())
    assert seen == "".join("".join(texts).split())


@given(TEXTS, WIDTHS)
def test_however_a_text_is_cut_the_lines_are_the_same(texts: list[str], width: int) -> None:
    whole = wrapped(["".join(texts)], width)
    assert shown(wrapped(texts, width)) == shown(whole)


@given(TEXTS, WIDTHS)
def test_every_token_begins_on_a_line_that_is_there(texts: list[str], width: int) -> None:
    lines = wrapped(texts, width)
    for owner in range(len(texts)):
        assert 0 <= lines.start_lines[owner] < len(lines.lines)
    for number, line in enumerate(lines.lines):
        for run in line:
            assert lines.start_lines[run.owner] <= number
