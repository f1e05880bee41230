"""The structure of a GGUF file, read from untrusted bytes: keys, arrays, the table of tensors.

Every length is checked before it is used.  llama.cpp's own parser is ggml/src/gguf.cpp.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from localspec.models.gguf import texts
from localspec.models.gguf.tensors import TYPES, Tensor

VERSIONS = (2, 3)
MOST_BYTES = 64 * 1024**2
"""Of a header; the largest known one has 16 MB."""
MOST_ENTRIES = 100_000
"""Tensors or keys: no real model has a tenth of it."""
LONGEST_KEY = 65_535
LONGEST_ARRAY = 10_000_000
MOST_TOKENS = 1_000_000
"""Their texts are held in memory; the largest known vocabulary has 262,144."""
LARGEST_ALIGNMENT = 65_536
LONGEST_NAME = 63
MOST_DIMENSIONS = 4
_SHORT = 1024
"""Elements of an array that is kept as a value."""
_STEP = 1024**2
_TENSOR, _TEMPLATE, _REST_OF_TOKEN = 64, 65_536, 26
"""Likely bytes, so that few requests fetch a header: of a tensor's row, of what stands between the
vocabulary and the table, and of what follows for each token (its type, its score, a merge)."""
_TOKENS = "tokenizer.ggml.tokens"
_KEPT = ("tokenizer.ggml.token_type",)
"""Long arrays of numbers whose bytes are kept."""

UINT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 2, 4, 5, 6, 7, 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    UINT16: struct.Struct("<H"),
    3: struct.Struct("<h"),
    UINT32: struct.Struct("<I"),
    INT32: struct.Struct("<i"),
    FLOAT32: struct.Struct("<f"),
    BOOL: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = _SCALARS[UINT32], _SCALARS[10]

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]


class DamagedError(Exception):
    """What is wrong with the file, as the end of a sentence that begins with its name."""


class Incomplete(Exception):  # noqa: N818  not a fault: more bytes are to be fetched
    """The header goes on after the bytes given: at least `needed` bytes from the start."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"{needed:,} bytes are needed")
        self.needed = needed


@dataclass(frozen=True, slots=True)
class Array:
    """An array, as far as it is kept."""

    kind: int
    count: int
    data: bytes = b""


@dataclass(slots=True)
class Contents:
    """What stands in the file before the tensors' data."""

    version: int = 0
    keys: dict[str, Value] = field(default_factory=dict)
    """Scalars and short arrays."""
    kinds: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    tokens: list[bytes] = field(default_factory=list)
    tensors: tuple[Tensor, ...] = ()
    header_bytes: int = 0
    data_offset: int = 0


class Source:
    """The start of a file, and how more of it is had: `more(start, end)` gives those bytes."""

    def __init__(
        self,
        data: bytes | bytearray | memoryview,
        size: int,
        more: Callable[[int, int], bytes] | None = None,
    ) -> None:
        self._data = bytearray(data) if more or not isinstance(data, bytes) else data
        self._size = size
        self._more = more
        self._tail = 0
        self._likely = 0
        self.at = 0

    def expect(self, n: int) -> None:
        """So many bytes are likely still to come in this array; a guess for whoever fetches."""
        self._likely = self.at + n + n // 16 + self._tail

    def expect_after(self, n: int) -> None:
        """And so many more after it."""
        self._tail += n

    def take(self, n: int) -> int:
        """Go on by n bytes; where they start."""
        start = self.at
        self.at = start + n
        if self.at > len(self._data):
            self._grow(self.at)
        return start

    def look(self, n: int) -> bytes:
        """The next n bytes or fewer, without going on."""
        end = min(self.at + n, self._size, MOST_BYTES)
        if self._more is not None and end > len(self._data):
            self._grow(end)
        return bytes(self._data[self.at : end])

    def slice(self, start: int, end: int) -> bytes:
        return bytes(self._data[start:end])

    def number(self, form: struct.Struct) -> int:
        return int(form.unpack_from(self._data, self.take(form.size))[0])

    def scalar(self, form: struct.Struct) -> Scalar:
        value: Scalar = form.unpack_from(self._data, self.take(form.size))[0]
        return value

    def text(self, longest: int, what: str) -> bytes:
        size = self.number(_U64)
        if size > longest:
            raise DamagedError(f"has a damaged header: {what} of {size:,} bytes")
        start = self.take(size)
        return self.slice(start, start + size)

    def _grow(self, end: int) -> None:
        if end > self._size:
            raise DamagedError(
                f"is incomplete: its header does not end within {self._size:,} bytes"
            )
        if end > MOST_BYTES:
            raise DamagedError(f"has a header of more than {MOST_BYTES:,} bytes")
        known = len(self._data)
        if self._more is None:
            likely = max(end, self._likely, known + _STEP)
            raise Incomplete(min(self._size, MOST_BYTES, likely))
        assert isinstance(self._data, bytearray)
        self._data += self._more(known, min(self._size, max(end, known + _STEP)))
        if end > len(self._data):
            raise DamagedError("changed while it was read")


def parse(source: Source) -> Contents:
    """Everything before the tensors' data.

    Raises DamagedError, and Incomplete where the source gives no more.
    """
    if source.slice(start := source.take(4), start + 4) != b"GGUF":
        raise DamagedError("is not a GGUF file")
    contents = Contents(version=source.number(_U32))
    if contents.version not in VERSIONS:
        raise DamagedError(f"is GGUF v{contents.version}, which cannot be run")
    n_tensors, n_keys = source.number(_U64), source.number(_U64)
    if n_tensors > MOST_ENTRIES or n_keys > MOST_ENTRIES:
        raise DamagedError(f"has a damaged header: {n_tensors:,} tensors, {n_keys:,} keys")
    source.expect_after(_TENSOR * n_tensors + _TEMPLATE)
    source.expect(0)
    for _ in range(n_keys):
        _key(source, contents)
    alignment = _alignment(contents)
    contents.tensors = _tensors(source, n_tensors, alignment)
    contents.header_bytes = source.at
    contents.data_offset = _padded(source.at, alignment) if n_tensors else source.at
    return contents


def _key(source: Source, contents: Contents) -> None:
    raw = source.text(LONGEST_KEY, "a key")
    key = raw.decode("utf-8", "replace")
    if not raw or key in contents.kinds:
        raise DamagedError(f"has a damaged header: the key {key[:80]!r} is empty or stands twice")
    kind = contents.kinds[key] = source.number(_U32)
    if kind == ARRAY:
        _array(source, contents, key)
    elif kind == STRING:
        contents.keys[key] = source.text(MOST_BYTES, "a text").decode("utf-8", "replace")
    elif kind in _SCALARS:
        contents.keys[key] = source.scalar(_SCALARS[kind])
    else:
        raise DamagedError(f"has a damaged header: the key {key[:80]!r} is of type {kind}")


def _array(source: Source, contents: Contents, key: str) -> None:
    kind, count = source.number(_U32), source.number(_U64)
    most = MOST_TOKENS if key == _TOKENS else LONGEST_ARRAY
    if count > most or (kind not in _SCALARS and kind != STRING):
        what = f"the array {key[:80]!r} of type {kind} has {count:,} elements"
        raise DamagedError(f"has a damaged header: {what}")
    if kind == STRING:
        _texts(source, contents, key, count)
        contents.arrays[key] = Array(kind, count)
        return
    form = _SCALARS[kind]
    source.expect(0)
    start = source.take(count * form.size)
    data = source.slice(start, source.at) if count <= _SHORT or key in _KEPT else b""
    contents.arrays[key] = Array(kind, count, data)
    if count <= _SHORT:
        contents.keys[key] = tuple(value for (value,) in form.iter_unpack(data))


def _texts(source: Source, contents: Contents, key: str, count: int) -> None:
    """Only the vocabulary's and a short array's are kept; merges are walked over."""
    kept: list[bytes] | None = None
    if key == _TOKENS:
        kept = contents.tokens
        source.expect_after(_REST_OF_TOKEN * count)
    elif count <= _SHORT:
        kept = []
    try:
        texts.read(source, count, MOST_BYTES, kept)
    except ValueError as error:
        raise DamagedError(f"has a damaged header: {key[:80]!r} holds {error}") from None
    if key == _TOKENS:
        source.expect_after(-_REST_OF_TOKEN * count)
    if kept is not None and count <= _SHORT:
        contents.keys[key] = tuple(text.decode("utf-8", "replace") for text in kept)


def _alignment(contents: Contents) -> int:
    alignment = contents.keys.get("general.alignment", 32)
    kind = contents.kinds.get("general.alignment", UINT32)
    good = isinstance(alignment, int) and kind == UINT32 and 0 < alignment <= LARGEST_ALIGNMENT
    if not isinstance(alignment, int) or not good or alignment & (alignment - 1):
        raise DamagedError(f"has a damaged header: an alignment of {str(alignment)[:40]}")
    return alignment


def _tensors(source: Source, count: int, alignment: int) -> tuple[Tensor, ...]:
    """The table; llama.cpp wants the data of one tensor right behind the other's."""
    found: dict[str, Tensor] = {}
    offset = 0
    source.expect_after(-_TENSOR * count - _TEMPLATE)
    for left in range(count, 0, -1):
        source.expect(_TENSOR * left)
        tensor = _tensor(source)
        if tensor.name in found or tensor.offset != offset:
            raise DamagedError(f"has a damaged header: the tensor {tensor.name!r} stands wrong")
        found[tensor.name] = tensor
        offset += _padded(tensor.n_bytes, alignment)
    return tuple(found.values())


def _tensor(source: Source) -> Tensor:
    name = source.text(LONGEST_NAME, "a tensor's name").decode("utf-8", "backslashreplace")
    n_dimensions = source.number(_U32)
    if n_dimensions > MOST_DIMENSIONS:
        raise DamagedError(f"has a damaged header: {name!r} has {n_dimensions:,} dimensions")
    shape = tuple(source.number(_U64) for _ in range(n_dimensions))
    kind, offset = source.number(_U32), source.number(_U64)
    if kind not in TYPES:
        raise DamagedError(f"has the tensor {name!r} of type {kind}, which cannot be read")
    _, block, block_bytes = TYPES[kind]
    row = shape[0] if shape else 1
    tensor = Tensor(name, shape, kind, offset, 0)
    too_large = max(shape, default=0) >= 2**62 or tensor.n_elements * block_bytes >= 2**62
    if row % block or too_large:
        raise DamagedError(f"has a damaged header: {name!r} has the shape {shape}")
    return tensor._replace(n_bytes=tensor.n_elements // block * block_bytes)


def _padded(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment
