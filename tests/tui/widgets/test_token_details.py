"""The classes of tokens can be distinguished without hue, and can be read."""

from itertools import combinations

import pytest
from rich.color import ColorType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.pilot import Pilot

from localspec.tui.themes import ANSI, THEME_NAMES, THEMES, contrast, token_styles
from localspec.tui.widgets.speculation_panel import SpeculationPanel
from localspec.tui.widgets.token_details import TokenDetails
from tests.support import scenes
from tests.support.scenes import asking

LOOKS = {
    "accepted": "guessed right",
    "draft": "being checked",
    "rejected": "thrown away",
    "correction": "written instead",
}
"""Styles of tokens, and what the legend says of them."""


def without_hue(style: Style | None, text: Style) -> tuple[bool, ...]:
    """What distinguishes a style from that of the text, for an eye without colours."""
    if style is None:
        style = Style()
    has_ground = style.bgcolor not in (None, text.bgcolor)
    is_dimmer = style.color not in (None, text.color) and not style.italic
    return (
        has_ground,
        is_dimmer,
        bool(style.dim),
        bool(style.strike),
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
async def test_what_was_guessed_and_corrected_differs_without_hue(theme: str) -> None:
    """In the text and in the legend, as rendered."""
    app = scenes.chat(scenes.spoken, theme=theme)
    async with app.run_test(size=(100, 30)) as pilot:
        await asking(scenes.QUESTION)(pilot)
        transcript = pilot.app.screen.transcript  # type: ignore[attr-defined]
        text = transcript.text_styles["text"]
        in_text = {
            name: without_hue(transcript.text_styles[name], text) for name in LOOKS
        }
        drawn = rendered(pilot)
    in_legend = {}
    question = last_with(drawn, scenes.QUESTION[:-1]).style or Style()
    for name, label in LOOKS.items():
        in_legend[name] = without_hue(last_with(drawn, label).style, question)
    for looks in (in_text, in_legend):
        for one, other in combinations(LOOKS, 2):
            assert looks[one] != looks[other]
        assert all(any(look) for look in looks.values())


async def test_the_legend_follows_the_theme() -> None:
    app = scenes.chat(scenes.spoken, theme="localspec-dark")
    async with app.run_test(size=(100, 30)) as pilot:
        await asking(scenes.QUESTION)(pilot)
        app.use_theme("localspec-light")
        await scenes.settled(pilot)
        drawn = last_with(rendered(pilot), LOOKS["correction"])

    styles = token_styles(app.current_theme, marks=False)
    colour = Style.parse(styles.correction).color
    assert colour is not None
    assert drawn.style is not None
    assert drawn.style.color is not None
    assert drawn.style.color.triplet == colour.triplet


@pytest.mark.parametrize("theme", sorted({*THEME_NAMES} - {ANSI}))
def test_text_can_be_read_on_the_ground_of_what_was_guessed(theme: str) -> None:
    look = next(each for each in THEMES if each.name == theme)
    styles = token_styles(look, marks=False)
    ground = Color.parse(styles.accepted.removeprefix("on "))
    background = Color.parse(look.background or "")
    assert contrast(Color.parse(look.foreground or ""), ground) >= 5.9
    assert contrast(ground, background) >= 1.1
    correction = Color.parse(styles.correction.removeprefix("italic "))
    assert contrast(correction, background) >= 4.5
    assert contrast(Color.parse(styles.draft), background) >= 3


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


@pytest.mark.parametrize("panel", [True, False], ids=["beside the panel", "alone"])
@pytest.mark.parametrize("width", [80, 90, 98, 99, 110, 117, 118, 160])
async def test_the_legend_has_one_line(width: int, panel: bool) -> None:
    """It says less where there is less room, and none of its words is cut."""
    app = scenes.chat(scenes.spoken)
    async with app.run_test(size=(width, 30)) as pilot:
        await asking(scenes.QUESTION)(pilot)
        if app.screen.query_one(SpeculationPanel).display != panel:
            await pilot.press(*["f3"] * (1 if panel else 2))
        await pilot.pause()
        assert app.screen.query_one(SpeculationPanel).display == panel
        details = app.screen.query_one(TokenDetails)
        assert details.size.height == 1
        row = details.render_line(0).text
        assert row.startswith("guessed right")
        assert row.rstrip().endswith("instead")
