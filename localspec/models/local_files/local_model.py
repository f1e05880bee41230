"""One model file on this computer, and a careful look at what claims to be one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ModelOrigin = Literal["hub", "folder", "lmstudio", "ollama", "llama.cpp"]
_MAX_ENTRIES = 20_000
"""Directory entries looked at below one folder."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model file; what is not known of it is None."""

    path: Path
    size: int
    repo: str | None
    file: str
    """In its repository; else how its program calls it."""
    revision: str | None
    sha256: str | None
    """What its contents should be; whether they are, `verified` says."""
    verified: bool
    origin: ModelOrigin
    removable: bool
    parts: tuple[Path, ...] = ()
    """All files of a model in parts, `path` first; `size` counts them all."""


@dataclass(frozen=True, slots=True)
class GgufFileStat:
    """A regular file as it lies on the disk, links followed."""

    real_path: Path
    size: int
    mtime_ns: int
    is_owned: bool


def stat_gguf(path: Path, within: Path | None = None) -> GgufFileStat | None:
    """None unless `path` is a readable GGUF, or a link to one that lies inside `within`.

    A link that leads out, a FIFO, a device, an empty file or a loop of links is passed over.
    Without `within` a link may lead anywhere: people link their large files, and what is read is
    a GGUF that they could name as well.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
        if within and not real.is_relative_to(os.path.realpath(within)):
            return None
        if not stat.S_ISREG(real.stat().st_mode):  # before opening: a FIFO would wait for ever
            return None
        handle = os.open(real, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            about, magic = os.fstat(handle), os.read(handle, 4)
        finally:
            os.close(handle)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(about.st_mode) or magic != b"GGUF":
        return None
    mine = not hasattr(os, "geteuid") or about.st_uid == os.geteuid()
    return GgufFileStat(real, about.st_size, about.st_mtime_ns, mine)


def walk_files(folder: Path, depth: int) -> Iterator[Path]:
    """The files below a folder, by name; links to folders are not entered, and a folder that
    has no end is left after many entries."""
    left = _MAX_ENTRIES
    waiting = [(folder, depth)]
    while waiting and left > 0:
        here, deeper = waiting.pop()
        inside = []
        for entry in scan_folder(here):
            left -= 1
            if left <= 0:
                return
            if entry.is_dir(follow_symlinks=False):
                inside.append((Path(entry.path), deeper - 1))
            else:
                yield Path(entry.path)
        waiting += reversed(inside) if deeper > 0 else ()


def scan_folder(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, by name; nothing where it cannot be read."""
    found: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as inside:
            for entry in inside:
                found.append(entry)
                if len(found) >= _MAX_ENTRIES:
                    break
    except OSError:
        return []
    return sorted(found, key=lambda entry: entry.name)
