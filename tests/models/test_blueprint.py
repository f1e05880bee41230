"""Files drawn from a model's shape: what stands in them, and that llama.cpp takes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.models import catalog
from localspec.models.catalog import CatalogModel
from localspec.models.catalog_entries import CatalogShape
from localspec.models.gguf import reader, writer
from localspec.models.gguf.header import SplitInfo, merge_splits
from localspec.models.gguf.parser import Value
from tests.support import synthetic_header, tinygguf
from tests.support.families import FAMILIES, write_ghost, write_real

LOADER = """
import sys
from llama_cpp import llama_cpp as c

real = sys.argv[1] == "real"
for path in sys.argv[2:]:
    params = c.llama_model_default_params()
    params.no_alloc, params.load_mode, params.use_extra_bufts = not real, 0, False
    params.n_gpu_layers = 0
    model = c.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit(f"{path}: not loaded")
    context = c.llama_context_default_params()
    context.n_ctx, context.swa_full = 4096, False
    made = c.llama_init_from_model(model, context)
    if not made:
        sys.exit(f"{path}: no context")
    if real:
        tokens = (c.llama_token * 8)(*range(3, 11))
        if c.llama_decode(made, c.llama_batch_get_one(tokens, 8)):
            sys.exit(f"{path}: not decoded")
    print(c.llama_model_size(model), c.llama_model_n_params(model))
    c.llama_free(made)
    c.llama_model_free(model)
"""
"""Loads each file and makes a context; prints the bytes and parameters that llama.cpp counts."""

OWN_MIXTURE = {
    "qwen3.5-2b",
    "qwen3.5-4b",
    "qwen3.5-9b",
    "qwen3.6-27b",
    "qwen3.6-35b-a3b",
    "gemma-4-26b-a4b",
    "glm-4.7-flash",
}
"""Files whose publisher chose the types himself."""


def loaded(kind: str, *paths: Path) -> list[tuple[int, int]]:
    """In a child: llama.cpp ends the process where it asserts."""
    done = subprocess.run(
        [sys.executable, "-c", LOADER, kind, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [(int(a), int(b)) for a, b in map(str.split, done.stdout.splitlines())]


def test_llama_cpp_takes_what_is_drawn(tmp_path: Path) -> None:
    """Every tensor that it wants is there, and none that it does not know."""
    drawn = {}
    for name, family in FAMILIES.items():
        for size, shape in (("small", family.small), ("full", family.full)):
            path = tmp_path / f"{name}-{size}.gguf"
            drawn[path] = write_ghost(shape, family.quantisation, path)
            assert path.stat().st_size == drawn[path].size
    assert loaded("ghost", *drawn) == [(d.weight_bytes, d.parameters) for d in drawn.values()]


def test_small_ones_run_with_random_weights(tmp_path: Path) -> None:
    drawn = {}
    for name, family in FAMILIES.items():
        path = tmp_path / f"{name}.gguf"
        drawn[path] = write_real(family.small, family.quantisation, path)
        assert path.stat().st_size == drawn[path].size < 30e6
    assert loaded("real", *drawn) == [(d.weight_bytes, d.parameters) for d in drawn.values()]


def test_a_drawn_file_reads_back_as_it_was_drawn(tmp_path: Path) -> None:
    for name in FAMILIES:
        family = FAMILIES[name]
        drawn = write_ghost(family.full, family.quantisation, tmp_path / "x.gguf")
        assert reader.read(tmp_path / "x.gguf") == drawn
        assert writer.serialize_header(reader.read(tmp_path / "x.gguf")) != b""
        assert not drawn.unsupported_reason
        assert drawn.quantization == family.quantisation
        assert all(t.offset % 32 == 0 for t in drawn.tensors)


def test_a_file_without_its_vocabulary(tmp_path: Path) -> None:
    """What was parsed of a real file is kept, and llama.cpp finds the same model."""
    for model in (tinygguf.llama(), tinygguf.sliding(), tinygguf.lfm2(), tinygguf.mamba2()):
        real = model.write(tmp_path / f"{model.arch}.gguf")
        read = reader.read(real)
        ghost = tmp_path / f"{model.arch}-ghost.gguf"
        write_ghost(read, "", ghost)
        bare = reader.read(ghost)
        assert bare.tensors == read.tensors
        assert bare.tokenizer.n_tokens == read.tokenizer.n_tokens
        ours = {k: v for k, v in read.keys.items() if not k.startswith("tokenizer.")}
        assert ours.items() <= bare.keys.items()
        assert bare.data_offset < read.data_offset
        assert loaded("ghost", ghost) == [(read.weight_bytes, read.parameters)]


def test_parts_are_joined(tmp_path: Path) -> None:
    whole = synthetic_header.build(FAMILIES["qwen3"].small, "Q8_0")
    half = len(whole.tensors) // 2
    split: dict[str, Value] = {"split.no": 0, "split.count": 2, "split.tensors.count": 50}
    parts = []
    for tensors in (whole.tensors[:half], whole.tensors[half:]):
        begins = tensors[0].offset
        moved = tuple(t._replace(offset=t.offset - begins) for t in tensors)
        parts.append(replace(whole, keys={**whole.keys, **split}, tensors=moved))
    again = merge_splits(parts)
    assert (again.tensors, again.keys, again.size) == (whole.tensors, whole.keys, whole.size)
    assert merge_splits([whole]) is whole
    write_ghost(again, "", tmp_path / "joined.gguf")
    assert len(loaded("ghost", tmp_path / "joined.gguf")) == 1


def test_a_part_keeps_the_kinds_that_llama_cpp_wants(tmp_path: Path) -> None:
    whole = synthetic_header.build(FAMILIES["llama"].small, "Q8_0")
    split: dict[str, Value] = {"split.no": 1, "split.count": 3, "split.tensors.count": 400}
    write_ghost(replace(whole, keys={**whole.keys, **split}), "", tmp_path / "part.gguf")
    part = reader.read(tmp_path / "part.gguf").split
    assert part == SplitInfo(1, 3, 400)


def test_keys_of_every_kind_come_through(tmp_path: Path) -> None:
    whole = synthetic_header.build(FAMILIES["llama"].small, "F16", "A näme")
    odd: dict[str, Value] = {
        "a.text": "é",
        "a.no": False,
        "a.big": 2**40,
        "a.minus": -3,
        "a.half": 0.5,
    }
    odd |= {"b.n": (1, 2**33), "b.minus": (-1, 5), "b.no": (True, False), "b.text": ("x", "é")}
    odd |= {"b.half": (0.5, 0.25), "b.none": (), "general.alignment": 64}
    placed, offset = [], 0
    for tensor in whole.tensors:
        placed.append(tensor._replace(offset=offset))
        offset += tensor.n_bytes + -tensor.n_bytes % 64
    changed = replace(whole, keys={**whole.keys, **odd}, tensors=tuple(placed))
    write_ghost(changed, "", tmp_path / "x.gguf")
    read = reader.read(tmp_path / "x.gguf")
    assert read.keys == changed.keys
    assert read.name == "A näme"
    assert read.data_offset % 64 == 0


def _types(shape: CatalogShape, quantisation: str) -> dict[str, str]:
    drawn = synthetic_header.build(shape, quantisation)
    return {tensor.name: tensor.type_name for tensor in drawn.tensors}


def test_the_recipe_of_q4_k_m() -> None:
    """As llama-quantize says it does for Llama 3.1 8B: 193 Q4_K, 33 Q6_K, 66 F32."""
    types = _types(FAMILIES["llama"].full, "Q4_K_M")
    assert Counter(types.values()) == {"Q4_K": 193, "Q6_K": 33, "F32": 66}
    assert types["token_embd.weight"] == "Q4_K"
    assert types["output.weight"] == "Q6_K"
    more = [i for i in range(32) if types[f"blk.{i}.attn_v.weight"] == "Q6_K"]
    assert more == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    assert more == [i for i in range(32) if types[f"blk.{i}.ffn_down.weight"] == "Q6_K"]


SHAPED = {id_: model for id_, model in catalog.load().models.items() if model.shape}


def _drawn(model: CatalogModel, quantisation: str = "") -> int:
    assert model.shape is not None
    return writer.data_size(synthetic_header.build(model.shape, quantisation or model.quantization))


def test_most_models_have_a_shape() -> None:
    models = [m for m in catalog.load().models.values() if m.kind == "model" and not m.path]
    assert len(SHAPED) >= len(models) - 6


def test_exact_bytes_prove_the_shape() -> None:
    """What is left is the vocabulary, which no blueprint holds."""
    for id_ in [i for i, m in SHAPED.items() if m.bytes and i not in OWN_MIXTURE]:
        model = SHAPED[id_]
        assert model.bytes is not None
        left = model.bytes - _drawn(model)
        assert 0.2e6 < left < 20e6
        assert left / model.bytes < 0.03


def test_parameters_are_those_that_are_published() -> None:
    for model in SHAPED.values():
        if model.parameters and model.parameters % 1000:
            assert model.shape is not None
            drawn = synthetic_header.build(model.shape, "F16").parameters
            assert drawn == pytest.approx(model.parameters, rel=1e-4)
