"""A model file here, its recorded checksum, and safe scanning of folders for files.

Checksums are recorded, so that files are not hashed at every start. A file that was
modified since counts as not verified. If the record cannot be read or written,
everything works without it.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from localspec import data_files
from localspec.paths import DataFile
from localspec.sanitize import sanitize

ModelOrigin = Literal[
    "hub", "folder", "converted", "package", "lmstudio", "ollama", "llama.cpp", "opened"
]
ORIGIN_TITLES = {
    "hub": "downloaded",
    "folder": "models folder",
    "converted": "converted here",
    "package": "Python package",
    "lmstudio": "LM Studio",
    "ollama": "Ollama",
    "llama.cpp": "llama.cpp",
    "opened": "opened by path",
}
_MAX_ENTRIES = 20_000
"""Directory entries scanned below one folder."""
_BLOB_NAME = re.compile(r"(?:sha256-)?([0-9a-f]{64})")
"""Files of the hub's cache and of Ollama, named by their checksums."""

ChecksumRecord = dict[str, tuple[int, int, str]]
"""Size, mtime in ns and sha256 by real path."""


class LocalModel(Struct, frozen=True):
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
        """The file's, or Ollama's, whose files are named by their checksums."""
        if self.origin == "ollama":
            return self.file
        return self.path.name.removesuffix(".gguf")


def describe_file(
    path: Path, record: ChecksumRecord, origin: ModelOrigin, *within: Path
) -> LocalModel | None:
    """A file of no repository, with its expected checksum and its recorded one.

    A blob's name is its expected checksum. None unless the file is a GGUF inside one of
    `within`, as `stat_gguf` says.
    """
    file_stat = stat_gguf(path, *within)
    if file_stat is None:
        return None
    actual = lookup_checksum(record, file_stat)
    blob = _BLOB_NAME.fullmatch(file_stat.real_path.name)
    sha256 = blob[1] if blob else actual
    is_ours = origin in ("hub", "folder", "converted")
    return LocalModel(
        path=path,
        size=file_stat.size,
        repo=None,
        file=sanitize(path.name, multiline=False),
        revision=None,
        sha256=sha256,
        verified=actual is not None and actual == sha256,
        origin=origin,
        removable=is_ours and file_stat.is_owned,
    )


class GgufFileStat(NamedTuple):
    """The status of a regular file, links followed."""

    real_path: Path
    size: int
    mtime_ns: int
    is_owned: bool


def stat_gguf(path: Path, *within: Path) -> GgufFileStat | None:
    """The status of a readable GGUF inside one of the folders, or of a link to one.

    None for anything else: a link that leads out of them, a FIFO, a device, an empty
    file, a loop of links. Without `within` a link may lead anywhere: users link their
    large files.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
        if within and not _is_inside(real, within):
            return None
        if not stat.S_ISREG(real.stat().st_mode):  # before opening: a FIFO would block
            return None
        handle = os.open(real, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            status = os.fstat(handle)
            magic = os.read(handle, 4)
        finally:
            os.close(handle)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode) or magic != b"GGUF":
        return None
    is_owned = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return GgufFileStat(
        real, size=status.st_size, mtime_ns=status.st_mtime_ns, is_owned=is_owned
    )


def _is_inside(real_path: Path, folders: Sequence[Path]) -> bool:
    return any(real_path.is_relative_to(os.path.realpath(top)) for top in folders)


def walk_files(folder: Path, depth: int) -> Iterator[Path]:
    """The files up to `depth` levels below a folder, sorted by name.

    Links to folders are followed, each folder once, but not to one that holds `folder`
    itself. The walk stops after `_MAX_ENTRIES` entries.
    """
    entries_left = _MAX_ENTRIES
    top = Path(os.path.realpath(folder))
    pending = [(folder, depth)]
    seen: set[str] = set()
    while pending:
        current, levels = pending.pop()
        real = os.path.realpath(current)
        is_first = not seen
        holds_top = top.is_relative_to(real) and not is_first
        if real in seen or holds_top:
            continue
        seen.add(real)
        subfolders = []
        for entry in scan_folder(current):
            entries_left -= 1
            if entries_left <= 0:
                return
            if _is_folder(entry):
                subfolders.append((Path(entry.path), levels - 1))
            else:
                yield Path(entry.path)
        if levels > 0:
            pending.extend(reversed(subfolders))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a loop of links, or a folder that may not be entered
        return False


def scan_folder(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder, sorted by name; empty if it cannot be read."""
    try:
        with os.scandir(folder) as scan:
            entries = itertools.islice(scan, _MAX_ENTRIES)
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


# --- checksums


def load_checksums() -> ChecksumRecord:
    """Without damaged entries; empty if the file is missing."""
    return data_files.read_table(DataFile.CHECKSUMS, tuple[int, int, str])


def lookup_checksum(record: ChecksumRecord, file_stat: GgufFileStat) -> str | None:
    """The recorded sha256, unless the file was modified since."""
    entry = record.get(str(file_stat.real_path))
    if entry is None:
        return None
    size, mtime_ns, sha256 = entry
    is_unmodified = size == file_stat.size and mtime_ns == file_stat.mtime_ns
    return sha256 if is_unmodified else None


def verify_checksum(
    path: Path, sha256: str, on_bytes_read: Callable[[int], None]
) -> bool:
    """Whether a file has this checksum; reads it unless its checksum is recorded.

    `on_bytes_read` receives the bytes read so far; an exception from it stops the
    reading.
    """
    file_stat = stat_gguf(path)
    if file_stat is None:
        return False
    if lookup_checksum(load_checksums(), file_stat) == sha256:
        return True
    import hashlib  # noqa: PLC0415  loads OpenSSL

    hasher = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            hasher.update(chunk)
            done += len(chunk)
            on_bytes_read(done)
    if hasher.hexdigest() != sha256:
        return False
    save_checksum(path, sha256)
    return True


def save_checksum(path: Path, sha256: str) -> None:
    """Record the checksum of a file that was just hashed."""
    file_stat = stat_gguf(path)
    if file_stat is None:
        return
    record = load_checksums()
    record[str(file_stat.real_path)] = (file_stat.size, file_stat.mtime_ns, sha256)
    data_files.write_json(DataFile.CHECKSUMS, record)


def discard_checksum(real_path: Path) -> None:
    record = load_checksums()
    if str(real_path) in record:
        del record[str(real_path)]
        data_files.write_json(DataFile.CHECKSUMS, record)
