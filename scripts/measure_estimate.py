"""Error of the memory estimate against llama.cpp's own sizes: tables for docs/fit.md.

    .venv/bin/python scripts/measure_estimate.py [--n 380] [--seed 1] [--heads] [--gpu]

Random settings over all model families, or over heads, on this computer without a GPU.  --gpu: the
sizes that llama.cpp counted for GPUs, recorded in tests/fit/gpu_counts.jsonl.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from localspec.fit import memory
from localspec.machine.device import Device
from localspec.machine.memory_by_device import MemoryEstimate
from localspec.machine.probe import MemoryProbe, ProbeError
from localspec.models.gguf.header import Header
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests import gpu_counts, headshapes
from tests.families import FAMILIES, write_ghost

PAIRS: dict[str, Callable[[], tuple[Header, Header]]] = {
    name: partial(headshapes.pair, name) for name in (*headshapes.HEADS, "mtp-qwen35")
}
_DRAFTS = ("llama-tied", "qwen3", "gemma3", "granite")
_MIB = 1 << 20
TINY = 512 * _MIB
"""Pairs below this size are models for tests; their error is counted in MiB."""


@dataclass(frozen=True, slots=True)
class Result:
    """Bytes of a pair, over all devices unless noted."""

    name: str
    load: LoadCommand
    estimate: int
    exact: int
    under: int
    """Largest underestimate of one device."""
    is_beyond: bool
    """A device differs by more than the error bound of the estimate."""
    ms: float

    @property
    def percent(self) -> float:
        return 100 * (self.estimate / self.exact - 1)

    @property
    def is_tiny(self) -> bool:
        return self.exact < TINY


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=380)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", action="append", choices=[*sorted(FAMILIES), *PAIRS])
    parser.add_argument("--heads", action="store_true", help="targets with heads instead of models")
    parser.add_argument("--gpu", action="store_true", help="the recorded sizes on GPUs")
    parser.add_argument("--verbose", action="store_true", help="print the largest errors")
    args = parser.parse_args()
    names = args.family or (list(PAIRS) if args.heads else list(FAMILIES))
    results = list(from_records() if args.gpu else from_probe(args.n, args.seed, names))
    if args.verbose:
        for one in sorted(results, key=lambda one: -abs(one.percent))[:25]:
            print(f"{one.percent:.2f} % of {one.exact / _MIB:.0f} MiB: {one}", file=sys.stderr)
    print(table(results))
    return 1 if any(result.is_beyond for result in results) else 0


def from_records() -> Iterator[Result]:
    for count in gpu_counts.read():
        yield compare(count.name, count.load, count.headers, count.devices, count.exact)


def from_probe(n: int, seed: int, names: list[str]) -> Iterator[Result]:
    """Skips settings that llama.cpp refuses."""
    with tempfile.TemporaryDirectory() as folder, MemoryProbe(timeout=60) as probe:
        cases = RandomCases(Path(folder), random.Random(seed))
        for i in range(n):
            name = names[i % len(names)]
            load, headers = cases.draw(name)
            try:
                counted = probe.count_buffers(load)
            except ProbeError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            estimate = memory.estimate_pair(load, *headers, ())
            exact = memory.replace_counted(estimate, load, headers, counted)
            yield compare(name, load, headers, (), exact)


def compare(
    name: str,
    load: LoadCommand,
    headers: tuple[Header, Header | None],
    devices: tuple[Device, ...],
    exact: MemoryEstimate,
) -> Result:
    start = time.perf_counter()
    estimate = memory.estimate_pair(load, *headers, devices)
    ms = (time.perf_counter() - start) * 1000
    names = {*exact.target.on, *estimate.target.on}
    over = [estimate.of(name).total - exact.of(name).total for name in names]
    mine, theirs = (
        sum(one.of(name).total for name in names) + one.output for one in (estimate, exact)
    )
    beyond = max(map(abs, over)) > estimate.error + exact.error
    return Result(name, load, mine, theirs, max(0, -min(over)), beyond, ms)


class RandomCases:
    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng = folder, rng
        self._files: dict[str, tuple[Path, Header]] = {}

    def draw(self, name: str) -> tuple[LoadCommand, tuple[Header, Header | None]]:
        rng = self._rng
        draft: tuple[Path, Header] | None = None
        if name in PAIRS:
            target, draft = self._pair_files(name)
        else:
            target = self._file(name, "full" if rng.random() < 0.8 else "small")
            if rng.random() < 0.4:
                draft = self._file(rng.choice(_DRAFTS), rng.choice(("full", "small")))
        settings = self._settings(target[1])
        draft_settings = replace(settings, n_ctx=None, n_ubatch=rng.choice((128, 512)))
        load = LoadCommand(
            str(target[0]),
            str(draft[0]) if draft else None,
            settings,
            draft_settings,
            rng.choice((1, 4, 8, 16, 16)),
        )
        return load, (target[1], draft[1] if draft else None)

    def _pair_files(self, name: str) -> tuple[tuple[Path, Header], tuple[Path, Header]]:
        if name not in self._files:
            target, head = PAIRS[name]()
            for key, one in ((name, target), (f"{name}-head", head)):
                path = self._folder / f"{key}.gguf"
                self._files[key] = path, write_ghost(one, "", path)
            if target == head:
                self._files[f"{name}-head"] = self._files[name]
        return self._files[name], self._files[f"{name}-head"]

    def _file(self, family: str, size: str) -> tuple[Path, Header]:
        key = f"{family}-{size}"
        if key not in self._files:
            one = FAMILIES[family]
            path = self._folder / f"{key}.gguf"
            shape = one.full if size == "full" else one.small
            self._files[key] = path, write_ghost(shape, one.quantisation, path)
        return self._files[key]

    def _settings(self, header: Header) -> ContextSettings:
        rng = self._rng
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


def table(results: list[Result]) -> str:
    """Markdown, one row per family.  Percent of all bytes; MiB for tiny models."""
    rows = [
        "| family | n | lowest | p50 | p90 | highest | tiny models, MiB | beyond its error bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in sorted({result.name for result in results}):
        rows.append(_row(name, [result for result in results if result.name == name]))
    rows.append(_row("all", results))
    rows.append("")
    rows.append(f"Median time of an estimate: {statistics.median(r.ms for r in results):.1f} ms.")
    return "\n".join(rows)


def _row(name: str, results: list[Result]) -> str:
    percent = sorted(result.percent for result in results if not result.is_tiny)
    mib = sorted((one.estimate - one.exact) / _MIB for one in results if one.is_tiny)
    places = (0.0, 0.5, 0.9, 1.0)
    cells = [f"{_quantile(percent, place):+.1f} %" if percent else "–" for place in places]
    cells.append(f"{mib[0]:+.0f} to {mib[-1]:+.0f}" if mib else "–")
    beyond = sum(result.is_beyond for result in results)
    return f"| {name} | {len(results)} | {' | '.join(cells)} | {beyond} |"


def _quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


if __name__ == "__main__":
    sys.exit(main())
