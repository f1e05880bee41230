"""Themes: colours that can be read, and that differ where they mean something."""

import itertools

import pytest
from textual.color import Color
from textual.theme import Theme

from localspec.tui.themes import (
    ANSI,
    COLOUR_CONTRAST,
    DEFAULT_THEME,
    MONOCHROME,
    THEMES,
    contrast,
)

WITH_OWN_COLOURS = [theme for theme in THEMES if theme.name != ANSI]
COLOURED = [theme for theme in WITH_OWN_COLOURS if theme.name != MONOCHROME]
TOKEN_CLASSES = ("accepted", "bonus", "corrected")


def name_of(theme: Theme) -> str:
    return theme.name


def grounds(theme: Theme) -> list[Color]:
    """What text stands on: the background, and that of marked rows."""
    return [Color.parse(theme.background or ""), Color.parse(theme.panel or "")]


def texts(theme: Theme) -> dict[str, Color]:
    named = {
        "foreground": theme.foreground,
        "accent": theme.accent,
        "error": theme.error,
        "warning": theme.warning,
        "muted": theme.variables["muted"],
    }
    for token_class in TOKEN_CLASSES:
        named[token_class] = theme.variables[token_class]
    return {name: Color.parse(color or "") for name, color in named.items()}


@pytest.mark.parametrize("theme", WITH_OWN_COLOURS, ids=name_of)
def test_every_colour_of_text_can_be_read_on_every_ground(theme: Theme) -> None:
    for name, color in texts(theme).items():
        for ground in grounds(theme):
            assert contrast(color, ground) >= COLOUR_CONTRAST, name


@pytest.mark.parametrize("theme", WITH_OWN_COLOURS, ids=name_of)
def test_a_marked_row_and_muted_text_can_be_told_apart(theme: Theme) -> None:
    background, panel = grounds(theme)
    assert contrast(background, panel) >= 1.1
    shown = texts(theme)
    loud = contrast(shown["foreground"], background)
    assert loud > 1.2 * contrast(shown["muted"], background)


@pytest.mark.parametrize("theme", COLOURED, ids=name_of)
def test_the_token_classes_differ_from_each_other_and_from_plain_text(
    theme: Theme,
) -> None:
    shown = texts(theme)
    classes = ("foreground", *TOKEN_CLASSES)
    for one, other in itertools.combinations(classes, 2):
        distance = sum(
            (first - second) ** 2
            for first, second in zip(shown[one].rgb, shown[other].rgb, strict=True)
        )
        assert distance**0.5 > 40, (one, other)


def test_contrast_is_that_of_wcag() -> None:
    black, white, grey = map(Color.parse, ("#000000", "#ffffff", "#767676"))
    assert contrast(black, white) == pytest.approx(21)
    assert contrast(grey, grey) == 1
    assert contrast(grey, white) == pytest.approx(4.54, abs=0.01)


def test_the_default_is_our_own() -> None:
    assert THEMES[0].name == DEFAULT_THEME
