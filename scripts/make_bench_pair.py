#!/usr/bin/env python3
"""Make a benchmark pair: the demo pair's text and acceptance at a real model's cost.

    scripts/make_bench_pair.py OUT_DIR --size 1b --type BF16 --hopeless
    scripts/make_bench_pair.py OUT_DIR --from MODEL.gguf --type Q8_0
    scripts/make_bench_pair.py OUT_DIR --from MODEL.gguf --size 1b --type BF16 --head HEAD.gguf

The second form makes a copy of a real model in another type, with llama.cpp's own quantization:
the same text at another cost of a pass. The third enlarges a real model of up to 30 layers, such as
SmolLM2 135M, and its EAGLE-3 heads: its own text, at the cost of a model that is read from memory.

The trained weights are placed in a larger shape that computes the same function (growth.py).

`--hopeless` adds a draft of the same cost and confidence that is almost always wrong: its output
matrix is a copy of the embeddings with the rows rotated by half the vocabulary, so it proposes
token (t + 2048) % 4096 where the draft proposes t.

`--head FILE`, repeatable, enlarges an EAGLE-3, DFlash or DSpark head of the demo target too
(grow_heads.py): its drafts stay the same, at the cost of one or two layers of the larger target.

The draft's share of the target's parameters (the cost if memory bandwidth is the limit) and of its
layers (if kernel launches are): 0.5b 0.10 and 0.13, 1b 0.11 and 0.19, 3b 0.09 and 0.14.
"""

from __future__ import annotations

import argparse
import ctypes
import inspect
import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grow_heads
import numpy as np
from gguf import GGMLQuantizationType as Kind
from growth import Array, Growth, Shape, Source, trained_model, write

os.environ["GGML_NO_BACKTRACE"] = "1"  # llama.cpp would run a debugger when it aborts
import llama_cpp.llama_cpp as llama

DEMO = Path(__file__).resolve().parents[1] / "localspec" / "data" / "demo"
CHECKED = 128
"""Number of tokens whose logits are compared."""
THREADS = os.cpu_count() or 1


@dataclass(frozen=True)
class Pair:
    target: Shape
    draft: Shape


SIZES = {
    "0.5b": Pair(Shape(896, 24, 14, 2, 6912), Shape(896, 3, 14, 2, 4864)),
    "1b": Pair(Shape(2048, 16, 32, 8, 8192), Shape(1536, 3, 24, 6, 6144)),
    "3b": Pair(Shape(3072, 28, 48, 8, 8192), Shape(2048, 4, 32, 8, 8192)),
}
"""After Qwen2.5-0.5B, Llama-3.2-1B and Llama-3.2-3B (in heads of 64).  The first's FFN is widened
from 4864 by the weight of the 151,936-token output which this vocabulary of 4,096 lacks."""

DEEP_SIZES = {
    "0.5b": Shape(1152, 30, 18, 6, 3328),
    "1b": Shape(1536, 30, 24, 8, 5632),
    "3b": Shape(2304, 30, 36, 12, 12288),
}
"""The size that a real model gets: 30 layers, three query heads for each KV head."""

TOLERANCE = {"F16": 0.015, "BF16": 0.015, "Q8_0": 0.01, "Q4_0": 0.15}
"""Allowed distance of the logits from the trained ones: root mean square over standard deviation.
About twice the rounding error; in F32 that is 1e-5. F16 and BF16 differ more than Q8_0 because the
trained files are Q8_0, for which llama.cpp also rounds activations."""
REAL_TOLERANCE = 0.06
"""The same for a real model of any type: SmolLM2's own copy in BF16 is 0.028 from its Q4_1 file,
which rounds activations more roughly."""


# --- the check ------------------------------------------------------------------------

QUIET = llama.llama_log_callback(lambda *_: None)


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The model and a context that returns the logits of CHECKED tokens, on the CPU."""
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    options.use_extra_bufts = False  # AMX: some virtual machines report it but do not allow it
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
    """The logits at each token of a held-out module."""
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
    """Root mean square of the difference, in standard deviations of `wanted`."""
    return float(np.sqrt(np.square(found - wanted).mean()) / wanted.std())


def agreement(a: Array, b: Array) -> float:
    """The share of positions with the same argmax."""
    return float((a.argmax(-1) == b.argmax(-1)).mean())


# --- the files ------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A file written, and the distance of its logits from the trained model's."""

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
    """Write STEM-target.gguf, STEM-draft.gguf and, if `hopeless`, STEM-hopeless.gguf."""
    target, draft = (trained_model(demo / f"demo-{role}.gguf") for role in ("target", "draft"))
    yield make(Path(f"{stem}-target.gguf"), target, shapes.target, kind)
    yield make(Path(f"{stem}-draft.gguf"), draft, shapes.draft, kind)
    if hopeless:
        turn = draft.number("vocab_size") // 2
        yield make(Path(f"{stem}-hopeless.gguf"), draft, shapes.draft, kind, turn)


def make_heads(stem: str, target: Path, shape: Shape, kind: Kind, heads: list[Path]) -> None:
    """Write STEM-NAME.gguf for each head NAME.gguf or demo-NAME.gguf of `target`."""
    growth = Growth(trained_model(target), shape, kind)
    for head in heads:
        path = Path(f"{stem}-{head.stem.removeprefix('demo-')}.gguf")
        parameters = grow_heads.write(path, grow_heads.Head(head, growth))
        print(f"{path}: {path.stat().st_size / 1e6:,.0f} MB, {parameters / 1e6:,.1f} M parameters")


def quantize(source: Path, target: Path, kind: str) -> None:
    """Write a copy of a model with its matrices in another type, such as `bf16` or `Q8_0`."""
    llama.llama_log_set(QUIET, ctypes.c_void_p())
    params = llama.llama_model_quantize_default_params()
    params.ftype = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    params.allow_requantize, params.nthread = True, THREADS
    part = target.with_suffix(".part")
    if llama.llama_model_quantize(os.fsencode(source), os.fsencode(part), params):
        raise SystemExit(f"llama.cpp cannot convert {source}")
    part.rename(target)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--size", choices=list(SIZES))
    parser.add_argument("--from", type=Path, dest="source", metavar="MODEL")
    parser.add_argument("--type", choices=list(TOLERANCE), default="BF16")
    parser.add_argument(
        "--hopeless", action="store_true", help="add a draft that is almost always wrong"
    )
    parser.add_argument("--pair", type=Path, default=DEMO, metavar="DIR", help="the trained pair")
    parser.add_argument("--head", type=Path, action="append", default=[], metavar="FILE")
    args = parser.parse_args()
    if not (args.size or args.source):
        parser.error("say --size, --from or both")
    if args.source:
        if args.hopeless or (args.head and not args.size):
            parser.error("with --from: --hopeless never, --head only with --size")
    elif not (args.pair / "demo-target.gguf").exists():
        parser.error(f"no demo-target.gguf in {args.pair}")
    return args


def make_copy(args: argparse.Namespace) -> None:
    path = args.out / f"{args.source.stem}-{args.type}.gguf"
    quantize(args.source, path, args.type)
    print(f"{path}: {path.stat().st_size / 1e6:,.0f} MB")


def make_demo_sized(args: argparse.Namespace, stem: str) -> Iterator[Made]:
    shapes, kind = SIZES[args.size], Kind[args.type]
    yield from make_pair(stem, shapes, kind, args.pair, args.hopeless)
    make_heads(stem, args.pair / "demo-target.gguf", shapes.target, kind, args.head)


def make_real_sized(args: argparse.Namespace, stem: str) -> Iterator[Made]:
    shape, kind = DEEP_SIZES[args.size], Kind[args.type]
    path = args.out / f"{args.size}-target-{args.type}.gguf"
    yield make(path, trained_model(args.source), shape, kind)
    make_heads(stem, args.source, shape, kind, args.head)


def main() -> int:
    args = options()
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.size:
        make_copy(args)
        return 0
    stem = f"{args.out}/{args.size}-{args.type}"
    if args.source:
        models, tolerance = make_real_sized(args, stem), max(TOLERANCE[args.type], REAL_TOLERANCE)
    else:
        models, tolerance = make_demo_sized(args, stem), TOLERANCE[args.type]
    made: list[Made] = []
    for one in models:
        made.append(one)
        print(one.report(tolerance), flush=True)
    target, *drafts = made
    for draft in drafts:
        same = agreement(draft.logits, target.logits)
        print(f"{draft.path.name} agrees with the target's argmax on {same:.1%} of positions")
    return int(any(one.distance > tolerance for one in made))


if __name__ == "__main__":
    sys.exit(main())
