"""The header of a model file, read and validated before llama.cpp opens the file.

A large vocabulary takes 0.15 s to read: headers are cached in the data folder, without its texts.
"""

from __future__ import annotations

import io
import os
import stat
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from localspec.errors import ModelFileError, NotFoundError, StorageError
from localspec.lazy_dataclass import dataclass
from localspec.models.gguf import architectures, tokenizer, validation, writer
from localspec.models.gguf import parser as gguf
from localspec.models.gguf.parser import (
    GgufByteStream,
    InvalidGgufError,
    UnsupportedGgufError,
    Value,
)
from localspec.models.gguf.tensors import FILE_TYPES, GGML_TYPES, TensorInfo
from localspec.models.gguf.tokenizer import TokenizerMetadata, TokenTexts
from localspec.models.gguf.validation import SplitInfo
from localspec.sanitize import sanitize

__all__ = ["Header", "SplitInfo", "check_loadable", "check_magic", "parse", "read", "read_model"]

_FIRST_READ_BYTES = 256 * 1024
"""The first read; covers the header of a model with a small vocabulary."""
_MAX_CACHED_HEADERS = 8
_CACHE_FOLDER = "headers"
_MAX_CACHE_FILES = 100
_CACHE_FORMAT = 1
"""Increase it when headers are validated differently."""
_SPLIT_ENDING = "-{:05d}-of-{:05d}.gguf"
_DOWNLOAD_HINT = "Download it again."
_OTHER_FILE_HINT = (
    "Use another file of this model (another quantisation or publisher), or a newer localspec."
)


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata of one GGUF file.  Its texts are untrusted: `sanitize` them for display."""

    version: int
    architecture: str
    name: str
    size: int
    """The whole file, in bytes."""
    keys: Mapping[str, Value]
    """Scalars and short arrays."""
    tensors: tuple[TensorInfo, ...]
    tokenizer: TokenizerMetadata
    chat_template: str
    split: SplitInfo | None
    header_bytes: int
    data_offset: int

    def hparam(self, key: str, default: int = 0) -> int:
        """The value of an architecture key; for an array with one value per layer, the largest."""
        value = self.keys.get(f"{self.architecture}.{key}", default)
        values = value if isinstance(value, tuple) else (value,)
        return max((v for v in values if isinstance(v, int)), default=default)

    @property
    def n_layer(self) -> int:
        return self.hparam("block_count")

    @property
    def n_ctx_train(self) -> int:
        return self.hparam("context_length")

    @property
    def n_embd(self) -> int:
        return self.hparam("embedding_length")

    @property
    def n_head(self) -> int:
        return self.hparam("attention.head_count")

    @property
    def n_head_kv(self) -> int:
        return self.hparam("attention.head_count_kv", self.n_head)

    @property
    def parameters(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def tensors_by_name(self) -> dict[str, TensorInfo]:
        return {tensor.name: tensor for tensor in self.tensors}

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def quantization(self) -> str:
        """As in file names (Q4_K_M); without general.file_type, the type with the most bytes."""
        file_type = self.keys.get("general.file_type")
        if isinstance(file_type, int) and file_type in FILE_TYPES:
            return FILE_TYPES[file_type]
        sizes: Counter[int] = Counter()
        for tensor in self.tensors:
            sizes[tensor.type] += tensor.n_bytes
        return GGML_TYPES[sizes.most_common(1)[0][0]][0] if sizes else ""

    @property
    def is_recurrent(self) -> bool:
        return self.architecture in architectures.RECURRENT

    @property
    def is_hybrid(self) -> bool:
        return self.architecture in architectures.HYBRID

    @property
    def is_moe(self) -> bool:
        return self.hparam("expert_count") > 1

    @property
    def unsupported_reason(self) -> str:
        """Why the pinned llama.cpp cannot run the model; empty if it can."""
        if self.architecture not in architectures.KNOWN:
            return f"its architecture {_quote(self.architecture)} is unknown to this llama.cpp"
        if not self.tokenizer.is_supported:
            tokenizer_name = f"{self.tokenizer.model} {self.tokenizer.pre}".strip()
            return f"its tokenizer {_quote(tokenizer_name)} is unknown to this llama.cpp"
        return ""


def parse(
    data: bytes,
    size: int,
    name: str = "The file",
    *,
    complete: bool = True,
    read_more: Callable[[int, int], bytes] | None = None,
) -> Header:
    """The header of a file of `size` bytes; `read_more(start, end)` gets what `data` lacks.

    Raises ModelFileError if the file is damaged.  Without `complete`, the file may be shorter than
    its tensors need.
    """
    if data[:4] != b"GGUF":
        validation.check_first_bytes(name, data[:64], size)
    try:
        contents = gguf.parse(GgufByteStream(data, size, read_more))
        architecture = validation.get_string(contents, "general.architecture")
        if complete:
            validation.check_file_size(contents, size)
        header = Header(
            version=contents.version,
            architecture=architecture,
            name=validation.get_string(contents, "general.name"),
            size=size,
            keys=contents.keys,
            tensors=contents.tensors,
            tokenizer=tokenizer.read_tokenizer(contents, architecture),
            chat_template=validation.get_string(contents, "tokenizer.chat_template"),
            split=validation.read_split(contents),
            header_bytes=contents.header_bytes,
            data_offset=contents.data_offset,
        )
        validation.check_hparams(header)
        return header
    except InvalidGgufError as error:
        hint = _OTHER_FILE_HINT if isinstance(error, UnsupportedGgufError) else _DOWNLOAD_HINT
        raise ModelFileError(f"{name} {sanitize(str(error), multiline=False)}.", hint) from None


def read(path: Path) -> Header:
    """The header of a local file, cached.  Raises as `check_loadable`, but accepts a vocabulary."""
    size, mtime_ns = _stat_regular_file(path)
    key = (os.path.abspath(path), size, mtime_ns)
    header = _header_cache.pop(key, None)
    if header is None:
        header = _read_cached(key)
    if header is None:
        header = _read_file(path, size)
        _write_cached(key, header)
    _header_cache[key] = header
    while len(_header_cache) > _MAX_CACHED_HEADERS:
        _header_cache.popitem(last=False)
    return header


def read_model(path: Path) -> Header:
    """The header of a local model, with the tensors of all its splits.  Raises as `read`."""
    first = read(path)
    if first.split is None:
        return first
    _check_split_files(path, first.split)
    rest = [read(part) for part in _other_splits(path, first.split)]
    return writer.merge_split_headers([first, *rest])


def check_magic(path: Path) -> None:
    """Raise NotFoundError, StorageError or ModelFileError unless `path` begins like a model.

    Reads only the first bytes.
    """
    size, _ = _stat_regular_file(path)
    try:
        with path.open("rb") as file:
            first_bytes = file.read(64)
    except OSError as error:
        raise _unreadable_error(path, error) from error
    validation.check_first_bytes(_display_name(path), first_bytes, size)
    if len(first_bytes) >= 24 and struct.unpack_from("<Q", first_bytes, 8)[0] == 0:
        raise ModelFileError(
            f"{_display_name(path)} holds a vocabulary only, no weights.",
            "Use a file with the whole model.",
        )


def check_loadable(path: Path) -> None:
    """Raise NotFoundError, StorageError or ModelFileError unless llama.cpp can open the file."""
    check_magic(path)
    header = read(path)
    name = _display_name(path)
    validation.check_generates_text(name, header.architecture, header.keys)
    if header.tokenizer.add_bos and header.tokenizer.bos < 0:
        message = f"{name} has a damaged vocabulary: it needs a BOS token and has none."
        raise ModelFileError(message, "Convert it again, or use another publisher's file.")
    if header.split is not None:
        _check_split_files(path, header.split)


_header_cache: OrderedDict[tuple[str, int, int], Header] = OrderedDict()
"""Headers by path, size and mtime in ns."""


def _cache_name(path: str) -> str:
    return f"{_CACHE_FOLDER}/{crc32(os.fsencode(path)):08x}.json"


def _read_cached(key: tuple[str, int, int]) -> Header | None:
    from localspec import data_files  # noqa: PLC0415  10 ms, and the engine reads few headers

    body = data_files.read_json(_cache_name(key[0]))
    with suppress(TypeError, KeyError, ValueError, AttributeError):  # another version wrote it
        if body["key"] == [_CACHE_FORMAT, *key]:
            return _from_json(body["header"], Path(key[0]))
    return None


def _write_cached(key: tuple[str, int, int], header: Header) -> None:
    """Errors are ignored."""
    from localspec import data_files, paths  # noqa: PLC0415  as above

    tokenizer = {
        each.name: getattr(header.tokenizer, each.name)
        for each in fields(TokenizerMetadata)
        if each.name != "read_texts"
    }
    body = {each.name: getattr(header, each.name) for each in fields(Header)}
    body["tokenizer"] = tokenizer | {"eog_ids": sorted(header.tokenizer.eog_ids)}
    body["split"] = header.split and asdict(header.split)
    data_files.write_json(_cache_name(key[0]), {"key": [_CACHE_FORMAT, *key], "header": body})
    with suppress(OSError):
        files = (paths.data_dir() / _CACHE_FOLDER).iterdir()
        for old in sorted(files, key=lambda file: -file.stat().st_mtime)[_MAX_CACHE_FILES:]:
            old.unlink()


def _from_json(body: dict[str, Any], path: Path) -> Header:
    tokenizer = body["tokenizer"] | {"eog_ids": frozenset(body["tokenizer"]["eog_ids"])}

    @cache
    def read_texts() -> TokenTexts:
        return _read_file(path, body["size"]).tokenizer.read_texts()

    return Header(
        **body
        | {
            "keys": {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in body["keys"].items()
            },
            "tensors": tuple(
                TensorInfo(name, tuple(shape), *rest) for name, shape, *rest in body["tensors"]
            ),
            "tokenizer": TokenizerMetadata(**tokenizer, read_texts=read_texts),
            "split": body["split"] and SplitInfo(**body["split"]),
        }
    )


def _read_file(path: Path, size: int) -> Header:
    try:
        with path.open("rb", buffering=0) as file:

            def read_more(start: int, end: int) -> bytes:
                file.seek(start)
                return _read_exactly(file, end - start)

            first_bytes = _read_exactly(file, min(size, _FIRST_READ_BYTES))
            return parse(first_bytes, size, _display_name(path), read_more=read_more)
    except OSError as error:
        raise _unreadable_error(path, error) from error


def _read_exactly(file: io.FileIO, n: int) -> bytes:
    """Fewer than `n` bytes only at the end of the file."""
    chunks = []
    while n > 0 and (chunk := file.read(n)):
        chunks.append(chunk)
        n -= len(chunk)
    return b"".join(chunks)


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


def _check_split_files(path: Path, split: SplitInfo) -> None:
    """`path` must be the first split, with the others beside it."""
    ending = _SPLIT_ENDING.format
    if not path.name.endswith(ending(split.number + 1, split.count)):
        message = f"{_display_name(path)} is part {split.number + 1} of {split.count}, renamed."
        hint = f"Its name must end in {ending(split.number + 1, split.count)}"
        raise ModelFileError(message, hint)
    stem = path.name.removesuffix(ending(split.number + 1, split.count))
    if split.number:
        first = sanitize(stem + ending(1, split.count), multiline=False)
        message = f"{_display_name(path)} is part {split.number + 1} of {split.count} of a model."
        raise ModelFileError(message, f"Use the first part: {first}")
    for part in _other_splits(path, split):
        if not os.path.isfile(part):
            message = f"{_display_name(path)} needs {_display_name(part)}, which is missing."
            raise ModelFileError(message, "Download all parts of the model.")


def _other_splits(path: Path, split: SplitInfo) -> list[Path]:
    """Paths of the splits after the first, which is at `path`."""
    ending = _SPLIT_ENDING.format
    stem = path.name.removesuffix(ending(1, split.count))
    return [path.with_name(stem + ending(n, split.count)) for n in range(2, split.count + 1)]


def _display_name(path: Path) -> str:
    return sanitize(path.name or str(path), multiline=False)


def _quote(text: str) -> str:
    return repr(sanitize(text[:80], multiline=False))


def _unreadable_error(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{_display_name(path)} cannot be read: {error.strerror}.", "Check its permissions."
    )
