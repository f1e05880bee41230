"""Counts, sizes and speeds as people read them."""

import pytest

from localspec.units import count


@pytest.mark.parametrize(
    ("noun", "plural"),
    [
        ("token", "tokens"),
        ("code block", "code blocks"),
        ("match", "matches"),
        ("pass", "passes"),
    ],
)
def test_a_noun_has_its_english_plural(noun: str, plural: str) -> None:
    shown = [count(n, noun) for n in (0, 1, 2)]

    assert shown == [f"0 {plural}", f"1 {noun}", f"2 {plural}"]
