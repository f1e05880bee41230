"""The margin is a bound: logits that move by less than half of it never change the choice."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.engine.protocols import Logits
from localspec.engine.rescore import find_choice
from localspec.engine.sampling import compute_distribution
from localspec.protocol.wire import SamplingParams

WAYS = {
    "greedy": SamplingParams(temperature=0),
    "one": SamplingParams(temperature=0.8, top_k=1),
    "open": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1),
    "top-k": SamplingParams(temperature=1.3, top_k=3, top_p=1.0, min_p=0.0, seed=2),
    "penalised": SamplingParams(
        temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, seed=6, repeat_penalty=1.5
    ),
}
"""Where top-p and min-p cut depends on more than the lowest token that they keep."""


def row_of(rng: np.random.Generator) -> Logits:
    return rng.normal(0, 2, 12).astype(np.float32)


def chosen(row: Logits, sampling: SamplingParams, place: int) -> tuple[int, float]:
    recent = [1, 2]
    distribution = compute_distribution(row, sampling, recent)
    return find_choice(row, distribution, sampling, recent, place)


@pytest.mark.parametrize("name", WAYS)
def test_smaller_changes_than_half_of_it_change_nothing(name: str) -> None:
    rng, sampling = np.random.default_rng(0), WAYS[name]
    stretch = sampling.repeat_penalty  # a penalty multiplies or divides what a logit moves by
    for place in range(60):
        row = row_of(rng)
        best, margin = chosen(row, sampling, place)
        reach = 0.49 * min(margin, 50.0) / stretch
        for _ in range(30):
            signs = rng.choice([-1, 0, 1], len(row)).astype(np.float32)
            assert chosen(row + reach * signs, sampling, place)[0] == best


@pytest.mark.parametrize("name", ["greedy", "open", "top-k"])
def test_it_is_no_smaller_than_it_must_be(name: str) -> None:
    """Somewhere about as far off another token is chosen, most times."""
    rng, sampling = np.random.default_rng(1), WAYS[name]
    near = 0
    for place in range(60):
        row = row_of(rng)
        best, margin = chosen(row, sampling, place)
        ways = rng.choice([-1, 1], (4000, len(row))).astype(np.float32)
        near += any(
            chosen(row + 0.6 * margin * signs, sampling, place)[0] != best for signs in ways[:400]
        )
    assert near > 30


@pytest.mark.parametrize("sampling", [SamplingParams(seed=5), SamplingParams(top_p=0.8, seed=3)])
def test_truncated_tokens_count_by_how_far_they_were_cut(sampling: SamplingParams) -> None:
    row = np.array([4.0, 3.999, 3.9, -20.0], np.float32)
    kept = compute_distribution(row, sampling, []).ids
    for place in range(30):
        best, margin = find_choice(
            row, compute_distribution(row, sampling, []), sampling, [], place
        )
        assert best in kept and 0 <= margin <= 30


def test_equal_logits_have_none() -> None:
    assert chosen(np.zeros(4, np.float32), WAYS["greedy"], 0)[1] == 0


def test_a_lone_token_is_far_from_any_other() -> None:
    for sampling in WAYS.values():
        assert chosen(np.array([1.0], np.float32), sampling, 0)[1] >= 1e9
