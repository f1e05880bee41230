"""A zip file of untrusted content, of which some members are read; in the child process."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from io import BytesIO

from localspec.documents.reader_limits import (
    MAX_UNPACKED_BYTES,
    UnreadableDocumentError,
)
from localspec.units import size_limit

_CHUNK = 64 * 1024
_MAX_MEMBERS = 20_000
_IS_ENCRYPTED = 0x1
"""Of a member's flags."""


class Archive:
    """All that is unpacked counts against one limit, whatever the sizes that it states."""

    def __init__(self, data: bytes) -> None:
        """Raises UnreadableDocumentError."""
        try:
            self._zip = zipfile.ZipFile(BytesIO(data))
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise _damaged() from error
        self._members = {info.filename: info for info in self._zip.infolist()}
        if len(self._members) > _MAX_MEMBERS:
            raise UnreadableDocumentError("holds too many files to be a document.")
        self._n_left = MAX_UNPACKED_BYTES

    def __contains__(self, name: str) -> bool:
        return name in self._members

    @property
    def names(self) -> list[str]:
        return list(self._members)

    def chunks(self, name: str) -> Iterator[bytes]:
        """A member's bytes, piece by piece. Raises UnreadableDocumentError."""
        info = self._members.get(name)
        if info is None:
            raise _damaged()
        if info.flag_bits & _IS_ENCRYPTED:
            raise UnreadableDocumentError(
                "is encrypted.", "Save it without a password."
            )
        try:
            with self._zip.open(info) as member:
                while chunk := member.read(_CHUNK):
                    self._n_left -= len(chunk)
                    if self._n_left < 0:
                        limit = size_limit(MAX_UNPACKED_BYTES)
                        raise UnreadableDocumentError(
                            f"holds more than {limit} when it is unpacked."
                        )
                    yield chunk
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            NotImplementedError,
            OSError,
        ) as error:
            raise _damaged() from error

    def read(self, name: str) -> bytes:
        return b"".join(self.chunks(name))


def _damaged() -> UnreadableDocumentError:
    return UnreadableDocumentError(
        "is damaged: what is in it cannot be unpacked.",
        "Open it with another program, and save it again.",
    )
