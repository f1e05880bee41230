"""What a file's first bytes show it to be, said in words where that is no GGUF."""

from __future__ import annotations

import struct

from localspec.errors import ModelFileError
from localspec.models.gguf import parser as gguf

_DOWNLOAD = "Download it again."
_OTHERS = (
    (b"version https://git-lfs", "is a git-lfs pointer: run `git lfs pull` to get the file itself"),
    (b"PK\x03\x04", "is a PyTorch archive, not a GGUF"),
    (b"\x80\x02", "is a Python pickle, not a GGUF"),
    (b"<!DOCTYPE", "is a web page: the download went to a login or error page"),
    (b"<html", "is a web page: the download went to a login or error page"),
)


def check(name: str, head: bytes, size: int) -> None:
    """Raise ModelFileError unless a file of `size` bytes begins like a GGUF."""
    if size == 0:
        raise ModelFileError(f"{name} is empty.", _DOWNLOAD)
    for magic, what in _OTHERS:
        if head.lower().startswith(magic.lower()):
            raise ModelFileError(f"{name} {what}.", "Give a .gguf file.")
    if not head.startswith(b"GGUF"):
        kind = "a text file" if _is_text(head) else "not a GGUF file"
        raise ModelFileError(f"{name} is {kind}.", "Models are files that end in .gguf.")
    if len(head) < 24:
        raise ModelFileError(f"{name} is incomplete: {size} bytes.", _DOWNLOAD)
    version, n_tensors, n_keys = struct.unpack_from("<IQQ", head, 4)
    if version not in gguf.VERSIONS:
        big = struct.unpack_from(">I", head, 4)[0] in gguf.VERSIONS
        why = "is in the byte order of another kind of computer" if big else f"is GGUF v{version}"
        raise ModelFileError(f"{name} {why}, which cannot be run.", "Convert it again.")
    if n_tensors > gguf.MOST_ENTRIES or n_keys > gguf.MOST_ENTRIES:
        raise ModelFileError(f"{name} has a damaged header.", _DOWNLOAD)


def _is_text(head: bytes) -> bool:
    return all(byte >= 32 or byte in b"\t\n\r\f" for byte in head)
