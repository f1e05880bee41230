"""The structure of a GGUF file, read from untrusted bytes: keys, arrays, the table of tensors.

Every length is checked before it is used.  llama.cpp's own parser is ggml/src/gguf.cpp.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from localspec.models.gguf.tensors import GGML_TYPES, TensorInfo

VERSIONS = (2, 3)
MAX_HEADER_BYTES = 64 * 1024**2
"""Of a header; the largest known one has 16 MB."""
MAX_ENTRIES = 100_000
"""Tensors or keys: no real model has a tenth of it."""
MAX_KEY_BYTES = 65_535
MAX_ARRAY_LENGTH = 10_000_000
MAX_TOKENS = 1_000_000
"""Their texts are held in memory; the largest known vocabulary has 262,144."""
MAX_ALIGNMENT = 65_536
MAX_TENSOR_NAME_BYTES = 63
MAX_DIMENSIONS = 4
_SHORT_ARRAY = 1024
"""Elements of an array that is kept as a value."""
_READ_STEP = 1024**2
_LIKELY_TENSOR_BYTES, _LIKELY_TEMPLATE_BYTES, _LIKELY_BYTES_AFTER_TOKEN = 64, 65_536, 26
"""Likely bytes, so that few requests fetch a header: of a tensor's row, of what stands between the
vocabulary and the table, and of what follows for each token (its type, its score, a merge)."""
_TOKENS_KEY = "tokenizer.ggml.tokens"
_KEPT_ARRAYS = ("tokenizer.ggml.token_type",)
"""Long arrays of numbers whose bytes are kept."""

UINT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 2, 4, 5, 6, 7, 8, 9
_SCALAR_STRUCTS = {
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
_U32, _U64 = _SCALAR_STRUCTS[UINT32], _SCALAR_STRUCTS[10]

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]


class InvalidGgufError(Exception):
    """What is wrong with the file, as the end of a sentence that begins with its name."""


class IncompleteHeaderError(Exception):
    """The header goes on after the bytes given: at least `needed` bytes from the start."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"{needed_bytes:,} bytes are needed")
        self.needed_bytes = needed_bytes


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array, as far as it is kept."""

    element_type: int
    count: int
    data: bytes = b""


@dataclass(slots=True)
class GgufContents:
    """What stands in the file before the tensors' data."""

    version: int = 0
    keys: dict[str, Value] = field(default_factory=dict)
    """Scalars and short arrays."""
    key_types: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, GgufArray] = field(default_factory=dict)
    tokens: list[bytes] = field(default_factory=list)
    tensors: tuple[TensorInfo, ...] = ()
    header_bytes: int = 0
    data_offset: int = 0


class GgufByteStream:
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
        self._expected_after_array = 0
        self._expected_end = 0
        self.position = 0

    def expect_in_array(self, n: int) -> None:
        """So many bytes are likely still to come in this array; a guess for whoever fetches."""
        self._expected_end = self.position + n + n // 16 + self._expected_after_array

    def expect_after_array(self, n: int) -> None:
        """And so many more after it."""
        self._expected_after_array += n

    def advance(self, n: int) -> int:
        """Go on by n bytes; where they start."""
        start = self.position
        self.position = start + n
        if self.position > len(self._data):
            self._read_until(self.position)
        return start

    def peek(self, n: int) -> bytes:
        """The next n bytes or fewer, without going on."""
        end = min(self.position + n, self._size, MAX_HEADER_BYTES)
        if self._more is not None and end > len(self._data):
            self._read_until(end)
        return bytes(self._data[self.position : end])

    def slice(self, start: int, end: int) -> bytes:
        return bytes(self._data[start:end])

    def read_int(self, form: struct.Struct) -> int:
        return int(form.unpack_from(self._data, self.advance(form.size))[0])

    def read_scalar(self, form: struct.Struct) -> Scalar:
        value: Scalar = form.unpack_from(self._data, self.advance(form.size))[0]
        return value

    def read_string(self, max_bytes: int, what: str) -> bytes:
        size = self.read_int(_U64)
        if size > max_bytes:
            raise InvalidGgufError(f"has a damaged header: {what} of {size:,} bytes")
        start = self.advance(size)
        return self.slice(start, start + size)

    def _read_until(self, end: int) -> None:
        if end > self._size:
            raise InvalidGgufError(
                f"is incomplete: its header does not end within {self._size:,} bytes"
            )
        if end > MAX_HEADER_BYTES:
            raise InvalidGgufError(f"has a header of more than {MAX_HEADER_BYTES:,} bytes")
        known = len(self._data)
        if self._more is None:
            likely = max(end, self._expected_end, known + _READ_STEP)
            raise IncompleteHeaderError(min(self._size, MAX_HEADER_BYTES, likely))
        assert isinstance(self._data, bytearray)
        self._data += self._more(known, min(self._size, max(end, known + _READ_STEP)))
        if end > len(self._data):
            raise InvalidGgufError("changed while it was read")


def parse(source: GgufByteStream) -> GgufContents:
    """Everything before the tensors' data.

    Raises DamagedError, and Incomplete where the source gives no more.
    """
    if source.slice(start := source.advance(4), start + 4) != b"GGUF":
        raise InvalidGgufError("is not a GGUF file")
    contents = GgufContents(version=source.read_int(_U32))
    if contents.version not in VERSIONS:
        raise InvalidGgufError(f"is GGUF v{contents.version}, which cannot be run")
    n_tensors, n_keys = source.read_int(_U64), source.read_int(_U64)
    if n_tensors > MAX_ENTRIES or n_keys > MAX_ENTRIES:
        raise InvalidGgufError(f"has a damaged header: {n_tensors:,} tensors, {n_keys:,} keys")
    source.expect_after_array(_LIKELY_TENSOR_BYTES * n_tensors + _LIKELY_TEMPLATE_BYTES)
    source.expect_in_array(0)
    for _ in range(n_keys):
        _read_key(source, contents)
    alignment = _read_alignment(contents)
    contents.tensors = _read_tensors(source, n_tensors, alignment)
    contents.header_bytes = source.position
    contents.data_offset = _align(source.position, alignment) if n_tensors else source.position
    return contents


def _read_key(source: GgufByteStream, contents: GgufContents) -> None:
    raw = source.read_string(MAX_KEY_BYTES, "a key")
    key = raw.decode("utf-8", "replace")
    if not raw or key in contents.key_types:
        raise InvalidGgufError(
            f"has a damaged header: the key {key[:80]!r} is empty or stands twice"
        )
    kind = contents.key_types[key] = source.read_int(_U32)
    if kind == ARRAY:
        _read_array(source, contents, key)
    elif kind == STRING:
        contents.keys[key] = source.read_string(MAX_HEADER_BYTES, "a text").decode(
            "utf-8", "replace"
        )
    elif kind in _SCALAR_STRUCTS:
        contents.keys[key] = source.read_scalar(_SCALAR_STRUCTS[kind])
    else:
        raise InvalidGgufError(f"has a damaged header: the key {key[:80]!r} is of type {kind}")


def _read_array(source: GgufByteStream, contents: GgufContents, key: str) -> None:
    kind, count = source.read_int(_U32), source.read_int(_U64)
    most = MAX_TOKENS if key == _TOKENS_KEY else MAX_ARRAY_LENGTH
    if count > most or (kind not in _SCALAR_STRUCTS and kind != STRING):
        what = f"the array {key[:80]!r} of type {kind} has {count:,} elements"
        raise InvalidGgufError(f"has a damaged header: {what}")
    if kind == STRING:
        _read_string_array(source, contents, key, count)
        contents.arrays[key] = GgufArray(kind, count)
        return
    form = _SCALAR_STRUCTS[kind]
    source.expect_in_array(0)
    start = source.advance(count * form.size)
    data = (
        source.slice(start, source.position)
        if count <= _SHORT_ARRAY or key in _KEPT_ARRAYS
        else b""
    )
    contents.arrays[key] = GgufArray(kind, count, data)
    if count <= _SHORT_ARRAY:
        contents.keys[key] = tuple(value for (value,) in form.iter_unpack(data))


def _read_string_array(
    source: GgufByteStream, contents: GgufContents, key: str, count: int
) -> None:
    """Only the vocabulary's and a short array's are kept; merges are walked over."""
    kept: list[bytes] | None = None
    if key == _TOKENS_KEY:
        kept = contents.tokens
        source.expect_after_array(_LIKELY_BYTES_AFTER_TOKEN * count)
    elif count <= _SHORT_ARRAY:
        kept = []
    try:
        read_strings(source, count, MAX_HEADER_BYTES, kept)
    except ValueError as error:
        raise InvalidGgufError(f"has a damaged header: {key[:80]!r} holds {error}") from None
    if key == _TOKENS_KEY:
        source.expect_after_array(-_LIKELY_BYTES_AFTER_TOKEN * count)
    if kept is not None and count <= _SHORT_ARRAY:
        contents.keys[key] = tuple(text.decode("utf-8", "replace") for text in kept)


def _read_alignment(contents: GgufContents) -> int:
    alignment = contents.keys.get("general.alignment", 32)
    kind = contents.key_types.get("general.alignment", UINT32)
    good = isinstance(alignment, int) and kind == UINT32 and 0 < alignment <= MAX_ALIGNMENT
    if not isinstance(alignment, int) or not good or alignment & (alignment - 1):
        raise InvalidGgufError(f"has a damaged header: an alignment of {str(alignment)[:40]}")
    return alignment


def _read_tensors(source: GgufByteStream, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    """The table; llama.cpp wants the data of one tensor right behind the other's."""
    found: dict[str, TensorInfo] = {}
    offset = 0
    source.expect_after_array(-_LIKELY_TENSOR_BYTES * count - _LIKELY_TEMPLATE_BYTES)
    for left in range(count, 0, -1):
        source.expect_in_array(_LIKELY_TENSOR_BYTES * left)
        tensor = _read_tensor(source)
        if tensor.name in found or tensor.offset != offset:
            raise InvalidGgufError(f"has a damaged header: the tensor {tensor.name!r} stands wrong")
        found[tensor.name] = tensor
        offset += _align(tensor.n_bytes, alignment)
    return tuple(found.values())


def _read_tensor(source: GgufByteStream) -> TensorInfo:
    name = source.read_string(MAX_TENSOR_NAME_BYTES, "a tensor's name").decode(
        "utf-8", "backslashreplace"
    )
    n_dimensions = source.read_int(_U32)
    if n_dimensions > MAX_DIMENSIONS:
        raise InvalidGgufError(f"has a damaged header: {name!r} has {n_dimensions:,} dimensions")
    shape = tuple(source.read_int(_U64) for _ in range(n_dimensions))
    kind, offset = source.read_int(_U32), source.read_int(_U64)
    if kind not in GGML_TYPES:
        raise InvalidGgufError(f"has the tensor {name!r} of type {kind}, which cannot be read")
    _, block, block_bytes = GGML_TYPES[kind]
    row = shape[0] if shape else 1
    tensor = TensorInfo(name, shape, kind, offset, 0)
    too_large = max(shape, default=0) >= 2**62 or tensor.n_elements * block_bytes >= 2**62
    if row % block or too_large:
        raise InvalidGgufError(f"has a damaged header: {name!r} has the shape {shape}")
    return tensor._replace(n_bytes=tensor.n_elements // block * block_bytes)


def _align(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


# --- A long array of texts in a GGUF: walked at C speed, kept as one block of bytes and offsets.

_ZEROS = bytes(7)
_WINDOW_BYTES = 65_536
"""Bytes that are split at once."""
_GOOD_WINDOW_STRINGS = 64
"""Texts that make a window worth its while."""
_FALLBACK_STRINGS = 4096
"""Texts to walk where a window was not: the time lost on bad windows stays bounded."""
_LIKELY_STRING_BYTES = 18
"""Bytes of a text with its length, where none has been seen."""
_LENGTH_STRUCT = struct.Struct("<Q")
_LENGTH_PLUS_ONE = bytes([*range(1, 256), 0])
"""A text's part is longer by one than the text; that of 255 bytes is walked."""


class ByteReader(Protocol):
    """Bytes that are read from front to back."""

    position: int

    def advance(self, n: int) -> int: ...
    def peek(self, n: int) -> bytes: ...
    def slice(self, start: int, end: int) -> bytes: ...
    def expect_in_array(self, n: int) -> None: ...


@dataclass(frozen=True, slots=True)
class StringArray:
    """Texts by number."""

    joined: bytes
    ends: array[int]

    @classmethod
    def from_list(cls, texts: Sequence[bytes]) -> StringArray:
        return cls(b"".join(texts), array("I", accumulate(map(len, texts))))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> bytes:
        return self.joined[self.ends[i - 1] if i else 0 : self.ends[i]]


def read_strings(source: ByteReader, count: int, max_bytes: int, kept: list[bytes] | None) -> None:
    """Walk `count` texts of at most `longest` bytes; each is added to `kept`, where given.

    Raises ValueError where one is longer.
    """
    left, first = count, source.position
    while left:
        parts = source.peek(_WINDOW_BYTES).split(_ZEROS)
        lengths = _verified_lengths(parts)[:left]
        if kept is not None:
            kept += [part[:-1] for part in parts[1 : len(lengths) + 1]]
        source.advance(8 * len(lengths) + sum(lengths))
        left -= len(lengths)
        average = (source.position - first) // max(1, count - left)
        source.expect_in_array(left * max(average, _LIKELY_STRING_BYTES))
        for _ in range(min(left, 1 if len(lengths) >= _GOOD_WINDOW_STRINGS else _FALLBACK_STRINGS)):
            size = _LENGTH_STRUCT.unpack(source.slice(start := source.advance(8), start + 8))[0]
            if size > max_bytes:
                raise ValueError(f"a text of {size:,} bytes")
            start = source.advance(size)
            if kept is not None:
                kept.append(source.slice(start, start + size))
            left -= 1


def _verified_lengths(parts: list[bytes]) -> bytes:
    """The lengths of the texts at the start of a window that are whole and sure.

    The first part is the length of the first text; each other is a text and the length of the
    next; the last may be cut.
    """
    if len(parts) < 3 or len(parts[0]) != 1:
        return b""
    try:
        lasts = bytes([part[-1] for part in parts[:-1]])
        sizes = bytes(map(len, parts[1:-1]))
    except (IndexError, ValueError):  # an empty text, or a long one: it ends what is sure
        parts = parts[: _first_unusual_part(parts) + 1]
        lasts = bytes([part[-1] for part in parts[:-1]])
        sizes = bytes(map(len, parts[1:-1]))
    lengths = lasts[: len(sizes)]
    wanted = lengths.translate(_LENGTH_PLUS_ONE)
    if sizes == wanted:
        return lengths
    wrong = (i for i, (a, b) in enumerate(zip(sizes, wanted, strict=True)) if a != b)
    return lengths[: next(wrong)]


def _first_unusual_part(parts: list[bytes]) -> int:
    return next(i for i, part in enumerate(parts) if not 0 < len(part) < 256)
