"""A model file on this computer, its recorded checksum, and safe scanning of folders
for files.

Checksums are recorded, so that files are not hashed at every start. A file that was
modified since counts as not verified. If the record cannot be read or written,
everything works without it.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from localspec import data_files
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
_MAX_ENTRIES = 20_000  # Directory entries scanned below one folder.
_RECORD_FILE = "verified.json"
_BLOB_NAME = re.compile(r"(?:sha256-)?([0-9a-f]{64})")
"""Files of the hub's cache and of Ollama, named by their checksums."""

# Size, mtime in ns and sha256 by real path.
ChecksumRecord = dict[str, tuple[int, int, str]]


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
        """That of the file, or in Ollama, whose files are named by their checksums."""
        return (
            self.file
            if self.origin == "ollama"
            else self.path.name.removesuffix(".gguf")
        )


def describe_file(
    path: Path, record: ChecksumRecord, origin: ModelOrigin, *within: Path
) -> LocalModel | None:
    """A file of no repository, with its expected checksum, by its name, and its
    recorded one.

    None unless it is a GGUF inside one of `within`, as `stat_gguf` says.
    """
    if (file_stat := stat_gguf(path, *within)) is None:
        return None
    actual = lookup_checksum(record, file_stat)
    blob = _BLOB_NAME.fullmatch(file_stat.real_path.name)
    sha256 = blob[1] if blob else actual
    return LocalModel(
        path=path,
        size=file_stat.size,
        repo=None,
        file=sanitize(path.name, multiline=False),
        revision=None,
        sha256=sha256,
        verified=actual is not None and actual == sha256,
        origin=origin,
        removable=origin in ("hub", "folder", "converted") and file_stat.is_owned,
    )


class GgufFileStat(NamedTuple):
    """The status of a regular file, links followed."""

    real_path: Path
    size: int
    mtime_ns: int
    is_owned: bool


def stat_gguf(path: Path, *within: Path) -> GgufFileStat | None:
    """None unless `path` is a readable GGUF inside one of the folders, or a link to
    one.

    None for a link that leads out of them, a FIFO, a device, an empty file and a loop
    of links. Without `within` a link may lead anywhere: users link their large files.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
        if within and not any(
            real.is_relative_to(os.path.realpath(top)) for top in within
        ):
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

    Links to folders are followed, each folder once, but not to one that holds `folder` itself.  The
    walk stops after `_MAX_ENTRIES` entries.
    """
    entries_left, top = _MAX_ENTRIES, Path(os.path.realpath(folder))
    pending, seen = [(folder, depth)], set[str]()
    while pending:
        current, levels = pending.pop()
        subfolders = []
        real = os.path.realpath(current)
        if real in seen or (seen and top.is_relative_to(real)):
            continue
        seen.add(real)
        for entry in scan_folder(current):
            entries_left -= 1
            if entries_left <= 0:
                return
            if _is_folder(entry):
                subfolders.append((Path(entry.path), levels - 1))
            else:
                yield Path(entry.path)
        pending += reversed(subfolders) if levels > 0 else ()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a loop of links, or a folder that may not be entered
        return False


def scan_folder(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder, sorted by name; empty if it cannot be read."""
    try:
        with os.scandir(folder) as scan:
            return sorted(
                itertools.islice(scan, _MAX_ENTRIES), key=lambda entry: entry.name
            )
    except OSError:
        return []


# --- checksums


def load_checksums() -> ChecksumRecord:
    try:
        return {
            path: (int(size), int(mtime_ns), str(sha256))
            for path, (size, mtime_ns, sha256) in data_files.read_json(
                _RECORD_FILE
            ).items()
        }
    except (AttributeError, TypeError, ValueError):  # missing or damaged
        return {}


def lookup_checksum(record: ChecksumRecord, file_stat: GgufFileStat) -> str | None:
    """The recorded sha256, unless the file was modified since."""
    entry = record.get(str(file_stat.real_path))
    return (
        entry[2]
        if entry and entry[:2] == (file_stat.size, file_stat.mtime_ns)
        else None
    )


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

    hasher, done = hashlib.sha256(), 0
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
    if (file_stat := stat_gguf(path)) is not None:
        entry = (file_stat.size, file_stat.mtime_ns, sha256)
        data_files.write_json(
            _RECORD_FILE, load_checksums() | {str(file_stat.real_path): entry}
        )


def discard_checksum(real_path: Path) -> None:
    record = load_checksums()
    if record.pop(str(real_path), None):
        data_files.write_json(_RECORD_FILE, record)
