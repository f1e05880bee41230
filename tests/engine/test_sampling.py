"""One function makes the distribution, as llama.cpp does; the noise to draw by it is noise."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from localspec.engine.llama.context import LlamaContext
from localspec.engine.llama.library import C
from localspec.engine.llama.model import LlamaVocab
from localspec.engine.protocols import Distribution, Logits
from localspec.engine.sampling import (
    bind_vocabulary,
    compute_distribution,
    gumbel_argmax,
    gumbel_noise,
    keyed_uniform,
    top_k_ids,
)
from localspec.errors import EngineError
from localspec.machine.llama_params import ModelRole
from localspec.paths import package_data_dir
from localspec.protocol.wire import DRY_WINDOW, SamplingParams
from tests.engine.laws import drawn_from
from tests.support.fake_models import GREEDY, PLAIN
from tests.support.sessions import SETTINGS


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


@settings(derandomize=True, max_examples=250)
@given(ROWS, SAMPLINGS, st.data())
def test_the_law_is_llama_cpps_chain(
    row: list[float], sampling: SamplingParams, data: st.DataObject
) -> None:
    recent = data.draw(st.lists(st.integers(0, len(row) - 1), max_size=6))
    expected, edge = reference(row, sampling, recent)
    assume(edge > 1e-6)
    logits = np.array(row, np.float32)
    got = as_dict(compute_distribution(logits, sampling, recent))
    assert logits.tolist() == row, "it is left as it was"
    assert got.keys() == expected.keys()
    for token, prob in expected.items():
        assert got[token] == pytest.approx(prob, rel=1e-6, abs=1e-12)


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
        ([-math.inf, 2.0, -math.inf, 1.0], SamplingParams(1.0, 3, 1.0, 0.0), {1, 3}),
        ([0.0, -2000.0, -1.0], SamplingParams(1.0, 0, 1.0, 0.0), {0, 2}),
        ([3.0], SamplingParams(), {0}),
    ],
)
def test_ties_and_edges(row: list[float], sampling: SamplingParams, kept: set[int]) -> None:
    assert set(compute_distribution(np.array(row, np.float32), sampling).ids.tolist()) == kept


@pytest.mark.parametrize("n_vocab", [5, 130, 6401])
def test_numbers_that_are_none_are_an_error(n_vocab: int) -> None:
    samplings = (GREEDY, PLAIN, SamplingParams(), SamplingParams(top_k=2))
    rows = [np.full(n_vocab, -np.inf, np.float32)]  # without any possible token
    for wrong, place in product((math.nan, math.inf), (0, n_vocab // 2, n_vocab - 1)):
        rows.append(np.random.default_rng(0).normal(size=n_vocab).astype(np.float32))
        rows[-1][place] = wrong
    for row, sampling in product(rows, samplings):
        with pytest.raises(EngineError, match="invalid numbers"):
            compute_distribution(row, sampling)


@settings(derandomize=True, max_examples=120)
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


PROBS = np.array([0.4, 0.25, 0.2, 0.1, 0.05])
IDS = np.array([3, 17, 255, 256, 128_000])


@pytest.mark.parametrize("vary", ["index", "seed"])
def test_noise_draws_by_the_law_and_each_place_anew(vary: str) -> None:
    """What is drawn at one place, or with one seed, says nothing of the next."""

    def draw(i: int) -> int:
        seed, index = (5, i) if vary == "index" else (i, 5)
        return int((np.log(PROBS) + gumbel_noise(seed, index, IDS)).argmax())

    drawn = [draw(i) for i in range(10_000)]
    drawn_from(Counter(drawn), dict(enumerate(PROBS.tolist())))
    joint = np.outer(PROBS, PROBS)
    pairs = Counter(zip(drawn[::2], drawn[1::2], strict=True))
    drawn_from(pairs, {cell: float(joint[cell]) for cell in np.ndindex(joint.shape)})


def test_noise_is_of_seed_place_and_token_and_never_changes() -> None:
    """Known numbers: a seed gives the same text in every version and on every machine."""
    one = keyed_uniform(7, 3, np.arange(50))
    assert keyed_uniform(7, 3, np.arange(50)[::-1])[::-1].tolist() == one.tolist()
    assert keyed_uniform(7, 3, np.array([20, 4])).tolist() == [one[20], one[4]]
    for seed, index, ids, known in (
        (1, 2, [0, 1, 128_000], [0.6455074774833489, 0.6349452046916666, 0.18552499039387987]),
        (2**63 + 1, 0, [0, 2**31], [0.4361372840363015, 0.39400826254151167]),
        (0, 70_000, [5], [0.25989589277885916]),
    ):
        found = keyed_uniform(seed, index, np.array(ids)).tolist()
        assert found == pytest.approx(known, rel=1e-14)


def test_the_largest_score_with_gumbel_noise_wins() -> None:
    """In plain Python for few tokens and in numpy for many, with the same noise."""
    for n, index in product((2, 12, 13, 40), range(50)):
        rng = np.random.default_rng([n, index])
        ids = rng.permutation(50_000)[:n].astype(np.int64)
        probs = rng.dirichlet(np.ones(n))
        scores = np.log(probs) + gumbel_noise(7, index, ids)
        assert gumbel_argmax(7, index, Distribution(ids, probs)) == ids[scores.argmax()]


BREAKERS = (b"\n", b":", b'"', b"*")


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[LlamaVocab]:
    path = package_data_dir() / "demo" / "demo-draft.gguf"
    with closing(LlamaContext(path, ModelRole(SETTINGS, 1, 0))) as model:
        yield model.vocabulary


def apply(sampler: object, row: Logits, recent: Sequence[int] = ()) -> dict[int, float]:
    """The logits of the tokens that a sampler of llama.cpp keeps."""
    data = (C.llama_token_data * len(row))()
    for token, logit in enumerate(row.tolist()):
        data[token] = C.llama_token_data(token, logit, 0.0)
    tokens = C.llama_token_data_array(data, len(row), -1, False)
    for token in recent:
        C.llama_sampler_accept(sampler, token)
    C.llama_sampler_apply(sampler, ctypes.byref(tokens))
    kept = {tokens.data[i].id: tokens.data[i].logit for i in range(tokens.size)}
    C.llama_sampler_free(sampler)
    return kept


def softmax(logits: dict[int, float]) -> dict[int, float]:
    largest = max(logits.values())
    return normalized({token: math.exp(logit - largest) for token, logit in logits.items()})


def test_dry_is_llama_cpps(vocabulary: LlamaVocab) -> None:
    pieces = [vocabulary.piece(token) for token in range(vocabulary.n_tokens)]
    broken = [t for t, piece in enumerate(pieces) if any(b in piece for b in BREAKERS)]
    plain = [t for t in range(1000, 1004) if t not in broken]
    rng, breakers = np.random.default_rng(3), (ctypes.c_char_p * 4)(*BREAKERS)
    n_penalized = 0
    for trial in range(60):
        known = [*plain, broken[trial % len(broken)]] if trial % 3 else plain
        recent = rng.choice(known, size=int(rng.integers(0, 150))).tolist()
        recent += recent[-9:] if trial % 2 else []
        base, allowed = (1.75, 1.0, 3.0)[trial % 3], trial % 4
        sampling = replace(PLAIN, dry_multiplier=0.8, dry_base=base, dry_allowed_length=allowed)
        row = rng.normal(size=vocabulary.n_tokens).astype(np.float32)
        sampler = C.llama_sampler_init_dry(
            vocabulary.handle, 0.8, base, allowed, DRY_WINDOW, breakers, len(BREAKERS)
        )
        theirs = apply(sampler, row, recent)
        n_penalized += any(theirs[token] != row[token] for token in plain)
        expected = softmax(theirs)
        bound = bind_vocabulary(sampling, vocabulary.piece)
        got = as_dict(compute_distribution(row, bound, recent))
        for token in {*known, 5}:
            assert got.get(token, 0.0) == pytest.approx(expected[token], rel=1e-5, abs=1e-12)
    assert n_penalized > 30


@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.1, 0.3, 0.6])
def test_xtc_is_llama_cpps(threshold: float) -> None:
    for seed in range(20):
        row = np.random.default_rng(seed).normal(scale=2.0, size=40).astype(np.float32)
        theirs = apply(C.llama_sampler_init_xtc(1.0, threshold, 0, seed), row)
        cooled = softmax({token: logit / 0.7 for token, logit in theirs.items()})
        plain = as_dict(compute_distribution(row, replace(PLAIN, temperature=0.7)))
        for share in (1.0, 0.25):  # of the draws in which it applies
            sampling = replace(
                PLAIN, temperature=0.7, xtc_probability=share, xtc_threshold=threshold
            )
            got = as_dict(compute_distribution(row, sampling))
            mixture = {t: (1 - share) * plain[t] + share * cooled.get(t, 0.0) for t in plain}
            assert got == pytest.approx({t: p for t, p in mixture.items() if p}, rel=1e-5)
