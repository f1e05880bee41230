"""Ghosts of models: a header's bytes and a hole where the weights would be.

llama.cpp lays out such a file in memory as it would the whole one, in a few milliseconds, because
there is no vocabulary to read either.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.machine.probe_process import ProbeError
from localspec.models import header as headers
from localspec.models.blueprint import data_size, skeleton
from localspec.models.header import Header


class Ghosts:
    """Those written so far, in a folder of their own that goes with them."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._known: dict[tuple[str, int, int], Path] = {}
        """By path, size and time of the last change."""

    def of_header(self, header: Header, folder: Path | None = None) -> Path:
        """Raises ProbeError where it cannot be written."""
        begins = skeleton(header)
        name = hashlib.blake2b(begins, digest_size=12).hexdigest()
        try:
            path = (folder or self._own_folder()) / f"{name}.gguf"
            if not path.exists():
                _write(path, begins, len(begins) + data_size(header))
        except (OSError, OverflowError) as error:
            raise ProbeError(f"no ghost of the model: {error}") from error
        return path

    def of_file(self, file: str) -> Path:
        """Of a local model, all its parts together.  Raises ProbeError."""
        path = Path(file)
        try:
            about = path.stat()
            key = (file, about.st_size, about.st_mtime_ns)
            if key not in self._known:
                self._known[key] = self.of_header(_whole(path))
        except OSError as error:
            raise ProbeError(f"{clean(path.name)}: {error.strerror}") from error
        except LocalspecError as error:
            raise ProbeError(error.message) from error
        return self._known[key]

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
        self._folder = None
        self._known.clear()

    def _own_folder(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(
                prefix="localspec-ghosts-", ignore_cleanup_errors=True
            )
        return Path(self._folder.name)


def _whole(path: Path) -> Header:
    """A local model's header, with the tensors of all its parts."""
    header = headers.read(path)
    if header.split is None:
        return header
    headers.check(path)  # the parts are there
    stem = path.name.removesuffix(_part(1, header.split.count))
    return merged(
        [
            headers.read(path.with_name(stem + _part(number, header.split.count)))
            for number in range(1, header.split.count + 1)
        ]
    )


def merged(parts: Sequence[Header]) -> Header:
    """One header of a model in several files: the first one's keys, everyone's tensors."""
    tensors = []
    begins = 0
    for part in parts:
        tensors += [t._replace(offset=begins + t.offset) for t in part.tensors]
        begins += data_size(part)
    keys = {key: value for key, value in parts[0].keys.items() if not key.startswith("split.")}
    return replace(parts[0], keys=keys, tensors=tuple(tensors), split=None)


def _part(number: int, count: int) -> str:
    return f"-{number:05d}-of-{count:05d}.gguf"


def _write(path: Path, begins: bytes, size: int) -> None:
    """With a hole behind the beginning."""
    if sys.platform == "win32" and shutil.disk_usage(path.parent).free < size:
        raise OSError(0, "the disk has no room, and Windows makes no holes in files")
    try:
        with path.open("xb") as file:
            file.write(begins)
            file.truncate(size)
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise
