"""Error of llama.cpp's count without data against real loads: the table in docs/fit.md.

    bench.py fit [--quick]

A small model of each family, with random weights, is counted from its header and then loaded on the
CPU.  --quick: three families.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from turns import table

from localspec.machine import memory_probe
from localspec.machine.device import HOST
from localspec.models.gguf import reader
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests.support import real_loads, shapes
from tests.support.families import FAMILIES

QUICK = ("llama", "qwen3moe", "gemma3")
BASE = ContextSettings(n_ctx=4096, n_threads=1, n_gpu_layers=0)
SETTINGS = {
    "default": BASE,
    "q8_0 cache": replace(BASE, kv_type="q8_0"),
    "no flash attention": replace(BASE, flash_attn="off"),
    "batch of 2048": replace(BASE, n_ubatch=2048),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true")


def main(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(table(list(rows(Path(folder), QUICK if args.quick else tuple(FAMILIES)))))


def rows(folder: Path, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield "setting", "models", "largest error", "of all bytes"
    for title, settings in SETTINGS.items():
        found = [measure(real_loads.real(folder, name), settings) for name in names]
        worst = max(abs(counted - used) for counted, used in found)
        share = max(abs(counted / used - 1) for counted, used in found)
        yield title, str(len(found)), f"{worst / 1024:,.0f} KiB", f"{100 * share:.2f} %"


def measure(path: Path, settings: ContextSettings) -> tuple[int, int]:
    """Counted and allocated bytes."""
    load, header = LoadCommand(str(path), target_settings=settings), reader.read(path)
    estimate = shapes.estimate_pair(load, header, None, [])
    exact = shapes.replace_counted(
        estimate, load, (header, None), memory_probe.count_buffers(load, header)
    )
    return exact.of(HOST).total, sum(part.total for part in real_loads.load(load).values())
