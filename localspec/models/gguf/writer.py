"""Writes GGUF headers without a vocabulary, from which llama.cpp counts memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import isfinite

from localspec.models.gguf import parser
from localspec.models.gguf.header import Header
from localspec.models.gguf.parser import ARRAY, STRING, UINT32, TensorInfo, Value

_FIXED_KEY_TYPES = {
    "split.no": parser.UINT16,
    "split.count": parser.UINT16,
    "split.tensors.count": parser.INT32,
}
"""Keys whose type cannot be inferred from their value."""
_MAX_FLOAT32 = 3.4028235e38


def serialize_header(header: Header) -> bytes:
    """The bytes of a file up to its tensors' data, without tokens and chat template.

    Followed by `data_size` bytes, it is a file that llama.cpp accepts.
    """
    n_tokens = header.tokenizer.n_tokens
    if header.has_trimmed_vocabulary:
        n_tokens = header.hparam("vocab_size")
    size_key = f"{header.architecture}.vocab_size"
    keys = {
        key: value
        for key, value in header.keys.items()
        if not key.startswith("tokenizer.") and key != size_key
    }
    keys[size_key] = n_tokens
    keys["tokenizer.ggml.model"] = "none"
    entries = [pack_entry(key, value) for key, value in keys.items()]
    return serialize(entries, header.tensors, header.alignment)


def serialize(
    entries: Sequence[bytes], tensors: Sequence[TensorInfo], alignment: int
) -> bytes:
    """`entries` is each key with its value, as bytes of a GGUF file."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(entries)), *entries]
    for tensor in tensors:
        n_dimensions = len(tensor.shape)
        parts += [
            pack_string(tensor.name),
            struct.pack("<I", n_dimensions),
            struct.pack(f"<{n_dimensions}Q", *tensor.shape),
            struct.pack("<IQ", tensor.type, tensor.offset),
        ]
    unpadded = b"".join(parts)
    return unpadded + bytes(-len(unpadded) % alignment)


def data_size(header: Header) -> int:
    """Bytes of the tensors' data, with padding."""
    if not header.tensors:
        return 0
    last = header.tensors[-1]
    return parser.align(last.offset + last.n_bytes, header.alignment)


def pack_string(text: str) -> bytes:
    raw = text.encode("utf-8", "replace")
    return struct.pack("<Q", len(raw)) + raw


def pack_entry(key: str, value: Value) -> bytes:
    return pack_string(key) + _pack_value(key, value)


def _pack_value(key: str, value: Value) -> bytes:
    values = value if isinstance(value, tuple) else (value,)
    value_type = _FIXED_KEY_TYPES.get(key) or _infer_value_type(values)
    if value_type == STRING:
        packed = b"".join(pack_string(str(each)) for each in values)
    else:
        packed = b"".join(map(parser.SCALAR_STRUCTS[value_type].pack, values))
    if isinstance(value, tuple):
        return struct.pack("<IIQ", ARRAY, value_type, len(value)) + packed
    return struct.pack("<I", value_type) + packed


def _infer_value_type(values: Sequence[object]) -> int:
    """The type that llama.cpp expects for such values."""
    floats = [value for value in values if isinstance(value, float)]
    if floats:
        return parser.FLOAT32 if all(map(_fits_float32, floats)) else parser.FLOAT64
    first = values[0] if values else 0
    if isinstance(first, bool):
        return parser.BOOL
    if isinstance(first, str):
        return STRING
    numbers = [value for value in values if isinstance(value, int)]
    lowest = min(numbers, default=0)
    highest = max(numbers, default=0)
    if lowest < 0:
        is_32_bit = lowest >= -(2**31) and highest < 2**31
        return parser.INT32 if is_32_bit else parser.INT64
    return UINT32 if highest < 2**32 else parser.UINT64


def _fits_float32(value: float) -> bool:
    """Infinity and NaN do, too."""
    return abs(value) < _MAX_FLOAT32 or not isfinite(value)
