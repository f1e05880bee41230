"""Marks, bars and signs, in two forms: for terminals that have them, and in plain ASCII."""

from __future__ import annotations

import locale
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localspec.protocol.events import TokenClass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Every sign that the screens draw beside letters."""

    token_marks: Mapping[TokenClass, str]
    bar_steps: str
    """From empty to full, to the right."""
    sparkline_steps: str
    """From low to high, for a sparkline."""
    pointer: str
    check: str
    cross: str
    ellipsis: str
    rule: str
    dot: str
    collapsed: str
    expanded: str
    error_bar: str
    """In front of what failed."""
    memory_segments: str
    """Of a bar of memory: target, draft, keys and values, work."""
    memory_free: str
    """In such a bar: free."""
    memory_other: str
    """In such a bar: what other programs have."""
    thin_bar_steps: str
    """As `bars`, but thin: for bars right below each other."""
    tick: str
    """In a stroke: where something else stands."""

    @property
    def ascii_only(self) -> bool:
        return self.pointer.isascii()

    def bar(self, share: float, width: int) -> str:
        """A bar of at most `width` cells."""
        return _draw_bar(self.bar_steps, share, width)

    def thin_bar(self, share: float, width: int) -> str:
        """A thin one."""
        return _draw_bar(self.thin_bar_steps, share, width)

    def sparkline(self, heights: Sequence[float]) -> str:
        """A sparkline of numbers from 0 to 1."""
        top = len(self.sparkline_steps) - 1
        return "".join(self.sparkline_steps[round(max(0.0, min(1.0, h)) * top)] for h in heights)


def _draw_bar(cells: str, share: float, width: int) -> str:
    """`signs`: a cell from empty to full."""
    last = len(cells) - 1
    full, part = divmod(round(max(0.0, min(1.0, share)) * width * last), last)
    return cells[last] * full + (cells[part] if part else "")


UNICODE = Glyphs(
    token_marks={"accepted": "ˢ", "bonus": "⁺", "correction": "▔", "plain": "·"},
    bar_steps=" ▏▎▍▌▋▊▉█",
    sparkline_steps="▁▂▃▄▅▆▇█",
    pointer="▸",
    check="✓",
    cross="✗",
    ellipsis="…",
    rule="─",
    dot="·",
    collapsed="▸",
    expanded="▾",
    error_bar="▌ ",
    memory_segments="█▓▒░",
    memory_free="·",
    memory_other="╱",
    thin_bar_steps=" ╸━",
    tick="┃",
)
ASCII = Glyphs(
    token_marks={"accepted": "~", "bonus": "+", "correction": "^", "plain": "."},
    bar_steps=" #",
    sparkline_steps="_.-=#",
    pointer=">",
    check="ok",
    cross="no",
    ellipsis="...",
    rule="-",
    dot="-",
    collapsed=">",
    expanded="v",
    error_bar="| ",
    memory_segments="#=+:",
    memory_free=".",
    memory_other="/",
    thin_bar_steps=" =",
    tick="|",
)


def detect_glyphs(ascii_only: bool = False) -> Glyphs:
    """What this terminal can show, by its locale."""
    if ascii_only or os.environ.get("TERM") == "linux":
        return ASCII
    encoding = getattr(sys.__stdout__, "encoding", None) or locale.getpreferredencoding(False)
    return UNICODE if "utf" in encoding.lower() else ASCII
