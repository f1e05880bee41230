"""The margin is a bound: logits that move by less than half of it never change the choice."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.engine.near_ties import decision_margin, pick_coupled_token
from localspec.engine.protocols import Logits
from localspec.engine.sampling import compute_distribution
from localspec.protocol.wire import SamplingParams

WAYS = {
    "greedy": SamplingParams(temperature=0),
    "one": SamplingParams(temperature=0.8, top_k=1),
    "open": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1),
    "top-k": SamplingParams(temperature=1.3, top_k=3, top_p=1.0, min_p=0.0, seed=2),
    "top-p": SamplingParams(temperature=1.3, top_k=0, top_p=0.8, min_p=0.0, seed=3),
    "min-p": SamplingParams(temperature=1.3, top_k=0, top_p=1.0, min_p=0.3, seed=4),
    "usual": SamplingParams(seed=5),
    "penalised": SamplingParams(seed=6, repeat_penalty=1.5),
}


def row_of(rng: np.random.Generator) -> Logits:
    return rng.normal(0, 2, 12).astype(np.float32)


def picked(row: Logits, sampling: SamplingParams, place: int) -> int:
    return pick_coupled_token(compute_distribution(row, sampling, [1, 2]), sampling, place)


@pytest.mark.parametrize("name", WAYS)
def test_smaller_changes_than_half_of_it_change_nothing(name: str) -> None:
    rng, sampling = np.random.default_rng(0), WAYS[name]
    stretch = sampling.repeat_penalty  # a penalty multiplies or divides what a logit moves by
    for place in range(60):
        row = row_of(rng)
        best = picked(row, sampling, place)
        reach = 0.49 * min(decision_margin(row, sampling, [1, 2], place, best), 50.0) / stretch
        for _ in range(30):
            signs = rng.choice([-1, 0, 1], len(row)).astype(np.float32)
            assert picked(row + reach * signs, sampling, place) == best


@pytest.mark.parametrize("name", ["greedy", "open", "top-k", "top-p", "min-p"])
def test_it_is_no_smaller_than_it_must_be(name: str) -> None:
    """Somewhere about as far off another token is chosen, most times."""
    rng, sampling = np.random.default_rng(1), WAYS[name]
    near = 0
    for place in range(60):
        row = row_of(rng)
        best = picked(row, sampling, place)
        reach = 0.6 * decision_margin(row, sampling, [1, 2], place, best)
        ways = rng.choice([-1, 1], (4000, len(row))).astype(np.float32)
        near += any(picked(row + reach * signs, sampling, place) != best for signs in ways[:400])
    assert near > 30


def test_equal_logits_have_none() -> None:
    row = np.zeros(4, np.float32)
    assert decision_margin(row, WAYS["greedy"], [], 0, 0) == 0


def test_a_lone_token_is_far_from_any_other() -> None:
    row = np.array([1.0], np.float32)
    for sampling in WAYS.values():
        assert decision_margin(row, sampling, [], 0, 0) >= 1e9
