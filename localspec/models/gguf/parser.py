"""Parses the structure of a GGUF file from untrusted bytes: keys, arrays and the tensor table.

Every length is checked before it is used.  llama.cpp's own parser is ggml/src/gguf.cpp.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import field

from localspec.lazy_dataclass import dataclass
from localspec.models.gguf.tensors import GGML_TYPES, TensorInfo

VERSIONS = (2, 3)
MAX_HEADER_BYTES = 64 * 1024**2  # The largest known header has 16 MB.
MAX_ENTRIES = 100_000  # Tensors or keys; real models have less than a tenth.
MAX_KEY_BYTES = 65_535
MAX_ARRAY_LENGTH = 10_000_000
MAX_TOKENS = 1_000_000  # Their texts are kept in memory; the largest known vocabulary has 262,144.
MAX_ALIGNMENT = 65_536
MAX_TENSOR_NAME_BYTES = 63
MAX_DIMENSIONS = 4
_SHORT_ARRAY = 1024  # Arrays of up to this many elements become values.
_READ_STEP = 1024**2
_TOKENS_KEY = "tokenizer.ggml.tokens"
_KEPT_ARRAYS = ("tokenizer.ggml.token_type",)  # Long arrays of numbers whose bytes are kept.

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
    """The file is damaged; the message ends a sentence that begins with the file's name."""


class UnsupportedGgufError(InvalidGgufError):
    """The file is as it should be, and of a kind that this version cannot read."""


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array; `data` is empty if its bytes are not kept."""

    element_type: int
    count: int
    data: bytes = b""


@dataclass(slots=True)
class GgufContents:
    """The contents of a file before the tensors' data."""

    version: int = 0
    keys: dict[str, Value] = field(default_factory=dict)  # Scalars and short arrays.
    key_types: dict[str, int] = field(default_factory=dict)
    key_spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Start and end of each key with its value, as offsets in the file."""
    arrays: dict[str, GgufArray] = field(default_factory=dict)
    tokens: list[bytes] = field(default_factory=list)
    tensors: tuple[TensorInfo, ...] = ()
    header_bytes: int = 0
    data_offset: int = 0


class GgufByteStream:
    """Reads a file of `size` bytes from its start; `read_more(start, end)` gets further bytes."""

    def __init__(
        self,
        data: bytes | bytearray | memoryview,
        size: int,
        read_more: Callable[[int, int], bytes] | None = None,
    ) -> None:
        self._data = bytearray(data) if read_more or not isinstance(data, bytes) else data
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

    def read_int(self, struct_: struct.Struct) -> int:
        return int(struct_.unpack_from(self._data, self.advance(struct_.size))[0])

    def read_scalar(self, struct_: struct.Struct) -> Scalar:
        value: Scalar = struct_.unpack_from(self._data, self.advance(struct_.size))[0]
        return value

    def read_string(self, max_bytes: int, description: str) -> bytes:
        """`description` names the text in errors."""
        size = self.read_int(_U64)
        if size > max_bytes:
            raise InvalidGgufError(f"has a damaged header: {description} of {size:,} bytes")
        start = self.advance(size)
        return self.slice(start, start + size)

    def read_strings(self, count: int, *, keep: bool) -> list[bytes]:
        """An array of texts; without `keep` they are skipped."""
        strings: list[bytes] = []
        data, position, n_read = self._data, self.position, len(self._data)
        unpack = _U64.unpack_from
        for _ in range(count):  # a vocabulary has 250,000: no calls
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
        if end > self._size:
            raise InvalidGgufError(
                f"is incomplete: its header does not end within {self._size:,} bytes"
            )
        if end > MAX_HEADER_BYTES:
            raise InvalidGgufError(f"has a header of more than {MAX_HEADER_BYTES:,} bytes")
        n_read = len(self._data)
        more = b""
        if self._read_more is not None:
            more = self._read_more(n_read, min(self._size, max(end, n_read + _READ_STEP)))
        if end > n_read + len(more):
            raise InvalidGgufError("changed while it was read")
        assert isinstance(self._data, bytearray)
        self._data += more


def parse(source: GgufByteStream) -> GgufContents:
    """Parse everything before the tensors' data.  Raises InvalidGgufError."""
    if source.slice(start := source.advance(4), start + 4) != b"GGUF":
        raise InvalidGgufError("is not a GGUF file")
    contents = GgufContents(version=source.read_int(_U32))
    if contents.version not in VERSIONS:
        is_big_endian = int.from_bytes(_U32.pack(contents.version), "big") in VERSIONS
        kind = "a big-endian file" if is_big_endian else f"GGUF v{contents.version}"
        raise UnsupportedGgufError(f"is {kind}, which cannot be run")
    n_tensors, n_keys = source.read_int(_U64), source.read_int(_U64)
    if n_tensors > MAX_ENTRIES or n_keys > MAX_ENTRIES:
        raise InvalidGgufError(f"has a damaged header: {n_tensors:,} tensors, {n_keys:,} keys")
    for _ in range(n_keys):
        _read_key(source, contents)
    alignment = _read_alignment(contents)
    contents.tensors = _read_tensors(source, n_tensors, alignment)
    contents.header_bytes = source.position
    contents.data_offset = _align(source.position, alignment) if n_tensors else source.position
    return contents


def _read_key(source: GgufByteStream, contents: GgufContents) -> None:
    start = source.position
    raw = source.read_string(MAX_KEY_BYTES, "a key")
    key = raw.decode("utf-8", "replace")
    if not raw or key in contents.key_types:
        raise InvalidGgufError(f"has a damaged header: the key {key[:80]!r} is empty or duplicated")
    type_ = contents.key_types[key] = source.read_int(_U32)
    if type_ == ARRAY:
        _read_array(source, contents, key)
    elif type_ == STRING:
        contents.keys[key] = source.read_string(MAX_HEADER_BYTES, "a text").decode(
            "utf-8", "replace"
        )
    elif type_ in _SCALAR_STRUCTS:
        contents.keys[key] = source.read_scalar(_SCALAR_STRUCTS[type_])
    else:
        raise InvalidGgufError(f"has a damaged header: the key {key[:80]!r} is of type {type_}")
    contents.key_spans[key] = start, source.position


def _read_array(source: GgufByteStream, contents: GgufContents, key: str) -> None:
    type_, count = source.read_int(_U32), source.read_int(_U64)
    max_count = MAX_TOKENS if key == _TOKENS_KEY else MAX_ARRAY_LENGTH
    if count > max_count or (type_ not in _SCALAR_STRUCTS and type_ != STRING):
        detail = f"the array {key[:80]!r} of type {type_} has {count:,} elements"
        raise InvalidGgufError(f"has a damaged header: {detail}")
    if type_ == STRING:
        strings = source.read_strings(count, keep=key == _TOKENS_KEY or count <= _SHORT_ARRAY)
        contents.arrays[key] = GgufArray(type_, count)
        if key == _TOKENS_KEY:
            contents.tokens = strings
        if count <= _SHORT_ARRAY:
            contents.keys[key] = tuple(text.decode("utf-8", "replace") for text in strings)
        return
    struct_ = _SCALAR_STRUCTS[type_]
    start = source.advance(count * struct_.size)
    data = (
        source.slice(start, source.position)
        if count <= _SHORT_ARRAY or key in _KEPT_ARRAYS
        else b""
    )
    contents.arrays[key] = GgufArray(type_, count, data)
    if count <= _SHORT_ARRAY:
        contents.keys[key] = tuple(value for (value,) in struct_.iter_unpack(data))


def _read_alignment(contents: GgufContents) -> int:
    alignment = contents.keys.get("general.alignment", 32)
    type_ = contents.key_types.get("general.alignment", UINT32)
    valid = isinstance(alignment, int) and type_ == UINT32 and 0 < alignment <= MAX_ALIGNMENT
    if not isinstance(alignment, int) or not valid or alignment & (alignment - 1):
        raise InvalidGgufError(f"has a damaged header: an alignment of {str(alignment)[:40]}")
    return alignment


def _read_tensors(source: GgufByteStream, count: int, alignment: int) -> tuple[TensorInfo, ...]:
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
        offset += _align(tensor.n_bytes, alignment)
    return tuple(tensors.values())


def _read_tensor(source: GgufByteStream) -> TensorInfo:
    name = source.read_string(MAX_TENSOR_NAME_BYTES, "a tensor's name").decode(
        "utf-8", "backslashreplace"
    )
    n_dimensions = source.read_int(_U32)
    if n_dimensions > MAX_DIMENSIONS:
        raise InvalidGgufError(f"has a damaged header: {name!r} has {n_dimensions:,} dimensions")
    shape = tuple(source.read_int(_U64) for _ in range(n_dimensions))
    type_, offset = source.read_int(_U32), source.read_int(_U64)
    if type_ not in GGML_TYPES:
        what = f"has the tensor {name!r} of type {type_}, which cannot be read"
        raise UnsupportedGgufError(what)
    _, block, block_bytes = GGML_TYPES[type_]
    row = shape[0] if shape else 1
    tensor = TensorInfo(name, shape, type_, offset, 0)
    too_large = max(shape, default=0) >= 2**62 or tensor.n_elements * block_bytes >= 2**62
    if row % block or too_large:
        raise InvalidGgufError(f"has a damaged header: {name!r} has the shape {shape}")
    return tensor._replace(n_bytes=tensor.n_elements // block * block_bytes)


def _align(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment
