"""Blocks of a transcript: a row of key hints breaks between hints."""

import pytest
from rich.style import Style

from localspec.tui.text.blocks import KeyHints

LOOKS = {"error": Style(), "muted": Style()}


@pytest.mark.parametrize("width", [10, 24, 40, 80])
def test_a_hint_is_not_cut_in_two(width: int) -> None:
    keys = ("f6 edit the message", "f4 settings", "ctrl+l engine log")
    part = KeyHints(keys, "| ")
    lines = [part.line(y, LOOKS)[1].text for y in range(part.height(width))]
    assert "   ".join(lines).split("   ") == list(keys)
    assert all(len(line) <= max(width - 2, *map(len, keys)) for line in lines)
