"""`--split tensor`: each GPU has a part of every tensor, and all compute at once."""

import pytest
from msgspec.structs import replace

from localspec.errors import UsageError
from localspec.fit.plan import Plan, estimate_plan
from localspec.fit.shape import ModelShape
from localspec.machine import llama_params
from localspec.machine.device import HOST
from localspec.models.gguf.architectures import KNOWN, WITHOUT_TENSOR_SPLIT
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests.support import shapes
from tests.support.shapes import catalog_pair, with_card

PAIR = catalog_pair("qwen3.8-27b+lookup").target.shape
TWO = with_card("RTX 5060 Ti 16", 16, n=2)


def plan(split: str, shape: ModelShape = PAIR, **settings: object) -> Plan:
    target = ContextSettings(n_ctx=4096, split_mode=split, **settings)  # type: ignore[arg-type]
    return estimate_plan(
        LoadCommand("target", target_settings=target), shape, None, TWO
    )


def test_both_gpus_hold_half_of_the_weights_and_of_the_cache() -> None:
    parts = plan("tensor").memory.target.on
    first = parts["CUDA0"]
    second = parts["CUDA1"]
    assert (first.weights, first.kv) == (second.weights, second.kv)
    by_layer = plan("layer").memory.target.on
    whole = by_layer["CUDA0"].weights + by_layer["CUDA1"].weights
    assert 2 * first.weights == pytest.approx(whole, rel=0.01)
    assert parts[HOST].weights == by_layer[HOST].weights


def test_it_is_as_much_faster_as_published() -> None:
    """Two RTX 5060 Ti with Qwen3.8 27B: 22 tok/s by layers, 37 by tensors."""
    for split, published in (("layer", 22.0), ("tensor", 37.0)):
        plain = plan(split).speed.plain
        assert plain is not None
        low, high = plain
        assert low <= published <= high, split
        assert sum(plain) / 2 == pytest.approx(published, rel=0.15), split


def test_one_gpu_is_as_without() -> None:
    one = with_card("RTX 3090")
    settings = ContextSettings(n_ctx=4096, split_mode="tensor")
    load = LoadCommand("target", target_settings=settings)
    split = estimate_plan(load, PAIR, None, one)
    by_layer = replace(load, target_settings=replace(settings, split_mode="layer"))
    assert split.speed.plain == estimate_plan(by_layer, PAIR, None, one).speed.plain


def test_what_llama_cpp_refuses_is_refused_by_name() -> None:
    assert WITHOUT_TENSOR_SPLIT <= KNOWN
    nemotron = replace(PAIR, architecture="nemotron_h_moe")
    with pytest.raises(UsageError, match="this architecture \\(nemotron_h_moe\\)"):
        plan("tensor", nemotron)
    with pytest.raises(UsageError, match="needs flash attention"):
        plan("tensor", flash_attn="off")
    assert plan("tensor", kv_type="q8_0").verdict == "fits", "possible since June 2026"


def test_a_block_head_is_refused_beside_it() -> None:
    pair = catalog_pair("qwen3.5-9b+qwen3.5-9b-dflash")
    settings = ContextSettings(n_ctx=4096, split_mode="tensor")
    load = LoadCommand(
        "target", "head", target_settings=settings, draft_settings=settings
    )
    with pytest.raises(UsageError, match="DFlash heads"):
        estimate_plan(load, *pair.shapes, TWO)


def test_a_draft_model_is_never_split_by_tensors() -> None:
    settings = ContextSettings(n_ctx=4096, split_mode="tensor")
    load = LoadCommand(
        "target", "draft", target_settings=settings, draft_settings=settings
    )
    assert llama_params.draft_role(load, 4096).settings.split_mode == "layer"
    assert llama_params.head_role(load, 4096).settings.split_mode == "tensor"
    pair = catalog_pair("qwen3-14b+qwen3-0.6b")
    placed = shapes.machine(*TWO.devices)
    found = estimate_plan(load, *pair.shapes, placed)
    draft = found.memory.draft
    assert draft is not None
    assert not draft.placement.tensor_shares
    assert found.memory.target.placement.tensor_shares == (0.5, 0.5)
