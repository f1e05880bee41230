"""Measurements of pairs on this machine: costs, acceptance and memory.

They are in one SQLite file, which only the parent process writes. It is a cache:
everything works without it. A row with values that no measurement gives is read as if
it were missing, so that it is measured again; neither this process nor the engine ever
computes with it.
"""

from __future__ import annotations

import json
import platform
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, to_builtins
from msgspec.structs import replace

from localspec import sqlite_damage
from localspec.machine import device_detection, installed_llama_cpp
from localspec.machine.cpu_and_ram import is_busy, read_cpu_name
from localspec.protocol.json_values import from_json
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

_Stored = TypeVar("_Stored")


def is_trusted(costs: MeasuredCosts) -> bool:
    """Whether the computer was quiet while the costs were measured.

    Very short answers and earlier versions do not tell.
    """
    return costs.other_load is not None and not is_busy(costs.other_load)


ByteCount = Annotated[int, Meta(ge=0, le=2**60)]


class ModelReads(Struct, frozen=True):
    """What one model of a measured pair reads. Field names are stored as JSON keys."""

    read: ByteCount  # Of weights per token.
    devices: tuple[str, ...]
    family: str  # The most common quantisation, such as Q4_K.
    moe: bool = False


class PairReads(Struct, frozen=True):
    """What a pair's costs depend on, used to estimate other pairs."""

    target: ModelReads
    draft: ModelReads | None = None


class MemoryMeasurement(Struct, frozen=True):
    """Bytes by device, estimated before a load and measured after it."""

    predicted: Mapping[str, ByteCount]
    used: Mapping[str, ByteCount]


class PairMeasurement(Struct, frozen=True):
    """Everything stored for one pair with its settings."""

    key: str
    measured: MeasuredCosts | None
    reads: PairReads | None
    memory: MemoryMeasurement | None


# The ranges of what a measurement can give; both ends belong to them. NaN is in none.
PassMs = Annotated[float, Meta(ge=1e-2, le=1e6)]
RowMs = Annotated[float, Meta(ge=0, le=1e6)]
"""No host launches a pass in ten microseconds, or waits 17 minutes for it."""
CostRatio = Annotated[float, Meta(ge=1e-5, le=1e4)]
"""The cost of a pass in passes of one token. It is divided by, so it is never zero."""
PassWidth = Annotated[int, Meta(ge=1, le=1024)]
"""Tokens of a pass in a verify curve: far more than are drafted."""
ThreadCount = Annotated[int, Meta(ge=1, le=512)]
"""Up to ggml's GGML_MAX_N_THREADS."""
LoadShare = Annotated[float, Meta(ge=0, le=1)]
DecayedCount = Annotated[float, Meta(ge=0, le=1e6)]
"""Draft tokens that an acceptance rate remembers. Older ones decay."""
TokenGain = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""Tokens that rounds gained beyond their plans, in all.

They lose that many if the computer slept during one.
"""
ReadingCost = Annotated[float, Meta(ge=0, le=1e12)]
"""Draft passes that one token of text costs to read."""
RoundCount = Annotated[int, Meta(ge=0, le=2**53)]
TokenShare = Annotated[float, Meta(ge=0, le=1)]
AnswerLength = Annotated[float, Meta(ge=0, le=1e9)]
JudgedTokens = tuple[DecayedCount, DecayedCount]
"""Accepted and drafted tokens."""


class SavedBeliefs(Struct, frozen=True):
    """The form of `PairBeliefs.saved`, which is stored in `MeasuredCosts.survival`.

    What earlier versions stored has other names, so that a pair begins anew.
    """

    drafts: tuple[JudgedTokens, ...] = ()
    """By confidence."""
    confidences: tuple[DecayedCount, ...] = ()
    """How often each confidence was seen."""
    copy_rates: tuple[TokenShare, ...] = ()
    """Right shares of copied tokens, by match length."""
    error: TokenGain = 0.0
    error_rounds: DecayedCount = 0.0
    judged: RoundCount = 0  # Draft tokens.
    since: RoundCount = 0  # Tokens since the last draft.
    own: TokenShare = 1.0
    length: AnswerLength | None = None
    answers: RoundCount = 0
    reading: ReadingCost | None = None


class _PictureRanges(Struct, frozen=True):
    """The fields of `PictureSpeed`."""

    projector: str
    row_ms: RowMs


class _CostRanges(Struct, frozen=True):
    """The fields of `MeasuredCosts` with what a measurement can give.

    The engine may report other costs, of a clock that jumped; those are not used again.
    """

    t1_ms: PassMs
    curve: dict[PassWidth, CostRatio]
    c: CostRatio | None
    threads: ThreadCount | None
    threads_batch: ThreadCount | None
    survival: dict[str, SavedBeliefs]
    other_load: LoadShare | None
    pictures: _PictureRanges | None


class MeasurementStore:
    """Reads and writes measurements by key (see `make_key`); errors never raise."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_costs(self, key: str) -> MeasuredCosts | None:
        rows = self._select("SELECT said FROM measured WHERE key = ?", key)
        if not rows:
            return None
        (text,) = rows[0]
        costs = _parse_costs(text)
        if costs is not None and is_busy(costs.other_load):
            # What passes cost beside other programs says nothing of the next run. The
            # pair's acceptance rates hold all the same.
            return replace(costs, curve={}, c=None)
        return costs

    def read_all(self) -> tuple[PairMeasurement, ...]:
        """Those with this machine's devices and engine build, the latest first."""
        environment = _environment()
        found = []
        for key, costs, reads, memory, _ in self._select(_SELECT_ALL):
            if not _is_from_environment(key, environment):
                continue
            found.append(
                PairMeasurement(
                    key,
                    measured=_parse_costs(costs),
                    reads=_parse(PairReads, reads),
                    memory=_parse(MemoryMeasurement, memory),
                )
            )
        return tuple(found)

    def write_costs(
        self, key: str, measured: MeasuredCosts, reads: PairReads | None = None
    ) -> bool:
        """Return whether the costs can be read again.

        Without `reads` the stored ones remain.
        """
        rows = {"measured": to_builtins(measured)}
        if reads is not None:
            rows["about"] = to_builtins(reads)
        return self._write(key, rows)

    def write_memory(self, key: str, memory: MemoryMeasurement) -> bool:
        """Return whether the memory can be read again."""
        return self._write(key, {"memory": to_builtins(memory)})

    def _select(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []

        def select(db: sqlite3.Connection) -> None:
            found.extend(db.execute(query, values).fetchall())

        self._run(select)
        return found

    def _write(self, key: str, rows: Mapping[str, Any]) -> bool:
        texts = {
            table: json.dumps(body, separators=(",", ":"))
            for table, body in rows.items()
        }

        def insert(db: sqlite3.Connection) -> None:
            """Insert the rows, and raise sqlite3.DatabaseError if one is lost.

            SQLite does not check where a table begins. If damage lets two tables begin
            on one page, the row of one replaces the other's.
            """
            for table, text in texts.items():
                db.execute(
                    f"INSERT INTO {table} VALUES (?, ?, ?) ON CONFLICT (key) "
                    "DO UPDATE SET said = excluded.said, at = excluded.at",
                    (key, text, time.time()),
                )

            for table, text in texts.items():
                query = f"SELECT said FROM {table} WHERE key = ?"
                if db.execute(query, (key,)).fetchone() != (text,):
                    raise sqlite_damage.damage_error(f"{table} lost a row")

        return self._run(insert)

    def _run(self, work: Callable[[sqlite3.Connection], None]) -> bool:
        """Run `work` as one transaction; return whether it ran.

        A damaged file is set aside, and `work` runs on an empty one.
        """
        try:
            self._run_once(work)
        except (OSError, *sqlite_damage.DATABASE_ERRORS) as error:
            is_damage = sqlite_damage.is_damage(error, self._path)
            if not (is_damage and self._set_aside()):
                return False
        else:
            return True
        try:
            self._run_once(work)
        except (OSError, *sqlite_damage.DATABASE_ERRORS):
            return False
        return True

    def _run_once(self, work: Callable[[sqlite3.Connection], None]) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(self._connect()) as db, db:
            work(db)

    def _set_aside(self) -> bool:
        try:
            self._path.replace(self._path.with_suffix(".damaged"))
        except OSError:
            return False
        return True

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


def _parse(kind: type[_Stored], text: object) -> _Stored | None:
    """None if there is no such entry, or one that cannot be used."""
    if not isinstance(text, str):
        return None
    try:
        return from_json(kind, json.loads(text))
    except (ValueError, RecursionError):
        return None


def _parse_costs(text: object) -> MeasuredCosts | None:
    """As `_parse`; None also for costs that no measurement gives."""
    costs = _parse(MeasuredCosts, text)
    if costs is None:
        return None
    try:
        check_costs(costs)
    except ValueError:
        return None
    return costs


def check_costs(costs: MeasuredCosts) -> None:
    """Raise ValueError for values that no measurement gives, with the field's path.

    The engine and the estimates divide by times and take roots of acceptance rates. So
    times are positive and finite, and no more tokens are accepted than were drafted.
    """
    ranges = from_json(_CostRanges, to_builtins(costs))
    for name, beliefs in ranges.survival.items():
        for bucket, (right, judged) in enumerate(beliefs.drafts):
            if right > judged:
                raise ValueError(
                    f"survival.{name}.drafts[{bucket}]: {right} tokens are right "
                    f"of {judged}"
                )


def find_files(key: str) -> tuple[str, ...]:
    """The paths of a measured pair, target first; none if a file has changed since."""
    with suppress(ValueError, TypeError, KeyError, OSError, RecursionError):
        files = json.loads(key)["files"]
        paths = tuple(str(path) for path, *_ in files)
        if files == [_file_identity(path) for path in paths]:
            return paths
    return ()


def make_key(load: LoadCommand) -> str:
    """Everything that measurements depend on, as JSON.

    That is files, machine, devices, engine build and settings. Raises OSError if a file
    is missing.
    """
    files = [_file_identity(load.target)]
    draft_settings = None
    if load.draft:
        files.append(_file_identity(load.draft))
        draft_settings = _settings_for_key(load.draft_settings)
    parts: dict[str, Any] = {
        "files": files,
        **_environment(),
        "target": _settings_for_key(load.target_settings),
        "draft": draft_settings,
        "draft_max": load.draft_max,
        "snapshots": load.snapshots,
    }
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))


def _settings_for_key(settings: ContextSettings) -> dict[str, Any]:
    """The settings on which costs depend.

    Those are not n_ctx, because the cost of a pass does not depend on the allocated
    context, and not the options of other computers if there are none.
    """
    left_out = {"n_ctx"}
    if not settings.remote_hosts:
        left_out |= {"workers", "output_layer"}
    fields = to_builtins(settings)
    return {name: value for name, value in fields.items() if name not in left_out}


def _environment() -> dict[str, Any]:
    """What measurements of all pairs depend on.

    A build for the CPU only has no "gpu", as in files of earlier versions.
    """
    environment: dict[str, Any] = {
        "machine": [platform.node(), platform.machine(), read_cpu_name()],
        "engine": installed_llama_cpp.version(),
    }
    backends = installed_llama_cpp.find_gpu_backends()
    if backends:
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
        for name in {"gpu", *environment}:
            if parts.get(name) != environment.get(name):
                return False
        return True
    return False


def _file_identity(path: str) -> list[Any]:
    stat = Path(path).stat()
    return [path, stat.st_size, stat.st_mtime_ns]
