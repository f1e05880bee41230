"""Ranges and names in words."""

from localspec.models import catalog
from localspec.tui.wizard import fit_text


def test_ranges_in_words() -> None:
    assert fit_text.range_text((70.8, 84.2)) == "71–84"
    assert fit_text.range_text((3.21, 4.09)) == "3.2–4.1"
    assert fit_text.speedup_text((1.01, 1.04)) == "1.0×"


def test_names_say_nothing_twice() -> None:
    pairs = catalog.load().pairs
    shown = {
        "gemma-4-e4b+gemma-4-e4b-mtp": "gemma-4-e4b+mtp",
        "gemma-4-31b+gemma-4-e2b": "gemma-4-31b+gemma-4-e2b",
        "qwen3.8-27b+mtp": "qwen3.8-27b+mtp",
        "phi-4+lookup": "phi-4",
    }
    assert {name: fit_text.pair_name(pairs[name]) for name in shown} == shown
    assert fit_text.licence_text(pairs["gemma-4-31b+gemma-4-31b-mtp"]) == "apache-2.0"
