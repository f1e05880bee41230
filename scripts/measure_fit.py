#!/usr/bin/env python3
"""Error of the memory projection against real loads: the table in docs/fit.md.

    .venv/bin/python scripts/measure_fit.py [--quick] [--into docs/fit.md]

A small model of each family, with random weights, is projected from its header and then loaded, on
the CPU and on simulated GPUs that count allocations. --quick: three families. --into: replaces the
text between the two markers of that file.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("GGML_NO_BACKTRACE", "1")

from localspec.machine.memory_by_device import MemoryEstimate
from localspec.machine.probe import MemoryProbe
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests import heads, pretend_gpu
from tests.families import FAMILIES

BEGINS, ENDS = "<!-- measure_fit begins -->", "<!-- measure_fit ends -->"
QUICK = ("llama", "qwen3moe", "gemma3")
BASE = ContextSettings(n_ctx=4096, n_threads=1)


@dataclass(frozen=True)
class Setting:
    """A row of the table."""

    name: str
    cards: int
    settings: ContextSettings
    mixtures: bool = False


SETTINGS = (
    Setting("CPU", 0, BASE),
    Setting("one GPU", 1, BASE),
    Setting("one GPU, 1 layer", 1, replace(BASE, n_gpu_layers=1)),
    Setting("one GPU, q8_0 cache", 1, replace(BASE, kv_type="q8_0")),
    Setting("one GPU, no flash attention", 1, replace(BASE, flash_attn="off")),
    Setting("one GPU, experts on the CPU", 1, replace(BASE, cpu_moe=True), mixtures=True),
    Setting("two GPUs", 2, BASE),
    Setting("three GPUs", 3, BASE),
)
WITH_HEADS = ("CPU", "one GPU", "one GPU, 1 layer", "one GPU, no flash attention", "two GPUs")


@dataclass(frozen=True)
class Found:
    """Bytes of one model with one setting."""

    promised: int
    taken: int
    worst: int
    """Largest error of a device."""
    admitted: int
    """The projection's own error bound for a device."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--into", type=Path)
    given = parser.parse_args()
    names = QUICK if given.quick else tuple(FAMILIES)
    with tempfile.TemporaryDirectory() as folder:
        table = "\n".join(rows(Path(folder), names))
    if given.into is None:
        print(table)
        return
    before, _, rest = given.into.read_text(encoding="utf-8").partition(BEGINS)
    _, _, after = rest.partition(ENDS)
    given.into.write_text(f"{before}{BEGINS}\n{table}\n{ENDS}{after}", encoding="utf-8")


def rows(folder: Path, names: tuple[str, ...]) -> Iterator[str]:
    """The table in Markdown, a line at a time."""
    yield "| setting | of them | exact | largest error of a device | admitted | of all its bytes |"
    yield "|---|---|---|---|---|---|"
    with MemoryProbe() as probe:
        for setting in SETTINGS:
            suited = [n for n in names if FAMILIES[n].small.experts or not setting.mixtures]
            found = [measured(probe, (pretend_gpu.real(folder, n), None), setting) for n in suited]
            yield row(setting.name, found)
        pairs = beside(folder)
        for setting in SETTINGS:
            if setting.name in WITH_HEADS:
                found = [measured(probe, pair, setting) for pair in pairs]
                yield row(f"{setting.name}, with a head", found)


def beside(folder: Path) -> list[tuple[Path, Path]]:
    """Small targets with each kind of head, all with random weights."""
    target, inside = heads.deep().write(folder / "deep.gguf"), heads.mimo2()
    models = {
        "eagle3": heads.eagle3(),
        "eagle3-narrow": heads.eagle3(n_embd=32),
        "eagle3-reduced": heads.eagle3(reduced=range(50)),
        "dflash": heads.block(),
        "dspark": heads.block(markov=True),
    }
    mtp = inside.write(folder / "mtp.gguf")
    return [(target, one.write(folder / f"{name}.gguf")) for name, one in models.items()] + [
        (mtp, mtp)
    ]


def row(name: str, found: list[Found]) -> str:
    exact = sum(not one.worst for one in found)
    worst = max(found, key=lambda one: one.worst)
    share = max(abs(one.promised - one.taken) / one.taken for one in found)
    return (
        f"| {name} | {len(found)} | {exact} | {kib(worst.worst)} | "
        f"{kib(worst.admitted) if worst.worst else '–'} | {100 * share:.1f} % |"
    )


def measured(probe: MemoryProbe, pair: tuple[Path, Path | None], setting: Setting) -> Found:
    draft = str(pair[1]) if pair[1] else None
    settings = setting.settings
    if draft is not None:  # their context is not longer
        settings = replace(settings, n_ctx=512)
    load = LoadCommand(str(pair[0]), draft, settings, replace(settings, n_ctx=None))
    devices = pretend_gpu.devices(setting.cards)
    promised = probe.estimate_memory(load, devices)
    taken = MemoryEstimate(*pretend_gpu.loaded(load, pretend_gpu.cards(devices)), "exact")
    names = {*promised.target.on, *taken.target.on}
    worst = max(abs(promised.of(name).total - taken.of(name).total) for name in names)
    return Found(total(promised), total(taken), worst, promised.error)


def total(found: MemoryEstimate) -> int:
    return sum(found.of(name).total for name in found.target.on)


def kib(count: int) -> str:
    return f"{count / 1024:,.0f} KiB"


if __name__ == "__main__":
    main()
