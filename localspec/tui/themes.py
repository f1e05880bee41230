"""Colour themes: one accent, and one colour for each token class."""

from __future__ import annotations

from msgspec import Struct
from textual.theme import BUILTIN_THEMES, Theme


class MarkdownStyle(Struct, frozen=True):
    accent: str
    muted: str
    code_theme: str  # A Pygments style.


class Palette(Struct, frozen=True):
    """The colours of a theme; `panel` is the background of marked rows."""

    background: str
    panel: str
    foreground: str
    muted: str
    accent: str
    accepted: str
    bonus: str
    corrected: str
    error: str


_PALETTES = {
    "localspec-dark": Palette(
        background="#14161a",
        panel="#1e2126",
        foreground="#d6d9de",
        muted="#8b929c",
        accent="#7aa7f0",
        accepted="#86c281",
        bonus="#6cc7d2",
        corrected="#e3b268",
        error="#ea7a80",
    ),
    "localspec-light": Palette(
        background="#fbfbf9",
        panel="#eceded",
        foreground="#22262b",
        muted="#666d76",
        accent="#2c5fb8",
        accepted="#2a7a33",
        bonus="#0f7482",
        corrected="#96610a",
        error="#b3272f",
    ),
    "high-contrast": Palette(
        background="#000000",
        panel="#101010",
        foreground="#ffffff",
        muted="#d0d0d0",
        accent="#ffff00",
        accepted="#5cff5c",
        bonus="#5cf5ff",
        corrected="#ffc04d",
        error="#ff7070",
    ),
    "monochrome": Palette(
        background="#000000",
        panel="#1a1a1a",
        foreground="#ffffff",
        muted="#c0c0c0",
        accent="#ffffff",
        accepted="#ffffff",
        bonus="#ffffff",
        corrected="#ffffff",
        error="#ffffff",
    ),
}
DEFAULT_THEME = "localspec-dark"
MONOCHROME = "monochrome"
ANSI = "ansi"  # The terminal's own sixteen colours, on its own background.


def _build_theme(name: str, palette: Palette) -> Theme:
    variables = {
        "muted": palette.muted,
        "accepted": palette.accepted,
        "bonus": palette.bonus,
        "corrected": palette.corrected,
        "block-cursor-background": palette.panel,
        "block-cursor-foreground": palette.foreground,
        "block-cursor-text-style": "bold",
        "footer-key-foreground": palette.accent,
        "input-selection-background": f"{palette.accent} 35%",
    }
    return Theme(
        name=name,
        primary=palette.accent,
        secondary=palette.accent,
        accent=palette.accent,
        warning=palette.corrected,
        error=palette.error,
        success=palette.accepted,
        foreground=palette.foreground,
        background=palette.background,
        surface=palette.background,
        panel=palette.panel,
        dark=name != "localspec-light",
        variables=variables,
    )


def _build_ansi_theme() -> Theme:
    """Rows are marked by reversed text (`-mono`), as there is no second background."""
    variables = {
        **BUILTIN_THEMES["ansi-dark"].variables,
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
    }
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
        variables=variables,
    )


def markdown_style(theme: Theme) -> MarkdownStyle:
    muted = theme.variables.get("muted", theme.foreground or theme.primary)
    accent = theme.accent or theme.primary
    if theme.ansi:
        return MarkdownStyle(
            accent=accent.removeprefix("ansi_"),  # Rich calls it blue, not ansi_blue.
            muted=muted.removeprefix("ansi_"),
            code_theme="ansi_dark",
        )
    code_theme = "one-dark" if theme.dark else "friendly"
    return MarkdownStyle(accent, muted, code_theme)


THEMES = (
    *[_build_theme(name, palette) for name, palette in _PALETTES.items()],
    _build_ansi_theme(),
)
THEME_NAMES = tuple(theme.name for theme in THEMES)
