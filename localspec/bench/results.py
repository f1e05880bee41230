"""Benchmark results, and their JSON document (`bench --json`)."""

from __future__ import annotations

import platform
import re
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localspec.bench.metrics import BestDraftLength
from localspec.protocol.events import EngineReady
from localspec.sanitize import sanitize


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
    means: tuple[MeanSpeedup, ...] = ()
    speedup: float | None = None
    """Geometric mean over all workloads that count."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Reason -> number of trials."""

    @property
    def trials(self) -> int:
        return sum(len(row.trials) for row in self.rows)


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
            "host_ms": _round_value(report.host_ms),
            "t1_ms": report.t1_ms,
        },
        "max_tokens": report.max_tokens,
        "rounds": report.rounds,
        "workloads": [_workload_to_json(row) for row in report.rows],
        "means": [asdict(mean) | {"speedup": _round_value(mean.speedup)} for mean in report.means],
        "speedup": _round_value(report.speedup),
        "trials": report.trials,
        "left_out": report.left_out,
        "interrupted": report.interrupted,
    }


def _workload_to_json(row: WorkloadResult) -> dict[str, Any]:
    best = row.best
    return {
        "name": row.name,
        "temperature": row.temperature,
        "plain_tps": _round_value(row.plain_tps),
        "spec_tps": _round_value(row.spec_tps),
        "speedup": _round_fields(row.speedup),
        "theory": {
            "best": _round_value(best.speedup if best else None),
            "reached": _round_value(row.share_of_best),
            "draft_length": best.gamma if best else None,
        },
        "acceptance_rate": _round_value(row.acceptance_rate),
        "mean_accepted_length": _round_value(row.mean_accepted_length),
        "first_token_ms": _round_value(row.first_token_ms),
        "latency_ms": _round_fields(row.latency_ms),
        "plain_first_token_ms": _round_value(row.plain_first_token_ms),
        "plain_latency_ms": _round_fields(row.plain_latency_ms),
        "distinct_4grams": _round_value(row.distinct_4grams),
        "copied": _round_value(row.copied),
        "identical": row.identical,
        "survival": [_round_value(share) for share in row.survival],
        "counted": row.counted,
        "trials": [_trial_to_json(trial) for trial in row.trials],
    }


def _trial_to_json(trial: Trial) -> dict[str, Any]:
    fields = asdict(trial) | {"speedup": trial.speedup}
    return {k: _round_value(v) if isinstance(v, float) else v for k, v in fields.items()}


def _round_fields(
    values: SpeedupSpread | LatencyPercentiles | None,
) -> dict[str, float | None] | None:
    return None if values is None else {k: _round_value(v) for k, v in asdict(values).items()}


def _round_value(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


# --- The machine.

_TRADEMARK = re.compile(r"\((?:R|TM)\)")


@dataclass(frozen=True, slots=True)
class BenchMachine:
    cpu: str
    cores: int | None
    """Physical cores."""
    memory: int | None
    system: str
    engine: dict[str, str]
    devices: tuple[str, ...]
    threads: int | None


def describe_machine(ready: EngineReady) -> BenchMachine:
    import psutil  # noqa: PLC0415  --help must not import it

    target = ready.settings.get("target") or {}
    return BenchMachine(
        cpu=sanitize(_TRADEMARK.sub("", _cpu_name()), multiline=False),
        cores=psutil.cpu_count(logical=False),
        memory=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()} {platform.machine()}".strip(),
        engine=dict(ready.engine),
        devices=tuple(ready.devices),
        threads=target.get("n_threads"),
    )


def _cpu_name() -> str:
    with suppress(OSError):
        line = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        if line:
            return " ".join(line[1].split())
    if platform.system() == "Darwin":
        with suppress(OSError, subprocess.SubprocessError):
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(
                command, capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
    return platform.processor() or platform.machine() or "unknown CPU"
