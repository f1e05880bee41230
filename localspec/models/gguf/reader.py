"""Reads and checks the header of a model file before llama.cpp opens the file.

A large vocabulary takes 0.15 s to read: headers are cached in the data folder, without
its texts.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from localspec.errors import ModelFileError, NotFoundError, StorageError
from localspec.models.gguf import parser, tokenizer, validation
from localspec.models.gguf.header import Header, SplitInfo, merge_splits
from localspec.models.gguf.parser import (
    GgufByteStream,
    InvalidGgufError,
    UnsupportedGgufError,
)
from localspec.models.gguf.tokenizer import TokenTexts
from localspec.sanitize import sanitize

_FIRST_READ_BYTES = 256 * 1024  # The whole header of a model with a small vocabulary.
_MAX_CACHE_FILES = 100
_MAX_CACHE_BYTES = 64_000_000
_MAX_CACHED_TEXT = 2_000_000  # Characters of one header; a chat template has 20,000.
_CACHE_FORMAT = 4  # Increase it when headers are validated differently.
_SPLIT_ENDING = "-{:05d}-of-{:05d}.gguf"


def parse(
    data: bytes,
    size: int,
    name: str = "The file",
    *,
    complete: bool = True,
    read_more: Callable[[int, int], bytes] | None = None,
) -> Header:
    """The header of a file of `size` bytes, of which `data` is the beginning.

    `read_more(start, end)` gets the bytes that `data` lacks. `name` is the file's in
    errors. Without `complete`, the file may be shorter than its tensors need. Raises
    ModelFileError if the file is damaged.
    """
    if data[:4] != b"GGUF":
        validation.check_first_bytes(name, data[:64], size)
    try:
        contents = parser.parse(GgufByteStream(data, size, read_more))
        architecture = contents.text("general.architecture")
        validation.check_types(contents, architecture)
        if complete:
            validation.check_file_size(contents, size)
        header = Header(
            architecture=architecture,
            name=contents.text("general.name"),
            size=size,
            keys=contents.keys,
            tensors=contents.tensors,
            tokenizer=tokenizer.read_tokenizer(contents, architecture),
            chat_template=contents.text("tokenizer.chat_template"),
            split=validation.read_split(contents),
            data_offset=contents.data_offset,
        )
        validation.check_hparams(header)
        return header
    except InvalidGgufError as error:
        hint = validation.DOWNLOAD_HINT
        if isinstance(error, UnsupportedGgufError):
            hint = (
                "Use another file of this model (another quantisation or publisher), "
                "or a newer localspec."
            )
        problem = sanitize(str(error), multiline=False)
        raise ModelFileError(f"{name} {problem}.", hint) from None


def read(path: Path) -> Header:
    """The header of a local file, cached.

    Raises as `check_loadable`, but accepts a vocabulary.
    """
    size, mtime_ns = _stat_regular_file(path)
    return _read_cached(os.path.abspath(path), size, mtime_ns)


def read_model(path: Path) -> Header:
    """The header of a local model, with the tensors of all its splits.

    Raises as `read`.
    """
    first = read(path)
    if first.split is None:
        return first
    others = [read(other) for other in _find_other_splits(path, first.split)]
    return merge_splits([first, *others])


def check_magic(path: Path) -> None:
    """As `check_loadable`, by the first bytes only."""
    size, _ = _stat_regular_file(path)
    try:
        with path.open("rb") as file:
            first_bytes = file.read(64)
    except OSError as error:
        raise _unreadable_error(path, error) from error
    validation.check_first_bytes(_display_name(path), first_bytes, size)
    if len(first_bytes) < 24:
        return
    (n_tensors,) = struct.unpack_from("<Q", first_bytes, 8)
    if n_tensors == 0:
        message = f"{_display_name(path)} holds a vocabulary only, no weights."
        raise ModelFileError(message, "Use a file with the whole model.")


def check_loadable(path: Path) -> None:
    """Raise an error unless llama.cpp can open the file and it generates text.

    The error is a NotFoundError, StorageError or ModelFileError.
    """
    check_magic(path)
    header = read(path)
    name = _display_name(path)
    validation.check_generates_text(name, header.architecture, header.keys)
    if header.tokenizer.add_bos and header.tokenizer.bos < 0:
        message = f"{name} has a damaged vocabulary: it needs a BOS token and has none."
        raise ModelFileError(
            message, "Convert it again, or use another publisher's file."
        )
    if header.split is not None:
        _find_other_splits(path, header.split)


# --- the cache


class _CachedHeader(Struct, frozen=True):
    """A file of the data folder: a header without the texts of its tokens."""

    key: tuple[int, str, int, int]
    """`_CACHE_FORMAT`, and the model file's path, size and mtime in ns."""
    checksum: int
    """CRC-32 of `header`: a damaged number would be a number, too."""
    header: str
    """A `Header` as JSON."""


@lru_cache(maxsize=8)
def _read_cached(path: str, size: int, mtime_ns: int) -> Header:
    from localspec import data_files  # noqa: PLC0415  10 ms; the engine reads few headers
    from localspec.paths import DataFile  # noqa: PLC0415  as above

    name = f"{DataFile.HEADERS}/{crc32(os.fsencode(path)):08x}.json"
    key = (_CACHE_FORMAT, path, size, mtime_ns)
    cached = data_files.read_json(name, _CachedHeader)
    if cached is not None and cached.key == key:
        cached_header = _decode(cached)
        if cached_header is not None:
            return _with_texts_from(Path(path), cached_header)
    header = _read_file(Path(path), size)
    if _count_text(header) <= _MAX_CACHED_TEXT:
        data_files.write_json(name, to_builtins(_encode(key, header)))
    _delete_old_cache_files()
    return header


def _delete_old_cache_files() -> None:
    """Keep the newest, within the limits of number and bytes."""
    from localspec.paths import DataFile  # noqa: PLC0415  as above

    with suppress(OSError):  # another process deletes them, too
        files = DataFile.HEADERS.path.iterdir()
        newest_first = sorted(files, key=lambda file: -file.stat().st_mtime)
        n_bytes = 0
        for number, file in enumerate(newest_first, 1):
            n_bytes += file.stat().st_size
            if number > _MAX_CACHE_FILES or n_bytes > _MAX_CACHE_BYTES:
                file.unlink()


def _count_text(header: Header) -> int:
    """Characters of all values, which a hostile header may have by the million."""
    n_chars = 0
    for value in header.keys.values():
        values = value if isinstance(value, tuple) else (value,)
        n_chars += sum(len(text) for text in values if isinstance(text, str))
    return n_chars


def _encode(key: tuple[int, str, int, int], header: Header) -> _CachedHeader:
    """Without `read_texts`, which is a function."""
    body: dict[str, Any] = to_builtins(header, enc_hook=lambda _: None)
    del body["tokenizer"]["read_texts"]
    text = json.dumps(body)
    return _CachedHeader(key, crc32(text.encode()), text)


def _decode(cached: _CachedHeader) -> Header | None:
    """None if the header is damaged."""
    if crc32(cached.header.encode("utf-8", "replace")) != cached.checksum:
        return None
    try:
        return convert(json.loads(cached.header), Header, str_keys=True)
    except (ValueError, RecursionError):
        return None


def _with_texts_from(path: Path, header: Header) -> Header:
    """A cached header, whose tokens' texts are read from the file at first use."""

    @cache
    def read_texts() -> TokenTexts:
        return _read_file(path, header.size).tokenizer.read_texts()

    return replace(header, tokenizer=replace(header.tokenizer, read_texts=read_texts))


# --- the disk


def _read_file(path: Path, size: int) -> Header:
    try:
        with path.open("rb") as file:

            def read_more(start: int, end: int) -> bytes:
                file.seek(start)
                return file.read(end - start)

            first_bytes = file.read(min(size, _FIRST_READ_BYTES))
            return parse(first_bytes, size, _display_name(path), read_more=read_more)
    except OSError as error:
        raise _unreadable_error(path, error) from error


def _stat_regular_file(path: Path) -> tuple[int, int]:
    """Size and mtime in ns."""
    name = _display_name(path)
    try:
        status = path.stat()
    except (FileNotFoundError, ValueError):  # ValueError: no file can have that name
        raise NotFoundError(
            f"There is no file {sanitize(str(path), multiline=False)}.",
            "Use the path of a .gguf file, or `demo` for the bundled pair.",
        ) from None
    except OSError as error:
        raise _unreadable_error(path, error) from error
    if stat.S_ISDIR(status.st_mode):
        raise ModelFileError(f"{name} is a directory.", "Use the .gguf file inside it.")
    if not stat.S_ISREG(status.st_mode):  # reading a FIFO would block
        raise ModelFileError(f"{name} is not a regular file.", "Use a .gguf file.")
    return status.st_size, status.st_mtime_ns


def _find_other_splits(path: Path, split: SplitInfo) -> list[Path]:
    """The paths of the splits after the first, which must be at `path`.

    Raises ModelFileError if `path` is another split, or if one is missing.
    """
    name = _display_name(path)
    ending = _SPLIT_ENDING.format(split.number + 1, split.count)
    if not path.name.endswith(ending):
        message = f"{name} is part {split.number + 1} of {split.count}, renamed."
        raise ModelFileError(message, f"Its name must end in {ending}")
    stem = path.name.removesuffix(ending)
    names = [
        stem + _SPLIT_ENDING.format(number, split.count)
        for number in range(1, split.count + 1)
    ]
    first, *others = [path.with_name(name) for name in names]
    if split.number:
        message = f"{name} is part {split.number + 1} of {split.count} of a model."
        raise ModelFileError(message, f"Use the first part: {_display_name(first)}")
    for part in others:
        if not os.path.isfile(part):
            message = f"{name} needs {_display_name(part)}, which is missing."
            raise ModelFileError(message, "Download all parts of the model.")
    return others


def _display_name(path: Path) -> str:
    return sanitize(path.name or str(path), multiline=False)


def _unreadable_error(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{_display_name(path)} cannot be read: {error.strerror}.",
        "Check its permissions.",
    )
