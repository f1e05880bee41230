"""Bytes in any pieces become the same text, cut at the first stop string."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localspec.engine.output_processor import IncrementalDetokenizer


def streamed(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[str, bool]:
    """The whole text, as one who shows each piece at once would see it."""
    stream, shown = IncrementalDetokenizer(stops), ""
    for piece in pieces:
        shown += stream.push(piece)
        if stream.hit_stop:
            break
    return shown + stream.finish(), stream.hit_stop


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(bounds)]


def first_stop(text: str, stops: tuple[str, ...]) -> int:
    """Where the text ends: the stop string that is whole first, the longest of those."""
    ends = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(ends)[1] if ends else len(text)


PLACES = st.lists(st.integers(0, 200), max_size=12)
STOPS = st.lists(st.text("ab\né", min_size=1, max_size=4), max_size=3).map(tuple)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.binary(max_size=20) | st.lists(st.sampled_from("aé😀".encode())).map(bytes), PLACES)
def test_any_pieces_of_any_bytes_give_the_same_text(data: bytes, places: list[int]) -> None:
    assert streamed(cut(data, places)) == (data.decode("utf-8", "replace"), False)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.text("aé😀", max_size=20), PLACES)
def test_a_character_is_shown_whole_or_not_yet(text: str, places: list[int]) -> None:
    stream = IncrementalDetokenizer()
    shown = "".join(stream.push(piece) for piece in cut(text.encode(), places))
    assert shown == text
    assert stream.finish() == ""


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.text("ab\né", max_size=16), STOPS, PLACES)
@example("abba", ("bb", "abba"), [2, 3])
def test_stop_strings_cut_exactly_in_any_pieces(
    text: str, stops: tuple[str, ...], places: list[int]
) -> None:
    end = first_stop(text, stops)
    expected = (text[:end], any(stop in text for stop in stops))
    assert streamed(cut(text.encode(), places), stops) == expected


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.text("ab\né", max_size=16), st.text("ab\né", min_size=1, max_size=4), PLACES)
def test_one_stop_string_cuts_exactly_in_any_pieces(
    text: str, stop: str, places: list[int]
) -> None:
    before, found, _ = text.partition(stop)
    assert streamed(cut(text.encode(), places), (stop,)) == (before, bool(found))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.text("ab", max_size=16), st.lists(st.text("ab", min_size=1, max_size=4)).map(tuple))
def test_only_what_may_become_a_stop_is_held_back(text: str, stops: tuple[str, ...]) -> None:
    stream, shown = IncrementalDetokenizer(stops), ""
    for n, letter in enumerate(text):
        shown += stream.push(letter.encode())
        if stream.hit_stop:
            return
        held = text[len(shown) : n + 1]
        assert shown + held == text[: n + 1]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_an_unfinished_character_waits_and_ends_as_a_mark() -> None:
    stream = IncrementalDetokenizer()
    assert stream.push("é".encode()[:1]) == ""
    assert stream.push("é".encode()[1:] + b"\xf0\x9f") == "é"
    assert stream.finish() == "�"
    assert stream.finish() == ""


def test_what_may_become_a_stop_waits_and_comes_at_the_end() -> None:
    stream = IncrementalDetokenizer(("</s>",))
    assert stream.push(b"so </") == "so "
    assert stream.push(b"p> </s") == "</p> "
    assert stream.finish() == "</s"
    assert not stream.hit_stop


def test_after_a_stop_nothing_is_left() -> None:
    stream = IncrementalDetokenizer(("\n\n",))
    assert stream.push(b"one\n") == "one"
    assert stream.push(b"\ntwo") == ""
    assert stream.hit_stop
    assert stream.finish() == ""


@pytest.mark.parametrize("stops", [(), ("",), ("", "x")])
def test_an_empty_stop_stops_nothing(stops: tuple[str, ...]) -> None:
    assert streamed([b"ab", b"c"], stops) == ("abc", False)
