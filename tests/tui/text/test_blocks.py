"""Blocks of a transcript: a row of key hints breaks between hints."""

import pytest
from rich.style import Style

from localspec.tui.text.blocks import KeyHints

STYLES = {"error": Style(), "muted": Style()}


@pytest.mark.parametrize("width", [10, 24, 40, 80])
def test_a_hint_is_not_cut_in_two(width: int) -> None:
    keys = ("f6 edit the message", "f4 settings", "ctrl+l engine log")
    hints = KeyHints(keys, "| ")
    lines = [hints.line(y, STYLES)[1].text for y in range(hints.height(width))]
    assert "   ".join(lines).split("   ") == list(keys)
    longest_hint = max(len(key) for key in keys)
    assert all(len(line) <= max(width - 2, longest_hint) for line in lines)
