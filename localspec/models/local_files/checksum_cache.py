"""Cache of file checksums, so that files are not hashed at every start.

A file that was modified since counts as not verified.  If the cache cannot be read or written,
everything works without it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from localspec import data_files
from localspec.models.local_files.local_model import GgufFileStat, stat_gguf

_FILE = "verified.json"
_CHUNK_BYTES = 1 << 20

ChecksumRecord = dict[str, tuple[int, int, str]]  # Size, mtime in ns and sha256 by real path.


def load() -> ChecksumRecord:
    try:
        return {
            path: (int(size), int(mtime_ns), str(sha256))
            for path, (size, mtime_ns, sha256) in data_files.read_json(_FILE).items()
        }
    except (AttributeError, TypeError, ValueError):  # missing or damaged
        return {}


def lookup(record: ChecksumRecord, file_stat: GgufFileStat) -> str | None:
    """The recorded sha256, unless the file was modified since."""
    entry = record.get(str(file_stat.real_path))
    return entry[2] if entry and entry[:2] == (file_stat.size, file_stat.mtime_ns) else None


def verify(path: Path, sha256: str, on_bytes_read: Callable[[int], None]) -> bool:
    """Whether a file has this checksum; reads it unless its checksum is recorded.

    `on_bytes_read` receives the bytes read so far; an exception from it stops the reading.
    """
    file_stat = stat_gguf(path)
    if file_stat is None:
        return False
    if lookup(load(), file_stat) == sha256:
        return True
    import hashlib  # noqa: PLC0415  loads OpenSSL

    hasher, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
            done += len(chunk)
            on_bytes_read(done)
    if hasher.hexdigest() != sha256:
        return False
    save(path, sha256)
    return True


def save(path: Path, sha256: str) -> None:
    """Record the checksum of a file that was just hashed."""
    if (file_stat := stat_gguf(path)) is not None:
        entry = (file_stat.size, file_stat.mtime_ns, sha256)
        data_files.write_json(_FILE, load() | {str(file_stat.real_path): entry})


def discard(real_path: Path) -> None:
    record = load()
    if record.pop(str(real_path), None):
        data_files.write_json(_FILE, record)
