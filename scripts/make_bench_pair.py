#!/usr/bin/env python3
"""Make a benchmark pair: the demo pair's text and acceptance at a real model's cost.

    scripts/make_bench_pair.py OUT_DIR --size 1b --type BF16 --hopeless

The trained weights are placed in a larger shape so that the function stays the same:

- width: zeros beyond the trained width; RMSNorm's weights times sqrt(d/D), its epsilon times d/D;
- heads and FFN channels: the extra ones compute noise that meets zero columns on its way back;
- layers: the extra ones add zero to the residual; the trained are spread evenly among them.

Whatever cannot reach the output is noise rather than zeros, lest arithmetic on zeros be cheaper;
a third of the extra weights has to be zero.

`--hopeless` adds a draft as costly and as sure of itself, but nearly always wrong: its output
matrix is a copy of the embeddings with the rows rotated by half the vocabulary, so it proposes
token (t + 2048) % 4096 where the draft proposes t.

`--head FILE`, repeatable, grows an EAGLE-3, DFlash or DSpark head of the demo target with it
(grow_heads.py): it guesses as before and costs what a layer or two of the larger target cost.

The draft's share of the target's parameters (what a step costs where memory is the limit) and of
its layers (where launching kernels is): 0.5b 0.10 and 0.13, 1b 0.11 and 0.19, 3b 0.09 and 0.14.
"""

from __future__ import annotations

import argparse
import ctypes
import inspect
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

os.environ["GGML_NO_BACKTRACE"] = "1"  # llama.cpp would run a debugger when it aborts
import llama_cpp.llama_cpp as llama

Array = NDArray[np.float32]
Stored = NDArray[Any]

DEMO = Path(__file__).resolve().parents[1] / "localspec" / "data" / "demo"
HEAD = 64
CHECKED = 128
"""Tokens on which the logits are compared."""
THREADS = os.cpu_count() or 1


# --- shapes ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A llama-architecture network with heads of 64."""

    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.n_head // self.n_head_kv

    def axis(self, name: str) -> int:
        sizes = {"embd": self.n_embd, "q": self.n_head * HEAD, "kv": self.n_head_kv * HEAD}
        return {**sizes, "ff": self.n_ff}[name]

    def matrix(self, name: str) -> tuple[int, int]:
        rows, columns = MATRICES[name]
        return self.axis(rows), self.axis(columns)


@dataclass(frozen=True)
class Pair:
    """The shapes of a target and of its draft."""

    target: Shape
    draft: Shape


SIZES = {
    "0.5b": Pair(Shape(896, 24, 14, 2, 6912), Shape(896, 3, 14, 2, 4864)),
    "1b": Pair(Shape(2048, 16, 32, 8, 8192), Shape(1536, 3, 24, 6, 6144)),
    "3b": Pair(Shape(3072, 28, 48, 8, 8192), Shape(2048, 4, 32, 8, 8192)),
}
"""After Qwen2.5-0.5B, Llama-3.2-1B and Llama-3.2-3B (in heads of 64).  The first's FFN is widened
from 4864 by the weight of the 151,936-token output which this vocabulary of 4,096 lacks."""

MATRICES = {
    "attn_q": ("q", "embd"),
    "attn_k": ("kv", "embd"),
    "attn_v": ("kv", "embd"),
    "attn_output": ("embd", "q"),
    "ffn_gate": ("ff", "embd"),
    "ffn_up": ("ff", "embd"),
    "ffn_down": ("embd", "ff"),
}
"""What the rows and the columns of a layer's matrices stand for."""

NORMS = ("attn_norm", "ffn_norm")
RETURNING = ("attn_output", "ffn_down")
"""The matrices that write to the residual, zero wherever they are not trained."""

TOLERANCE = {"F16": 0.015, "BF16": 0.015, "Q8_0": 0.01, "Q4_0": 0.15}
"""How far the logits may be from the trained model's: root mean square over standard deviation, as
the largest difference is one logit's luck.  About twice what rounding alone gives; in F32 it is
1e-5.  F16 and BF16 are further than Q8_0 because the trained files are Q8_0, with which llama.cpp
rounds activations too."""

FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "BF16": gguf.LlamaFileType.MOSTLY_BF16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
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

    def tensor(self, name: str) -> Array:
        values: Array = dequantize(self.raw[name].data, self.raw[name].tensor_type)
        return values


@lru_cache
def trained_model(path: Path) -> Source:
    """Read once: gguf's reader takes half a second over a vocabulary."""
    return Source(path)


# --- the larger model -----------------------------------------------------------------

# As long as a prime near a million, so that no two rows of a matrix are alike.
NOISE = np.random.default_rng(0).standard_normal(1_000_003, np.float32) * np.float32(0.02)


def blank(shape: tuple[int, ...], noisy: bool) -> Array:
    return np.resize(NOISE, shape) if noisy else np.zeros(shape, np.float32)


def stored_as(kind: Kind, values: Array) -> Stored:
    stored: Stored = quantize(values, kind)
    return stored


@lru_cache
def filler(shape: tuple[int, ...], noisy: bool, kind: Kind) -> Stored:
    """The stored form of an untrained matrix; made once, as quantising is slow."""
    return stored_as(kind, blank(shape, noisy))


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file to be written, its stored form made when asked for."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    stored: Callable[[], Stored]


class Growth:
    """A trained model's tensors placed in a larger shape."""

    def __init__(self, source: Source, shape: Shape, kind: Kind, turn: int = 0) -> None:
        """A `turn` other than 0 unties the output and rotates its rows by that many tokens."""
        self.source, self.small, self.big = source, source.shape, shape
        self.kind, self.turn = kind, turn
        self.check_fit()
        self.shrink = source.shape.n_embd / shape.n_embd
        layers, trained = shape.n_layer, source.shape.n_layer
        self.trained = {i * layers // trained: i for i in range(trained)}
        self.places = {name: self.place(name) for name in ("embd", "q", "kv", "ff")}

    def check_fit(self) -> None:
        for name in ("n_embd", "n_layer", "n_head_kv", "group", "n_ff"):
            if getattr(self.big, name) < getattr(self.small, name):
                raise ValueError(f"{name} of {self.big} is below that of {self.small}")

    def place(self, axis: str) -> NDArray[np.int64]:
        """Where each trained index of an axis goes; a query head stays with its KV head."""
        index = np.arange(self.small.axis(axis))
        if axis != "q":
            return index
        head, inside = np.divmod(index, HEAD)
        kv, member = np.divmod(head, self.small.group)
        return (kv * self.big.group + member) * HEAD + inside

    def tensors(self) -> Iterator[Tensor]:
        yield self.rows("token_embd.weight", 0)
        for layer in range(self.big.n_layer):
            yield from (self.norm(layer, name) for name in NORMS)
            yield from (self.matrix(layer, name) for name in MATRICES)
        last, width = "output_norm.weight", (self.big.n_embd,)
        yield Tensor(last, width, Kind.F32, lambda: self.scaled(last))
        if self.turn:
            yield self.rows("output.weight", self.turn)

    def rows(self, name: str, turn: int) -> Tensor:
        """The embeddings, rotated by `turn` tokens and zero beyond the trained width."""
        shape = (self.source.number("vocab_size"), self.big.n_embd)

        def stored() -> Stored:
            full = blank(shape, noisy=False)
            full[:, : self.small.n_embd] = np.roll(self.source.tensor("token_embd.weight"), turn, 0)
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

        return Tensor(f"blk.{layer}.{name}.weight", (self.big.n_embd,), Kind.F32, stored)

    def matrix(self, layer: int, name: str) -> Tensor:
        shape, noisy = self.big.matrix(name), name not in RETURNING

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
        """The metadata in which the larger model differs from the trained one."""
        epsilon = "llama.attention.layer_norm_rms_epsilon"
        return {
            "general.name": f"localspec bench: {self.source.value('general.name')}, grown",
            "general.description": "the demo pair's function at a larger model's cost",
            "general.file_type": FILE_TYPES[self.kind.name],
            "llama.embedding_length": self.big.n_embd,
            "llama.block_count": self.big.n_layer,
            "llama.feed_forward_length": self.big.n_ff,
            "llama.attention.head_count": self.big.n_head,
            "llama.attention.head_count_kv": self.big.n_head_kv,
            epsilon: self.source.value(epsilon) * self.shrink,
        }


def write(path: Path, growth: Growth) -> int:
    """Write the larger model tensor by tensor; returns its number of parameters."""
    out = gguf.GGUFWriter(path, "llama")
    changed = growth.header()
    for key, field in growth.source.reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            inner = field.types[-1] if len(field.types) > 1 else None
            out.add_key_value(key, changed.get(key, field.contents()), field.types[0], inner)
    tensors = list(growth.tensors())
    for tensor in tensors:
        block, size = gguf.GGML_QUANT_SIZES[tensor.kind]
        stored = math.prod(tensor.shape) // block * size
        out.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), stored, tensor.kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_ti_data_to_file()
    for tensor in tensors:
        out.write_tensor_data(tensor.stored())
    out.close()
    return sum(math.prod(tensor.shape) for tensor in tensors)


# --- the check ------------------------------------------------------------------------

QUIET = llama.llama_log_callback(lambda *_: None)


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The model and a context that returns the logits of CHECKED tokens, on the CPU."""
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    options.use_extra_bufts = False  # AMX, which some virtual machines announce but forbid
    settings = llama.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = CHECKED
    settings.n_threads = settings.n_threads_batch = THREADS
    settings.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
    settings.offload_kqv = settings.op_offload = False
    model = llama.llama_model_load_from_file(os.fsencode(path), options)
    if model is None:
        raise RuntimeError(f"llama.cpp cannot load {path}")
    context = llama.llama_init_from_model(model, settings)
    try:
        if context is None:
            raise RuntimeError(f"llama.cpp cannot make a context for {path}")
        yield model, context
    finally:
        if context is not None:
            llama.llama_free(context)
        llama.llama_model_free(model)


def tokens_of(model: Any, text: bytes) -> list[int]:
    """The first CHECKED tokens."""
    room = (llama.llama_token * len(text))()
    vocab = llama.llama_model_get_vocab(model)
    count = llama.llama_tokenize(vocab, text, len(text), room, len(room), False, False)
    return list(room[: min(count, CHECKED)])


def logits(path: Path) -> Array:
    """The logits at each token of a module which the demo pair was not trained on."""
    llama.llama_log_set(QUIET, ctypes.c_void_p())
    with opened(path) as (model, context):
        tokens = tokens_of(model, inspect.getsource(textwrap)[: 8 * CHECKED].encode())
        batch = llama.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        status = llama.llama_decode(context, batch)
        llama.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama.cpp cannot run {path}: {status}")
        width = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        view = np.ctypeslib.as_array(llama.llama_get_logits(context), (len(tokens) * width,))
        return view.reshape(-1, width).copy()


def distance(found: Array, wanted: Array) -> float:
    """Root mean square of the difference, in standard deviations of what is wanted."""
    return float(np.sqrt(np.square(found - wanted).mean()) / wanted.std())


def agreement(a: Array, b: Array) -> float:
    """The share of positions with the same likeliest token."""
    return float((a.argmax(-1) == b.argmax(-1)).mean())


# --- the files ------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A file written, and how far its logits are from the trained model's."""

    path: Path
    parameters: int
    logits: Array
    distance: float
    largest: float
    """The largest difference of a logit."""
    same_argmax: float

    def report(self, tolerance: float) -> str:
        verdict = "ok" if self.distance <= tolerance else f"OVER the tolerance of {tolerance}"
        return (
            f"{self.path}: {self.path.stat().st_size / 1e6:,.0f} MB,"
            f" {self.parameters / 1e6:,.1f} M parameters\n"
            f"  logits within {self.largest:.4f} of the trained model's, same argmax"
            f" {self.same_argmax:.1%}, distance {self.distance:.5f}: {verdict}"
        )


def make(path: Path, source: Source, shape: Shape, kind: Kind, turn: int = 0) -> Made:
    parameters = write(path, Growth(source, shape, kind, turn))
    wanted = np.roll(logits(source.path), turn, axis=-1)
    found = logits(path)
    return Made(
        path=path,
        parameters=parameters,
        logits=found,
        distance=distance(found, wanted),
        largest=float(np.abs(found - wanted).max()),
        same_argmax=agreement(found, wanted),
    )


def make_pair(stem: str, shapes: Pair, kind: Kind, demo: Path, hopeless: bool) -> Iterator[Made]:
    """Write STEM-target.gguf, STEM-draft.gguf and, when asked for, STEM-hopeless.gguf."""
    target, draft = (trained_model(demo / f"demo-{role}.gguf") for role in ("target", "draft"))
    yield make(Path(f"{stem}-target.gguf"), target, shapes.target, kind)
    yield make(Path(f"{stem}-draft.gguf"), draft, shapes.draft, kind)
    if hopeless:
        turn = draft.number("vocab_size") // 2
        yield make(Path(f"{stem}-hopeless.gguf"), draft, shapes.draft, kind, turn)


def make_heads(stem: str, shape: Shape, kind: Kind, demo: Path, heads: list[Path]) -> None:
    """Write STEM-NAME.gguf for each head demo-NAME.gguf."""
    import grow_heads  # noqa: PLC0415  beside this script, and only for this

    growth = Growth(trained_model(demo / "demo-target.gguf"), shape, kind)
    for head in heads:
        path = Path(f"{stem}-{head.stem.removeprefix('demo-')}.gguf")
        parameters = grow_heads.write(path, grow_heads.Head(head, growth, blank))
        print(f"{path}: {path.stat().st_size / 1e6:,.0f} MB, {parameters / 1e6:,.1f} M parameters")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--type", choices=list(TOLERANCE), default="BF16")
    parser.add_argument("--hopeless", action="store_true", help="also a draft that is always wrong")
    parser.add_argument("--pair", type=Path, default=DEMO, metavar="DIR", help="the trained pair")
    parser.add_argument("--head", type=Path, action="append", default=[], metavar="FILE")
    args = parser.parse_args()
    if not (args.pair / "demo-target.gguf").exists():
        parser.error(f"no demo-target.gguf in {args.pair}")
    return args


def main() -> int:
    args = options()
    args.out.mkdir(parents=True, exist_ok=True)
    stem, shapes = f"{args.out}/{args.size}-{args.type}", SIZES[args.size]
    tolerance = TOLERANCE[args.type]
    made: list[Made] = []
    for one in make_pair(stem, shapes, Kind[args.type], args.pair, args.hopeless):
        made.append(one)
        print(one.report(tolerance), flush=True)
    make_heads(stem, shapes.target, Kind[args.type], args.pair, args.head)
    target, *drafts = made
    for draft in drafts:
        same = agreement(draft.logits, target.logits)
        print(f"{draft.path.name} agrees with the target's argmax on {same:.1%} of positions")
    return int(any(one.distance > tolerance for one in made))


if __name__ == "__main__":
    sys.exit(main())
