"""Whether a file is a GGUF at all, said in its own words, before llama.cpp opens it."""

from __future__ import annotations

import stat
import struct
from pathlib import Path

from localspec.clean import clean
from localspec.errors import AccessError, ModelFileError, NotFoundError

_VERSIONS = (2, 3)
_MOST = 100_000
"""Tensors or keys: no real model has a tenth of it."""

_OTHERS = (
    (b"version https://git-lfs", "is a git-lfs pointer: run `git lfs pull` to get the file itself"),
    (b"PK\x03\x04", "is a PyTorch archive, not a GGUF"),
    (b"\x80\x02", "is a Python pickle, not a GGUF"),
    (b"<!DOCTYPE", "is a web page: the download went to a login or error page"),
    (b"<html", "is a web page: the download went to a login or error page"),
)


def check(path: Path) -> None:
    """Raise NotFoundError, AccessError or ModelFileError unless `path` begins like a GGUF."""
    name = clean(path.name or str(path), multiline=False)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ModelFileError(f"{name} is a directory.", "Give the .gguf file inside it.")
        if not stat.S_ISREG(mode):  # a FIFO would block for ever
            raise ModelFileError(f"{name} is not a regular file.", "Give a .gguf file.")
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(64)
    except FileNotFoundError:
        raise NotFoundError(
            f"There is no file {clean(str(path), multiline=False)}.",
            "Give the path of a .gguf file, or `demo` for the bundled pair.",
        ) from None
    except OSError as error:
        raise AccessError(
            f"{name} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
    _check_head(name, head, size)


def _check_head(name: str, head: bytes, size: int) -> None:
    if size == 0:
        raise ModelFileError(f"{name} is empty.", "Download it again.")
    for magic, what in _OTHERS:
        if head.lower().startswith(magic.lower()):
            raise ModelFileError(f"{name} {what}.", "Give a .gguf file.")
    if not head.startswith(b"GGUF"):
        kind = "a text file" if _is_text(head) else "not a GGUF file"
        raise ModelFileError(f"{name} is {kind}.", "Models are files that end in .gguf.")
    if len(head) < 24:
        raise ModelFileError(f"{name} is incomplete: {size} bytes.", "Download it again.")
    version, n_tensors, n_keys = struct.unpack_from("<IQQ", head, 4)
    if version not in _VERSIONS:
        big = struct.unpack_from(">I", head, 4)[0] in _VERSIONS
        why = "is in the byte order of another kind of computer" if big else f"is GGUF v{version}"
        raise ModelFileError(f"{name} {why}, which cannot be run.", "Convert it again.")
    if n_tensors > _MOST or n_keys > _MOST:
        raise ModelFileError(f"{name} has a damaged header.", "Download it again.")
    if n_tensors == 0:
        raise ModelFileError(
            f"{name} holds a vocabulary only, no weights.", "Give a file with the whole model."
        )


def _is_text(head: bytes) -> bool:
    return all(byte >= 32 or byte in b"\t\n\r\f" for byte in head)
