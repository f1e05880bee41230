"""The four token classes can be distinguished without colour."""

from itertools import combinations
from typing import get_args

import pytest
from rich.color import ColorType
from rich.style import Style

from localspec.protocol.events import TokenClass
from localspec.report.token_classes import TOKEN_CLASSES
from localspec.tui.themes import ANSI, THEME_NAMES
from tests.support import scenes
from tests.support.scenes import CODE, asking

KINDS: tuple[TokenClass, ...] = get_args(TokenClass)


def without_colour(style: Style) -> tuple[bool, ...]:
    """The parts of a style that do not depend on colour."""
    lines = (
        style.underline,
        style.underline2,
        style.overline,
        style.italic,
        style.bold,
    )
    return tuple(map(bool, (*lines, style.reverse)))


@pytest.mark.parametrize("theme", THEME_NAMES)
async def test_classes_differ_without_their_colours(theme: str) -> None:
    """In the text and in the legend, as rendered."""
    app = scenes.chat(lambda: scenes.spoken(scenes.COMPLETED), chats=False, theme=theme)
    async with app.run_test(size=(100, 30)) as pilot:
        await asking(CODE, "f2")(pilot)
        transcript = pilot.app.screen.transcript  # type: ignore[attr-defined]
        looks = {kind: without_colour(transcript.text_styles[kind]) for kind in KINDS}
        drawn = [
            s for strip in pilot.app.screen._compositor.render_strips() for s in strip
        ]
        legend = {
            kind: next(
                without_colour(s.style or Style())
                for s in drawn[::-1]
                if look.label in s.text
            )
            for kind, look in TOKEN_CLASSES.items()
        }
    for one, other in combinations(KINDS, 2):
        assert looks[one] != looks[other]
        assert legend[one] != legend[other]
    assert {kind for kind in KINDS if any(looks[kind])} == set(KINDS) - {"plain"}


@pytest.mark.parametrize("keys", [("f2",), ("f4",)])
async def test_the_ansi_theme_has_only_the_terminals_own_colours(
    keys: tuple[str, ...],
) -> None:
    """Its sixteen and its default, also in code, sheets and selections."""
    app = scenes.chat(scenes.spoken, theme=ANSI)
    async with app.run_test(size=(120, 40)) as pilot:
        await asking(scenes.QUESTION, *keys)(pilot)
        await scenes.settled(pilot)
        strips = pilot.app.screen._compositor.render_strips()
        styles = {
            s.style for strip in strips for s in strip if s.style and s.text.strip()
        }
        own = {ColorType.DEFAULT, ColorType.STANDARD}
        others = {
            (colour.name, s.text)
            for strip in strips
            for s in strip
            for colour in ((s.style.color, s.style.bgcolor) if s.style else ())
            if colour is not None and colour.type not in own
        }
    assert not others
    assert len({style.color for style in styles}) > 1
