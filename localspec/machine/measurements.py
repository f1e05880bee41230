"""Measurements made on this machine: costs, acceptance and memory of pairs, in one SQLite file.

Only the parent process writes it.  It is a cache: everything works without it.
"""

from __future__ import annotations

import json
import platform
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from localspec.lazy_dataclass import dataclass
from localspec.machine import device_detection, installed_llama_cpp
from localspec.machine.cpu_and_ram import MAX_OTHER_LOAD, read_cpu_name
from localspec.protocol.json_dataclasses import from_json
from localspec.protocol.wire import ContextSettings, LoadCommand, MeasuredCosts

SCHEMA_VERSION = 2
"""Files with a later version are left unchanged."""

_TABLES = ("measured", "about", "memory")
_BUSY_TIMEOUT = 1.0  # Seconds to wait while another process writes.
_COLUMNS = "(key TEXT PRIMARY KEY, said TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID"
_SELECT_ALL = """
SELECT measured.key, measured.said, about.said, memory.said, measured.at
FROM measured LEFT JOIN about USING (key) LEFT JOIN memory USING (key)
UNION ALL
SELECT memory.key, NULL, NULL, memory.said, 0
FROM memory WHERE key NOT IN (SELECT key FROM measured)
ORDER BY 5 DESC
"""

_Result = TypeVar("_Result")


def is_trusted(costs: MeasuredCosts) -> bool:
    """Whether the computer was quiet.  Unknown of very short answers and of earlier versions."""
    return costs.other_load is not None and costs.other_load <= MAX_OTHER_LOAD


@dataclass(frozen=True, slots=True)
class ModelReads:
    """What one model of a measured pair reads.  Field names are stored as JSON keys."""

    read: int  # Bytes of weights per token.
    devices: tuple[str, ...]
    family: str  # The most common quantisation, such as Q4_K.
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


@dataclass(frozen=True, slots=True)
class PairMeasurement:
    """Everything stored for one pair with its settings."""

    key: str
    measured: MeasuredCosts | None
    reads: PairReads | None
    memory: MemoryMeasurement | None


class MeasurementStore:
    """Reads and writes measurements by key (see `make_key`); errors never raise."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_costs(self, key: str) -> MeasuredCosts | None:
        rows = self._select("SELECT said FROM measured WHERE key = ?", key)
        return _parse(MeasuredCosts, rows[0][0]) if rows else None

    def read_all(self) -> tuple[PairMeasurement, ...]:
        """Measurements with this machine's devices and engine build, the latest first."""
        environment = _environment()
        return tuple(
            PairMeasurement(
                key, _parse(MeasuredCosts, costs), _parse(PairReads, reads), _parse_memory(memory)
            )
            for key, costs, reads, memory, _ in self._select(_SELECT_ALL)
            if _is_from_environment(key, environment)
        )

    def write_costs(
        self, key: str, measured: MeasuredCosts, reads: PairReads | None = None
    ) -> bool:
        """Returns False if writing failed.  Without `reads` the stored ones remain."""
        about = {} if reads is None else {"about": asdict(reads)}
        return self._write(key, {"measured": asdict(measured), **about})

    def write_memory(self, key: str, memory: MemoryMeasurement) -> bool:
        """Returns False if writing failed."""
        return self._write(key, {"memory": asdict(memory)})

    def _select(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        try:
            with self._open() as db:
                return db.execute(query, values).fetchall()
        except (sqlite3.Error, OSError):
            return []

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
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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
                    db.execute(f"CREATE TABLE IF NOT EXISTS {table} {_COLUMNS}")
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except BaseException:
            db.close()
            raise
        return db


def _parse(kind: type[_Result], text: str | None) -> _Result | None:
    """None if there is no such entry, or an invalid one."""
    with suppress(ValueError, TypeError, AttributeError):
        return None if text is None else from_json(kind, json.loads(text))
    return None


def _parse_memory(text: str | None) -> MemoryMeasurement | None:
    memory = _parse(MemoryMeasurement, text)
    is_valid = memory and isinstance(memory.predicted, Mapping) and isinstance(memory.used, Mapping)
    return memory if is_valid else None


def find_files(key: str) -> tuple[str, ...]:
    """The paths of a measured pair, target first; none if a file has changed since."""
    with suppress(ValueError, TypeError, KeyError, OSError):
        files = json.loads(key)["files"]
        paths = tuple(str(path) for path, *_ in files)
        return paths if files == [_file_identity(path) for path in paths] else ()
    return ()


def make_key(load: LoadCommand) -> str:
    """Everything measurements depend on: files, machine, devices, engine build, settings.

    Raises OSError if a file is missing.
    """

    def cost_settings(settings: ContextSettings) -> dict[str, Any]:
        """Without n_ctx: the cost of a pass does not depend on the allocated context."""
        left_out = {"n_ctx"} if settings.workers else {"n_ctx", "workers", "output_layer"}
        return {name: value for name, value in asdict(settings).items() if name not in left_out}

    parts: dict[str, Any] = {
        "files": [_file_identity(path) for path in (load.target, load.draft) if path],
        **_environment(),
        "target": cost_settings(load.target_settings),
        "draft": cost_settings(load.draft_settings) if load.draft else None,
        "draft_max": load.draft_max,
    }
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))


def _environment() -> dict[str, Any]:
    """Of a build for the CPU only without "gpu", as in files of earlier versions."""
    environment: dict[str, Any] = {
        "machine": [platform.node(), platform.machine(), read_cpu_name()],
        "engine": installed_llama_cpp.version(),
    }
    if backends := installed_llama_cpp.find_gpu_backends():
        devices = device_detection.detect_devices().devices
        environment["gpu"] = {
            "backends": list(backends),
            "build": installed_llama_cpp.library_bytes(),
            "devices": sorted([device.name, device.description] for device in devices),
        }
    return environment


def _is_from_environment(key: str, environment: Mapping[str, Any]) -> bool:
    with suppress(ValueError, AttributeError):
        parts = json.loads(key)
        return all(parts.get(name) == environment.get(name) for name in {"gpu", *environment})
    return False


def _file_identity(path: str) -> list[Any]:
    stat = Path(path).stat()
    return [path, stat.st_size, stat.st_mtime_ns]
