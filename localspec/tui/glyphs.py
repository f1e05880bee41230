"""Symbols and bars, in Unicode and in plain ASCII."""

from __future__ import annotations

import locale
import os
import sys
from collections.abc import Mapping

from localspec.lazy_dataclass import dataclass
from localspec.protocol.events import TokenClass


@dataclass(frozen=True, slots=True)
class Glyphs:
    token_marks: Mapping[TokenClass, str]
    bar_steps: str  # From an empty to a full cell.
    sparkline_steps: str  # From low to high; empty: digits are shown instead.
    pointer: str
    check: str
    cross: str
    ellipsis: str
    rule: str
    dot: str
    rejected: str  # A round of which all draft tokens were rejected.
    collapsed: str
    expanded: str
    error_bar: str  # In front of each line of an error.
    memory_segments: str  # The parts of `DeviceFit.memory_parts`.
    memory_free: str
    memory_other: str  # Used by other programs.

    @property
    def ascii_only(self) -> bool:
        return self.pointer.isascii()

    def bar(self, share: float, width: int) -> str:
        """A bar of at most `width` cells."""
        last = len(self.bar_steps) - 1
        full, part = divmod(round(max(0.0, min(1.0, share)) * width * last), last)
        return self.bar_steps[last] * full + (self.bar_steps[part] if part else "")


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
    rejected="×",
    collapsed="▸",
    expanded="▾",
    error_bar="▌ ",
    memory_segments="█▓▒▚▞░",
    memory_free="·",
    memory_other="╱",
)
ASCII = Glyphs(
    token_marks={"accepted": "~", "bonus": "+", "correction": "^", "plain": "."},
    bar_steps=" #",
    sparkline_steps="",
    pointer=">",
    check="ok",
    cross="no",
    ellipsis="...",
    rule="-",
    dot="-",
    rejected="x",
    collapsed=">",
    expanded="v",
    error_bar="| ",
    memory_segments="#=+~^:",
    memory_free=".",
    memory_other="/",
)


def detect_glyphs(ascii_only: bool = False) -> Glyphs:
    """Unicode if the output encoding allows it; the Linux console lacks too many symbols."""
    if ascii_only or os.environ.get("TERM") == "linux":
        return ASCII
    encoding = getattr(sys.__stdout__, "encoding", None) or locale.getpreferredencoding(False)
    return UNICODE if "utf" in encoding.lower() else ASCII
