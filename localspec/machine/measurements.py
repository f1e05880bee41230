"""Measurements made on this machine: costs, acceptance and memory of pairs, in one SQLite file.

Only the parent process writes it.  It is a cache: everything works without it.
"""

from __future__ import annotations

import json
import platform
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from localspec.protocol.wire import ContextSettings, LoadCommand, MeasuredCosts

SCHEMA_VERSION = 2
"""Files with a later version are left unchanged.  Version 1 had only the table `measured`."""

_TABLES = (
    "measured (key TEXT PRIMARY KEY, said TEXT NOT NULL, at REAL NOT NULL)",
    "about (key TEXT PRIMARY KEY, said TEXT NOT NULL, at REAL NOT NULL)",
    "memory (key TEXT PRIMARY KEY, said TEXT NOT NULL, at REAL NOT NULL)",
)
_SELECT_ALL = """
SELECT measured.key, measured.said, measured.at, about.said, memory.said, memory.at
FROM measured LEFT JOIN about USING (key) LEFT JOIN memory USING (key)
UNION ALL
SELECT memory.key, NULL, NULL, NULL, memory.said, memory.at
FROM memory WHERE key NOT IN (SELECT key FROM measured)
"""
_BUSY_TIMEOUT = 1.0
"""Seconds to wait while another process writes."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ModelReads:
    """What one model of a measured pair reads.  Field names are stored as JSON keys."""

    read: int
    """Bytes of weights per token."""
    devices: tuple[str, ...]
    family: str
    """The most common quantisation, such as Q4_K."""
    moe: bool = False


@dataclass(frozen=True, slots=True)
class PairReads:
    """What a pair's costs depend on, used to estimate other pairs."""

    target: ModelReads
    draft: ModelReads | None = None


@dataclass(frozen=True, slots=True)
class MemoryMeasurement:
    """Bytes by device, estimated before a load and measured after it."""

    predicted: Mapping[str, int]
    used: Mapping[str, int]
    measured_at: float = 0.0
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class PairMeasurement:
    """Everything stored for one pair with its settings."""

    key: str
    measured: MeasuredCosts | None
    reads: PairReads | None
    memory: MemoryMeasurement | None
    measured_at: float = 0.0
    """Seconds since 1970."""


class MeasurementStore:
    """Reads and writes measurements by key (see `make_key`); errors never raise."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_costs(self, key: str) -> MeasuredCosts | None:
        return self._read("measured", key, lambda text, _: _parse_costs(text))

    def read_memory(self, key: str) -> MemoryMeasurement | None:
        return self._read("memory", key, _parse_memory)

    def read_all(self) -> tuple[PairMeasurement, ...]:
        """Measurements on this machine with this engine build, the latest first."""
        try:
            with self._open() as db:
                rows = db.execute(_SELECT_ALL).fetchall()
        except (sqlite3.Error, OSError):
            return ()
        environment = _environment()
        records = [_parse_row(row) for row in rows if _is_from_environment(row[0], environment)]
        return tuple(sorted(records, key=lambda record: record.measured_at, reverse=True))

    def write_costs(
        self, key: str, measured: MeasuredCosts, reads: PairReads | None = None
    ) -> bool:
        """Returns False if writing failed.  Without `reads` the stored ones remain."""
        rows = {"measured": asdict(measured)}
        if reads is not None:
            rows["about"] = asdict(reads)
        return self._write(key, rows)

    def write_memory(self, key: str, memory: MemoryMeasurement) -> bool:
        """Returns False if writing failed."""
        body = {"predicted": dict(memory.predicted), "used": dict(memory.used)}
        return self._write(key, {"memory": body})

    def _read(self, table: str, key: str, parse: Callable[[str, float], _Result]) -> _Result | None:
        try:
            with self._open() as db:
                row = db.execute(f"SELECT said, at FROM {table} WHERE key = ?", (key,)).fetchone()
        except (sqlite3.Error, OSError):
            return None
        return None if row is None else parse(*row)

    def _write(self, key: str, rows: Mapping[str, Any]) -> bool:
        try:
            with self._open() as db, db:
                for table, body in rows.items():
                    db.execute(
                        f"INSERT INTO {table} VALUES (?, ?, ?) ON CONFLICT (key) "
                        "DO UPDATE SET said = excluded.said, at = excluded.at",
                        (key, json.dumps(body, separators=(",", ":")), time.time()),
                    )
        except (sqlite3.Error, OSError):
            return False
        return True

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            db = self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, or the disk is full
                raise
            self._path.replace(self._path.with_suffix(".damaged"))
            db = self._connect()
        with closing(db):
            yield db

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT)
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise sqlite3.OperationalError("written by a newer localspec")
            if version < SCHEMA_VERSION:
                for table in _TABLES:
                    db.execute(f"CREATE TABLE IF NOT EXISTS {table} WITHOUT ROWID")
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except BaseException:
            db.close()
            raise
        return db


def _parse_costs(text: str | None) -> MeasuredCosts | None:
    try:
        return None if text is None else MeasuredCosts(**json.loads(text))
    except (ValueError, TypeError):
        return None


def _parse_pair_reads(text: str | None) -> PairReads | None:
    try:
        body = json.loads(text or "null")
        target, draft = _parse_model_reads(body["target"]), body["draft"]
        return PairReads(target, None if draft is None else _parse_model_reads(draft))
    except (ValueError, TypeError, KeyError):
        return None


def _parse_model_reads(body: Any) -> ModelReads:
    return ModelReads(
        read=int(body["read"]),
        devices=tuple(map(str, body["devices"])),
        family=str(body["family"]),
        moe=bool(body["moe"]),
    )


def _parse_memory(text: str | None, at: float | None) -> MemoryMeasurement | None:
    try:
        body = json.loads(text or "null")
        sides = (body["predicted"], body["used"])
        predicted, used = ({str(k): int(v) for k, v in side.items()} for side in sides)
        return MemoryMeasurement(predicted, used, at or 0.0)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _parse_row(row: tuple[Any, ...]) -> PairMeasurement:
    key, measured, at, about, memory, loaded = row
    return PairMeasurement(
        key,
        _parse_costs(measured),
        _parse_pair_reads(about),
        _parse_memory(memory, loaded),
        at or 0.0,
    )


def make_key(load: LoadCommand) -> str:
    """Everything measurements depend on: files, machine, engine build, settings.

    Raises OSError if a file is missing.
    """
    parts: dict[str, Any] = {
        "files": [_file_identity(path) for path in (load.target, load.draft) if path],
        **_environment(),
        "target": _cost_settings(load.target_settings),
        "draft": _cost_settings(load.draft_settings) if load.draft else None,
        "draft_max": load.draft_max,
    }
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))


def _cost_settings(settings: ContextSettings) -> dict[str, Any]:
    """Without n_ctx: the cost of a pass does not depend on the allocated context."""
    return {name: value for name, value in asdict(settings).items() if name != "n_ctx"}


def _environment() -> dict[str, Any]:
    return {
        "machine": [platform.node(), platform.machine(), platform.processor()],
        "engine": metadata.version("llama-cpp-python"),
    }


def _is_from_environment(key: str, environment: Mapping[str, Any]) -> bool:
    try:
        parts = json.loads(key)
        return all(parts[name] == value for name, value in environment.items())
    except (ValueError, TypeError, KeyError):
        return False


def _file_identity(path: str) -> list[Any]:
    stat = Path(path).stat()
    return [path, stat.st_size, stat.st_mtime_ns]
