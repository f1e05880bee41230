"""Sentences on lines: whole words, as wide as there is room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.content import Content

from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.tui.glyphs import Glyphs


def wrapped(text: str, width: int) -> Sequence[str]:
    """Whole words on lines of so many cells; at least one line."""
    import textwrap  # noqa: PLC0415  not before the first picture

    return textwrap.wrap(text, max(width, 10), break_on_hyphens=False) or [""]


def failure(error: LocalspecError, width: int, glyphs: Glyphs) -> Iterator[Content]:
    """What went wrong and what to do, behind a bar; and a line of room."""
    bar = glyphs.bar_left
    for text, style in ((error.message, "bold $error"), (error.hint, "")):
        for line in wrapped(clean(text, multiline=False), width - len(bar)):
            yield Content.assemble((bar, "$error"), (line, style))
    yield Content("")
