"""Incremental wrapping gives the same lines as wrapping the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from localspec.tui.text.wrapping import WrappedText

TEXTS = st.lists(
    st.text(st.sampled_from("ab cd\n\t漢字é👍 .,-"), max_size=9),
    min_size=1,
    max_size=20,
)


def wrapped(texts: list[str], width: int) -> WrappedText:
    lines = WrappedText(width)
    for owner, text in enumerate(texts):
        lines.append(text, owner)
    return lines


def shown(lines: WrappedText) -> list[str]:
    return ["".join(run.text for run in line) for line in lines.lines]


@pytest.mark.parametrize(
    ("texts", "width", "expected"),
    [
        (["the quick brown fox"], 9, ["the quick", "brown fox"]),
        (["a ", "fib", "on", "acci"], 8, ["a ", "fibonacc", "i"]),
        (["ab ", "fi", "bo", "na"], 8, ["ab ", "fibona"]),
        (["if x:\n", "    y\n\n", "z"], 20, ["if x:", "    y", "", "z"]),
    ],
)
def test_words_of_several_tokens_move_as_one(
    texts: list[str], width: int, expected: list[str]
) -> None:
    assert shown(wrapped(texts, width)) == expected


def test_tokens_of_a_word_that_moves_start_on_its_new_line() -> None:
    lines = wrapped(["ab ", "fi", "bo", "na"], 8)
    assert [lines.start_lines[token] for token in range(4)] == [0, 1, 1, 1]


def without_spaces(texts: list[str]) -> str:
    return "".join("".join(texts).split())


@given(TEXTS, st.integers(2, 30))
def test_no_line_is_too_wide_nothing_is_lost_and_cuts_change_nothing(
    texts: list[str], width: int
) -> None:
    lines = wrapped(texts, width)
    assert all(cell_len(line) <= width for line in shown(lines))
    assert without_spaces(shown(lines)) == without_spaces(texts)
    assert shown(lines) == shown(wrapped(["".join(texts)], width))


@given(TEXTS, st.integers(2, 30))
def test_each_token_starts_on_a_line_and_not_below_its_text(
    texts: list[str], width: int
) -> None:
    lines = wrapped(texts, width)
    for owner in range(len(texts)):
        assert 0 <= lines.start_lines[owner] < len(lines.lines)
    for number, line in enumerate(lines.lines):
        assert all(lines.start_lines[run.owner] <= number for run in line)
