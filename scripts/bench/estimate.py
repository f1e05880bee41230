"""Error of the memory estimate against llama.cpp's own sizes: tables for docs/fit.md.

    bench.py estimate [--n 380] [--seed 1] [--heads] [--gpu]

Random settings over all model families, or over heads, on this computer without a GPU.  --gpu: the
sizes that llama.cpp counted for GPUs, recorded in tests/support/gpu_counts.jsonl.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from turns import table

from localspec.fit import memory, shape
from localspec.fit.memory import MemoryEstimate
from localspec.machine import memory_probe
from localspec.machine.device import Device
from localspec.machine.memory_probe import PairBuffers, PairRequest, ProbeError
from localspec.models.gguf.header import Header
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests.support import gpu_counts, headshapes, shapes, synthetic_header
from tests.support.families import FAMILIES

PAIRS: dict[str, Callable[[], tuple[Header, Header]]] = {
    name: partial(headshapes.pair, name) for name in (*headshapes.HEADS, "mtp-qwen35")
}
_DRAFTS = ("llama-tied", "qwen3", "gemma3", "granite")
_MIB = 1 << 20
_BATCH = 20  # Pairs counted by one child process.
TINY = 512 * _MIB  # Smaller pairs are models for tests; their error is counted in MiB.


@dataclass(frozen=True, slots=True)
class Result:
    """Bytes of a pair, over all devices unless noted."""

    name: str
    estimate: int
    exact: int
    is_beyond: bool  # A device differs by more than the error bound of the estimate.
    ms: float

    @property
    def percent(self) -> float:
        return 100 * (self.estimate / self.exact - 1)

    @property
    def is_tiny(self) -> bool:
        return self.exact < TINY


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--n", type=int, default=380)
    add("--seed", type=int, default=1)
    add("--family", action="append", choices=[*sorted(FAMILIES), *PAIRS])
    add("--heads", action="store_true", help="targets with heads instead of models")
    add("--gpu", action="store_true", help="the recorded sizes on GPUs")


def main(args: argparse.Namespace) -> int:
    names = args.family or (list(PAIRS) if args.heads else list(FAMILIES))
    results = list(from_records() if args.gpu else from_probe(args.n, args.seed, names))
    print(report(results))
    return 1 if any(result.is_beyond for result in results) else 0


def from_records() -> Iterator[Result]:
    for count in gpu_counts.read():
        load = replace(count.load, overlap=False)  # recorded before the draft had branches
        yield compare(count.name, load, count.headers, count.devices, count.exact)


def from_probe(n: int, seed: int, names: list[str]) -> Iterator[Result]:
    """Skips settings that llama.cpp refuses."""
    rng = random.Random(seed)
    cases = [(name, draw(name, rng)) for name in (names[i % len(names)] for i in range(n))]
    for batch in (cases[i : i + _BATCH] for i in range(0, n, _BATCH)):
        for (name, (load, headers)), counted in zip(batch, count_batch(batch), strict=True):
            if counted is None:
                continue
            estimate = shapes.estimate_pair(load, *headers, ())
            exact = shapes.replace_counted(estimate, load, headers, counted)
            yield compare(name, load, headers, (), exact)


def count_batch(batch: list[tuple[str, PairRequest]]) -> list[PairBuffers | None]:
    """None for settings that llama.cpp refuses."""
    try:
        return list(memory_probe.count_each([request for _, request in batch]))
    except ProbeError as error:
        if len(batch) > 1:
            return [counted for one in batch for counted in count_batch([one])]
        print(f"{batch[0][0]}: {error}", file=sys.stderr)
        return [None]


def compare(
    name: str,
    load: LoadCommand,
    headers: tuple[Header, Header | None],
    devices: tuple[Device, ...],
    exact: MemoryEstimate,
) -> Result:
    shaped = shape.from_headers(*headers)
    start = time.perf_counter()
    estimate = memory.estimate_pair(load, *shaped, devices)
    ms = (time.perf_counter() - start) * 1000
    names = {*exact.target.on, *estimate.target.on}
    over = [estimate.of(name).total - exact.of(name).total for name in names]
    mine, theirs = (
        sum(one.of(name).total for name in names) + one.output for one in (estimate, exact)
    )
    beyond = max(map(abs, over)) > estimate.error + exact.error
    return Result(name, mine, theirs, beyond, ms)


def draw(name: str, rng: random.Random) -> PairRequest:
    """A family with random settings, sometimes with a draft model; or a target with its head."""
    draft: Header | None = None
    if name in PAIRS:
        target, draft = PAIRS[name]()
    else:
        target = build(name, "full" if rng.random() < 0.8 else "small")
        if rng.random() < 0.4:
            draft = build(rng.choice(_DRAFTS), rng.choice(("full", "small")))
    settings = random_settings(target, rng)
    draft_settings = replace(settings, n_ctx=None, n_ubatch=rng.choice((128, 512)))
    draft_max = rng.choice((1, 4, 8, 16, 16))
    load = LoadCommand("t", "d" if draft else None, settings, draft_settings, draft_max)
    return load, (target, draft)


@cache
def build(family: str, size: str) -> Header:
    one = FAMILIES[family]
    return synthetic_header.build(one.full if size == "full" else one.small, one.quantisation)


def random_settings(header: Header, rng: random.Random) -> ContextSettings:
    flash = rng.choice(("auto", "auto", "on", "off"))
    kv = rng.choice(("f16", "f16", "q8_0", "q4_0", "bf16", "f32"))
    if flash == "off":
        kv = rng.choice(("f16", "f16", "f32"))
    longest = min(header.n_ctx_train, 16384 if flash == "off" else 131072)
    n_ctx = rng.choice((512, 2048, 4096, 8192, 16384, 32768, longest))
    return ContextSettings(
        n_gpu_layers=0,
        kv_type=kv,  # type: ignore[arg-type]
        flash_attn=flash,  # type: ignore[arg-type]
        n_ctx=min(n_ctx, longest),
        n_ubatch=rng.choice((64, 128, 256, 512, 512, 512, 1024, 2048)),
        n_threads=1,
        swa_full=rng.random() < 0.3,
    )


def report(results: list[Result]) -> str:
    """One row per family.  Percent of all bytes; MiB for tiny models."""
    columns = ("family", "n", "lowest", "p50", "p90", "highest", "tiny models, MiB")
    rows: list[Sequence[str]] = [(*columns, "beyond its error bound")]
    for name in sorted({result.name for result in results}):
        rows.append(row(name, [result for result in results if result.name == name]))
    rows.append(row("all", results))
    ms = statistics.median(result.ms for result in results)
    return f"{table(rows)}\n\nMedian time of an estimate: {ms:.1f} ms."


def row(name: str, results: list[Result]) -> Sequence[str]:
    percent = sorted(result.percent for result in results if not result.is_tiny)
    mib = sorted((one.estimate - one.exact) / _MIB for one in results if one.is_tiny)
    last = len(percent) - 1
    places = [min(last, int(share * len(percent))) for share in (0.0, 0.5, 0.9, 1.0)]
    cells = [f"{percent[place]:+.1f} %" if percent else "–" for place in places]
    cells.append(f"{mib[0]:+.0f} to {mib[-1]:+.0f}" if mib else "–")
    return name, str(len(results)), *cells, str(sum(result.is_beyond for result in results))
