"""bench/aggregation.py: repeated 4-grams of tokens and words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.bench import workloads
from localspec.bench.aggregation import copied_share, distinct_4grams


@pytest.mark.parametrize(
    ("ids", "share"),
    [([1, 2, 3], None), ([1, 2, 3, 4], 1.0), ([1] * 8, 1 / 5), ([1, 2, 3, 4, 1, 2, 3, 4], 4 / 5)],
)
def test_distinct_runs_of_tokens(ids: list[int], share: float | None) -> None:
    assert distinct_4grams(ids) == (None if share is None else pytest.approx(share))


@given(st.lists(st.integers(0, 3), min_size=4, max_size=60))
def test_distinct_is_a_share(ids: list[int]) -> None:
    share = distinct_4grams(ids)
    assert share is not None
    assert 0 < share <= 1


def test_white_space_does_not_count_for_the_copied_share() -> None:
    prompt = "def mean(values):\n    return sum(values)"
    assert copied_share(prompt, "def  mean (values) :\n  return sum(values)") == 1.0
    assert copied_share(prompt, "none of these words are in it") == 0.0
    assert copied_share(prompt, "too short") is None


def test_the_requested_edit_counts_as_a_copy() -> None:
    (copy_edit,) = (workload for workload in workloads.load() if workload.copies_prompt)
    for prompt in copy_edit.prompts:
        match = re.fullmatch(r"# Before:\n(.*?)\n\n# After: (\w+) becomes (\w+)\n", prompt, re.S)
        assert match is not None
        text, old, new = match.groups()
        edited = re.sub(rf"\b{old}\b", new, text)
        assert edited != text
        assert (copied_share(prompt, edited) or 0) > 0.8
