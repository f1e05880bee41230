"""Colour themes: one accent, and one colour for each token class.

localspec's own palettes are written down. Those of Textual's well-known themes are
derived: their colours, moved until each can be read on the theme's background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from textual.color import BLACK, WHITE, Color
from textual.theme import BUILTIN_THEMES, Theme

from localspec.config import options


class TokenStyles(Struct, frozen=True):
    """How an answer shows who wrote it, as styles of Rich.

    What the model wrote by itself (`bonus` and `plain`) looks like any text.
    """

    accepted: str = "underline"
    correction: str = "italic overline"
    draft: str = "dim"  # Draft tokens that the target still checks.
    rejected: str = "dim strike"


class MarkdownStyle(Struct, frozen=True):
    accent: str
    muted: str
    code_theme: str  # A Pygments style; empty: code has no colours.
    tokens: TokenStyles = TokenStyles()


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
        muted="#636a73",
        accent="#2c5fb8",
        accepted="#2a7a33",
        bonus="#0f7482",
        corrected="#8c5a08",
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

TEXT_CONTRAST = 7.0
COLOUR_CONTRAST = 4.5
"""Least contrasts to the background and to marked rows, as WCAG 2 defines contrast."""
_MARKED_CONTRAST = 1.1  # Of marked rows to the background.
_STEPS = 50


def contrast(one: Color, other: Color) -> float:
    """From 1, the same lightness, to 21, black and white (WCAG 2)."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: Color) -> float:
    parts = []
    for value in color.rgb:
        share = value / 255
        linear = share / 12.92
        if share > 0.04045:
            linear = ((share + 0.055) / 1.055) ** 2.4
        parts.append(linear)
    red, green, blue = parts
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _make_readable(color: Color, grounds: Sequence[Color], least: float) -> Color:
    """The colour, moved towards white or black as far as it must on these grounds."""
    end = WHITE if contrast(WHITE, grounds[0]) > contrast(BLACK, grounds[0]) else BLACK
    for step in range(_STEPS + 1):
        moved = color.blend(end, step / _STEPS)
        if all(contrast(moved, ground) >= least for ground in grounds):
            return moved
    return end


def _find_marked(theme: Theme, background: Color, text: Color) -> Color:
    """The background of marked rows: the theme's own, where it can be seen."""
    for own in (theme.surface, theme.panel):
        if own and contrast(Color.parse(own), background) >= _MARKED_CONTRAST:
            return Color.parse(own)
    return background.blend(text, 0.12)


def _mute(text: Color, grounds: Sequence[Color]) -> Color:
    """The text's colour, as close to the background as can still be read."""
    muted = text
    for step in range(_STEPS):
        paler = text.blend(grounds[0], step / _STEPS)
        if any(contrast(paler, ground) < COLOUR_CONTRAST for ground in grounds):
            break
        muted = paler
    return muted


def _derive_palette(theme: Theme) -> Palette:
    """Our colours, made of those of one of Textual's themes.

    The class "bonus" has the colour of the theme that is least like the other classes.
    """
    background = Color.parse(theme.background or "")
    text = Color.parse(theme.foreground or "")
    panel = _find_marked(theme, background, text)
    grounds = (background, panel)

    def readable(color: str | None) -> Color:
        return _make_readable(
            Color.parse(color or theme.primary), grounds, COLOUR_CONTRAST
        )

    text = _make_readable(text, grounds, TEXT_CONTRAST)
    accepted = readable(theme.success)
    corrected = readable(theme.warning)
    candidates = [readable(theme.secondary), readable(theme.accent)]
    candidates += [readable(theme.primary), readable("#3aa7b5")]
    others = (text, accepted, corrected)
    bonus = max(candidates, key=lambda each: _least_distance(each, others))
    return Palette(
        background=background.hex,
        panel=panel.hex,
        foreground=text.hex,
        muted=_mute(text, grounds).hex,
        accent=readable(theme.primary).hex,
        accepted=accepted.hex,
        bonus=bonus.hex,
        corrected=corrected.hex,
        error=readable(theme.error).hex,
    )


def _least_distance(color: Color, others: Sequence[Color]) -> float:
    """To the nearest of the others, in RGB."""
    distances = []
    for other in others:
        pairs = zip(color.rgb, other.rgb, strict=True)
        distances.append(math.sqrt(sum((one - two) ** 2 for one, two in pairs)))
    return min(distances)


def _build_theme(name: str, palette: Palette, *, dark: bool) -> Theme:
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
        dark=dark,
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


# Accepted tokens have a ground: the background with this share of their colour. A
# draft has the muted colour, blended into the background by the other share.
_GROUND_SHARE = 0.24
_DRAFT_SHARE = 0.76
# Least contrasts: of text to that ground, and of a draft to the background.
_GROUND_CONTRAST = 6.0
_DRAFT_CONTRAST = 3.0


def token_styles(theme: Theme, *, marks: bool) -> TokenStyles:
    """`marks`: there is no colour, so the classes differ by attributes."""
    if marks:
        return TokenStyles()
    accepted = theme.variables.get("accepted") or theme.success or theme.primary
    corrected = theme.variables.get("corrected") or theme.warning or theme.primary
    if theme.ansi:  # The colour of the background is not known.
        muted = _muted_colour(theme).removeprefix("ansi_")
        return TokenStyles(
            accepted="underline " + accepted.removeprefix("ansi_"),
            correction="italic " + corrected.removeprefix("ansi_"),
            draft=muted,
            rejected=f"strike {muted}",
        )
    plain_background = "#000000" if theme.dark else "#ffffff"
    background = Color.parse(theme.background or plain_background)
    text = Color.parse(theme.foreground or background.inverse.hex)
    share = _GROUND_SHARE
    ground = background.blend(Color.parse(accepted), share)
    while contrast(text, ground) < _GROUND_CONTRAST and share > 0:
        share -= 0.01
        ground = background.blend(Color.parse(accepted), share)
    dimmed = background.blend(Color.parse(_muted_colour(theme)), _DRAFT_SHARE)
    draft = _make_readable(dimmed, [background], _DRAFT_CONTRAST).hex
    return TokenStyles(
        accepted=f"on {ground.hex}",
        correction=f"italic {corrected}",
        draft=draft,
        rejected=f"strike {draft}",
    )


def _muted_colour(theme: Theme) -> str:
    return theme.variables.get("muted") or theme.foreground or theme.primary


def markdown_style(theme: Theme, *, marks: bool = False) -> MarkdownStyle:
    """`marks`: as of `token_styles`."""
    tokens = token_styles(theme, marks=marks)
    accent = theme.accent or theme.primary
    if theme.ansi:
        return MarkdownStyle(
            accent=accent.removeprefix("ansi_"),  # Rich calls it blue, not ansi_blue.
            muted=_muted_colour(theme).removeprefix("ansi_"),
            code_theme="ansi_dark",
            tokens=tokens,
        )
    code_theme = "one-dark" if theme.dark else "friendly"
    if theme.name == MONOCHROME:
        code_theme = ""
    return MarkdownStyle(
        accent=accent,
        muted=_muted_colour(theme),
        code_theme=code_theme,
        tokens=tokens,
    )


def _build(name: str) -> Theme:
    if name == ANSI:
        return _build_ansi_theme()
    if name in _PALETTES:
        return _build_theme(name, _PALETTES[name], dark=name != "localspec-light")
    theme = BUILTIN_THEMES[name]
    return _build_theme(name, _derive_palette(theme), dark=theme.dark)


THEME_NAMES = options.THEMES
THEMES = tuple(_build(name) for name in THEME_NAMES)
