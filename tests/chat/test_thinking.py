"""However an answer is cut into pieces, the same parts are thinking."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.thinking import Part, Splitter, joined, said, split

MARKERS = ("<think>", "</think>")
PIECES = st.sampled_from(
    ["<think>", "</think>", "<thi", "nk>", "</", "<", ">", " ", "\n", "a", "漢"]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@given(TEXTS, st.booleans(), st.data())
def test_any_chunking_gives_the_same_split(text: str, inside: bool, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    splitter = Splitter(MARKERS, inside)
    parts = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        parts += splitter.feed(text[start:end])
    parts += splitter.end()
    assert joined(parts) == split(text, MARKERS, inside)


@given(TEXTS, st.booleans())
def test_nothing_is_lost_but_markers(text: str, inside: bool) -> None:
    kept = "".join(part.text for part in split(text, MARKERS, inside))
    missing = len(text) - len(kept)
    assert missing in {7 * opens + 8 * closes for opens in range(13) for closes in range(13)}
    rest = iter(text)
    assert all(character in rest for character in kept), "the order is the text's"


@given(TEXTS, st.booleans())
def test_without_markers_all_is_said(text: str, inside: bool) -> None:
    assert split(text, None, inside) == ((Part(False, text),) if text else ())


@pytest.mark.parametrize(
    ("text", "inside", "parts"),
    [
        ("<think>a</think>b", False, [Part(True, "a"), Part(False, "b")]),
        ("a</think>b", True, [Part(True, "a"), Part(False, "b")]),
        ("\n<think>a", False, [Part(False, "\n"), Part(True, "a")]),
        ("Use <think>a</think>", False, [Part(False, "Use <think>a</think>")]),
        ("<think>a</think>b<think>c", False, [Part(True, "a"), Part(False, "b<think>c")]),
        ("<think></think>b", False, [Part(False, "b")]),
        ("a</think>", False, [Part(False, "a</think>")]),
        ("<thin", False, [Part(False, "<thin")]),
    ],
)
def test_parts(text: str, inside: bool, parts: list[Part]) -> None:
    assert list(split(text, MARKERS, inside)) == parts


def test_a_marker_begun_is_held_back() -> None:
    splitter = Splitter(MARKERS)
    assert splitter.feed("<thi") == []
    assert splitter.feed("ng>") == [Part(False, "<thing>")]
    assert not splitter.inside


def test_what_was_said() -> None:
    assert said("<think>a</think>\n\nHello. ", MARKERS) == "Hello."
    assert said(" Hello. ", MARKERS) == " Hello. "
