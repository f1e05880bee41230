"""Reads and checks the header of a model file before llama.cpp opens the file.

A large vocabulary takes 0.15 s to read: headers are cached in the data folder, without
its texts.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

from msgspec import to_builtins
from msgspec.structs import fields

from localspec.errors import ModelFileError, NotFoundError, StorageError
from localspec.models.gguf import parser, tokenizer, validation
from localspec.models.gguf.header import Header, SplitInfo, merge_splits
from localspec.models.gguf.parser import (
    GgufByteStream,
    InvalidGgufError,
    TensorInfo,
    UnsupportedGgufError,
)
from localspec.models.gguf.tokenizer import TokenizerMetadata, TokenTexts
from localspec.sanitize import sanitize

_FIRST_READ_BYTES = 256 * 1024  # The whole header of a model with a small vocabulary.
_MAX_CACHE_FILES = 100
_MAX_CACHE_BYTES = 64_000_000
_MAX_CACHED_TEXT = 2_000_000  # Characters of one header; a chat template has 20,000.
_CACHE_FORMAT = 3  # Increase it when headers are validated differently.
_SPLIT_ENDING = "-{:05d}-of-{:05d}.gguf"


def parse(
    data: bytes,
    size: int,
    name: str = "The file",
    *,
    complete: bool = True,
    read_more: Callable[[int, int], bytes] | None = None,
) -> Header:
    """The header of a file of `size` bytes; `read_more(start, end)` gets what `data`
    lacks.

    Raises ModelFileError if the file is damaged.  Without `complete`, the file may be shorter than
    its tensors need.
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
            )
            hint += "or a newer localspec."
        raise ModelFileError(
            f"{name} {sanitize(str(error), multiline=False)}.", hint
        ) from None


def read(path: Path) -> Header:
    """The header of a local file, cached.

    Raises as `check_loadable`, but accepts a vocabulary.
    """
    return _read_cached(os.path.abspath(path), *_stat_regular_file(path))


def read_model(path: Path) -> Header:
    """The header of a local model, with the tensors of all its splits.

    Raises as `read`.
    """
    first = read(path)
    rest = map(read, _find_other_splits(path, first.split) if first.split else ())
    return merge_splits([first, *rest])


def check_magic(path: Path) -> None:
    """As `check_loadable`, by the first bytes only."""
    size, _ = _stat_regular_file(path)
    try:
        with path.open("rb") as file:
            first_bytes = file.read(64)
    except OSError as error:
        raise _unreadable_error(path, error) from error
    validation.check_first_bytes(_display_name(path), first_bytes, size)
    if len(first_bytes) >= 24 and struct.unpack_from("<Q", first_bytes, 8)[0] == 0:
        message = f"{_display_name(path)} holds a vocabulary only, no weights."
        raise ModelFileError(message, "Use a file with the whole model.")


def check_loadable(path: Path) -> None:
    """Raise NotFoundError, StorageError or ModelFileError unless llama.cpp can open the
    file.
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


@lru_cache(maxsize=8)
def _read_cached(path: str, size: int, mtime_ns: int) -> Header:
    from localspec import data_files, paths  # noqa: PLC0415  10 ms; the engine reads few headers

    name, key = (
        f"headers/{crc32(os.fsencode(path)):08x}.json",
        [_CACHE_FORMAT, path, size, mtime_ns],
    )
    cached = data_files.read_json(name, dict[str, Any]) or {}
    # another version wrote it
    with suppress(TypeError, KeyError, ValueError, AttributeError):
        if cached["key"] == key:
            return _from_json(cached["header"], Path(path))
    header = _read_file(Path(path), size)
    if _count_text(header) <= _MAX_CACHED_TEXT:
        data_files.write_json(name, {"key": key, "header": _to_json(header)})
    with suppress(OSError):
        files, n_bytes = (paths.data_dir() / "headers").iterdir(), 0
        newest = sorted(files, key=lambda file: -file.stat().st_mtime)
        for number, file in enumerate(newest, 1):
            n_bytes += file.stat().st_size
            if number > _MAX_CACHE_FILES or n_bytes > _MAX_CACHE_BYTES:
                file.unlink()
    return header


def _count_text(header: Header) -> int:
    """Characters of all values, which a hostile header may have by the million."""
    values = (v if isinstance(v, tuple) else (v,) for v in header.keys.values())
    return sum(len(text) for value in values for text in value if isinstance(text, str))


def _to_json(header: Header) -> dict[str, Any]:
    tokens = header.tokenizer
    names = [
        each.name for each in fields(TokenizerMetadata) if each.name != "read_texts"
    ]
    metadata = {name: getattr(tokens, name) for name in names}
    return {each.name: getattr(header, each.name) for each in fields(Header)} | {
        "tokenizer": metadata | {"eog_ids": sorted(tokens.eog_ids)},
        "split": header.split and to_builtins(header.split),
    }


def _from_json(body: dict[str, Any], path: Path) -> Header:
    @cache
    def read_texts() -> TokenTexts:
        return _read_file(path, body["size"]).tokenizer.read_texts()

    keys, tokens = body["keys"], body["tokenizer"]
    return Header(
        **body
        | {
            "keys": {
                k: tuple(v) if isinstance(v, list) else v for k, v in keys.items()
            },
            "tensors": tuple(
                TensorInfo(n, tuple(shape), *r) for n, shape, *r in body["tensors"]
            ),
            "tokenizer": TokenizerMetadata(
                **tokens | {"eog_ids": frozenset(tokens["eog_ids"])},
                read_texts=read_texts,
            ),
            "split": body["split"] and SplitInfo(**body["split"]),
        }
    )


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
    """The splits after the first, which must be at `path`; raises ModelFileError
    without them.
    """
    name = _display_name(path)
    ending = _SPLIT_ENDING.format(split.number + 1, split.count)
    if not path.name.endswith(ending):
        message = f"{name} is part {split.number + 1} of {split.count}, renamed."
        raise ModelFileError(message, f"Its name must end in {ending}")
    stem = path.name.removesuffix(ending)
    first, *others = [
        path.with_name(stem + _SPLIT_ENDING.format(number, split.count))
        for number in range(1, split.count + 1)
    ]
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
