"""What a model file says of itself, read and judged before llama.cpp opens it."""

from __future__ import annotations

import io
import os
import stat
import struct
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localspec.clean import clean
from localspec.errors import AccessError, ModelFileError, NotFoundError
from localspec.models.gguf import architectures, beginning, kinds, sanity, tokenizer
from localspec.models.gguf import parser as gguf
from localspec.models.gguf.parser import DamagedError, Incomplete, Source, Value
from localspec.models.gguf.sanity import Split
from localspec.models.gguf.tensors import FILE_TYPES, TYPES, Tensor
from localspec.models.gguf.tokenizer import Tokenizer

__all__ = ["Header", "Incomplete", "Split", "check", "glance", "parse", "read"]

_FIRST = 256 * 1024
"""Bytes that are read at once; a small vocabulary's header has no more."""
_REMEMBERED = 8
_DOWNLOAD = "Download it again."


@dataclass(frozen=True, slots=True)
class Header:
    """Facts of one GGUF file.  Texts are the file's own: `clean` them before a terminal."""

    version: int
    architecture: str
    name: str
    size: int
    """Bytes of the whole file."""
    keys: Mapping[str, Value]
    """Scalars and short arrays."""
    tensors: tuple[Tensor, ...]
    tokenizer: Tokenizer
    chat_template: str
    split: Split | None
    header_bytes: int
    data_offset: int

    def number(self, key: str, default: int = 0) -> int:
        """A key of the architecture; the largest of an array, which has one for each layer."""
        value = self.keys.get(f"{self.architecture}.{key}", default)
        values = value if isinstance(value, tuple) else (value,)
        return max((v for v in values if isinstance(v, int)), default=default)

    @property
    def n_layer(self) -> int:
        return self.number("block_count")

    @property
    def n_ctx_train(self) -> int:
        return self.number("context_length")

    @property
    def n_embd(self) -> int:
        return self.number("embedding_length")

    @property
    def n_head(self) -> int:
        return self.number("attention.head_count")

    @property
    def n_head_kv(self) -> int:
        return self.number("attention.head_count_kv", self.n_head)

    @property
    def parameters(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def weights(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def quantisation(self) -> str:
        """As file names have it: Q4_K_M; empty where there are no tensors."""
        said = self.keys.get("general.file_type")
        if isinstance(said, int) and said in FILE_TYPES:
            return FILE_TYPES[said]
        sizes: Counter[int] = Counter()
        for tensor in self.tensors:
            sizes[tensor.type] += tensor.n_bytes
        return TYPES[sizes.most_common(1)[0][0]][0] if sizes else ""

    @property
    def recurrent(self) -> bool:
        return self.architecture in architectures.RECURRENT

    @property
    def hybrid(self) -> bool:
        return self.architecture in architectures.HYBRID

    @property
    def moe(self) -> bool:
        return self.number("expert_count") > 1

    @property
    def unsupported(self) -> str:
        """Why the pinned llama.cpp cannot run it, or nothing."""
        if self.architecture not in architectures.KNOWN:
            return f"its architecture {_shown(self.architecture)} is unknown to this llama.cpp"
        if not self.tokenizer.known:
            which = f"{self.tokenizer.model} {self.tokenizer.pre}".strip()
            return f"its tokenizer {_shown(which)} is unknown to this llama.cpp"
        return ""


def parse(
    data: bytes | memoryview, size: int, name: str = "The file", *, whole: bool = True
) -> Header:
    """The header of a file of `size` bytes, from its first ones.

    Raises Incomplete where more of them are needed, ModelFileError where the file is damaged.
    Not `whole`: the file may still be without its end.
    """
    if data[:4] != b"GGUF":
        beginning.check(name, bytes(data[:64]), size)
    return _parsed(Source(data, size), size, name, whole)


def read(path: Path) -> Header:
    """The header of a local file.  Raises as `check`, but takes a vocabulary alone."""
    size, modified = _regular(path)
    key = (str(path), size, modified)
    known = _cache.pop(key, None)
    if known is None:
        known = _read(path, size)
    _cache[key] = known
    while len(_cache) > _REMEMBERED:
        _cache.popitem(last=False)
    return known


def glance(path: Path) -> None:
    """Look at the first bytes alone.

    Raises NotFoundError, AccessError or ModelFileError unless `path` begins like a model.
    """
    size, _ = _regular(path)
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise _unreadable(path, error) from error
    beginning.check(_named(path), head, size)
    if len(head) >= 24 and struct.unpack_from("<Q", head, 8)[0] == 0:
        raise ModelFileError(
            f"{_named(path)} holds a vocabulary only, no weights.",
            "Give a file with the whole model.",
        )


def check(path: Path) -> None:
    """Raise NotFoundError, AccessError or ModelFileError unless llama.cpp can be given the file."""
    glance(path)
    header = read(path)
    name = _named(path)
    if (reason := kinds.no_writer(header.architecture, header.keys)) is not None:
        raise ModelFileError(f"{name} {reason.what}.", reason.hint)
    if header.tokenizer.add_bos and header.tokenizer.bos < 0:
        what = f"{name} has a damaged vocabulary: it begins texts with a BOS token and has none."
        raise ModelFileError(what, "Convert it again, or take another publisher's file.")
    if header.split is not None:
        _check_parts(path, header.split)


_cache: OrderedDict[tuple[str, int, int], Header] = OrderedDict()
"""Headers by path, size and time of the last change."""


def _read(path: Path, size: int) -> Header:
    try:
        with path.open("rb", buffering=0) as file:

            def more(start: int, end: int) -> bytes:
                file.seek(start)
                return _exactly(file, end - start)

            source = Source(_exactly(file, min(size, _FIRST)), size, more)
            return _parsed(source, size, _named(path), whole=True)
    except OSError as error:
        raise _unreadable(path, error) from error


def _exactly(file: io.FileIO, n: int) -> bytes:
    """Fewer bytes only where the file ends."""
    parts = []
    while n > 0 and (part := file.read(n)):
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def _parsed(source: Source, size: int, name: str, whole: bool) -> Header:
    try:
        contents = gguf.parse(source)
        architecture = sanity.text(contents, "general.architecture")
        sanity.check(contents, architecture)
        if whole:
            sanity.check_size(contents, size)
        return Header(
            version=contents.version,
            architecture=architecture,
            name=sanity.text(contents, "general.name"),
            size=size,
            keys=contents.keys,
            tensors=contents.tensors,
            tokenizer=tokenizer.read(contents, architecture),
            chat_template=sanity.text(contents, "tokenizer.chat_template"),
            split=sanity.split(contents),
            header_bytes=contents.header_bytes,
            data_offset=contents.data_offset,
        )
    except DamagedError as error:
        raise ModelFileError(f"{name} {clean(str(error), multiline=False)}.", _DOWNLOAD) from None


def _regular(path: Path) -> tuple[int, int]:
    """Size and time of the last change of an ordinary file."""
    name = _named(path)
    try:
        found = path.stat()
    except FileNotFoundError:
        raise NotFoundError(
            f"There is no file {clean(str(path), multiline=False)}.",
            "Give the path of a .gguf file, or `demo` for the bundled pair.",
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from error
    if stat.S_ISDIR(found.st_mode):
        raise ModelFileError(f"{name} is a directory.", "Give the .gguf file inside it.")
    if not stat.S_ISREG(found.st_mode):  # a FIFO would block for ever
        raise ModelFileError(f"{name} is not a regular file.", "Give a .gguf file.")
    return found.st_size, found.st_mtime_ns


def _check_parts(path: Path, split: Split) -> None:
    """The first of a model's parts stands for all; they lie beside it."""
    ending = "-{:05d}-of-{:05d}.gguf".format
    if not path.name.endswith(ending(split.number + 1, split.count)):
        what = f"{_named(path)} is part {split.number + 1} of {split.count}, renamed."
        raise ModelFileError(what, f"Its name must end in {ending(split.number + 1, split.count)}")
    stem = path.name.removesuffix(ending(split.number + 1, split.count))
    if split.number:
        first = clean(stem + ending(1, split.count), multiline=False)
        what = f"{_named(path)} is part {split.number + 1} of {split.count} of a model."
        raise ModelFileError(what, f"Give the first part: {first}")
    for number in range(2, split.count + 1):
        part = path.with_name(stem + ending(number, split.count))
        if not os.path.isfile(part):
            what = f"{_named(path)} needs {_named(part)} beside it, which is not there."
            raise ModelFileError(what, "Download all parts of the model.")


def _named(path: Path) -> str:
    return clean(path.name or str(path), multiline=False)


def _shown(text: str) -> str:
    return repr(clean(text[:80], multiline=False))


def _unreadable(path: Path, error: OSError) -> AccessError:
    return AccessError(
        f"{_named(path)} cannot be read: {error.strerror}.", "Check its permissions."
    )
