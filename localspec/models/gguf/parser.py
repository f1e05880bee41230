"""Parses what precedes the tensors' data in a GGUF file: keys, arrays, tensor table.

The bytes are untrusted: every length is checked before it is used. llama.cpp's own
parser is ggml/src/gguf.cpp.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

_VERSIONS = (2, 3)
MAX_HEADER_BYTES = 64 * 1024**2
"""The largest known header has 16 MB."""
_MAX_ENTRIES = 100_000
"""Tensors or keys; real models have less than a tenth."""
_MAX_KEY_BYTES = 65_535
_MAX_ARRAY_LENGTH = 10_000_000
_MAX_TOKENS = 1_000_000
"""Their texts are kept in memory; the largest known vocabulary has 262,144."""
_MAX_ALIGNMENT = 65_536
_DEFAULT_ALIGNMENT = 32
_MAX_TENSOR_NAME_BYTES = 63
_MAX_DIMENSIONS = 4
_MAX_TENSOR_SIZE = 2**62
"""Elements or bytes: llama.cpp computes with signed 64-bit numbers."""
_SHORT_ARRAY = 1024
"""Arrays of up to this many elements become values."""
_READ_STEP = 1024**2
_TOKENS_KEY = "tokenizer.ggml.tokens"
_TYPES_KEY = "tokenizer.ggml.token_type"

# Types of values (gguf_type).
UINT8 = 0
INT8 = 1
UINT16 = 2
INT16 = 3
UINT32 = 4
INT32 = 5
FLOAT32 = 6
BOOL = 7
STRING = 8
ARRAY = 9
UINT64 = 10
INT64 = 11
FLOAT64 = 12
SCALAR_STRUCTS = {
    UINT8: struct.Struct("<B"),
    INT8: struct.Struct("<b"),
    UINT16: struct.Struct("<H"),
    INT16: struct.Struct("<h"),
    UINT32: struct.Struct("<I"),
    INT32: struct.Struct("<i"),
    FLOAT32: struct.Struct("<f"),
    BOOL: struct.Struct("<?"),
    UINT64: struct.Struct("<Q"),
    INT64: struct.Struct("<q"),
    FLOAT64: struct.Struct("<d"),
}
_U32 = SCALAR_STRUCTS[UINT32]
_U64 = SCALAR_STRUCTS[UINT64]


class GgmlType(NamedTuple):
    """A type of tensors: each block of elements takes some bytes."""

    name: str
    block_size: int
    block_bytes: int

    @property
    def bits(self) -> float:
        """Bits of an element: 4.5 for Q4_0, whose 32 elements take 18 bytes."""
        return 8 * self.block_bytes / self.block_size

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of whole blocks."""
        return width // self.block_size * self.block_bytes


_GGML_TYPES = (
    "0 F32 1 4, 1 F16 1 2, 2 Q4_0 32 18, 3 Q4_1 32 20, 6 Q5_0 32 22, 7 Q5_1 32 24, 8 Q8_0 32 34, "
    "9 Q8_1 32 36, 10 Q2_K 256 84, 11 Q3_K 256 110, 12 Q4_K 256 144, 13 Q5_K 256 176, "
    "14 Q6_K 256 210, 15 Q8_K 256 292, 16 IQ2_XXS 256 66, 17 IQ2_XS 256 74, 18 IQ3_XXS 256 98, "
    "19 IQ1_S 256 50, 20 IQ4_NL 32 18, 21 IQ3_S 256 110, 22 IQ2_S 256 82, 23 IQ4_XS 256 136, "
    "24 I8 1 1, 25 I16 1 2, 26 I32 1 4, 27 I64 1 8, 28 F64 1 8, 29 IQ1_M 256 56, 30 BF16 1 2, "
    "34 TQ1_0 256 54, 35 TQ2_0 256 66, 39 MXFP4 32 17, 40 NVFP4 64 36, 41 Q1_0 128 18, "
    "42 Q2_0 64 18"
)
GGML_TYPES = {
    int(number): GgmlType(name, int(block_size), int(block_bytes))
    for number, name, block_size, block_bytes in map(str.split, _GGML_TYPES.split(","))
}
"""By ggml_type (ggml.c, type_traits)."""

_FILE_TYPES = (
    "0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 7 Q8_0, 8 Q5_0, 9 Q5_1, 10 Q2_K, 11 Q3_K_S, 12 Q3_K_M, "
    "13 Q3_K_L, 14 Q4_K_S, 15 Q4_K_M, 16 Q5_K_S, 17 Q5_K_M, 18 Q6_K, 19 IQ2_XXS, 20 IQ2_XS, "
    "21 Q2_K_S, 22 IQ3_XS, 23 IQ3_XXS, 24 IQ1_S, 25 IQ4_NL, 26 IQ3_S, 27 IQ3_M, 28 IQ2_S, "
    "29 IQ2_M, 30 IQ4_XS, 31 IQ1_M, 32 BF16, 36 TQ1_0, 37 TQ2_0, 38 MXFP4, 39 NVFP4, 40 Q1_0, "
    "41 Q2_0"
)
FILE_TYPES: dict[int, str] = {
    int(number): name for number, name in map(str.split, _FILE_TYPES.split(","))
}
"""By general.file_type (llama.h, llama_ftype)."""

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]


class TensorInfo(NamedTuple):
    name: str
    shape: tuple[int, ...]
    """Row length first."""
    type: int
    """Of GGML_TYPES."""
    offset: int
    """From the start of the tensors' data."""
    n_bytes: int

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def type_name(self) -> str:
        return GGML_TYPES[self.type].name


class InvalidGgufError(Exception):
    """The file is damaged.

    The message ends a sentence that begins with the file's name.
    """


class UnsupportedGgufError(InvalidGgufError):
    """The file is as it should be, and of a kind that this version cannot read."""


class GgufArray(Struct, frozen=True):
    """An array; `data` is empty if its bytes are not kept."""

    element_type: int
    count: int
    data: bytes = b""


class GgufContents(Struct):
    """The contents of a file before the tensors' data."""

    version: int = 0
    keys: dict[str, Value] = field(default_factory=dict)
    """Scalars, texts and short arrays."""
    key_types: dict[str, int] = field(default_factory=dict)
    key_spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Start and end of each key with its value, as offsets in the file."""
    arrays: dict[str, GgufArray] = field(default_factory=dict)
    tokens: list[bytes] = field(default_factory=list)
    tensors: tuple[TensorInfo, ...] = ()
    data_offset: int = 0
    """Where the tensors' data begins; without tensors, where the file ends."""

    def text(self, key: str, default: str = "") -> str:
        """Raises InvalidGgufError for a value of another type."""
        value = self.keys.get(key, default)
        if not isinstance(value, str):
            raise InvalidGgufError(f"has a damaged header: {key} is not text")
        return value


class GgufByteStream:
    """Reads a file of `size` bytes from its start.

    `data` is the beginning; `read_more(start, end)` gets further bytes.
    """

    def __init__(
        self,
        data: bytes | bytearray | memoryview,
        size: int,
        read_more: Callable[[int, int], bytes] | None = None,
    ) -> None:
        self._data: bytes | bytearray = bytes(data)
        if read_more is not None:
            self._data = bytearray(data)  # which can grow
        self._size = size
        self._read_more = read_more
        self.position = 0

    def advance(self, n: int) -> int:
        """Skip `n` bytes; returns their start."""
        start = self.position
        self.position = start + n
        if self.position > len(self._data):
            self._read_until(self.position)
        return start

    def slice(self, start: int, end: int) -> bytes:
        return bytes(self._data[start:end])

    def read(self, struct_: struct.Struct) -> Any:
        return struct_.unpack_from(self._data, self.advance(struct_.size))[0]

    def read_string(self, max_bytes: int, description: str) -> bytes:
        """`description` names the text in errors."""
        size = self.read(_U64)
        if size > max_bytes:
            raise InvalidGgufError(
                f"has a damaged header: {description} of {size:,} bytes"
            )
        start = self.advance(size)
        return self.slice(start, start + size)

    def read_strings(self, count: int, *, keep: bool) -> list[bytes]:
        """An array of texts; without `keep` they are skipped."""
        strings: list[bytes] = []
        data = self._data
        n_read = len(data)
        position = self.position
        unpack = _U64.unpack_from
        for _ in range(count):  # A vocabulary has 250,000, so methods are not called.
            start = position + 8
            if start > n_read:
                self._read_until(start)
                n_read = len(data)
            position = start + unpack(data, position)[0]
            if position > n_read:
                self._read_until(position)
                n_read = len(data)
            if keep:
                strings.append(bytes(data[start:position]))
        self.position = position
        return strings

    def _read_until(self, end: int) -> None:
        """Append bytes to `_data` up to `end`, and some more."""
        if end > self._size:
            raise InvalidGgufError(
                f"is incomplete: its header does not end within {self._size:,} bytes"
            )
        if end > MAX_HEADER_BYTES:
            raise InvalidGgufError(
                f"has a header of more than {MAX_HEADER_BYTES:,} bytes"
            )
        n_read = len(self._data)
        more = b""
        if self._read_more is not None:
            wanted_end = min(self._size, max(end, n_read + _READ_STEP))
            more = self._read_more(n_read, wanted_end)
        if end > n_read + len(more):
            raise InvalidGgufError("changed while it was read")
        assert isinstance(self._data, bytearray)
        self._data += more


def parse(source: GgufByteStream) -> GgufContents:
    """Parse everything before the tensors' data.  Raises InvalidGgufError."""
    start = source.advance(4)
    if source.slice(start, start + 4) != b"GGUF":
        raise InvalidGgufError("is not a GGUF file")
    contents = GgufContents(version=source.read(_U32))
    _check_version(contents.version)
    n_tensors = source.read(_U64)
    n_keys = source.read(_U64)
    if n_tensors > _MAX_ENTRIES or n_keys > _MAX_ENTRIES:
        raise InvalidGgufError(
            f"has a damaged header: {n_tensors:,} tensors, {n_keys:,} keys"
        )
    for _ in range(n_keys):
        _read_key(source, contents)
    alignment = _read_alignment(contents)
    contents.tensors = _read_tensors(source, n_tensors, alignment)
    contents.data_offset = source.position
    if n_tensors:
        contents.data_offset = align(source.position, alignment)
    return contents


def _check_version(version: int) -> None:
    if version in _VERSIONS:
        return
    kind = f"GGUF v{version}"
    if int.from_bytes(_U32.pack(version), "big") in _VERSIONS:
        kind = "a big-endian file"
    raise UnsupportedGgufError(f"is {kind}, which cannot be run")


def _read_key(source: GgufByteStream, contents: GgufContents) -> None:
    start = source.position
    raw = source.read_string(_MAX_KEY_BYTES, "a key")
    key = raw.decode("utf-8", "replace")
    if not raw or key in contents.key_types:
        raise InvalidGgufError(
            f"has a damaged header: the key {key[:80]!r} is empty or duplicated"
        )
    type_ = source.read(_U32)
    contents.key_types[key] = type_
    if type_ == ARRAY:
        _read_array(source, contents, key)
    elif type_ == STRING:
        text = source.read_string(MAX_HEADER_BYTES, "a text")
        contents.keys[key] = text.decode("utf-8", "replace")
    elif type_ in SCALAR_STRUCTS:
        contents.keys[key] = source.read(SCALAR_STRUCTS[type_])
    else:
        raise InvalidGgufError(
            f"has a damaged header: the key {key[:80]!r} is of type {type_}"
        )
    contents.key_spans[key] = (start, source.position)


def _read_array(source: GgufByteStream, contents: GgufContents, key: str) -> None:
    type_ = source.read(_U32)
    count = source.read(_U64)
    max_count = _MAX_TOKENS if key == _TOKENS_KEY else _MAX_ARRAY_LENGTH
    if count > max_count or (type_ not in SCALAR_STRUCTS and type_ != STRING):
        raise InvalidGgufError(
            f"has a damaged header: the array {key[:80]!r} of type {type_} "
            f"has {count:,} elements"
        )
    if type_ == STRING:
        _read_text_array(source, contents, key, count)
    else:
        _read_number_array(source, contents, key, GgufArray(type_, count))


def _read_text_array(
    source: GgufByteStream, contents: GgufContents, key: str, count: int
) -> None:
    is_short = count <= _SHORT_ARRAY
    texts = source.read_strings(count, keep=is_short or key == _TOKENS_KEY)
    contents.arrays[key] = GgufArray(STRING, count)
    if key == _TOKENS_KEY:
        contents.tokens = texts
    if is_short:
        contents.keys[key] = tuple(text.decode("utf-8", "replace") for text in texts)


def _read_number_array(
    source: GgufByteStream, contents: GgufContents, key: str, array: GgufArray
) -> None:
    """`array` is without its data."""
    is_short = array.count <= _SHORT_ARRAY
    struct_ = SCALAR_STRUCTS[array.element_type]
    start = source.advance(array.count * struct_.size)
    if is_short or key == _TYPES_KEY:
        array = replace(array, data=source.slice(start, source.position))
    contents.arrays[key] = array
    if is_short:
        values = struct_.iter_unpack(array.data)
        contents.keys[key] = tuple(value for (value,) in values)


def _read_alignment(contents: GgufContents) -> int:
    key = "general.alignment"
    alignment = contents.keys.get(key, _DEFAULT_ALIGNMENT)
    if contents.key_types.get(key, UINT32) == UINT32 and isinstance(alignment, int):
        is_power_of_two = alignment & (alignment - 1) == 0
        if 0 < alignment <= _MAX_ALIGNMENT and is_power_of_two:
            return alignment
    raise InvalidGgufError(
        f"has a damaged header: an alignment of {str(alignment)[:40]}"
    )


def _read_tensors(
    source: GgufByteStream, count: int, alignment: int
) -> tuple[TensorInfo, ...]:
    """Read the table.  As in llama.cpp, the tensors' data must be contiguous."""
    tensors: dict[str, TensorInfo] = {}
    offset = 0
    for _ in range(count):
        tensor = _read_tensor(source)
        if tensor.name in tensors or tensor.offset != offset:
            raise InvalidGgufError(
                f"has a damaged header: the tensor {tensor.name!r} is duplicated or misplaced"
            )
        tensors[tensor.name] = tensor
        offset += align(tensor.n_bytes, alignment)
    return tuple(tensors.values())


def _read_tensor(source: GgufByteStream) -> TensorInfo:
    raw_name = source.read_string(_MAX_TENSOR_NAME_BYTES, "a tensor's name")
    name = raw_name.decode("utf-8", "backslashreplace")
    n_dimensions = source.read(_U32)
    if n_dimensions > _MAX_DIMENSIONS:
        raise InvalidGgufError(
            f"has a damaged header: {name!r} has {n_dimensions:,} dimensions"
        )
    shape = tuple(source.read(_U64) for _ in range(n_dimensions))
    type_ = source.read(_U32)
    offset = source.read(_U64)
    ggml_type = GGML_TYPES.get(type_)
    if ggml_type is None:
        raise UnsupportedGgufError(
            f"has the tensor {name!r} of type {type_}, which cannot be read"
        )
    row_length = shape[0] if shape else 1
    n_elements = math.prod(shape)
    n_bytes = n_elements // ggml_type.block_size * ggml_type.block_bytes
    is_too_large = (
        max(shape, default=0) >= _MAX_TENSOR_SIZE
        or n_elements * ggml_type.block_bytes >= _MAX_TENSOR_SIZE
    )
    if row_length % ggml_type.block_size or is_too_large:
        raise InvalidGgufError(f"has a damaged header: {name!r} has the shape {shape}")
    return TensorInfo(name, shape, type=type_, offset=offset, n_bytes=n_bytes)


def align(n: int, alignment: int) -> int:
    """`n` rounded up to a multiple: 33 aligned to 32 is 64."""
    return -(-n // alignment) * alignment
