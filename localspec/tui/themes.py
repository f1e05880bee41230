"""Colour themes: one accent, and one colour for each token class."""

from __future__ import annotations

from dataclasses import dataclass

from textual.theme import Theme


@dataclass(frozen=True, slots=True)
class MarkdownStyle:
    accent: str
    muted: str
    code_theme: str
    """A Pygments style."""
    ascii_only: bool = False


# name, dark, background, surface, panel, foreground, muted, accent,
# accepted, bonus, corrected, error
_PALETTES = (
    (
        "localspec-dark",
        True,
        "#14161a",
        "#14161a",
        "#1e2126",
        "#d6d9de",
        "#8b929c",
        "#7aa7f0",
        "#86c281",
        "#6cc7d2",
        "#e3b268",
        "#ea7a80",
    ),
    (
        "localspec-light",
        False,
        "#fbfbf9",
        "#fbfbf9",
        "#eceded",
        "#22262b",
        "#666d76",
        "#2c5fb8",
        "#2a7a33",
        "#0f7482",
        "#96610a",
        "#b3272f",
    ),
    (
        "high-contrast",
        True,
        "#000000",
        "#000000",
        "#101010",
        "#ffffff",
        "#d0d0d0",
        "#ffff00",
        "#5cff5c",
        "#5cf5ff",
        "#ffc04d",
        "#ff7070",
    ),
    (
        "monochrome",
        True,
        "#000000",
        "#000000",
        "#1a1a1a",
        "#ffffff",
        "#c0c0c0",
        "#ffffff",
        "#ffffff",
        "#ffffff",
        "#ffffff",
        "#ffffff",
    ),
)
DEFAULT_THEME = "localspec-dark"
MONOCHROME = "monochrome"


def _build_theme(
    palette: tuple[str, bool, str, str, str, str, str, str, str, str, str, str],
) -> Theme:
    name, dark, background, surface, panel, foreground, muted, accent, *class_colours = palette
    accepted, bonus, corrected, error = class_colours
    return Theme(
        name=name,
        primary=accent,
        secondary=accent,
        accent=accent,
        warning=corrected,
        error=error,
        success=accepted,
        foreground=foreground,
        background=background,
        surface=surface,
        panel=panel,
        dark=dark,
        variables={
            "muted": muted,
            "accepted": accepted,
            "bonus": bonus,
            "corrected": corrected,
            "block-cursor-background": panel,
            "block-cursor-foreground": foreground,
            "block-cursor-text-style": "bold",
            "footer-key-foreground": accent,
            "input-selection-background": f"{accent} 35%",
        },
    )


def markdown_style(theme: Theme, *, ascii_only: bool) -> MarkdownStyle:
    muted = theme.variables.get("muted", theme.foreground or theme.primary)
    accent = theme.accent or theme.primary
    return MarkdownStyle(accent, muted, "one-dark" if theme.dark else "friendly", ascii_only)


THEMES = tuple(_build_theme(palette) for palette in _PALETTES)
THEME_NAMES = tuple(theme.name for theme in THEMES)
