"""Splitting off thinking does not depend on how the text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.models.chat_template.thinking_tags import (
    AnswerPart,
    ThinkingParser,
    merge_parts,
    split_thinking,
    strip_thinking,
)

MARKERS = ("<think>", "</think>")
PIECES = st.sampled_from(
    ["<think>", "</think>", "<thi", "nk>", "</", "<", ">", " ", "\n", "a", "漢"]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@given(TEXTS, st.booleans(), st.data())
def test_any_chunking_gives_the_same_split(text: str, inside: bool, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    splitter = ThinkingParser(MARKERS, inside)
    parts = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        parts += splitter.feed(text[start:end])
    parts += splitter.flush()
    assert merge_parts(parts) == split_thinking(text, MARKERS, inside)


@given(TEXTS, st.booleans())
def test_nothing_is_lost_but_markers(text: str, inside: bool) -> None:
    kept = "".join(part.text for part in split_thinking(text, MARKERS, inside))
    missing = len(text) - len(kept)
    assert missing in {7 * opens + 8 * closes for opens in range(13) for closes in range(13)}
    rest = iter(text)
    assert all(character in rest for character in kept), "the order is the text's"


@given(TEXTS, st.booleans())
def test_without_markers_all_is_said(text: str, inside: bool) -> None:
    assert split_thinking(text, None, inside) == ((AnswerPart(False, text),) if text else ())


@pytest.mark.parametrize(
    ("text", "inside", "parts"),
    [
        ("<think>a</think>b", False, [AnswerPart(True, "a"), AnswerPart(False, "b")]),
        ("a</think>b", True, [AnswerPart(True, "a"), AnswerPart(False, "b")]),
        ("\n<think>a", False, [AnswerPart(False, "\n"), AnswerPart(True, "a")]),
        ("Use <think>a</think>", False, [AnswerPart(False, "Use <think>a</think>")]),
        (
            "<think>a</think>b<think>c",
            False,
            [AnswerPart(True, "a"), AnswerPart(False, "b<think>c")],
        ),
        ("<think></think>b", False, [AnswerPart(False, "b")]),
        ("a</think>", False, [AnswerPart(False, "a</think>")]),
        ("<thin", False, [AnswerPart(False, "<thin")]),
    ],
)
def test_parts(text: str, inside: bool, parts: list[AnswerPart]) -> None:
    assert list(split_thinking(text, MARKERS, inside)) == parts


def test_a_marker_begun_is_held_back() -> None:
    splitter = ThinkingParser(MARKERS)
    assert splitter.feed("<thi") == []
    assert splitter.feed("ng>") == [AnswerPart(False, "<thing>")]
    assert not splitter.in_thinking


def test_what_was_said() -> None:
    assert strip_thinking("<think>a</think>\n\nHello. ", MARKERS) == "Hello."
    assert strip_thinking(" Hello. ", MARKERS) == " Hello. "
