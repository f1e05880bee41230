"""Headers that are written: llama.cpp takes them, and they read back as they were."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from localspec.models.gguf import reader, writer
from localspec.models.gguf.header import merge_splits
from localspec.models.gguf.parser import Value
from tests.models import gguffile
from tests.support import synthetic_header, tinygguf
from tests.support.families import FAMILIES, write_ghost
from tests.support.run_command import finish

LOADER = """
import sys
from llama_cpp import llama_cpp as c

for path in sys.argv[1:]:
    params = c.llama_model_default_params()
    params.no_alloc, params.load_mode, params.use_extra_bufts = True, 0, False
    params.n_gpu_layers = 0
    model = c.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit(f"{path}: not loaded")
    context = c.llama_context_default_params()
    context.n_ctx, context.swa_full = 4096, False
    made = c.llama_init_from_model(model, context)
    if not made:
        sys.exit(f"{path}: no context")
    print(c.llama_model_size(model), c.llama_model_n_params(model))
    c.llama_free(made)
    c.llama_model_free(model)
"""
"""Loads each file and makes a context; prints the bytes and parameters that llama.cpp counts."""


def loaded(*paths: Path) -> list[tuple[int, int]]:
    """In a child: llama.cpp ends the process where it asserts."""
    done = finish([sys.executable, "-c", LOADER, *paths])
    assert done.code == 0, done.err[-2000:]
    return [(int(a), int(b)) for a, b in map(str.split, done.text.splitlines())]


def test_llama_cpp_takes_what_is_drawn(tmp_path: Path) -> None:
    """Every tensor that it wants is there, and none that it does not know."""
    drawn = {}
    for name, family in FAMILIES.items():
        for size, shape in (("small", family.small), ("full", family.full)):
            path = tmp_path / f"{name}-{size}.gguf"
            drawn[path] = write_ghost(shape, family.quantisation, path)
            assert path.stat().st_size == drawn[path].size
    assert loaded(*drawn) == [(d.weight_bytes, d.parameters) for d in drawn.values()]


def test_a_file_without_its_vocabulary(tmp_path: Path) -> None:
    """What was parsed of a real file is kept, and llama.cpp finds the same model."""
    for model in (tinygguf.llama(), tinygguf.sliding(), tinygguf.lfm2(), tinygguf.mamba2()):
        real = model.write(tmp_path / f"{model.arch}.gguf")
        read = reader.read(real)
        ghost = tmp_path / f"{model.arch}-ghost.gguf"
        write_ghost(read, "", ghost)
        bare = reader.read(ghost)
        assert bare.tensors == read.tensors and bare.tokenizer.n_tokens == read.tokenizer.n_tokens
        ours = {k: v for k, v in read.keys.items() if not k.startswith("tokenizer.")}
        assert ours.items() <= bare.keys.items() and bare.data_offset < read.data_offset
        assert loaded(ghost) == [(read.weight_bytes, read.parameters)]


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
    odd = [replace(part, tensors=(part.tensors[0]._replace(n_bytes=12),)) for part in parts]
    assert [tensor.offset for tensor in merge_splits(odd).tensors] == [0, 32], "aligned"
    write_ghost(again, "", tmp_path / "joined.gguf")
    assert len(loaded(tmp_path / "joined.gguf")) == 1


def test_any_value_that_a_header_may_hold_can_be_written(tmp_path: Path) -> None:
    """Property: of each type the extremes, alone and in an array, are read and written again."""
    extremes: dict[int, tuple[Any, ...]] = {
        **{t: (0, 2 ** (8 * n) - 1) for t, n in {0: 1, 2: 2, 4: 4, 10: 8}.items()},
        **{
            t: (-(2 ** (8 * n - 1)), 2 ** (8 * n - 1) - 1)
            for t, n in {1: 1, 3: 2, 5: 4, 11: 8}.items()
        },
        6: (3.4028234663852886e38, -0.0, float("inf"), float("-inf")),
        12: (1e300, -1.7e308, 0.5, float("inf")),
        7: (True, False),
    }
    for type_, values in extremes.items():
        file = gguffile.model()
        for n, value in enumerate(values):
            file.add(b"other.%d" % n, type_, value)
        file.put(b"other.all", type_, values)
        data = file.data()
        header = reader.parse(data, len(data))
        path = tmp_path / "x.gguf"
        content = writer.serialize_header(header)
        path.write_bytes(content + bytes(writer.data_size(header)))
        again = reader.read(path).keys
        assert all(again[key] == value for key, value in header.keys.items() if "other" in key)
