"""One function makes the law; the noise to draw by it is noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from localspec.engine.protocols import Distribution
from localspec.engine.sampling import (
    compute_distribution,
    gumbel_argmax,
    gumbel_noise,
    keyed_uniform,
    top_k_ids,
)
from localspec.errors import EngineError
from localspec.protocol.wire import SamplingParams
from tests.engine.laws import drawn_from
from tests.support.fake_models import GREEDY, PLAIN

# --- the law ----------------------------------------------------------------------------


def reference(
    row: list[float], sampling: SamplingParams, recent: list[int]
) -> tuple[dict[int, float], float]:
    """llama.cpp's chain, one filter after another over a sorted list.

    Also how near to the edge of a filter the nearest token was: there the last bits decide, and
    either side would be right.
    """
    logits = penalized(row, sampling, recent)
    order = sorted(logits, key=lambda token: (-logits[token], token))
    gaps = -np.diff([logits[token] for token in order if logits[token] > -math.inf])
    if sampling.has_dry and ((gaps > 0) & (gaps < 1e-5)).any():
        return {}, 0.0
    if sampling.temperature == 0:
        return {order[0]: 1.0}, 1.0
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = {token: math.exp(logits[token] - logits[order[0]]) for token in order}
    kept, edge = order, 1.0
    if sampling.top_p < 1:
        shares = np.cumsum([weights[token] for token in order]) / math.fsum(weights.values())
        kept = order[: int((shares < sampling.top_p).sum()) + 1]
        edge = float(abs(shares - sampling.top_p).min())
    if sampling.min_p:
        edge = min(edge, *(abs(weights[token] - sampling.min_p) for token in order[1:]), 1.0)
        kept = [token for token in kept if weights[token] >= sampling.min_p]
    cooled = {t: math.exp((logits[t] - logits[order[0]]) / sampling.temperature) for t in kept}
    before = normalized({token: weights[token] for token in kept})
    top = [token for token in kept if before[token] >= sampling.xtc_threshold]
    mixed = normalized(cooled)
    if sampling.xtc_probability and len(top) > 1:
        edge = min(edge, *(abs(share - sampling.xtc_threshold) for share in before.values()))
        rest = normalized({t: cooled[t] for t in kept if t not in top[:-1]})
        chance = sampling.xtc_probability
        mixed = {t: (1 - chance) * mixed[t] + chance * rest.get(t, 0.0) for t in kept}
    return {token: prob for token, prob in mixed.items() if prob > 0}, edge


def penalized(row: list[float], sampling: SamplingParams, recent: list[int]) -> dict[int, float]:
    """The logits after bias, penalties and DRY."""
    logits = dict(enumerate(row))
    for token, bias in sampling.logit_bias:
        if token in logits:
            logits[token] += bias
    for token, count in Counter(recent[-sampling.repeat_last_n :]).items():
        penalty = sampling.repeat_penalty
        logits[token] *= 1 / penalty if logits[token] > 0 else penalty
        logits[token] -= count * sampling.frequency_penalty + sampling.presence_penalty
    for token, length in repeats(recent[-64:], sampling.dry_allowed_length).items():
        grown = sampling.dry_base ** (length - sampling.dry_allowed_length)
        logits[token] -= sampling.dry_multiplier * grown
    return logits


def repeats(text: list[int], allowed: int) -> dict[int, int]:
    """The longest repeated sequence that each token would extend, if it has `allowed` tokens."""
    longest: dict[int, int] = {}
    if len(text) <= allowed:
        return {}
    for n, place in product(range(len(text) - 1, allowed - 1, -1), range(1, len(text))):
        if n <= place and text[place - n : place] == text[len(text) - n :]:
            longest.setdefault(text[place], n)
    return longest


def normalized(weights: dict[int, float]) -> dict[int, float]:
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def as_dict(own: Distribution) -> dict[int, float]:
    return dict(zip(own.ids.tolist(), own.probs.tolist(), strict=True))


# Eighths, so that sums of 32-bit numbers are exact; few, so that many are equal.
LOGIT = st.integers(-40, 40).map(lambda n: n / 8) | st.sampled_from([0.0, 1.0, -math.inf])
ROWS = st.lists(LOGIT, min_size=1, max_size=12).filter(lambda row: max(row) > -math.inf)
SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 2.0]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([0.1, 0.5, 0.77, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.03, 0.2, 0.77, 0.999]),
    repeat_penalty=st.sampled_from([1.0, 1.25, 2.0, 0.5]),
    repeat_last_n=st.integers(1, 4),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.5, -1.25]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.25, 2.0, -0.5]),
    dry_multiplier=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
    dry_base=st.sampled_from([1.0, 1.75]),
    dry_allowed_length=st.integers(0, 2),
    xtc_probability=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.0, 0.1, 0.3]),
    logit_bias=st.lists(
        st.tuples(st.integers(0, 14), st.sampled_from([-100.0, -2.5, 0.5, 100.0])), max_size=3
    ).map(tuple),
)


@settings(deadline=None, derandomize=True, max_examples=250)
@given(ROWS, SAMPLINGS, st.data())
def test_the_law_is_llama_cpps_chain(
    row: list[float], sampling: SamplingParams, data: st.DataObject
) -> None:
    recent = data.draw(st.lists(st.integers(0, len(row) - 1), max_size=6))
    expected, edge = reference(row, sampling, recent)
    assume(edge > 1e-6)
    got = as_dict(compute_distribution(np.array(row, np.float32), sampling, recent))
    assert got.keys() == expected.keys()
    for token, prob in expected.items():
        assert got[token] == pytest.approx(prob, rel=1e-6, abs=1e-12)


@settings(deadline=None, derandomize=True, max_examples=120)
@given(ROWS, SAMPLINGS)
def test_a_law_is_a_law(row: list[float], sampling: SamplingParams) -> None:
    own = compute_distribution(np.array(row, np.float32), sampling)
    assert math.fsum(own.probs.tolist()) == pytest.approx(1, abs=1e-12)
    assert own.probs.min() > 0
    assert len(set(own.ids.tolist())) == len(own.ids) == len(own.probs)
    best = int(np.array(row, np.float32).argmax())
    assert sampling.logit_bias or sampling.xtc_probability or own.prob(best) == own.probs.max()
    assert own.prob(len(row)) == 0


def test_the_law_of_a_whole_vocabulary() -> None:
    for top_k, n_vocab, top_p, min_p, scale in product(
        (0, 40), (300, 5000, 20_000), (0.5, 0.95, 1.0), (0.0, 0.05), (0.5, 4.0)
    ):
        row = np.random.default_rng(n_vocab).normal(scale=scale, size=n_vocab).astype(np.float32)
        sampling = SamplingParams(0.8, top_k, top_p, min_p)
        expected, edge = reference(row.tolist(), sampling, [])
        assert edge > 1e-7, "take another row"
        got = as_dict(compute_distribution(row, sampling))
        assert got.keys() == expected.keys()
        assert max(abs(got[token] - expected[token]) for token in got) < 1e-9


@pytest.mark.parametrize(
    ("row", "sampling", "kept"),
    [
        ([1.0, 1.0, 1.0, 1.0], SamplingParams(1.0, 0, 0.5, 0.0), {0, 1}),
        ([1.0, 1.0, 1.0, 1.0], SamplingParams(1.0, 0, 0.51, 0.0), {0, 1, 2}),
        ([1.0, 1.0, 1.0, 1.0], SamplingParams(1.0, 2, 1.0, 0.0), {0, 1}),
        ([0.0, 2.0, 2.0, 1.0], SamplingParams(1.0, 0, 1.0, 1.0), {1, 2}),
        ([0.0, 2.0, 2.0, 1.0], SamplingParams(1.0, 1, 1.0, 0.0), {1}),
        ([0.0, 2.0, 2.0, 1.0], SamplingParams(0.0, 0, 1.0, 0.0), {1}),
        ([-math.inf, 2.0, -math.inf, 1.0], SamplingParams(1.0, 3, 1.0, 0.0), {1, 3}),
        ([-math.inf, 2.0, -math.inf, 1.0], SamplingParams(1.0, 0, 1.0, 0.0), {1, 3}),
        ([0.0, -2000.0, -1.0], SamplingParams(1.0, 0, 1.0, 0.0), {0, 2}),
        ([3.0], SamplingParams(), {0}),
    ],
)
def test_ties_and_edges(row: list[float], sampling: SamplingParams, kept: set[int]) -> None:
    assert set(compute_distribution(np.array(row, np.float32), sampling).ids.tolist()) == kept


def test_numbers_that_are_none_are_an_error() -> None:
    for sampling, wrong in product(
        (GREEDY, PLAIN, SamplingParams(), SamplingParams(top_k=0)), (math.nan, math.inf)
    ):
        for n_vocab in (5, 130, 6401):
            for place in (0, n_vocab // 2, n_vocab - 1):
                row = np.random.default_rng(0).normal(size=n_vocab).astype(np.float32)
                row[place] = wrong
                with pytest.raises(EngineError, match="invalid numbers"):
                    compute_distribution(row, sampling)
                with pytest.raises(EngineError, match="invalid numbers"):
                    compute_distribution(row, replace(sampling, top_k=2))


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN, SamplingParams(), SamplingParams(top_k=0)])
@pytest.mark.parametrize("n_vocab", [5, 6401])
def test_a_row_without_any_possible_token_is_an_error(
    sampling: SamplingParams, n_vocab: int
) -> None:
    with pytest.raises(EngineError, match="invalid numbers"):
        compute_distribution(np.full(n_vocab, -np.inf, np.float32), sampling)


def test_the_row_is_left_as_it_was() -> None:
    row = np.array([1.0, -2.0, 0.5], np.float32)
    compute_distribution(row, SamplingParams(repeat_penalty=1.5), [0, 1])
    assert row.tolist() == [1.0, -2.0, 0.5]


def test_the_repeat_penalty_counts_a_token_once_and_looks_back_so_far() -> None:
    row = np.array([2.0, -1.0, 1.0, 0.0], np.float32)
    sampling = replace(PLAIN, repeat_penalty=2.0, repeat_last_n=3)
    got = compute_distribution(row, sampling, [2, 0, 1, 1])
    expected = compute_distribution(np.array([1.0, -2.0, 1.0, 0.0], np.float32), PLAIN)
    assert as_dict(got) == as_dict(expected)


# --- the largest ------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, max_examples=120)
@given(
    st.integers(1, 700),
    st.integers(1, 20),
    st.sampled_from([2, 5, 1000]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_the_largest_are_those_of_a_sort(
    n: int, k: int, kinds: int, holes: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    row = rng.integers(kinds, size=n).astype(np.float32)
    if holes:
        row[rng.random(n) < 0.5] = -np.inf
    assume(row.max() > -np.inf)
    expected = sorted(range(n), key=lambda token: (-row[token], token))[:k]
    assert top_k_ids(row, k).tolist() == expected


# --- the noise --------------------------------------------------------------------------

PROBS = np.array([0.4, 0.25, 0.2, 0.1, 0.05])
IDS = np.array([3, 17, 255, 256, 128_000])
MANY = 5000

Draw = Callable[[int, int], int]
"""A cell of PROBS, drawn with (seed, index)."""


def drawn(seed: int, index: int) -> int:
    return int((np.log(PROBS) + gumbel_noise(seed, index, IDS)).argmax())


def law_holds(draw: Draw, vary: str) -> None:
    """Over many places, or many seeds, tokens come as often as their law says."""
    counts = Counter(draw(*((5, i) if vary == "index" else (i, 5))) for i in range(MANY))
    drawn_from(counts, dict(enumerate(PROBS.tolist())))


def places_are_independent(draw: Draw, vary: str) -> None:
    """What is drawn at one place says nothing of the next."""
    cells: Counter[tuple[int, ...]] = Counter()
    for i in range(MANY):
        seed, index = (5, 2 * i) if vary == "index" else (i, 4)
        cells[draw(seed, index), draw(seed, index + 1)] += 1
    joint = np.outer(PROBS, PROBS)
    drawn_from(cells, {cell: float(joint[cell]) for cell in np.ndindex(joint.shape)})


@pytest.mark.parametrize("vary", ["index", "seed"])
@pytest.mark.parametrize("check", [law_holds, places_are_independent])
def test_noise_draws_by_the_law(check: Callable[[Draw, str], None], vary: str) -> None:
    check(drawn, vary)


@pytest.mark.parametrize(
    ("check", "vary", "noise"),
    [
        (law_holds, "index", lambda seed, index: gumbel_noise(seed, 0, IDS)),
        (law_holds, "seed", lambda seed, index: gumbel_noise(0, index, IDS)),
        (places_are_independent, "seed", lambda seed, index: gumbel_noise(seed, 0, IDS)),
        (places_are_independent, "index", lambda seed, index: gumbel_noise(seed, index // 2, IDS)),
        (law_holds, "index", lambda seed, index: gumbel_noise(seed, index, np.zeros_like(IDS))),
        (law_holds, "index", lambda seed, index: gumbel_noise(seed, index, IDS) * 0.7),
        (law_holds, "index", lambda seed, index: keyed_uniform(seed, index, IDS)),
    ],
)
def test_noise_that_is_none_is_noticed(
    check: Callable[[Draw, str], None],
    vary: str,
    noise: Callable[[int, int], NDArray[np.float64]],
) -> None:
    with pytest.raises(AssertionError, match="chi-square"):
        check(lambda seed, index: int((np.log(PROBS) + noise(seed, index)).argmax()), vary)


Pair = tuple[NDArray[np.float64], NDArray[np.float64]]
NEIGHBOURS: dict[str, Pair] = {
    "ids": (
        keyed_uniform(1, 0, np.arange(0, 40_000, 2)),
        keyed_uniform(1, 0, np.arange(1, 40_000, 2)),
    ),
    "far ids": (
        keyed_uniform(1, 0, np.arange(20_000)),
        keyed_uniform(1, 0, np.arange(20_000) + 2**31),
    ),
    "indices": (keyed_uniform(1, 0, np.arange(20_000)), keyed_uniform(1, 1, np.arange(20_000))),
    "seeds": (keyed_uniform(1, 0, np.arange(20_000)), keyed_uniform(2, 0, np.arange(20_000))),
    "id and index": (
        keyed_uniform(1, 0, np.arange(20_000) + 1),
        keyed_uniform(1, 1, np.arange(20_000)),
    ),
    "large seeds": (
        keyed_uniform(2**63, 0, np.arange(20_000)),
        keyed_uniform(2**63 + 1, 0, np.arange(20_000)),
    ),
}


def unrelated(pair: Pair, n: int = 10) -> None:
    cells = Counter(zip(*((n * numbers).astype(int).tolist() for numbers in pair), strict=True))
    drawn_from(cells, {cell: 1 / n**2 for cell in np.ndindex(n, n)})


@pytest.mark.parametrize("pair", NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
def test_neighbours_are_unrelated(pair: Pair) -> None:
    unrelated(pair)


def test_neighbours_that_are_related_are_noticed() -> None:
    numbers = NEIGHBOURS["ids"][0]
    for other in (numbers, (numbers + 0.01) % 1, 1 - numbers):
        with pytest.raises(AssertionError, match="chi-square"):
            unrelated((numbers, other))


def test_noise_is_of_seed_place_and_token_and_nothing_else() -> None:
    one = keyed_uniform(7, 3, np.arange(50))
    assert keyed_uniform(7, 3, np.arange(50)[::-1])[::-1].tolist() == one.tolist()
    assert keyed_uniform(7, 3, np.array([20, 4])).tolist() == [one[20], one[4]]
    for other in (keyed_uniform(8, 3, np.arange(50)), keyed_uniform(7, 4, np.arange(50))):
        assert not set(one.tolist()) & set(other.tolist())


def test_the_noise_never_changes() -> None:
    """Known numbers: a seed gives the same text in every version and on every machine."""
    known = [0.6455074774833489, 0.6349452046916666, 0.18552499039387987]
    assert keyed_uniform(1, 2, np.array([0, 1, 128_000])).tolist() == pytest.approx(
        known, rel=1e-14
    )


MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def unmixed(z: int) -> int:
    """The inverse of splitmix64's finaliser."""
    z ^= z >> 31 ^ z >> 62
    z = z * pow(0x94D049BB133111EB, -1, 2**64) & MASK
    z ^= z >> 27 ^ z >> 54
    z = z * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK
    return z ^ z >> 30 ^ z >> 60


@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_noise_is_finite_at_the_ends_of_its_range(bits: int) -> None:
    """The seed whose first number has all its bits clear, or all set."""
    key = unmixed(bits) - GOLDEN & MASK
    seed = unmixed(unmixed(key) - GOLDEN & MASK)
    number = keyed_uniform(seed, 0, np.array([0]))[0]
    assert abs(number - bits / 2**64) < 1e-9
    assert 0 < number < 1
    assert np.isfinite(gumbel_noise(seed, 0, np.array([0]))[0])


@pytest.mark.parametrize("n", [2, 5, 12, 13, 40])
def test_a_race_is_won_by_the_largest_score_with_gumbel_noise(n: int) -> None:
    """In plain Python for few tokens and in numpy for many, with the same noise."""
    rng = np.random.default_rng(n)
    for index in range(200):
        ids = rng.permutation(50_000)[:n].astype(np.int64)
        probs = rng.dirichlet(np.ones(n))
        scores = np.log(probs) + gumbel_noise(7, index, ids)
        assert gumbel_argmax(7, index, Distribution(ids, probs)) == ids[scores.argmax()]
