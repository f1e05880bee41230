"""DRY and XTC give what llama.cpp's own samplers give."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.engine.llama.context import LlamaContext
from localspec.engine.llama.library import C
from localspec.engine.llama.model import LlamaVocab
from localspec.engine.sampling import bind_vocabulary, compute_distribution
from localspec.machine.llama_params import ModelRole
from localspec.paths import package_data_dir
from localspec.protocol.wire import DRY_WINDOW, SamplingParams
from tests.support.sessions import SETTINGS

BREAKERS = (b"\n", b":", b'"', b"*")
Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[LlamaVocab]:
    path = package_data_dir() / "demo" / "demo-draft.gguf"
    model = LlamaContext(path, ModelRole(SETTINGS, 1, 0))
    yield model.vocabulary
    model.close()


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
    ids, values = list(logits), np.array(list(logits.values()), np.float64)
    weights = np.exp(values - values.max())
    return dict(zip(ids, (weights / weights.sum()).tolist(), strict=True))


def own(row: Logits, sampling: SamplingParams, recent: Sequence[int] = ()) -> dict[int, float]:
    distribution = compute_distribution(row, sampling, recent)
    return dict(zip(distribution.ids.tolist(), distribution.probs.tolist(), strict=True))


def test_dry(vocabulary: LlamaVocab) -> None:
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
        sampling = SamplingParams(
            1.0, 0, 1.0, 0.0, dry_multiplier=0.8, dry_base=base, dry_allowed_length=allowed
        )
        row = rng.normal(size=vocabulary.n_tokens).astype(np.float32)
        sampler = C.llama_sampler_init_dry(
            vocabulary.handle, 0.8, base, allowed, DRY_WINDOW, breakers, len(BREAKERS)
        )
        theirs = apply(sampler, row, recent)
        n_penalized += any(theirs[token] != row[token] for token in plain)
        expected = softmax(theirs)
        got = own(row, bind_vocabulary(sampling, vocabulary.piece), recent)
        for token in {*known, 5}:
            assert got.get(token, 0.0) == pytest.approx(expected[token], rel=1e-5, abs=1e-12)
    assert n_penalized > 30


@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.1, 0.3, 0.6])
def test_xtc(threshold: float) -> None:
    for seed in range(20):
        row = np.random.default_rng(seed).normal(scale=2.0, size=40).astype(np.float32)
        theirs = apply(C.llama_sampler_init_xtc(1.0, threshold, 0, seed), row)
        cooled = softmax({token: logit / 0.7 for token, logit in theirs.items()})
        always = SamplingParams(0.7, 0, 1.0, 0.0, xtc_probability=1.0, xtc_threshold=threshold)
        got = own(row, always)
        assert got == pytest.approx(cooled, rel=1e-5)
        plain = own(row, SamplingParams(0.7, 0, 1.0, 0.0))
        sometimes = SamplingParams(0.7, 0, 1.0, 0.0, xtc_probability=0.25, xtc_threshold=threshold)
        mixture = {t: 0.75 * plain[t] + 0.25 * cooled.get(t, 0.0) for t in plain}
        assert own(row, sometimes) == pytest.approx(mixture, rel=1e-5)


def test_xtc_applies_as_often_as_llama_cpps() -> None:
    row = np.array([2.0, 1.5, 0.0, -1.0], np.float32)
    n, excluded = 2000, 0
    for seed in range(n):
        sampler = C.llama_sampler_init_xtc(0.3, 0.1, 0, seed)
        excluded += 0 not in apply(sampler, row)
    assert abs(excluded / n - 0.3) < 0.06
