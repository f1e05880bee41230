"""Whether the chats that are kept can be read; they are not changed here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from localspec import paths
from localspec.chat.history import tables
from localspec.doctor.finding import Finding
from localspec.units import gb

_LARGEST = 256 << 20
"""Bytes that are read through: about a second."""


def findings() -> Iterator[Finding]:
    path = paths.chats()
    if not path.exists():
        yield Finding("chats", "chats", "ok", "none are kept yet")
        return
    try:
        yield from _read(path)
    except tables.FAILURES as error:
        if not tables.damaged(error):
            raise
        what = f"the file of chats is damaged: {path}"
        fix = "localspec doctor --fix saves what can be read; the old file is kept aside"
        yield Finding("chats-damaged", "chats", "error", what, fix)
    yield from _aside(path)


def _read(path: Path) -> Iterator[Finding]:
    size = path.stat().st_size
    with closing(tables.reading(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == tables.VERSION and size <= _LARGEST:
            tables.check(connection)
        (n,) = connection.execute("SELECT count(*) FROM chats").fetchone()
    kept = f"{n} kept, {gb(size)}" if n else "none are kept yet"
    yield Finding("chats", "chats", "ok", kept)
    if version > tables.VERSION:
        what = "a newer localspec wrote the chats: they can be read, and no more"
        yield Finding("chats-newer", "chats", "warning", what, "Update localspec")


def _aside(path: Path) -> Iterator[Finding]:
    """Damaged files that were mended: as large as they were."""
    kept = sorted(path.parent.glob(f"{path.name}.corrupt-*"))
    if kept:
        size = gb(sum(one.stat().st_size for one in kept))
        what = f"{len(kept)} damaged files of chats are kept aside, {size}: {path.parent}"
        yield Finding("chats-aside", "chats", "ok", what)
