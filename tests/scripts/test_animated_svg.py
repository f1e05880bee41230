"""A recording shows at each moment what the picture of that moment shows."""

from __future__ import annotations

import io
from bisect import bisect_right
from itertools import accumulate
from xml.etree import ElementTree

import pytest
from animated_svg import Frame, animate
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

COLUMNS = 12
STYLES = ("", "bold", "red", "strike", "on green", "dim")

a_row = st.tuples(
    st.text("ab<&> \u2588", max_size=COLUMNS), st.sampled_from(STYLES)
).map(lambda row: Text(row[0], style=row[1]))
a_screen = st.lists(a_row, min_size=3, max_size=3)
recordings = st.lists(
    st.tuples(a_screen, st.sampled_from([0.25, 0.5, 2.0])), min_size=1, max_size=6
)


def picture(screen: list[Text]) -> str:
    """What rich, and so Textual, draws of a screen."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True
    )
    for row in screen:
        console.print(row, no_wrap=True)
    return console.export_svg(title="localspec")


def texts_at(svg: str, share: float) -> list[tuple[str, str, str]]:
    """Position and text of all that is visible at this share of the recording."""
    found: list[tuple[str, str, str]] = []

    def collect(element: ElementTree.Element) -> None:
        animation = element.find("{*}animate")
        if animation is not None:
            times = [float(time) for time in animation.attrib["keyTimes"].split(";")]
            values = animation.attrib["values"].split(";")
            if values[bisect_right(times, share) - 1] == "hidden":
                return
        is_text = element.tag.endswith("}text") and "textLength" in element.attrib
        if is_text and (element.text or "").strip():
            attributes = element.attrib
            found.append((attributes["y"], attributes["x"], element.text or ""))
        for child in element:
            collect(child)

    collect(ElementTree.fromstring(svg))
    return sorted(found)


@given(recordings)
def test_each_moment_has_the_texts_of_its_frame(
    recording: list[tuple[list[Text], float]],
) -> None:
    frames = [Frame(picture(screen), seconds) for screen, seconds in recording]
    ends = list(accumulate(frame.seconds for frame in frames))

    svg = animate(frames, "recording")

    for frame, end in zip(frames, ends, strict=True):
        middle = end - frame.seconds / 2
        assert texts_at(svg, middle / ends[-1]) == texts_at(frame.svg, 0)


def test_a_row_that_does_not_change_is_there_once() -> None:
    still = Text("still")
    frames = [
        Frame(picture([still, Text(word)]), 1) for word in ("one", "two", "three")
    ]

    svg = animate(frames, "recording")

    assert svg.count(">still</text>") == 1


def test_styles_of_all_frames_are_in_the_recording() -> None:
    frames = [Frame(picture([Text("word", style=style)]), 1) for style in STYLES]

    svg = animate(frames, "recording")

    assert "text-decoration: line-through" in svg
    used = {line for line in svg.split('"') if line.startswith("recording-r")}
    assert all(f".{name} {{" in svg for name in used)


def test_what_is_no_picture_of_a_terminal_is_refused() -> None:
    with pytest.raises(ValueError, match="not a picture of a terminal"):
        animate([Frame('<svg xmlns="http://www.w3.org/2000/svg"/>', 1)], "recording")
