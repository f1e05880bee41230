"""Colour themes: one accent, and one colour for each token class."""

from __future__ import annotations

from msgspec import Struct
from textual.theme import BUILTIN_THEMES, Theme


class MarkdownStyle(Struct, frozen=True):
    accent: str
    muted: str
    code_theme: str  # A Pygments style.


_PALETTES = {
    #                  background panel foreground muted accent  accepted bonus corrected error
    "localspec-dark": "#14161a #1e2126 #d6d9de #8b929c #7aa7f0  #86c281 #6cc7d2 #e3b268 #ea7a80",
    "localspec-light": "#fbfbf9 #eceded #22262b #666d76 #2c5fb8  #2a7a33 #0f7482 #96610a #b3272f",
    "high-contrast": "#000000 #101010 #ffffff #d0d0d0 #ffff00  #5cff5c #5cf5ff #ffc04d #ff7070",
    "monochrome": "#000000 #1a1a1a #ffffff #c0c0c0 #ffffff  #ffffff #ffffff #ffffff #ffffff",
}
DEFAULT_THEME = "localspec-dark"
MONOCHROME = "monochrome"
ANSI = "ansi"  # The terminal's own sixteen colours, on its own background.


def _build_theme(name: str, palette: str) -> Theme:
    background, panel, foreground, muted, accent, *class_colours = palette.split()
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
        surface=background,
        panel=panel,
        dark=name != "localspec-light",
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


def _build_ansi_theme() -> Theme:
    """Rows are marked by reversed text (`-mono`), as there is no second background."""
    return Theme(
        name=ANSI,
        ansi=True,
        primary="ansi_blue",
        secondary="ansi_blue",
        accent="ansi_blue",
        warning="ansi_yellow",
        error="ansi_red",
        success="ansi_green",
        foreground="ansi_default",
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        boost="ansi_default",
        variables=BUILTIN_THEMES["ansi-dark"].variables
        | {
            "muted": "ansi_bright_black",
            "accepted": "ansi_green",
            "bonus": "ansi_cyan",
            "corrected": "ansi_yellow",
            "block-cursor-background": "ansi_default",
            "block-cursor-foreground": "ansi_default",
            "block-cursor-text-style": "reverse",
            "footer-key-foreground": "ansi_blue",
            "input-selection-background": "ansi_blue",
            "screen-selection-background": "ansi_blue",
            "screen-selection-foreground": "ansi_default",
        },
    )


def markdown_style(theme: Theme) -> MarkdownStyle:
    muted = theme.variables.get("muted", theme.foreground or theme.primary)
    accent = theme.accent or theme.primary
    if theme.ansi:  # Rich calls them blue, not ansi_blue
        accent, muted = accent.removeprefix("ansi_"), muted.removeprefix("ansi_")
        return MarkdownStyle(accent, muted, "ansi_dark")
    return MarkdownStyle(accent, muted, "one-dark" if theme.dark else "friendly")


THEMES = (*(_build_theme(*item) for item in _PALETTES.items()), _build_ansi_theme())
THEME_NAMES = tuple(theme.name for theme in THEMES)
