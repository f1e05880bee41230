"""Writes GGUF headers without a vocabulary: enough for llama.cpp to plan a model's
memory.
"""

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
    vocab = f"{header.architecture}.vocab_size"
    n_tokens = header.tokenizer.n_tokens
    if header.has_trimmed_vocabulary:
        n_tokens = header.hparam("vocab_size")
    keys = {
        key: value
        for key, value in header.keys.items()
        if not key.startswith("tokenizer.") and key != vocab
    } | {vocab: n_tokens, "tokenizer.ggml.model": "none"}
    entries = [pack_entry(key, value) for key, value in keys.items()]
    return serialize(entries, header.tensors, header.alignment)


def serialize(
    entries: Sequence[bytes], tensors: Sequence[TensorInfo], alignment: int
) -> bytes:
    """`entries` is each key with its value, as bytes of a GGUF file."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(entries)), *entries]
    for tensor in tensors:
        n = len(tensor.shape)
        place = struct.pack(f"<I{n}QIQ", n, *tensor.shape, tensor.type, tensor.offset)
        parts += [pack_string(tensor.name), place]
    unpadded = b"".join(parts)
    return unpadded + bytes(-len(unpadded) % alignment)


def data_size(header: Header) -> int:
    """Bytes of the tensors' data, with padding."""
    if not header.tensors:
        return 0
    end = header.tensors[-1].offset + header.tensors[-1].n_bytes
    return end + -end % header.alignment


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
    first = values[0] if values else 0
    floats = [value for value in values if isinstance(value, float)]
    if floats:  # infinite and NaN are float32, too
        fits = all(abs(value) < _MAX_FLOAT32 or not isfinite(value) for value in floats)
        return parser.FLOAT32 if fits else parser.FLOAT64
    for kind, type_ in ((bool, parser.BOOL), (str, STRING)):
        if isinstance(first, kind):
            return type_
    numbers = [value for value in values if isinstance(value, int)]
    low, high = min(numbers, default=0), max(numbers, default=0)
    if low < 0:
        return parser.INT32 if low >= -(2**31) and high < 2**31 else parser.INT64
    return UINT32 if high < 2**32 else parser.UINT64
