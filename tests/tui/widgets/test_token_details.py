"""The four token classes can be distinguished without colour."""

from itertools import combinations
from typing import get_args

import pytest
from rich.color import ColorType
from rich.segment import Segment
from rich.style import Style
from textual.pilot import Pilot

from localspec.protocol.events import TokenClass
from localspec.report.token_classes import TOKEN_CLASSES
from localspec.tui.themes import ANSI, THEME_NAMES
from tests.support import scenes
from tests.support.scenes import CODE, asking

KINDS: tuple[TokenClass, ...] = get_args(TokenClass)


def without_colour(style: Style | None) -> tuple[bool, ...]:
    """The parts of a style that do not depend on colour."""
    if style is None:
        style = Style()
    return (
        bool(style.underline),
        bool(style.underline2),
        bool(style.overline),
        bool(style.italic),
        bool(style.bold),
        bool(style.reverse),
    )


def rendered(pilot: Pilot[None]) -> list[Segment]:
    """What is on the screen."""
    segments: list[Segment] = []
    for strip in pilot.app.screen._compositor.render_strips():
        segments += strip
    return segments


def last_with(segments: list[Segment], text: str) -> Segment:
    return [segment for segment in segments if text in segment.text][-1]


@pytest.mark.parametrize("theme", THEME_NAMES)
async def test_classes_differ_without_their_colours(theme: str) -> None:
    """In the text and in the legend, as rendered."""
    app = scenes.chat(lambda: scenes.spoken(scenes.COMPLETED), chats=False, theme=theme)
    async with app.run_test(size=(100, 30)) as pilot:
        await asking(CODE, "f2")(pilot)
        transcript = pilot.app.screen.transcript  # type: ignore[attr-defined]
        in_text = {kind: without_colour(transcript.text_styles[kind]) for kind in KINDS}
        drawn = rendered(pilot)
    in_legend = {}
    for kind, look in TOKEN_CLASSES.items():
        in_legend[kind] = without_colour(last_with(drawn, look.label).style)
    for one, other in combinations(KINDS, 2):
        assert in_text[one] != in_text[other]
        assert in_legend[one] != in_legend[other]
    assert not any(in_text["plain"])
    assert all(any(in_text[kind]) for kind in KINDS if kind != "plain")


@pytest.mark.parametrize("keys", [("f2",), ("f4",)])
async def test_the_ansi_theme_has_only_the_terminals_own_colours(
    keys: tuple[str, ...],
) -> None:
    """Its sixteen and its default, also in code, sheets and selections."""
    app = scenes.chat(scenes.spoken, theme=ANSI)
    async with app.run_test(size=(120, 40)) as pilot:
        await asking(scenes.QUESTION, *keys)(pilot)
        await scenes.settled(pilot)
        styled = [segment for segment in rendered(pilot) if segment.style]
    own = {ColorType.DEFAULT, ColorType.STANDARD}
    text_colours = set()
    for segment in styled:
        assert segment.style is not None
        for colour in (segment.style.color, segment.style.bgcolor):
            assert colour is None or colour.type in own, segment
        if segment.text.strip():
            text_colours.add(segment.style.color)
    assert len(text_colours) > 1
