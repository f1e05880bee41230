"""How far logits of passes over several tokens differ from those of one-token passes.

    bench.py widths MODEL.gguf [--cells 64 480 640] [--threads 1 2] [--kv f16 q8_0]

A text of random tokens fills the KV cache up to a number of cells. The next 16 tokens
are decoded one by one, then again in passes of 2, 5 and 8, each over the keys and
values that the passes before it wrote. Printed: the largest difference of a top-64
logit; milliseconds of a one-token and of a five-token pass at that place (least of
several), and of reading the text.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np
from turns import table

from localspec.llama.context import LlamaContext
from localspec.machine.llama_params import ModelRole
from localspec.protocol.wire import ContextSettings

COLUMNS = (
    "KV",
    "threads",
    "cells",
    "largest difference",
    "1 token, ms",
    "5 tokens, ms",
    "reading, ms",
)
N_COMPARED = 16
WIDTHS = (2, 5, 8)
REPEATS = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path)
    parser.add_argument("--cells", type=int, nargs="+", default=[64, 480, 640])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kv", nargs="+", default=["f16", "q8_0"])


def main(args: argparse.Namespace) -> None:
    rows = [COLUMNS]
    for kv, threads in itertools.product(args.kv, args.threads):
        settings = ContextSettings(
            n_ctx=max(args.cells) + 256, n_threads=threads, kv_type=kv
        )
        role = ModelRole(settings, n_outputs_max=max(WIDTHS), n_rs_seq=max(WIDTHS))
        model = LlamaContext(args.model, role)
        rng = np.random.default_rng(0)
        for cells in args.cells:
            text = [int(t) for t in rng.integers(0, model.n_vocab, cells + N_COMPARED)]
            reading = fill(model, text[:cells])
            difference = largest_difference(model, cells, text[cells:])
            one = pass_ms(model, cells, text[cells : cells + 1])
            five = pass_ms(model, cells, text[cells : cells + 5])
            row = (
                kv,
                str(threads),
                str(cells),
                f"{difference:.2g}",
                f"{one:.1f}",
                f"{five:.1f}",
                f"{reading:.0f}",
            )
            rows.append(row)
        model.close()
    print(table(rows))


def fill(model: LlamaContext, tokens: list[int]) -> float:
    """Decode `tokens` into an empty cache; milliseconds."""
    model.truncate(0)
    began = time.perf_counter()
    for start in range(0, len(tokens), model.n_batch):
        part = tokens[start : start + model.n_batch]
        model.decode(part, int(start + len(part) == len(tokens)))
    return (time.perf_counter() - began) * 1e3


def largest_difference(model: LlamaContext, n_cells: int, tokens: list[int]) -> float:
    alone = [model.decode([token], 1)[0].copy() for token in tokens]
    difference = 0.0
    for width in WIDTHS:
        model.truncate(n_cells)
        for start in range(0, len(tokens), width):
            part = tokens[start : start + width]
            rows = model.decode(part, len(part))
            for row, expected in zip(rows, alone[start:], strict=False):
                best = np.argsort(-expected)[:64]
                largest = np.abs(row[best] - expected[best]).max()
                difference = max(difference, float(largest))
    model.truncate(n_cells)
    return difference


def pass_ms(model: LlamaContext, n_cells: int, tokens: list[int]) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        model.decode(tokens, len(tokens))
        times.append((time.perf_counter() - began) * 1e3)
        model.truncate(n_cells)
    return min(times)
