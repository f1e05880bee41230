"""Make a benchmark pair: the demo pair's text and acceptance at a real model's cost.

    bench.py pair OUT_DIR --size 1b --type BF16 --hopeless
    bench.py pair OUT_DIR --from MODEL.gguf --size 1b --type BF16 --head HEAD.gguf

The second form enlarges a real model of up to 30 layers, such as SmolLM2 135M, and its
EAGLE-3 heads: its own text, at the cost of a model that is read from memory.

The trained weights are placed in a larger shape that computes the same function
(growth.py).

`--hopeless` adds a draft of the same cost and confidence that is almost always wrong:
its output matrix is a copy of the embeddings with the rows rotated by half the
vocabulary, so it proposes token (t + 2048) % 4096 where the draft proposes t.

`--head FILE`, repeatable, enlarges an EAGLE-3, DFlash or DSpark head of the demo target
too (grow_heads.py): its drafts stay the same, at the cost of one or two layers of the
larger target.

The draft's share of the target's parameters (the cost if memory bandwidth is the limit)
and of its layers (if kernel launches are): 0.5b 0.10 and 0.13, 1b 0.11 and 0.19, 3b
0.09 and 0.14.
"""

from __future__ import annotations

import argparse
import inspect
import os
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grow_heads
import numpy as np
from gguf import GGMLQuantizationType as Kind
from growth import Array, Growth, Shape, Source, trained_model, write_gguf
from programs import BenchError

from localspec.llama.context import LlamaContext
from localspec.llama.library import C
from localspec.machine.llama_params import ModelRole
from localspec.paths import package_data_dir
from localspec.protocol.wire import ContextSettings

DEMO = package_data_dir() / "demo"
N_CHECKED = 128  # Tokens whose logits are compared.
THREADS = os.cpu_count() or 1


@dataclass(frozen=True)
class PairShapes:
    target: Shape
    draft: Shape


SIZES = {
    "0.5b": PairShapes(
        target=Shape(n_embd=896, n_layer=24, n_head=14, n_head_kv=2, n_ff=6912),
        draft=Shape(n_embd=896, n_layer=3, n_head=14, n_head_kv=2, n_ff=4864),
    ),
    "1b": PairShapes(
        target=Shape(n_embd=2048, n_layer=16, n_head=32, n_head_kv=8, n_ff=8192),
        draft=Shape(n_embd=1536, n_layer=3, n_head=24, n_head_kv=6, n_ff=6144),
    ),
    "3b": PairShapes(
        target=Shape(n_embd=3072, n_layer=28, n_head=48, n_head_kv=8, n_ff=8192),
        draft=Shape(n_embd=2048, n_layer=4, n_head=32, n_head_kv=8, n_ff=8192),
    ),
    "8b": PairShapes(
        target=Shape(
            n_embd=4096,
            n_layer=32,
            n_head=64,
            n_head_kv=16,
            n_ff=15616,
            n_ctx=131072,
        ),
        draft=Shape(
            n_embd=2048,
            n_layer=4,
            n_head=32,
            n_head_kv=8,
            n_ff=8192,
            n_ctx=131072,
        ),
    ),
}
"""Shapes like those of Qwen2.5-0.5B, Llama-3.2-1B, Llama-3.2-3B and Llama-3.1-8B.

All have heads of 64. The FFN of the first and the last is widened, from 4864 and 14336,
by the weight of the output matrix that this vocabulary of 4,096 lacks.
"""
DEEP_SIZES = {
    "0.5b": Shape(n_embd=1152, n_layer=30, n_head=18, n_head_kv=6, n_ff=3328),
    "1b": Shape(n_embd=1536, n_layer=30, n_head=24, n_head_kv=8, n_ff=5632),
    "3b": Shape(n_embd=2304, n_layer=30, n_head=36, n_head_kv=12, n_ff=12288),
}
"""The size that a real model gets: 30 layers, three query heads for each KV head."""
TOLERANCE = {"F16": 0.015, "BF16": 0.015, "Q8_0": 0.01, "Q4_0": 0.15, "Q4_K": 0.2}
"""Allowed distance of the logits from the trained ones, in standard deviations.

The distance is a root mean square. It is about twice the rounding error; in F32 that is
1e-5. F16 and BF16 differ more than Q8_0 because the trained files are Q8_0, for which
llama.cpp also rounds activations.
"""
REAL_TOLERANCE = 0.06
"""The same for a real model of any type.

SmolLM2's own copy in BF16 is 0.028 from its Q4_1 file, which rounds activations more
roughly.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("out", type=Path, metavar="OUT_DIR")
    add("--size", choices=list(SIZES), required=True)
    add("--from", type=Path, dest="source", metavar="MODEL")
    add("--type", choices=list(TOLERANCE), default="BF16")
    add(
        "--hopeless",
        action="store_true",
        help="add a draft that is almost always wrong",
    )
    add("--head", type=Path, action="append", default=[], metavar="FILE")


def main(args: argparse.Namespace) -> int:
    args.out.mkdir(parents=True, exist_ok=True)
    kind = Kind[args.type]
    tolerance = TOLERANCE[args.type]
    stem = f"{args.out}/{args.size}-{args.type}"
    if args.source:
        source = args.source
        shape = DEEP_SIZES[args.size]
        path = args.out / f"{args.size}-target-{args.type}.gguf"
        made = [make(path, trained_model(source), shape, kind)]
        tolerance = max(tolerance, REAL_TOLERANCE)
    else:
        source = DEMO / "demo-target.gguf"
        shape = SIZES[args.size].target
        made = list(make_pair(stem, SIZES[args.size], kind, args.hopeless))
    make_heads(stem, source, shape, kind, args.head)
    for file in made:
        print(file.report(tolerance))
    target, *drafts = made
    for draft in drafts:
        same = agreement(draft.logits, target.logits)
        name = draft.path.name
        print(f"{name} agrees with the target's argmax on {same:.1%} of positions")
    if any(file.distance > tolerance for file in made):
        return 1
    return 0


# --- the check ------------------------------------------------------------------------


def logits(path: Path) -> Array:
    """The logits on the CPU, at each of the first N_CHECKED tokens of a held-out module."""
    settings = ContextSettings(
        n_ctx=N_CHECKED,
        n_gpu_layers=0,
        n_threads=THREADS,
        flash_attn="on",
        kv_type="f16",
    )
    role = ModelRole(settings, n_outputs_max=N_CHECKED, n_rs_seq=0)
    model = LlamaContext(path, role)
    try:
        text = inspect.getsource(textwrap)[: 8 * N_CHECKED]
        tokens = model.vocabulary.tokenize(text, add_special=False)[:N_CHECKED]
        return model.decode(tokens, len(tokens)).copy()
    finally:
        model.close()


def agreement(a: Array, b: Array) -> float:
    """The share of positions with the same argmax."""
    return float((a.argmax(-1) == b.argmax(-1)).mean())


# --- the files ------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedFile:
    """A file written, and how its logits differ from the trained model's."""

    path: Path
    parameters: int
    logits: Array
    distance: float  # Root mean square of the difference, in standard deviations.
    largest: float  # The largest difference of a logit.
    same_argmax: float

    def report(self, tolerance: float) -> str:
        verdict = "ok"
        if self.distance > tolerance:
            verdict = f"OVER the tolerance of {tolerance}"
        return (
            f"{describe_size(self.path, self.parameters)}\n"
            f"  logits within {self.largest:.4f} of the trained model's, same argmax"
            f" {self.same_argmax:.1%}, distance {self.distance:.5f}: {verdict}"
        )


def describe_size(path: Path, parameters: int) -> str:
    megabytes = path.stat().st_size / 1e6
    return f"{path}: {megabytes:,.0f} MB, {parameters / 1e6:,.1f} M parameters"


def make(
    path: Path, source: Source, shape: Shape, kind: Kind, turn: int = 0
) -> CheckedFile:
    growth = Growth(source, shape, kind, turn)
    parameters = write_gguf(
        path, "llama", source.reader, growth.header(), list(growth.tensors())
    )
    wanted = np.roll(logits(source.path), turn, axis=-1)
    found = logits(path)
    difference = found - wanted
    root_mean_square = np.sqrt(np.square(difference).mean())
    return CheckedFile(
        path,
        parameters=parameters,
        logits=found,
        distance=float(root_mean_square / wanted.std()),
        largest=float(np.abs(difference).max()),
        same_argmax=agreement(found, wanted),
    )


def make_pair(
    stem: str, shapes: PairShapes, kind: Kind, hopeless: bool
) -> Iterator[CheckedFile]:
    """Write STEM-target.gguf, STEM-draft.gguf and, if `hopeless`, STEM-hopeless.gguf."""
    target = trained_model(DEMO / "demo-target.gguf")
    draft = trained_model(DEMO / "demo-draft.gguf")
    yield make(Path(f"{stem}-target.gguf"), target, shapes.target, kind)
    yield make(Path(f"{stem}-draft.gguf"), draft, shapes.draft, kind)
    if hopeless:
        turn = draft.number("vocab_size") // 2
        yield make(Path(f"{stem}-hopeless.gguf"), draft, shapes.draft, kind, turn)


def make_heads(
    stem: str, target: Path, shape: Shape, kind: Kind, heads: list[Path]
) -> None:
    """Write STEM-NAME.gguf for each head NAME.gguf or demo-NAME.gguf of `target`."""
    growth = Growth(trained_model(target), shape, kind)
    for head in heads:
        path = Path(f"{stem}-{head.stem.removeprefix('demo-')}.gguf")
        parameters = grow_heads.write(path, grow_heads.Head(head, growth))
        print(describe_size(path, parameters))


def quantize(source: Path, target: Path, kind: str) -> None:
    """Write a copy of a model with its matrices in another type.

    A type is `bf16` or `Q8_0`, for example.
    """
    params = C.llama_model_quantize_default_params()
    params.ftype = getattr(C, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    params.allow_requantize = True
    params.nthread = THREADS
    part = target.with_suffix(".part")
    if C.llama_model_quantize(os.fsencode(source), os.fsencode(part), params):
        raise BenchError(f"llama.cpp cannot convert {source}.")
    part.rename(target)
