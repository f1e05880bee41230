"""Writes GGUF headers without a vocabulary: enough for llama.cpp to plan a model's memory."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence

from localspec.models.gguf.header import Header
from localspec.models.gguf.parser import (
    ARRAY,
    BOOL,
    FLOAT32,
    INT32,
    STRING,
    UINT16,
    UINT32,
    Scalar,
    Value,
)
from localspec.models.gguf.tensors import TensorInfo

_UINT64, _INT64 = 10, 11
_STRUCT_FORMATS = {UINT16: "<H", UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"} | {
    _UINT64: "<Q",
    _INT64: "<q",
}
_FIXED_KEY_TYPES = {"split.no": UINT16, "split.count": UINT16, "split.tensors.count": INT32}
"""Keys whose type cannot be inferred from their value."""


def serialize_header(header: Header) -> bytes:
    """The bytes of a file up to its tensors' data, without tokens and chat template.

    Followed by `data_size` bytes, it is a file that llama.cpp accepts.
    """
    unpadded = serialize_unpadded(header)
    return unpadded + bytes(-len(unpadded) % alignment(header))


def serialize_unpadded(header: Header) -> bytes:
    """`serialize_header` without the padding before the data."""
    vocab = f"{header.architecture}.vocab_size"
    keys = {
        key: value
        for key, value in header.keys.items()
        if not key.startswith("tokenizer.") and key != vocab
    } | {vocab: header.tokenizer.n_tokens, "tokenizer.ggml.model": "none"}
    return serialize(
        [pack_string(key) + _pack_value(key, keys[key]) for key in keys], header.tensors
    )


def serialize(entries: Sequence[bytes], tensors: Sequence[TensorInfo]) -> bytes:
    """From each key with its value as bytes of a GGUF file, and the table of tensors."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(entries)), *entries]
    for tensor in tensors:
        n = len(tensor.shape)
        place = struct.pack(f"<I{n}QIQ", n, *tensor.shape, tensor.type, tensor.offset)
        parts += [pack_string(tensor.name), place]
    return b"".join(parts)


def data_size(header: Header) -> int:
    """Bytes of the tensors' data, with padding."""
    if not header.tensors:
        return 0
    last = header.tensors[-1]
    end = last.offset + last.n_bytes
    return end + -end % alignment(header)


def alignment(header: Header) -> int:
    value = header.keys.get("general.alignment", 32)
    return value if isinstance(value, int) else 32


def pack_string(text: str) -> bytes:
    raw = text.encode("utf-8", "replace")
    return struct.pack("<Q", len(raw)) + raw


def _pack_value(key: str, value: Value) -> bytes:
    values = value if isinstance(value, tuple) else (value,)
    value_type = _FIXED_KEY_TYPES.get(key) or _infer_value_type(values)
    packed = b"".join(
        pack_string(str(each))
        if value_type == STRING
        else struct.pack(_STRUCT_FORMATS[value_type], each)
        for each in values
    )
    if isinstance(value, tuple):
        return struct.pack("<IIQ", ARRAY, value_type, len(value)) + packed
    return struct.pack("<I", value_type) + packed


def _infer_value_type(values: Sequence[Scalar]) -> int:
    """The type that llama.cpp expects for such values."""
    if not values or isinstance(values[0], bool):
        return BOOL if values else UINT32
    if isinstance(values[0], float):
        return FLOAT32
    if isinstance(values[0], str):
        return STRING
    numbers = [value for value in values if isinstance(value, int)]
    if min(numbers) < 0:
        return INT32 if min(numbers) >= -(2**31) and max(numbers) < 2**31 else _INT64
    return UINT32 if max(numbers) < 2**32 else _UINT64


def merge_split_headers(parts: Sequence[Header]) -> Header:
    """The header that a split model would have in one file."""
    first = parts[0]
    if len(parts) == 1:
        return first
    tensors: list[TensorInfo] = []
    offset = 0
    for tensor in (tensor for part in parts for tensor in part.tensors):
        tensors.append(tensor._replace(offset=offset))
        offset += tensor.n_bytes + -tensor.n_bytes % alignment(first)
    keys = {key: value for key, value in first.keys.items() if not key.startswith("split.")}
    return dataclasses.replace(
        first, keys=keys, tensors=tuple(tensors), split=None, size=first.data_offset + offset
    )
