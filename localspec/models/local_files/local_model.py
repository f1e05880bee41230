"""A model file on this computer, and safe scanning of folders for such files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from localspec.lazy_dataclass import dataclass
from localspec.sanitize import sanitize

ModelOrigin = Literal["hub", "folder", "package", "lmstudio", "ollama", "llama.cpp", "opened"]
ORIGIN_TITLES = {
    "hub": "downloaded",
    "folder": "models folder",
    "package": "Python package",
    "lmstudio": "LM Studio",
    "ollama": "Ollama",
    "llama.cpp": "llama.cpp",
    "opened": "opened by path",
}
_MAX_ENTRIES = 20_000  # Directory entries scanned below one folder.


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model file; None is unknown."""

    path: Path
    size: int
    repo: str | None
    file: str  # The name in its repository, else in the application that it belongs to.
    revision: str | None
    sha256: str | None  # The expected checksum.
    verified: bool  # Whether the contents were hashed and match `sha256`.
    origin: ModelOrigin
    removable: bool
    parts: tuple[Path, ...] = ()
    """All splits of a split model, `path` first; `size` is their total."""

    @property
    def own_name(self) -> str:
        """That of the file, or in Ollama, whose files are named by their checksums."""
        return self.file if self.origin == "ollama" else self.path.name.removesuffix(".gguf")


def describe_file(
    path: Path,
    file_stat: GgufFileStat,
    origin: ModelOrigin,
    *,
    actual: str | None,
    expected: str | None = None,
) -> LocalModel:
    """A file of no repository, with its recorded and its expected checksum."""
    sha256 = expected or actual
    return LocalModel(
        path=path,
        size=file_stat.size,
        repo=None,
        file=sanitize(path.name, multiline=False),
        revision=None,
        sha256=sha256,
        verified=actual is not None and actual == sha256,
        origin=origin,
        removable=origin in ("hub", "folder") and file_stat.is_owned,
    )


@dataclass(frozen=True, slots=True)
class GgufFileStat:
    """The status of a regular file, links followed."""

    real_path: Path
    size: int
    mtime_ns: int
    is_owned: bool


def stat_gguf(path: Path, within: Path | None = None) -> GgufFileStat | None:
    """None unless `path` is a readable GGUF inside `within`, or a link to one.

    None for a link that leads out of `within`, a FIFO, a device, an empty file and a loop of
    links.  Without `within` a link may lead anywhere: users link their large files.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
        if within and not real.is_relative_to(os.path.realpath(within)):
            return None
        if not stat.S_ISREG(real.stat().st_mode):  # before opening: a FIFO would block
            return None
        handle = os.open(real, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            status, magic = os.fstat(handle), os.read(handle, 4)
        finally:
            os.close(handle)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode) or magic != b"GGUF":
        return None
    is_owned = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return GgufFileStat(real, status.st_size, status.st_mtime_ns, is_owned)


def walk_files(folder: Path, depth: int) -> Iterator[Path]:
    """The files up to `depth` levels below a folder, sorted by name.

    Links to folders are not followed; the walk stops after `_MAX_ENTRIES` entries.
    """
    entries_left = _MAX_ENTRIES
    pending = [(folder, depth)]
    while pending and entries_left > 0:
        current, levels = pending.pop()
        subfolders = []
        for entry in scan_folder(current):
            entries_left -= 1
            if entries_left <= 0:
                return
            if entry.is_dir(follow_symlinks=False):
                subfolders.append((Path(entry.path), levels - 1))
            else:
                yield Path(entry.path)
        pending += reversed(subfolders) if levels > 0 else ()


def scan_folder(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder, sorted by name; empty if it cannot be read."""
    entries: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as scan:
            for entry in scan:
                entries.append(entry)
                if len(entries) >= _MAX_ENTRIES:
                    break
    except OSError:
        return []
    return sorted(entries, key=lambda entry: entry.name)
