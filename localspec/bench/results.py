"""Benchmark results, and their JSON document (`bench --json`)."""

from __future__ import annotations

import functools
import platform
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from statistics import geometric_mean
from typing import Any

from localspec.fit.speedup_model import BestDraftLength
from localspec.lazy_dataclass import dataclass
from localspec.machine import cpu_and_ram
from localspec.protocol.events import EngineReady


@dataclass(frozen=True, slots=True)
class SpeedupSpread:
    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class LatencyPercentiles:
    """Milliseconds between tokens."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One prompt answered plain and speculative; `left_out` is the reason not to count it."""

    prompt: int
    turn: int
    seed: int
    plain_tps: float | None
    spec_tps: float | None
    distinct_4grams: float | None
    copied: float | None
    identical: bool
    left_out: str | None

    @property
    def speedup(self) -> float | None:
        return self.spec_tps / self.plain_tps if self.spec_tps and self.plain_tps else None


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """A workload at one temperature, over the trials that count, or over all if none counts."""

    name: str
    temperature: float
    trials: tuple[Trial, ...]
    plain_tps: float | None
    spec_tps: float | None
    speedup: SpeedupSpread | None
    best: BestDraftLength | None
    acceptance_rate: float | None
    mean_accepted_length: float | None
    first_token_ms: float | None
    plain_first_token_ms: float | None
    latency_ms: LatencyPercentiles | None
    plain_latency_ms: LatencyPercentiles | None
    distinct_4grams: float | None
    copied: float | None
    survival: tuple[float | None, ...]
    """By position: the share accepted of the draft tokens verified there."""

    @property
    def counted(self) -> bool:
        return any(trial.left_out is None for trial in self.trials)

    @property
    def identical(self) -> bool:
        return all(trial.identical for trial in self.trials)

    @property
    def share_of_best(self) -> float | None:
        """The measured speed-up over that of the best fixed draft length."""
        return self.speedup.median / self.best.speedup if self.speedup and self.best else None


@dataclass(frozen=True, slots=True)
class MeanSpeedup:
    """Geometric mean of the speed-ups of the workloads that count."""

    temperature: float
    speedup: float | None
    workloads: int


@dataclass(frozen=True, slots=True)
class BenchReport:
    """A complete benchmark, or the part done before an interruption."""

    pair: str
    model: str
    draft: str | None
    spec: str
    why: str
    machine: BenchMachine
    c: float | None
    verify_curve: dict[str, float]
    t1_ms: float | None
    host_ms: float | None
    max_tokens: int
    rounds: int
    interrupted: bool
    rows: tuple[WorkloadResult, ...] = ()

    @property
    def trials(self) -> int:
        return sum(len(row.trials) for row in self.rows)

    @property
    def left_out(self) -> dict[str, int]:
        """Reason -> number of trials."""
        reasons = (trial.left_out for row in self.rows for trial in row.trials)
        return dict(Counter(reason for reason in reasons if reason))

    @property
    def speedup(self) -> float | None:
        """Geometric mean over all workloads that count."""
        return _mean_speedup([row for row in self.rows if row.counted])

    @property
    def means(self) -> tuple[MeanSpeedup, ...]:
        groups: dict[float, list[WorkloadResult]] = {}
        for row in self.rows:
            groups.setdefault(row.temperature, []).extend([row] if row.counted else [])
        return tuple(MeanSpeedup(t, _mean_speedup(rows), len(rows)) for t, rows in groups.items())


def _mean_speedup(rows: Sequence[WorkloadResult]) -> float | None:
    speedups = [row.speedup.median for row in rows if row.speedup]
    return geometric_mean(speedups) if speedups else None


def report_to_json(report: BenchReport) -> dict[str, Any]:
    """`bench --json`, described in docs/json.md."""
    return {
        "schema": 1,
        "pair": report.pair,
        "model": report.model,
        "draft": report.draft,
        "spec": report.spec,
        "why": report.why,
        "machine": asdict(report.machine),
        "cost": {
            "c": report.c,
            "verify_curve": report.verify_curve,
            "host_ms": _round_floats(report.host_ms),
            "t1_ms": report.t1_ms,
        },
        "max_tokens": report.max_tokens,
        "rounds": report.rounds,
        "workloads": [_workload_to_json(row) for row in report.rows],
        "means": [_round_floats(asdict(mean)) for mean in report.means],
        "speedup": _round_floats(report.speedup),
        "trials": report.trials,
        "left_out": report.left_out,
        "interrupted": report.interrupted,
    }


def _workload_to_json(row: WorkloadResult) -> dict[str, Any]:
    body = asdict(row)
    best = body.pop("best") or {}
    body["theory"] = {
        "best": best.get("speedup"),
        "reached": row.share_of_best,
        "draft_length": best.get("gamma"),
    }
    body["trials"] = [asdict(trial) | {"speedup": trial.speedup} for trial in row.trials]
    rounded: dict[str, Any] = _round_floats(body)
    return rounded | {"identical": row.identical, "counted": row.counted}


def _round_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _round_floats(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_round_floats(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


# --- The machine.

_TRADEMARK = re.compile(r"\((?:R|TM)\)")


@dataclass(frozen=True, slots=True)
class BenchMachine:
    cpu: str
    cores: int | None  # Physical cores.
    memory: int | None
    system: str
    engine: dict[str, str]
    devices: tuple[str, ...]
    threads: int | None


def describe_machine(ready: EngineReady) -> BenchMachine:
    cpu, cores, memory = _read_hardware()
    target = ready.settings.get("target") or {}
    return BenchMachine(
        cpu=cpu,
        cores=cores,
        memory=memory,
        system=f"{platform.system()} {platform.release()} {platform.machine()}".strip(),
        engine=dict(ready.engine),
        devices=tuple(ready.devices),
        threads=target.get("n_threads"),
    )


@functools.cache
def _read_hardware() -> tuple[str, int | None, int]:
    """Once: the report of a running benchmark is built several times a second."""
    import psutil  # noqa: PLC0415  --help must not import it

    name = _TRADEMARK.sub("", " ".join(cpu_and_ram.read_cpu_name().split())) or "unknown CPU"
    return name, psutil.cpu_count(logical=False), psutil.virtual_memory().total
