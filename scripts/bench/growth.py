"""Places a trained model in a larger shape that computes the same function.

Both have the architecture llama. How each part grows:

- width: zeros beyond the trained width; RMSNorm's weights times sqrt(d/D), its epsilon times d/D;
- heads and FFN channels: the extra ones compute noise, which zero columns remove;
- layers: the extra ones add zero to the residual; the trained ones are spread evenly.

Weights that cannot reach the output are noise, because arithmetic on zeros might be
faster; a third of the extra weights must be zero.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from msgspec import Struct
from numpy.typing import NDArray

from localspec.llama.library import C

Array = NDArray[np.float32]
Stored = NDArray[Any]

HEAD = 64


class Shape(Struct, frozen=True):
    """A llama-architecture network with heads of 64."""

    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_ctx: int = 0
    """The trained context; 0: that of the source."""

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.n_head // self.n_head_kv

    def axis(self, name: str) -> int:
        """The length of an axis."""
        sizes = {
            "embd": self.n_embd,
            "q": self.n_head * HEAD,
            "kv": self.n_head_kv * HEAD,
            "ff": self.n_ff,
        }
        return sizes[name]

    def matrix(self, name: str) -> tuple[int, int]:
        rows, columns = MATRICES[name]
        return self.axis(rows), self.axis(columns)


MATRICES = {
    "attn_q": ("q", "embd"),
    "attn_k": ("kv", "embd"),
    "attn_v": ("kv", "embd"),
    "attn_output": ("embd", "q"),
    "ffn_gate": ("ff", "embd"),
    "ffn_up": ("ff", "embd"),
    "ffn_down": ("embd", "ff"),
}
"""The axes of the rows and columns of a layer's matrices."""

NORMS = ("attn_norm", "ffn_norm")
RETURNING = ("attn_output", "ffn_down")
"""The matrices that write to the residual, zero wherever they are not trained."""

FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "BF16": gguf.LlamaFileType.MOSTLY_BF16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "Q4_K": gguf.LlamaFileType.MOSTLY_Q4_K_S,
}


# --- the trained model ----------------------------------------------------------------


class Source:
    """A GGUF of the llama architecture, its tensors as float32."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reader = gguf.GGUFReader(path)
        self.raw = {tensor.name: tensor for tensor in self.reader.tensors}
        self.shape = Shape(
            n_embd=self.number("embedding_length"),
            n_layer=self.number("block_count"),
            n_head=self.number("attention.head_count"),
            n_head_kv=self.number("attention.head_count_kv"),
            n_ff=self.number("feed_forward_length"),
        )

    def value(self, key: str) -> Any:
        return self.reader.fields[key].contents()

    def number(self, key: str) -> int:
        return int(self.value(f"llama.{key}"))

    @property
    def is_tied(self) -> bool:
        return "output.weight" not in self.raw

    def tensor(self, name: str) -> Array:
        values: Array = dequantize(self.raw[name].data, self.raw[name].tensor_type)
        return values


@lru_cache
def trained_model(path: Path) -> Source:
    """Cached: gguf's reader takes half a second for a vocabulary."""
    return Source(path)


# --- the larger model -----------------------------------------------------------------

# A prime length, so that no two rows of a matrix are equal.
NOISE = np.random.default_rng(0).standard_normal(1_000_003, np.float32)
NOISE *= np.float32(0.02)


def blank(shape: tuple[int, ...], noisy: bool) -> Array:
    if noisy:
        return np.resize(NOISE, shape)
    return np.zeros(shape, np.float32)


def stored_as(kind: Kind, values: Array) -> Stored:
    """A matrix in another type, by ggml's own quantisation: bytes, a row for each row."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = values.shape
    if columns % block:
        problem = f"{kind.name} needs a multiple of {block} columns, not {columns}"
        raise ValueError(problem)
    stored = np.empty((rows, columns // block * size), np.uint8)
    values = np.ascontiguousarray(values, np.float32)

    def quantize(first: int, last: int) -> None:
        """Rows from `first` to `last`."""
        source = values.ctypes.data_as(c_void_p)
        target = stored.ctypes.data_as(c_void_p)
        start = c_int64(first * columns)
        n_rows = c_int64(last - first)
        importance = None  # No importance matrix.
        C._lib.ggml_quantize_chunk(
            *(int(kind), source, target),
            *(start, n_rows, c_int64(columns), importance),
        )

    threads = os.cpu_count() or 1
    bounds = np.linspace(0, rows, threads + 1, dtype=int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(quantize, bounds[:-1], bounds[1:]))
    return stored


@lru_cache
def filler(shape: tuple[int, ...], noisy: bool, kind: Kind) -> Stored:
    """The stored form of an untrained matrix, cached."""
    return stored_as(kind, blank(shape, noisy))


@dataclass(frozen=True)
class Tensor:
    """A tensor to write; `stored` computes its data."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    stored: Callable[[], Stored]


class Growth:
    """A trained model's tensors placed in a larger shape."""

    def __init__(self, source: Source, shape: Shape, kind: Kind, turn: int = 0) -> None:
        """A `turn` other than 0 unties the output and rotates its rows by so many tokens."""
        self.source = source
        self.small = source.shape
        self.big = shape
        self.kind = kind
        self.turn = turn
        self.check_fit()
        self.shrink = source.shape.n_embd / shape.n_embd
        # The trained layers by their new index: 4 layers of 10 become 0, 2, 5 and 7.
        n_trained = source.shape.n_layer
        self.trained = {i * shape.n_layer // n_trained: i for i in range(n_trained)}
        self.places = {name: self.place(name) for name in ("embd", "q", "kv", "ff")}

    def check_fit(self) -> None:
        for name in ("n_embd", "n_layer", "n_head_kv", "group", "n_ff"):
            if getattr(self.big, name) < getattr(self.small, name):
                raise ValueError(f"{name} of {self.big} is below that of {self.small}")

    def place(self, axis: str) -> NDArray[np.int64]:
        """The new index of each trained index of an axis.

        Query heads stay with their KV head.
        """
        index = np.arange(self.small.axis(axis))
        if axis != "q":
            return index
        head, inside = np.divmod(index, HEAD)
        kv, member = np.divmod(head, self.small.group)
        return (kv * self.big.group + member) * HEAD + inside

    def tensors(self) -> Iterator[Tensor]:
        yield self.rows("token_embd.weight", "token_embd.weight")
        for layer in range(self.big.n_layer):
            yield from (self.norm(layer, name) for name in NORMS)
            yield from (self.matrix(layer, name) for name in MATRICES)
        last = "output_norm.weight"
        width = (self.big.n_embd,)
        yield Tensor(last, width, Kind.F32, lambda: self.scaled(last))
        if self.turn or not self.source.is_tied:
            trained = "token_embd.weight" if self.source.is_tied else "output.weight"
            yield self.rows("output.weight", trained, self.turn)

    def rows(self, name: str, trained: str, turn: int = 0) -> Tensor:
        """A row per token, rotated by `turn` tokens and zero beyond the trained width."""
        shape = (len(self.source.raw[trained].data), self.big.n_embd)

        def stored() -> Stored:
            full = blank(shape, noisy=False)
            full[:, : self.small.n_embd] = np.roll(self.source.tensor(trained), turn, 0)
            return stored_as(self.kind, full)

        return Tensor(name, shape, self.kind, stored)

    def scaled(self, name: str) -> Array:
        full = np.zeros(self.big.n_embd, np.float32)
        full[: self.small.n_embd] = self.source.tensor(name) * math.sqrt(self.shrink)
        return full

    def norm(self, layer: int, name: str) -> Tensor:
        def stored() -> Array:
            if layer in self.trained:
                return self.scaled(f"blk.{self.trained[layer]}.{name}.weight")
            return np.ones(self.big.n_embd, np.float32)

        return Tensor(
            f"blk.{layer}.{name}.weight", (self.big.n_embd,), Kind.F32, stored
        )

    def matrix(self, layer: int, name: str) -> Tensor:
        shape = self.big.matrix(name)
        noisy = name not in RETURNING

        def stored() -> Stored:
            if layer not in self.trained:
                return filler(shape, noisy, self.kind)
            full = blank(shape, noisy)
            rows, columns = (self.places[axis] for axis in MATRICES[name])
            trained = self.source.tensor(f"blk.{self.trained[layer]}.{name}.weight")
            full[np.ix_(rows, columns)] = trained
            return stored_as(self.kind, full)

        return Tensor(f"blk.{layer}.{name}.weight", shape, self.kind, stored)

    def header(self) -> dict[str, Any]:
        """The metadata that changes."""
        epsilon = "llama.attention.layer_norm_rms_epsilon"
        n_ctx = self.big.n_ctx or self.source.value("llama.context_length")
        return {
            "general.name": f"localspec bench: {self.source.value('general.name')}, grown",
            "general.description": "a smaller model's function at a larger one's cost",
            "general.file_type": FILE_TYPES[self.kind.name],
            "llama.context_length": n_ctx,
            "llama.embedding_length": self.big.n_embd,
            "llama.block_count": self.big.n_layer,
            "llama.feed_forward_length": self.big.n_ff,
            "llama.attention.head_count": self.big.n_head,
            "llama.attention.head_count_kv": self.big.n_head_kv,
            epsilon: self.source.value(epsilon) * self.shrink,
        }


def write_gguf(
    path: Path,
    arch: str,
    reader: gguf.GGUFReader,
    changed: Mapping[str, Any],
    tensors: Sequence[Tensor],
) -> int:
    """Writes the enlarged file tensor by tensor; returns its number of parameters."""
    out = gguf.GGUFWriter(path, arch)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = changed.get(key, field.contents())
        item_type = field.types[-1] if len(field.types) > 1 else None  # Of an array.
        out.add_key_value(key, value, field.types[0], item_type)
    for tensor in tensors:
        block, size = gguf.GGML_QUANT_SIZES[tensor.kind]
        stored = math.prod(tensor.shape) // block * size
        out.add_tensor_info(
            tensor.name, tensor.shape, np.dtype(np.float32), stored, tensor.kind
        )
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_ti_data_to_file()
    for tensor in tensors:
        out.write_tensor_data(tensor.stored())
    out.close()
    return sum(math.prod(tensor.shape) for tensor in tensors)
