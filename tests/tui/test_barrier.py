"""No control character reaches the terminal, whatever its source."""

from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from textual.color import Color

from localspec.sanitize import sanitize
from localspec.tui.terminal import ControlCharacterFilter

BLACK = Color(0, 0, 0)


@given(st.lists(st.text(max_size=12), max_size=4))
def test_only_what_clean_lets_through(texts: list[str]) -> None:
    kept = ControlCharacterFilter().apply([Segment(text) for text in texts], BLACK)
    for segment in kept:
        assert sanitize(segment.text, multiline=False) == segment.text


def test_clean_text_is_left_alone() -> None:
    line = [Segment("plain 漢字 👍")]
    assert ControlCharacterFilter().apply(line, BLACK) is line


def test_what_is_taken_out_leaves_its_room() -> None:
    (segment,) = ControlCharacterFilter().apply([Segment("a\x1b[31mb")], BLACK)
    assert len(segment.text) == len("a\x1b[31mb")
