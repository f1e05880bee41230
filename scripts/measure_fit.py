#!/usr/bin/env python3
"""Error of llama.cpp's count without data against real loads: the table in docs/fit.md.

    .venv/bin/python scripts/measure_fit.py [--quick] [--into docs/fit.md]

A small model of each family, with random weights, is counted from its header and then loaded on the
CPU.  --quick: three families.  --into: replaces the text between the two markers of that file.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("GGML_NO_BACKTRACE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from localspec.machine import memory_probe
from localspec.machine.device import HOST
from localspec.models.gguf import reader
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests import real_loads, shapes
from tests.families import FAMILIES

BEGINS, ENDS = "<!-- measure_fit begins -->", "<!-- measure_fit ends -->"
QUICK = ("llama", "qwen3moe", "gemma3")
BASE = ContextSettings(n_ctx=4096, n_threads=1, n_gpu_layers=0)
SETTINGS = {
    "default": BASE,
    "q8_0 cache": replace(BASE, kv_type="q8_0"),
    "no flash attention": replace(BASE, flash_attn="off"),
    "batch of 2048": replace(BASE, n_ubatch=2048),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--into", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = "\n".join(rows(Path(folder), QUICK if given.quick else tuple(FAMILIES)))
    if given.into is None:
        print(table)
        return
    before, _, rest = given.into.read_text(encoding="utf-8").partition(BEGINS)
    _, _, after = rest.partition(ENDS)
    given.into.write_text(f"{before}{BEGINS}\n{table}\n{ENDS}{after}", encoding="utf-8")


def rows(folder: Path, names: tuple[str, ...]) -> Iterator[str]:
    """The table in Markdown, a line at a time."""
    yield "| setting | models | largest error | of all bytes |"
    yield "|---|---|---|---|"
    for title, settings in SETTINGS.items():
        found = [measure(real_loads.real(folder, name), settings) for name in names]
        worst = max(abs(counted - used) for counted, used in found)
        share = max(abs(counted / used - 1) for counted, used in found)
        yield f"| {title} | {len(found)} | {worst / 1024:,.0f} KiB | {100 * share:.2f} % |"


def measure(path: Path, settings: ContextSettings) -> tuple[int, int]:
    """Counted and allocated bytes."""
    load, header = LoadCommand(str(path), target_settings=settings), reader.read(path)
    estimate = shapes.estimate_pair(load, header, None, [])
    exact = shapes.replace_counted(
        estimate, load, (header, None), memory_probe.count_buffers(load, header)
    )
    return exact.of(HOST).total, sum(part.total for part in real_loads.load(load).values())


if __name__ == "__main__":
    main()
