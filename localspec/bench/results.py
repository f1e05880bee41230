"""What a bench found, as frozen values and as the document of `bench --json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from localspec.bench.here import Machine
from localspec.bench.theory import Best


@dataclass(frozen=True, slots=True)
class Spread:
    """Of several trials."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds that a token was waited for."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One prompt answered both ways; `left_out` says why it does not count."""

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
class Row:
    """A workload at one temperature; over the trials that count, or all where none does."""

    name: str
    temperature: float
    trials: tuple[Trial, ...]
    plain_tps: float | None
    spec_tps: float | None
    speedup: Spread | None
    best: Best | None
    acceptance_rate: float | None
    mean_accepted_length: float | None
    first_token_ms: float | None
    plain_first_token_ms: float | None
    latency_ms: Latency | None
    plain_latency_ms: Latency | None
    distinct_4grams: float | None
    copied: float | None
    survival: tuple[float | None, ...]
    """Share kept at each position, of the guesses that reached it."""

    @property
    def counted(self) -> bool:
        return any(trial.left_out is None for trial in self.trials)

    @property
    def identical(self) -> bool:
        return all(trial.identical for trial in self.trials)

    @property
    def reached(self) -> float | None:
        """Of what the best fixed draft length would give."""
        return self.speedup.median / self.best.speedup if self.speedup and self.best else None


@dataclass(frozen=True, slots=True)
class Mean:
    """Geometric mean of the speed-ups of the workloads that count."""

    temperature: float
    speedup: float | None
    workloads: int


@dataclass(frozen=True, slots=True)
class Report:
    """A whole bench, or what there was of it when it was interrupted."""

    pair: str
    model: str
    draft: str | None
    spec: str
    why: str
    machine: Machine
    c: float | None
    verify_curve: dict[str, float]
    t1_ms: float | None
    host_ms: float | None
    max_tokens: int
    rounds: int
    interrupted: bool
    rows: tuple[Row, ...] = ()
    means: tuple[Mean, ...] = ()
    speedup: float | None = None
    """Geometric mean over all rows that count."""
    left_out: dict[str, int] = field(default_factory=dict)
    """How many trials do not count, by reason."""

    @property
    def trials(self) -> int:
        return sum(len(row.trials) for row in self.rows)


def document(report: Report) -> dict[str, Any]:
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
            "host_ms": _rounded(report.host_ms),
            "t1_ms": report.t1_ms,
        },
        "max_tokens": report.max_tokens,
        "rounds": report.rounds,
        "workloads": [_row(row) for row in report.rows],
        "means": [asdict(mean) | {"speedup": _rounded(mean.speedup)} for mean in report.means],
        "speedup": _rounded(report.speedup),
        "trials": report.trials,
        "left_out": report.left_out,
        "interrupted": report.interrupted,
    }


def _row(row: Row) -> dict[str, Any]:
    best = row.best
    return {
        "name": row.name,
        "temperature": row.temperature,
        "plain_tps": _rounded(row.plain_tps),
        "spec_tps": _rounded(row.spec_tps),
        "speedup": _rounded_all(row.speedup),
        "theory": {
            "best": _rounded(best.speedup if best else None),
            "reached": _rounded(row.reached),
            "draft_length": best.gamma if best else None,
        },
        "acceptance_rate": _rounded(row.acceptance_rate),
        "mean_accepted_length": _rounded(row.mean_accepted_length),
        "first_token_ms": _rounded(row.first_token_ms),
        "latency_ms": _rounded_all(row.latency_ms),
        "plain_first_token_ms": _rounded(row.plain_first_token_ms),
        "plain_latency_ms": _rounded_all(row.plain_latency_ms),
        "distinct_4grams": _rounded(row.distinct_4grams),
        "copied": _rounded(row.copied),
        "identical": row.identical,
        "survival": [_rounded(share) for share in row.survival],
        "counted": row.counted,
        "trials": [_trial(trial) for trial in row.trials],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    found = asdict(trial) | {"speedup": trial.speedup}
    return {k: _rounded(v) if isinstance(v, float) else v for k, v in found.items()}


def _rounded_all(values: Spread | Latency | None) -> dict[str, float | None] | None:
    return None if values is None else {k: _rounded(v) for k, v in asdict(values).items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
