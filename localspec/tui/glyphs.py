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

    marks: Mapping[TokenClass, str]
    bars: str
    """From empty to full, to the right."""
    steps: str
    """From low to high, for a sparkline."""
    pointer: str
    good: str
    bad: str
    more: str
    rule: str
    dot: str
    folded: str
    unfolded: str
    bar_left: str
    """In front of what failed."""
    parts: str
    """Of a bar of memory: target, draft, keys and values, work."""
    room: str
    """In such a bar: free."""
    others: str
    """In such a bar: what other programs have."""
    strokes: str
    """As `bars`, but thin: for bars right below each other."""
    tick: str
    """In a stroke: where something else stands."""

    @property
    def ascii_only(self) -> bool:
        return self.pointer.isascii()

    def bar(self, share: float, width: int) -> str:
        """A bar of at most `width` cells."""
        return _filled(self.bars, share, width)

    def stroke(self, share: float, width: int) -> str:
        """A thin one."""
        return _filled(self.strokes, share, width)

    def line(self, heights: Sequence[float]) -> str:
        """A sparkline of numbers from 0 to 1."""
        top = len(self.steps) - 1
        return "".join(self.steps[round(max(0.0, min(1.0, h)) * top)] for h in heights)


def _filled(signs: str, share: float, width: int) -> str:
    """`signs`: a cell from empty to full."""
    last = len(signs) - 1
    full, part = divmod(round(max(0.0, min(1.0, share)) * width * last), last)
    return signs[last] * full + (signs[part] if part else "")


RICH = Glyphs(
    marks={"accepted": "ˢ", "bonus": "⁺", "correction": "▔", "plain": "·"},
    bars=" ▏▎▍▌▋▊▉█",
    steps="▁▂▃▄▅▆▇█",
    pointer="▸",
    good="✓",
    bad="✗",
    more="…",
    rule="─",
    dot="·",
    folded="▸",
    unfolded="▾",
    bar_left="▌ ",
    parts="█▓▒░",
    room="·",
    others="╱",
    strokes=" ╸━",
    tick="┃",
)
ASCII = Glyphs(
    marks={"accepted": "~", "bonus": "+", "correction": "^", "plain": "."},
    bars=" #",
    steps="_.-=#",
    pointer=">",
    good="ok",
    bad="no",
    more="...",
    rule="-",
    dot="-",
    folded=">",
    unfolded="v",
    bar_left="| ",
    parts="#=+:",
    room=".",
    others="/",
    strokes=" =",
    tick="|",
)


def suited(ascii_only: bool = False) -> Glyphs:
    """What this terminal can show, by its locale."""
    if ascii_only or os.environ.get("TERM") == "linux":
        return ASCII
    encoding = getattr(sys.__stdout__, "encoding", None) or locale.getpreferredencoding(False)
    return RICH if "utf" in encoding.lower() else ASCII
