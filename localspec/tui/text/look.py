"""Colours of Markdown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Look:
    """Of one theme."""

    accent: str
    muted: str
    code: str
    """Pygments' name of the colours of code."""
    ascii_only: bool = False
