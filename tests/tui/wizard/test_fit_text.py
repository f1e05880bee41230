"""Ranges in words."""

from __future__ import annotations

from localspec.tui.wizard import fit_text


def test_ranges_in_words() -> None:
    assert fit_text.range_text((70.8, 84.2)) == "71–84"
    assert fit_text.range_text((3.21, 4.09)) == "3.2–4.1"
    assert fit_text.speedup_text((1.01, 1.04)) == "1.0×"
    assert fit_text.speed_text(None) == "speed unknown"
    assert fit_text.context_text(16384) == "16k"
    assert fit_text.context_text(5000) == "5,000"
