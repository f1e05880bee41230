"""No argument makes llama.cpp abort: what it cannot take is refused before."""

from __future__ import annotations

import os
from typing import cast

import numpy as np
import pytest

from localspec.engine.llama.context import LlamaContext
from localspec.errors import DoesNotFitError, EngineError, ModelFileError, UsageError
from localspec.machine.llama_params import ModelRole, resolve_n_threads
from localspec.protocol.wire import ContextSettings
from tests.engine.llama.opening import OUTPUTS, Open
from tests.support.zoo import Zoo


@pytest.mark.parametrize("token", [-1, 2**31 - 1, -(2**31), "n_vocab"])
def test_a_token_outside_the_vocabulary_is_refused(opened: Open, token: int | str) -> None:
    model = opened("target")
    model.decode([5, 6], 0)
    with pytest.raises(EngineError, match="rejected the tokens"):
        model.decode([7, model.n_vocab if token == "n_vocab" else cast(int, token)], 1)
    assert model.n_past == 2
    at_once = opened("target").decode([5, 6, 7], 1)  # another width: its last bits may differ
    np.testing.assert_allclose(model.decode([7], 1), at_once, rtol=0, atol=0.01)


@pytest.mark.parametrize(
    ("width", "outputs"),
    [(0, 0), (0, 1), (33, 1), (5000, 1), (8, OUTPUTS + 1), (2, 3), (2, -1)],
)
def test_a_batch_that_would_abort_is_refused(opened: Open, width: int, outputs: int) -> None:
    model = opened("target")
    with pytest.raises(EngineError):
        model.decode([5] * width, outputs)
    assert model.n_past == 0
    assert model.decode([5], 1).shape == (1, model.n_vocab)


def test_the_context_ends_where_it_says(opened: Open) -> None:
    model = opened("target", n_ctx=256)
    for _ in range(model.n_ctx // 32):
        model.decode([5] * 32, 0)
    assert model.n_past == model.n_ctx
    with pytest.raises(EngineError, match="cannot decode"):
        model.decode([5], 1)
    model.truncate(model.n_ctx - 1)
    assert model.decode([5], 1).shape == (1, model.n_vocab)


@pytest.mark.parametrize("n_ctx", [-1, 8 * 1024 + 1, 10**9, 2**31, 2**32 + 256, 2**40])
def test_an_absurd_context_is_a_usage_error(opened: Open, n_ctx: int) -> None:
    with pytest.raises(UsageError, match="out of range"):
        opened("target", n_ctx=n_ctx)


def test_a_context_beyond_this_machine_does_not_fit(opened: Open) -> None:
    """The file claims a trained context of 2^31 - 1: the file is no limit, memory is."""
    with pytest.raises(DoesNotFitError, match="needs about"):
        opened("vast", n_ctx=2**31 - 1, n_gpu_layers=0)


def test_the_default_context_is_what_was_trained_and_at_most_8192(opened: Open) -> None:
    assert opened("target", n_ctx=None).n_ctx == 1024
    assert opened("vast", n_ctx=None).n_ctx == 8192


@pytest.mark.parametrize(
    ("setting", "value", "known"),
    [
        ("kv_type", "q3_k", "f16"),
        ("kv_type", "", "q8_0"),
        ("flash_attn", "maybe", "auto"),
        ("split_mode", "tensor", "layer"),
    ],
)
def test_an_unknown_choice_is_told_the_known_ones(
    opened: Open, setting: str, value: str, known: str
) -> None:
    with pytest.raises(UsageError) as failure:
        opened("target", **{setting: value})
    assert repr(value) in failure.value.message
    assert known in failure.value.hint


@pytest.mark.parametrize("shares", [(0.0,), (-1.0, 2.0), (1.0,) * 1000, (float("nan"),)])
def test_a_split_that_makes_no_sense_is_refused(opened: Open, shares: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="Invalid tensor split"):
        opened("target", tensor_split=shares)


@pytest.mark.parametrize(("kv_type", "flash"), [("q8_0", "on"), ("q4_0", "off"), ("q8_0", "auto")])
def test_keys_that_cannot_be_quantised_so_say_it(opened: Open, kv_type: str, flash: str) -> None:
    """Heads are 16 wide, a block of q8_0 is 32."""
    with pytest.raises(UsageError, match=r"Cannot create a context for target\.gguf") as failure:
        opened("target", kv_type=kv_type, flash_attn=flash)
    assert "--kv f16" in failure.value.hint


@pytest.mark.parametrize("asked", [-5, 0, 1, 10**9])
def test_threads_are_clamped(asked: int) -> None:
    assert 1 <= resolve_n_threads(asked) <= 4 * (os.cpu_count() or 1)


def test_threads_default_to_at_least_one() -> None:
    assert resolve_n_threads(None) >= 1


def test_any_number_of_threads_can_be_asked_for(opened: Open) -> None:
    assert np.isfinite(opened("target", n_threads=-1).decode([5], 1)).all()


def test_an_ubatch_smaller_than_a_verify_pass_is_raised(opened: Open) -> None:
    model = opened("target", outputs=17, n_ubatch=1)
    assert model.n_batch >= 17
    assert len(model.decode([5] * 17, 17)) == 17


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vocabulary-only", "'token_embd.weight' not found"),
        ("future", "unknown model architecture"),
    ],
)
def test_a_file_that_is_no_model_says_why(opened: Open, name: str, reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        opened(name)


def test_a_missing_file_is_no_abort(zoo: Zoo) -> None:
    with pytest.raises(ModelFileError, match="cannot be loaded"):
        LlamaContext(zoo.folder / "absent.gguf", ModelRole(ContextSettings(), 1, 0))
