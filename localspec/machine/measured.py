"""What this machine has shown: one SQLite file, written by the parent only.

It is a cache of measurements: where it cannot be read or written, everything runs without it.
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

from localspec.protocol.wire import ContextSettings, Load, Measured

VERSION = 2
"""Of the tables; a file of a later version is left alone.  1 had no table but `measured`."""

_TABLES = (
    "measured (key TEXT PRIMARY KEY, said TEXT NOT NULL, at REAL NOT NULL)",
    "about (key TEXT PRIMARY KEY, said TEXT NOT NULL, at REAL NOT NULL)",
    "memory (key TEXT PRIMARY KEY, said TEXT NOT NULL, at REAL NOT NULL)",
)
_ALL = """
SELECT measured.key, measured.said, measured.at, about.said, memory.said, memory.at
FROM measured LEFT JOIN about USING (key) LEFT JOIN memory USING (key)
UNION ALL
SELECT memory.key, NULL, NULL, NULL, memory.said, memory.at
FROM memory WHERE key NOT IN (SELECT key FROM measured)
"""
_PATIENCE = 1.0
"""Seconds to wait for another process that writes."""

_Kept = TypeVar("_Kept")


@dataclass(frozen=True, slots=True)
class Part:
    """What one model of a measured pair reads, and from where."""

    read: int
    """Bytes of weights for a token."""
    devices: tuple[str, ...]
    family: str
    """The type of most of its weights: Q4_K."""
    moe: bool = False


@dataclass(frozen=True, slots=True)
class About:
    """What a pair's costs depend on, so that other pairs can be priced by them."""

    target: Part
    draft: Part | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by device: foretold before a load, and found after it."""

    predicted: Mapping[str, int]
    used: Mapping[str, int]
    at: float = 0.0
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Shown:
    """All that is kept of one pair with its settings."""

    key: str
    measured: Measured | None
    about: About | None
    memory: Memory | None
    at: float = 0.0
    """When it was measured."""


class Store:
    """Costs and survival by pair, machine, engine build and settings."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, key: str) -> Measured | None:
        """What was kept, or None."""
        return self._read("measured", key, lambda said, _: _measured(said))

    def memory(self, key: str) -> Memory | None:
        """What the last load took, or None."""
        return self._read("memory", key, _memory)

    def all(self) -> tuple[Shown, ...]:
        """What this machine has shown with this engine, the latest first."""
        try:
            with self._open() as base:
                rows = base.execute(_ALL).fetchall()
        except (sqlite3.Error, OSError):
            return ()
        here = _here()
        found = [_shown(row) for row in rows if _is_from(row[0], here)]
        return tuple(sorted(found, key=lambda one: one.at, reverse=True))

    def write(self, key: str, measured: Measured, about: About | None = None) -> bool:
        """Keep it; False where that cannot be done.  Without `about` what is known stays."""
        rows = {"measured": asdict(measured)}
        if about is not None:
            rows["about"] = asdict(about)
        return self._write(key, rows)

    def write_memory(self, key: str, memory: Memory) -> bool:
        """Keep what a load took; False where that cannot be done."""
        said = {"predicted": dict(memory.predicted), "used": dict(memory.used)}
        return self._write(key, {"memory": said})

    # --- the file -----------------------------------------------------------------------

    def _read(self, table: str, key: str, made: Callable[[str, float], _Kept]) -> _Kept | None:
        try:
            with self._open() as base:
                row = base.execute(f"SELECT said, at FROM {table} WHERE key = ?", (key,)).fetchone()
        except (sqlite3.Error, OSError):
            return None
        return None if row is None else made(*row)

    def _write(self, key: str, rows: Mapping[str, Any]) -> bool:
        try:
            with self._open() as base, base:
                for table, said in rows.items():
                    base.execute(
                        f"INSERT INTO {table} VALUES (?, ?, ?) ON CONFLICT (key) "
                        "DO UPDATE SET said = excluded.said, at = excluded.at",
                        (key, json.dumps(said, separators=(",", ":")), time.time()),
                    )
        except (sqlite3.Error, OSError):
            return False
        return True

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            base = self._connected()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # in use, a full disk
                raise
            self._path.replace(self._path.with_suffix(".damaged"))
            base = self._connected()
        with closing(base):
            yield base

    def _connected(self) -> sqlite3.Connection:
        base = sqlite3.connect(self._path, timeout=_PATIENCE)
        try:
            (version,) = base.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise sqlite3.OperationalError("written by a newer localspec")
            if version < VERSION:
                for table in _TABLES:
                    base.execute(f"CREATE TABLE IF NOT EXISTS {table} WITHOUT ROWID")
                base.execute(f"PRAGMA user_version = {VERSION}")
        except BaseException:
            base.close()
            raise
        return base


# --- rows -------------------------------------------------------------------------------


def _measured(said: str | None) -> Measured | None:
    try:
        return None if said is None else Measured(**json.loads(said))
    except (ValueError, TypeError):
        return None


def _about(said: str | None) -> About | None:
    try:
        body = json.loads(said or "null")
        target, draft = _part(body["target"]), body["draft"]
        return About(target, None if draft is None else _part(draft))
    except (ValueError, TypeError, KeyError):
        return None


def _part(body: Any) -> Part:
    return Part(
        read=int(body["read"]),
        devices=tuple(map(str, body["devices"])),
        family=str(body["family"]),
        moe=bool(body["moe"]),
    )


def _memory(said: str | None, at: float | None) -> Memory | None:
    try:
        body = json.loads(said or "null")
        sides = (body["predicted"], body["used"])
        predicted, used = ({str(k): int(v) for k, v in side.items()} for side in sides)
        return Memory(predicted, used, at or 0.0)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _shown(row: tuple[Any, ...]) -> Shown:
    key, measured, at, about, memory, loaded = row
    return Shown(key, _measured(measured), _about(about), _memory(memory, loaded), at or 0.0)


# --- keys -------------------------------------------------------------------------------


def key(load: Load) -> str:
    """What measurements depend on: the files as they are, this machine, the engine, the settings.

    Raises OSError where a file is gone.
    """
    about: dict[str, Any] = {
        "files": [_file(path) for path in (load.target, load.draft) if path],
        **_here(),
        "target": _costing(load.target_settings),
        "draft": _costing(load.draft_settings) if load.draft else None,
        "draft_max": load.draft_max,
    }
    return json.dumps(about, sort_keys=True, separators=(",", ":"))


def _costing(settings: ContextSettings) -> dict[str, Any]:
    """What a pass costs does not depend on the size of the context that was set aside."""
    return {name: value for name, value in asdict(settings).items() if name != "n_ctx"}


def _here() -> dict[str, Any]:
    return {
        "machine": [platform.node(), platform.machine(), platform.processor()],
        "engine": metadata.version("llama-cpp-python"),
    }


def _is_from(name: str, here: Mapping[str, Any]) -> bool:
    try:
        about = json.loads(name)
        return all(about[part] == value for part, value in here.items())
    except (ValueError, TypeError, KeyError):
        return False


def _file(path: str) -> list[Any]:
    about = Path(path).stat()
    return [path, about.st_size, about.st_mtime_ns]
