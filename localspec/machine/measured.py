"""What this machine has shown: one SQLite file, written by the parent only.

It is a cache of measurements: where it cannot be read or written, everything runs without it.
"""

from __future__ import annotations

import json
import platform
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from localspec.protocol.wire import Load, Measured

VERSION = 1
"""Of the tables; a file of a later version is left alone."""

_TABLE = """
CREATE TABLE IF NOT EXISTS measured (
    key TEXT PRIMARY KEY,
    said TEXT NOT NULL,
    at REAL NOT NULL
) WITHOUT ROWID
"""
_PATIENCE = 1.0
"""Seconds to wait for another process that writes."""


class Store:
    """Costs and survival by pair, machine, engine build and settings."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, key: str) -> Measured | None:
        """What was kept, or None."""
        try:
            with self._open() as base:
                row = base.execute("SELECT said FROM measured WHERE key = ?", (key,)).fetchone()
            return None if row is None else Measured(**json.loads(row[0]))
        except (sqlite3.Error, OSError, ValueError, TypeError):
            return None

    def write(self, key: str, measured: Measured) -> bool:
        """Keep it; False where that cannot be done."""
        said = json.dumps(asdict(measured), separators=(",", ":"))
        try:
            with self._open() as base, base:
                base.execute(
                    "INSERT INTO measured VALUES (?, ?, ?) ON CONFLICT (key) "
                    "DO UPDATE SET said = excluded.said, at = excluded.at",
                    (key, said, time.time()),
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
                base.execute(_TABLE)
                base.execute(f"PRAGMA user_version = {VERSION}")
        except BaseException:
            base.close()
            raise
        return base


def key(load: Load) -> str:
    """What measurements depend on: the files as they are, this machine, the engine, the settings.

    Raises OSError where a file is gone.
    """
    about: dict[str, Any] = {
        "files": [_file(path) for path in (load.target, load.draft) if path],
        "machine": [platform.node(), platform.machine(), platform.processor()],
        "engine": metadata.version("llama-cpp-python"),
        "target": asdict(load.target_settings),
        "draft": asdict(load.draft_settings) if load.draft else None,
        "draft_max": load.draft_max,
    }
    return json.dumps(about, sort_keys=True, separators=(",", ":"))


def _file(path: str) -> list[Any]:
    about = Path(path).stat()
    return [path, about.st_size, about.st_mtime_ns]
