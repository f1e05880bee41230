"""No text can move the cursor, change the title or reverse the line; no word is lost."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.sanitize import sanitize

REMOVED = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]"
REPLACED = "[\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
HOSTILE = st.text(
    "\x1b\x9b\x9d\x90\x9c\x07\\[]P^_X0;?~mAh\r\n\t é😀\u202e\u2066\u200f\u2028\ud83d\ude00\x00\x7f",
    max_size=30,
)
ANY = st.lists(st.integers(0, 0x10FFFF), max_size=20).map(
    lambda codes: "".join(map(chr, codes))
)
often = settings(deadline=None, derandomize=True, max_examples=300)


@often
@given(HOSTILE | ANY, st.booleans())
def test_nothing_forbidden_survives(text: str, multiline: bool) -> None:
    cleaned = sanitize(text, multiline=multiline)
    assert not re.search(f"{REMOVED}|{REPLACED}", cleaned)
    assert multiline or not set("\n\t") & set(cleaned)
    cleaned.encode()
    assert sanitize(cleaned, multiline=multiline) == cleaned


@often
@given(HOSTILE | ANY)
def test_only_what_is_forbidden_is_lost(text: str) -> None:
    text = re.sub(r"\x1b[\[\]]", "", text)  # the beginning of a colour or a title
    assert sanitize(text) == re.sub(REPLACED, "\ufffd", re.sub(REMOVED, "", text))


EXAMPLES = [
    ("\x1b[31mred\x1b[0m and \x1b[1;38;5;9mbold", "red and bold"),
    ("\x1b]0;title\x07after", "after"),
    ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x1b]0;not ended\nnext line\x07", "]0;not ended\nnext line"),
    ("\xd0\x9d\xd0\xb0 \x90 \x98 \x9e \x9f end", "\xd0\xd0\xb0     end"),
]


def test_examples() -> None:
    for text, shown in EXAMPLES:
        assert sanitize(text) == shown, ascii(text)
    assert sanitize("a\nb\tc\r\nd", multiline=False) == "a b c d"


@pytest.mark.timeout(60)
def test_malice_takes_no_longer_than_other_text() -> None:
    for start in ("\x1b[", "\x9b", "\x9d", "\x1b]", "\x1bP", "\x1b", "\x1b[0"):
        for fill in ("0", " ", ";", "\x1b[", "\x9d", "a"):
            sanitize(start + fill * 300_000 + "\x1bA")
            sanitize((start + fill) * 150_000)
