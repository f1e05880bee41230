"""Error of the analytic memory estimate against llama.cpp: a table for docs/fit.md.

Random settings over all model families, on this computer's memory and on simulated GPUs.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
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
from tests import headshapes
from tests.families import FAMILIES, write_ghost

PAIRS: dict[str, Callable[[], tuple[Header, Header]]] = {
    name: partial(headshapes.pair, name) for name in (*headshapes.HEADS, "mtp-qwen35")
}
_MIB = 1024**2
_GIB = 1024**3
_BACKENDS = ("CUDA", "CUDA", "CUDA", "Vulkan", "Metal")
_DRAFTS = ("llama-tied", "qwen2", "qwen3", "gemma3", "granite", "llama")


@dataclass(frozen=True, slots=True)
class Case:
    """One pair, its settings and the GPUs."""

    family: str
    load: LoadCommand
    devices: tuple[Device, ...]
    headers: tuple[Header, Header | None]


@dataclass(frozen=True, slots=True)
class Result:
    """Bytes, the sum of all devices unless noted."""

    case: Case
    total: int
    off: int
    """Sum of the absolute differences of all devices."""
    under: int
    """Largest underestimate of one device."""
    worst: int
    """Largest absolute difference of one device."""
    error: int
    """The estimate's own error bound."""
    ms: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="40 settings")
    parser.add_argument("--family", action="append", choices=[*sorted(FAMILIES), *PAIRS])
    parser.add_argument("--heads", action="store_true", help="targets with heads instead of models")
    parser.add_argument(
        "--verbose", action="store_true", help="print the settings with the largest errors"
    )
    args = parser.parse_args()
    names = args.family or (list(PAIRS) if args.heads else list(FAMILIES))
    with tempfile.TemporaryDirectory() as folder, MemoryProbe(timeout=60) as probe:
        cases = _Cases(Path(folder), random.Random(args.seed), names)
        n = 40 if args.quick else args.n
        results = [found for case in cases.some(n) if (found := measure(probe, case))]
    if args.verbose:
        for result in sorted(results, key=lambda r: -r.off / r.total)[:25]:
            print(_described(result), file=sys.stderr)
    print(table(results))
    return 0 if all(result.worst <= result.error for result in results) else 1


class _Cases:
    """Settings drawn at random."""

    def __init__(self, folder: Path, rng: random.Random, families: list[str]) -> None:
        self._folder, self._rng, self._families = folder, rng, families
        self._files: dict[str, tuple[Path, Header]] = {}

    def some(self, n: int) -> list[Case]:
        """Every family equally often."""
        return [self._one(self._families[i % len(self._families)]) for i in range(n)]

    def _one(self, family: str) -> Case:
        rng = self._rng
        if family in PAIRS:
            return self._beside(family)
        path, header = self._file(family, "full" if rng.random() < 0.7 else "small")
        draft = self._file(rng.choice(_DRAFTS), rng.choice(("full", "small")))
        if rng.random() < 0.6:
            draft = None  # type: ignore[assignment]
        devices = self._devices()
        target = self._settings(header, len(devices))
        load = LoadCommand(
            str(path),
            str(draft[0]) if draft else None,
            target,
            replace(self._settings(draft[1], len(devices)), n_ctx=None)
            if draft
            else ContextSettings(),
            rng.choice((1, 4, 8, 16, 16)),
        )
        return Case(family, load, devices, (header, draft[1] if draft else None))

    def _beside(self, name: str) -> Case:
        """A target with a head."""
        if name not in self._files:
            target, head = PAIRS[name]()
            for end, one in (("", target), ("-head", head)):
                path = self._folder / f"{name}{end}.gguf"
                self._files[f"{name}{end}"] = path, write_ghost(one, "", path)
        (path, target), (beside, head) = self._files[name], self._files[f"{name}-head"]
        if target == head:
            beside = path
        devices = self._devices()
        settings = self._settings(target, len(devices))
        same = replace(settings, n_ctx=None)
        load = LoadCommand(
            str(path), str(beside), settings, same, self._rng.choice((1, 4, 8, 16, 16))
        )
        return Case(name, load, devices, (target, target if target == head else head))

    def _file(self, family: str, size: str) -> tuple[Path, Header]:
        name = f"{family}-{size}"
        if name not in self._files:
            one = FAMILIES[family]
            shape = one.full if size == "full" else one.small
            path = self._folder / f"{name}.gguf"
            self._files[name] = path, write_ghost(shape, one.quantisation, path)
        return self._files[name]

    def _devices(self) -> tuple[Device, ...]:
        rng = self._rng
        n = rng.choice((0, 0, 1, 1, 1, 2, 3))
        backend = rng.choice(_BACKENDS)
        sizes = [rng.choice((8, 12, 16, 24, 32)) * _GIB for _ in range(n)]
        return tuple(
            Device(f"{backend}{i}", free=size, total=size, backend=backend, simulated=True)
            for i, size in enumerate(sizes)
        )

    def _settings(self, header: Header, cards: int) -> ContextSettings:
        rng = self._rng
        n_layer = header.n_layer
        flash = rng.choice(("auto", "auto", "on", "off"))
        kv = rng.choice(("f16", "f16", "q8_0", "q4_0", "bf16", "f32"))
        if flash == "off":
            kv = rng.choice(("f16", "f16", "f32"))
        layers = rng.choice((-1, -1, -1, 0, rng.randint(1, n_layer + 1))) if cards else 0
        longest = min(header.n_ctx_train, 16384 if flash == "off" else 131072)
        n_ctx = rng.choice((512, 2048, 4096, 8192, 16384, 32768, longest))
        return ContextSettings(
            n_gpu_layers=layers,
            tensor_split=(1.0, 2.0, 1.0)[:cards] if cards > 1 and rng.random() < 0.3 else (),
            kv_type=kv,  # type: ignore[arg-type]
            flash_attn=flash,  # type: ignore[arg-type]
            n_ctx=min(n_ctx, longest),
            n_ubatch=rng.choice((64, 128, 256, 512, 512, 512, 1024, 2048)),
            n_threads=1,
            swa_full=rng.random() < 0.3,
            cpu_moe=header.is_moe and cards > 0 and rng.random() < 0.3,
        )


def measure(probe: MemoryProbe, case: Case) -> Result | None:
    """None if llama.cpp refuses the settings."""
    try:
        exact = probe.estimate_memory(case.load, case.devices)
    except ProbeError as error:
        print(f"{case.family}: {error}", file=sys.stderr)
        return None
    began = time.perf_counter()
    estimate = memory.estimate_pair(case.load, *case.headers, case.devices)
    ms = (time.perf_counter() - began) * 1000
    names = _names(exact) | _names(estimate)
    offs = {name: estimate.of(name).total - exact.of(name).total for name in names}
    return Result(
        case,
        total=sum(exact.of(name).total for name in names) + exact.output,
        off=sum(map(abs, offs.values())),
        under=max(0, -min(offs.values())),
        worst=max(map(abs, offs.values())),
        error=estimate.error,
        ms=ms,
    )


def _names(projection: MemoryEstimate) -> set[str]:
    names = set(projection.target.on)
    return names | set(projection.draft.on) if projection.draft else names


def table(results: list[Result]) -> str:
    """Markdown, one row per family."""
    rows = [
        "| family | n | p50 | p90 | max | worst underestimate | beyond its error bound |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in sorted({result.case.family for result in results}):
        rows.append(_row(family, [r for r in results if r.case.family == family]))
    rows.append(_row("all", results))
    rows.append("")
    rows.append(f"Median time of an estimate: {statistics.median(r.ms for r in results):.1f} ms.")
    return "\n".join(rows)


def _row(name: str, results: list[Result]) -> str:
    shares = sorted(100 * result.off / result.total for result in results)
    beyond = sum(result.worst > result.error for result in results)
    return (
        f"| {name} | {len(shares)} | {_at(shares, 0.5):.3f} % | {_at(shares, 0.9):.3f} % "
        f"| {shares[-1]:.3f} % | {max(r.under for r in results) / _MIB:.1f} MiB | {beyond} |"
    )


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def _described(result: Result) -> str:
    load = result.case.load
    return (
        f"{100 * result.off / result.total:.3f} % under {result.under / _MIB:.1f} "
        f"worst {result.worst / _MIB:.1f} error {result.error / _MIB:.1f} MiB: "
        f"{Path(load.target).stem} {Path(load.draft).stem if load.draft else ''} "
        f"{[d.name for d in result.case.devices]} {load.target_settings}"
    )


if __name__ == "__main__":
    sys.exit(main())
