"""Measurements made on this machine: costs, acceptance and memory of pairs, in one
SQLite file.

Only the parent process writes it.  It is a cache: everything works without it.  A row with values
that no measurement gives is read as if it were missing, so that it is measured again; neither this
process nor the engine ever computes with it.
"""

from __future__ import annotations

import json
import platform
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct, field, to_builtins

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
    """Whether the computer was quiet.

    Unknown of very short answers and of earlier versions.
    """
    return costs.other_load is not None and costs.other_load <= MAX_OTHER_LOAD


class ModelReads(Struct, frozen=True):
    """What one model of a measured pair reads.  Field names are stored as JSON keys."""

    read: int  # Bytes of weights per token.
    devices: tuple[str, ...]
    family: str  # The most common quantisation, such as Q4_K.
    moe: bool = False


class PairReads(Struct, frozen=True):
    """What a pair's costs depend on, used to estimate other pairs."""

    target: ModelReads
    draft: ModelReads | None = None


class MemoryMeasurement(Struct, frozen=True):
    """Bytes by device, estimated before a load and measured after it."""

    predicted: Mapping[str, int]
    used: Mapping[str, int]


class PairMeasurement(Struct, frozen=True):
    """Everything stored for one pair with its settings."""

    key: str
    measured: MeasuredCosts | None
    reads: PairReads | None
    memory: MemoryMeasurement | None


class ValueRange(NamedTuple):
    """What a measurement can give; both ends belong to it."""

    least: float
    most: float


_PASS_MS = ValueRange(least=1e-2, most=1e6)
"""No host launches a pass in ten microseconds, or waits 17 minutes for it."""
_COST_RATIO = ValueRange(least=1e-5, most=1e4)
"""Of a pass, in passes of one token. Zero would be divided by."""
_WIDTH = ValueRange(least=1, most=1024)
"""Tokens of a pass in a verify curve: far more than are drafted."""
_THREADS = ValueRange(least=1, most=512)
"""Up to ggml's GGML_MAX_N_THREADS."""
_LOAD_SHARE = ValueRange(least=0, most=1)
_COUNT = ValueRange(least=0, most=1e6)
"""Draft tokens that an acceptance rate remembers. Older ones decay."""
_GAIN = ValueRange(least=-1e12, most=1e12)
"""Tokens that a round gains.

It loses that many if the computer slept during the round.
"""
_READING = ValueRange(least=0, most=1e12)
"""Draft passes that one token of text costs to read."""
_ROUNDS = ValueRange(least=0, most=2**53)
_INTERVAL = ValueRange(least=1, most=2**53)
_BYTES = ValueRange(least=0, most=2**60)


class SavedGains(Struct, frozen=True):
    """The gains of the draft model in `SavedPairStats`; earlier versions stored none."""

    gain: float = 0.0
    rounds: int = 0
    interval: int = 1
    since: int = 0
    reading: float | None = None


_Counts = dict[str, tuple[float, float]]  # Accepted and drafted tokens by bucket.


class SavedPairStats(Struct, frozen=True):
    """The form of `PairStats.saved`, which is stored in `MeasuredCosts.survival`."""

    model: _Counts = field(default_factory=dict)
    lookup: _Counts = field(default_factory=dict)
    place: _Counts = field(default_factory=dict)
    gains: SavedGains = field(default_factory=SavedGains)


class MeasurementStore:
    """Reads and writes measurements by key (see `make_key`); errors never raise."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_costs(self, key: str) -> MeasuredCosts | None:
        rows = self._select("SELECT said FROM measured WHERE key = ?", key)
        if not rows:
            return None
        (text,) = rows[0]
        return _parse(MeasuredCosts, text, check_costs)

    def read_all(self) -> tuple[PairMeasurement, ...]:
        """Measurements with this machine's devices and engine build, the latest first."""
        environment = _environment()
        found = []
        for key, costs, reads, memory, _ in self._select(_SELECT_ALL):
            if not _is_from_environment(key, environment):
                continue
            found.append(
                PairMeasurement(
                    key,
                    measured=_parse(MeasuredCosts, costs, check_costs),
                    reads=_parse(PairReads, reads, check_reads),
                    memory=_parse(MemoryMeasurement, memory, check_memory),
                )
            )
        return tuple(found)

    def write_costs(
        self, key: str, measured: MeasuredCosts, reads: PairReads | None = None
    ) -> bool:
        """Returns False if writing failed.  Without `reads` the stored ones remain."""
        about = {} if reads is None else {"about": to_builtins(reads)}
        return self._write(key, {"measured": to_builtins(measured), **about})

    def write_memory(self, key: str, memory: MemoryMeasurement) -> bool:
        """Returns False if writing failed."""
        return self._write(key, {"memory": to_builtins(memory)})

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
            # locked, or the disk is full
            if isinstance(error, sqlite3.OperationalError):
                raise
            self._path.replace(self._path.with_suffix(".damaged"))
            db = self._connect()
        with closing(db):
            yield db

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT)
        db.text_factory = _decode_text
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


def _decode_text(data: bytes) -> str:
    """SQLite would refuse to read any row if the text of one is not UTF-8."""
    return data.decode("utf-8", "replace")


def _parse(
    kind: type[_Result], text: object, check: Callable[[_Result], None]
) -> _Result | None:
    """None if there is no such entry, or one that cannot be used."""
    if not isinstance(text, str):
        return None
    try:
        value: _Result = from_json(kind, json.loads(text))
        check(value)
    except (ValueError, RecursionError):
        return None
    return value


def check_costs(costs: MeasuredCosts) -> None:
    """Raise ValueError, with the path of the field, for values that no measurement
    gives.

    The engine and the estimates divide by times and take roots of acceptance rates. So
    times are positive and finite, and no more tokens are accepted than were drafted.
    """
    _check_number("t1_ms", costs.t1_ms, _PASS_MS)
    for width, cost in costs.curve.items():
        name = f"curve: {width}"
        _check_number(name, _parse_width(name, width), _WIDTH)
        _check_number(name, cost, _COST_RATIO)
    if costs.c is not None:
        _check_number("c", costs.c, _COST_RATIO)
    if costs.threads is not None:
        _check_number("threads", costs.threads, _THREADS)
    if costs.threads_batch is not None:
        _check_number("threads_batch", costs.threads_batch, _THREADS)
    if costs.other_load is not None:
        _check_number("other_load", costs.other_load, _LOAD_SHARE)
    for name, saved in costs.survival.items():
        try:
            _check_pair_stats(from_json(SavedPairStats, saved))
        except ValueError as error:
            raise ValueError(f"survival: {name}: {error}") from error


def _check_pair_stats(stats: SavedPairStats) -> None:
    for table, counts in (
        ("model", stats.model),
        ("lookup", stats.lookup),
        ("place", stats.place),
    ):
        for bucket, (accepted, drafted) in counts.items():
            name = f"{table}: {bucket}"
            _check_number(name, drafted, _COUNT)
            _check_number(name, accepted, ValueRange(least=0, most=drafted))
    gains = stats.gains
    _check_number("gains: gain", gains.gain, _GAIN)
    _check_number("gains: rounds", gains.rounds, _ROUNDS)
    _check_number("gains: interval", gains.interval, _INTERVAL)
    _check_number("gains: since", gains.since, _ROUNDS)
    if gains.reading is not None:
        _check_number("gains: reading", gains.reading, _READING)


def check_reads(reads: PairReads) -> None:
    """Raise ValueError, with the path of the field, for sizes that no model has."""
    _check_number("target: read", reads.target.read, _BYTES)
    if reads.draft is not None:
        _check_number("draft: read", reads.draft.read, _BYTES)


def check_memory(memory: MemoryMeasurement) -> None:
    """Raise ValueError, with the path of the field, for sizes that no device has."""
    for name, sizes in (("predicted", memory.predicted), ("used", memory.used)):
        for device, size in sizes.items():
            _check_number(f"{name}: {device}", size, _BYTES)


def _parse_width(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{name}: not a number of tokens")
    return int(text)


def _check_number(name: str, value: float, allowed: ValueRange) -> None:
    """Raises ValueError for NaN, too, which no comparison holds for."""
    if not allowed.least <= value <= allowed.most:
        raise ValueError(
            f"{name}: {value!r} is not from {allowed.least} to {allowed.most}"
        )


def find_files(key: str) -> tuple[str, ...]:
    """The paths of a measured pair, target first; none if a file has changed since."""
    with suppress(ValueError, TypeError, KeyError, OSError, RecursionError):
        files = json.loads(key)["files"]
        paths = tuple(str(path) for path, *_ in files)
        return paths if files == [_file_identity(path) for path in paths] else ()
    return ()


def make_key(load: LoadCommand) -> str:
    """Everything measurements depend on: files, machine, devices, engine build,
    settings.

    Raises OSError if a file is missing.
    """

    def cost_settings(settings: ContextSettings) -> dict[str, Any]:
        """Without n_ctx: the cost of a pass does not depend on the allocated context."""
        left_out = (
            {"n_ctx"} if settings.workers else {"n_ctx", "workers", "output_layer"}
        )
        return {
            name: value
            for name, value in to_builtins(settings).items()
            if name not in left_out
        }

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
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        parts = json.loads(key)
        return all(
            parts.get(name) == environment.get(name) for name in {"gpu", *environment}
        )
    return False


def _file_identity(path: str) -> list[Any]:
    stat = Path(path).stat()
    return [path, stat.st_size, stat.st_mtime_ns]
