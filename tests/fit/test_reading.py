"""fit/speed.py: bytes read per token, by device: weights, experts, KV cache, states."""

from __future__ import annotations

import pytest

from localspec.machine.device import HOST
from localspec.protocol.wire import ContextSettings
from tests import shapes, synthetic_header
from tests.families import FAMILIES
from tests.fit.test_speed import BIG, CARD, DRAFT, EMPTY, MIB, MOE


def test_a_dense_model_reads_all_but_its_table_of_tokens() -> None:
    """llama.cpp puts 4403.49 MiB on the GPU; the token embeddings stay on the CPU."""
    found = shapes.count_reads(BIG, EMPTY, [CARD], 1000)
    assert found.weights == pytest.approx(4403.49 * MIB, rel=1e-4)
    assert found.by_device["CUDA0"].kv_cache == 128 * 1024 * 1000
    assert found.devices == ("CUDA0",)
    assert not found.is_moe


def test_a_tied_output_is_read_once() -> None:
    found = shapes.count_reads(DRAFT, EMPTY, [CARD])
    assert found.weights == pytest.approx(762.81 * MIB, rel=1e-4)


def test_a_mixture_reads_the_experts_it_uses() -> None:
    found = shapes.count_reads(MOE, EMPTY, [CARD])
    experts = sum(one.n_bytes for one in MOE.tensors if "_exps" in one.name)
    table = next(one.n_bytes for one in MOE.tensors if one.name == "token_embd.weight")
    dense = MOE.weight_bytes - experts - table
    assert found.weights == pytest.approx(dense + experts / 16, rel=1e-5)
    wide = [8, 15.5, 22.5, 29.1, 35.3]
    assert [8 * found.experts_used_ratio(m) for m in range(1, 6)] == pytest.approx(wide, abs=0.06)
    assert 8 * found.experts_used_ratio(8) == pytest.approx(51.6, abs=0.06)


def test_experts_can_stay_with_the_cpu() -> None:
    found = shapes.count_reads(MOE, ContextSettings(cpu_moe=True), [CARD])
    assert found.by_device[HOST].dense == 0
    assert found.by_device["CUDA0"].experts == 0
    assert found.weights == pytest.approx(shapes.count_reads(MOE, EMPTY, [CARD]).weights)


def test_sliding_layers_read_their_window_only() -> None:
    model = synthetic_header.build(FAMILIES["gemma3"].full, "Q4_K_M")
    caches = [
        shapes.count_reads(model, EMPTY, [], n).by_device[HOST].kv_cache for n in (1024, 2048, 3072)
    ]
    assert caches[2] - caches[1] == caches[1] - caches[0]
    assert caches[1] - caches[0] == 8 * 1024 * 8 * 2 * 256 * 2  # 8 of 48 layers see all


def test_compressed_keys_and_values_are_one_row() -> None:
    shape = FAMILIES["deepseek2"].full
    model = synthetic_header.build(shape, "Q4_K_M")
    found = shapes.count_reads(model, EMPTY, [], 1000).by_device[HOST].kv_cache
    assert found == shape.layers * (shape.kv_rank + shape.rope_dim) * 2 * 1000


def test_recurrent_states_do_not_grow() -> None:
    model = synthetic_header.build(FAMILIES["mamba2"].full, "Q4_K_M")
    caches = {shapes.count_reads(model, EMPTY, [], n).by_device[HOST].kv_cache for n in (0, 9999)}
    assert len(caches) == 1
    assert caches.pop() > 0
