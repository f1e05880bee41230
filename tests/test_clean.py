"""No text can move the cursor, change the title, or turn the line around."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.sanitize import sanitize

FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    "\ud800-\udfff]"
)
HOSTILE = st.text(
    "\x1b\x9b\x9d\x90\x9c\x07\\[]P^_X0;?~mAh\r\n\t é😀\u202e\u2066\u200f\u2028\ud83d\ude00\x00\x7f",
    max_size=30,
)
ANY = st.lists(st.integers(0, 0x10FFFF), max_size=20).map(lambda codes: "".join(map(chr, codes)))


@settings(deadline=None, derandomize=True, max_examples=300)
@given(HOSTILE | ANY, st.booleans())
def test_nothing_forbidden_survives(text: str, multiline: bool) -> None:
    cleaned = sanitize(text, multiline=multiline)
    assert not FORBIDDEN.search(cleaned)
    assert multiline or not set("\n\t") & set(cleaned)
    cleaned.encode()


@settings(deadline=None, derandomize=True, max_examples=300)
@given(HOSTILE | ANY, st.booleans())
def test_cleaning_twice_is_cleaning_once(text: str, multiline: bool) -> None:
    once = sanitize(text, multiline=multiline)
    assert sanitize(once, multiline=multiline) == once


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(HOSTILE, max_size=4))
def test_nothing_forbidden_survives_in_pieces(pieces: list[str]) -> None:
    shown = "".join(sanitize(piece) for piece in pieces)
    assert not FORBIDDEN.search(shown)
    assert sanitize(shown) == shown


@settings(deadline=None, derandomize=True, max_examples=200)
@given(ANY | st.text("aé😀 \u00a0中\u0301\n\t", max_size=20))
def test_printable_text_is_left_alone(text: str) -> None:
    printable = "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")
    assert sanitize(printable) == printable
    assert sanitize(printable, multiline=False) == re.sub("[\n\t]", " ", printable)


EXAMPLES = [
    ("plain", "plain"),
    ("\x1b[31mred\x1b[0m", "red"),
    ("\x9b31mred", "red"),
    ("\x1b]0;title\x07after", "after"),
    ("\x1b]0;title\x1b\\after", "after"),
    ("\x9d0;title\x9cafter", "after"),
    ("\x1b]8;;http://a\x07link\x1b]8;;\x07", "link"),
    ("\x1bP1$r\x1b\\after", "after"),
    ("\x1b]52;c;bGVhaw==\x07", ""),
    ("\x1b]0;never ended", ""),
    ("\x1bc", ""),
    ("\x1b(B", ""),
    ("\x1b", ""),
    ("\x1b\x1b[2J", ""),
    ("one\r\ntwo\rthree", "one\ntwothree"),
    ("a\x08b\x07c\x00", "abc"),
    ("abc\u202edef", "abc\ufffddef"),
    ("\ud83d", "\ufffd"),
    ("a\u2028b", "ab"),
    ("tab\tand\nline", "tab\tand\nline"),
    ("naïve — 中文 😀", "naïve — 中文 😀"),
]


def test_examples() -> None:
    for text, shown in EXAMPLES:
        assert sanitize(text) == shown, ascii(text)


def test_one_line_stays_one_line() -> None:
    assert sanitize("a\nb\tc\r\nd", multiline=False) == "a b c d"


@pytest.mark.timeout(60)
def test_malice_takes_no_longer_than_other_text() -> None:
    for start in ("\x1b[", "\x9b", "\x1b]", "\x1bP", "\x1b", "\x1b[0"):
        for fill in ("0", " ", ";", "\x1b[", "\x1b]", "a"):
            assert not FORBIDDEN.search(sanitize(start + fill * 50_000))
            assert not FORBIDDEN.search(sanitize((start + fill) * 25_000))
