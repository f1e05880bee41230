"""One function makes the distribution, as llama.cpp does; its noise is noise."""

import ctypes
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from localspec.errors import EngineError
from localspec.llama.context import LlamaContext
from localspec.llama.library import C
from localspec.llama.model import LlamaVocab
from localspec.machine.llama_params import ModelRole
from localspec.paths import package_data_dir
from localspec.protocol.wire import DRY_WINDOW, SamplingParams
from localspec.spec.protocols import Distribution, Logits
from localspec.spec.sampling import (
    bind_vocabulary,
    compute_distribution,
    gumbel_argmax,
    gumbel_noise,
    keyed_uniform,
    top_k_ids,
)
from tests.spec.laws import drawn_from
from tests.support.fake_models import GREEDY, PLAIN
from tests.support.sessions import SETTINGS

BREAKERS = (ctypes.c_char_p * 4)(b"\n", b":", b'"', b"*")


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[LlamaVocab]:
    path = package_data_dir() / "demo" / "demo-draft.gguf"
    with closing(LlamaContext(path, ModelRole(SETTINGS, 1, 0))) as model:
        yield model.vocabulary


def chain(
    vocabulary: LlamaVocab, row: Logits, given: SamplingParams, recent: Sequence[int]
) -> dict[int, float]:
    """The probabilities of llama.cpp's own samplers, in the order of its default chain."""
    n = len(row)
    biases = [bias for bias in given.logit_bias if bias[0] < len(row)]
    penalties = given.repeat_penalty, given.frequency_penalty, given.presence_penalty
    dry = given.dry_multiplier, given.dry_base, given.dry_allowed_length, DRY_WINDOW
    samplers = (
        C.llama_sampler_init_logit_bias(
            n, len(biases), (C.llama_logit_bias * len(biases))(*biases)
        ),
        C.llama_sampler_init_penalties(n, given.repeat_last_n, *penalties),
        C.llama_sampler_init_dry(vocabulary.handle, *dry, BREAKERS, len(BREAKERS)),
        C.llama_sampler_init_top_k(given.top_k),
        C.llama_sampler_init_top_p(given.top_p, 1),
        C.llama_sampler_init_min_p(given.min_p, 1),
        C.llama_sampler_init_xtc(given.xtc_probability, given.xtc_threshold, 0, 0),
        C.llama_sampler_init_temp(given.temperature),
    )
    cells = (C.llama_token_data * n)()
    view = np.ctypeslib.as_array(cells)
    view["id"] = np.arange(n)
    view["logit"] = row
    tokens = C.llama_token_data_array(cells, n, -1, False)
    for sampler in samplers:
        for token in recent:
            C.llama_sampler_accept(sampler, token)
        C.llama_sampler_apply(sampler, ctypes.byref(tokens))
    found = np.ctypeslib.as_array(tokens.data, (tokens.size,))
    weights = np.exp(found["logit"].astype(np.float64) - float(found["logit"].max()))
    probs = dict(
        zip(found["id"].tolist(), (weights / weights.sum()).tolist(), strict=True)
    )
    for sampler in samplers:
        C.llama_sampler_free(sampler)
    return {token: prob for token, prob in probs.items() if prob > 0}


def as_dict(own: Distribution) -> dict[int, float]:
    return dict(zip(own.ids.tolist(), own.probs.tolist(), strict=True))


TEMPERATURE = {"temperature": st.sampled_from([0.0, 0.3, 0.8, 1.0, 2.0])}
TRUNCATION = {
    "top_k": st.sampled_from([0, 0, 0, 1, 3, 40]),
    "top_p": st.sampled_from([0.1, 0.5, 0.77, 0.95, 1.0, 1.0, 1.0]),
    "min_p": st.sampled_from([0.0, 0.0, 0.03, 0.2, 0.77]),
}
PENALTIES = {
    "repeat_penalty": st.sampled_from([1.0, 1.25, 2.0, 0.5]),
    "repeat_last_n": st.integers(1, 4),
    "presence_penalty": st.sampled_from([0.0, 0.5, -1.25]),
    "frequency_penalty": st.sampled_from([0.0, 0.25, 2.0, -0.5]),
    "logit_bias": st.lists(
        st.tuples(st.integers(0, 14), st.sampled_from([-100.0, -2.5, 0.5, 100.0])),
        max_size=3,
    ).map(tuple),
}
DRY = {
    "dry_multiplier": st.sampled_from([0.5, 2.0]),
    "dry_base": st.sampled_from([1.0, 1.75]),
    "dry_allowed_length": st.integers(0, 2),
}
XTC = {
    "xtc_probability": st.sampled_from([0.5, 1.0]),
    "xtc_threshold": st.sampled_from([0.001, 0.02, 0.1, 0.3]),
}
ALL_FILTERS = TRUNCATION | PENALTIES | DRY | XTC


def with_filters(filters: Mapping[str, Any]) -> st.SearchStrategy[SamplingParams]:
    return st.builds(replace, st.just(PLAIN), **TEMPERATURE, **filters)


SAMPLINGS = st.one_of(
    with_filters(TRUNCATION),
    with_filters(PENALTIES),
    with_filters(DRY),
    with_filters(XTC),
    with_filters(ALL_FILTERS),
)


@settings(derandomize=True, max_examples=400)
@given(
    SAMPLINGS, st.sampled_from([12, 300, 4096]), st.sampled_from([0.5, 3.0]), st.data()
)
def test_the_law_is_llama_cpps_chain(
    vocabulary: LlamaVocab,
    given: SamplingParams,
    n: int,
    scale: float,
    data: st.DataObject,
) -> None:
    """XTC's coin is part of the law: each side has its share.

    At temperature 0 there is no coin.
    """
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    row = rng.normal(scale=scale, size=n).astype(np.float32)
    is_impossible = rng.random(n - 1) < data.draw(st.sampled_from([0.0, 0.5]))
    row[1:][is_impossible] = -np.inf
    before = row.tolist()
    # The demo's vocabulary has breakers of DRY's sequences among them.
    known = [0, 1, n // 2, *(token for token in (5, 11) if token < n)]
    recent = rng.choice(known, size=int(rng.integers(0, 40))).tolist()
    recent += recent[-9:] * int(rng.integers(3))

    def theirs(**changed: float) -> dict[int, float]:
        return chain(vocabulary, row, replace(given, **changed), recent)

    def nudged(by: float) -> set[int]:
        """At the edge of a filter the last bits decide, and either side would be right."""
        changed: dict[str, float] = {"xtc_probability": 0.0}
        if given.xtc_probability > 0:
            changed["xtc_probability"] = 1.0
        for name in ("top_p", "min_p", "xtc_threshold"):
            threshold = getattr(given, name)
            if 0 < threshold < 1:
                changed[name] = threshold * by
        return set(theirs(**changed))

    assume(nudged(1 - 1e-5) == nudged(1 + 1e-5))
    expected = theirs(xtc_probability=0.0)
    if given.xtc_probability > 0 and given.temperature > 0:
        share = given.xtc_probability
        others = theirs(xtc_probability=1.0)
        for token, prob in expected.items():
            expected[token] = (1 - share) * prob + share * others.get(token, 0.0)
    got = as_dict(
        compute_distribution(row, bind_vocabulary(given, vocabulary.piece), recent)
    )
    assert row.tolist() == before, "it is left as it was"
    for token in got.keys() | expected.keys():
        theirs_ = pytest.approx(expected.get(token, 0.0), rel=1e-4, abs=1e-9)
        assert got.get(token, 0.0) == theirs_, token


@pytest.mark.parametrize(
    ("row", "sampling", "kept"),
    [
        ([1.0, 1.0, 1.0, 1.0], SamplingParams(1.0, 0, 0.5, 0.0), {0, 1}),
        ([1.0, 1.0, 1.0, 1.0], SamplingParams(1.0, 0, 0.51, 0.0), {0, 1, 2}),
        ([-math.inf, 2.0, -math.inf, 1.0], SamplingParams(1.0, 3, 1.0, 0.0), {1, 3}),
        ([0.0, -2000.0, -1.0], SamplingParams(1.0, 0, 1.0, 0.0), {0, 2}),
        ([3.0], SamplingParams(), {0}),
        (
            [1.0, 0.5, -math.inf],
            replace(PLAIN, xtc_probability=0.5, xtc_threshold=0.0),
            {0, 1},
        ),
    ],
)
def test_ties_and_edges(
    row: list[float], sampling: SamplingParams, kept: set[int]
) -> None:
    distribution = compute_distribution(np.array(row, np.float32), sampling)

    assert set(distribution.ids.tolist()) == kept


@pytest.mark.parametrize("n_vocab", [5, 130, 6401])
def test_numbers_that_are_none_are_an_error(n_vocab: int) -> None:
    samplings = (GREEDY, PLAIN, SamplingParams(), SamplingParams(top_k=2))
    no_possible_token = np.full(n_vocab, -np.inf, np.float32)
    rows = [no_possible_token]
    for wrong, place in product((math.nan, math.inf), (0, n_vocab // 2, n_vocab - 1)):
        row = np.random.default_rng(0).normal(size=n_vocab).astype(np.float32)
        row[place] = wrong
        rows.append(row)
    for row, sampling in product(rows, samplings):
        with pytest.raises(EngineError, match="invalid numbers"):
            compute_distribution(row, sampling)


@settings(derandomize=True, max_examples=120)
@given(
    n=st.integers(1, 700) | st.integers(1024, 5000),
    k=st.integers(1, 20),
    n_values=st.sampled_from([2, 5, 1000]),
    has_impossible=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_largest_are_those_of_a_sort(
    n: int, k: int, n_values: int, has_impossible: bool, seed: int
) -> None:
    """Few different values make many ties, of which the lower token comes first."""
    rng = np.random.default_rng(seed)
    row = rng.integers(n_values, size=n).astype(np.float32)
    if seed % 2:
        row[-1] = n_values
    if has_impossible:
        is_impossible = rng.random(n) < 0.5
        row[is_impossible] = -np.inf
    assume(row.max() > -np.inf)
    expected = sorted(range(n), key=lambda token: (-row[token], token))[:k]
    assert top_k_ids(row, k).tolist() == expected


PROBS = np.array([0.4, 0.25, 0.2, 0.1, 0.05])
IDS = np.array([3, 17, 255, 256, 128_000])


@pytest.mark.parametrize("vary", ["index", "seed"])
def test_noise_draws_by_the_law_and_each_place_anew(vary: str) -> None:
    """What is drawn at one place, or with one seed, says nothing of the next."""

    def draw(i: int) -> int:
        seed = i if vary == "seed" else 5
        index = i if vary == "index" else 5
        scores = np.log(PROBS) + gumbel_noise(seed, index, IDS)
        return int(scores.argmax())

    drawn = [draw(i) for i in range(10_000)]
    drawn_from(Counter(drawn), dict(enumerate(PROBS.tolist())))
    joint = np.outer(PROBS, PROBS)
    pairs = Counter(zip(drawn[::2], drawn[1::2], strict=True))
    drawn_from(pairs, {cell: float(joint[cell]) for cell in np.ndindex(joint.shape)})


def test_noise_is_of_seed_place_and_token() -> None:
    one = keyed_uniform(7, 3, np.arange(50))

    assert keyed_uniform(7, 3, np.arange(50)[::-1])[::-1].tolist() == one.tolist()
    assert keyed_uniform(7, 3, np.array([20, 4])).tolist() == [one[20], one[4]]


@pytest.mark.parametrize(
    ("seed", "index", "known"),
    [
        (1, 2, {0: 0.6455074774833489, 1: 0.6349452046916666}),
        (1, 2, {128_000: 0.18552499039387987}),
        (2**63 + 1, 0, {0: 0.4361372840363015, 2**31: 0.39400826254151167}),
        (0, 70_000, {5: 0.25989589277885916}),
    ],
)
def test_a_seed_gives_the_same_noise_in_every_version_and_on_every_machine(
    seed: int, index: int, known: dict[int, float]
) -> None:
    found = keyed_uniform(seed, index, np.array(list(known)))

    assert found.tolist() == pytest.approx(list(known.values()), rel=1e-14)


def test_the_largest_score_with_gumbel_noise_wins() -> None:
    """In plain Python for few tokens and in numpy for many, with the same noise."""
    for n, index in product((2, 12, 13, 40), range(50)):
        rng = np.random.default_rng([n, index])
        ids = rng.permutation(50_000)[:n].astype(np.int64)
        probs = rng.dirichlet(np.ones(n))
        scores = np.log(probs) + gumbel_noise(7, index, ids)
        assert gumbel_argmax(7, index, Distribution(ids, probs)) == ids[scores.argmax()]
