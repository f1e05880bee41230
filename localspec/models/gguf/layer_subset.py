"""Writes a copy of a model file with some of its layers: a draft by early exit, or by skipping."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from localspec.errors import StorageError, UsageError
from localspec.lazy_dataclass import dataclass
from localspec.models.gguf import parser, reader, writer
from localspec.models.gguf.header import Header
from localspec.models.gguf.parser import (
    ARRAY,
    BOOL,
    STRING,
    GgufByteStream,
    GgufContents,
    TensorInfo,
)

_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(.+)")
_NOT_PER_LAYER = ("rope.dimension_sections", "target_layers")
"""Arrays that may have as many elements as the model has layers, by chance."""
_FIXED_LAYERS = {
    "attention.shared_kv_layers": (0, "its last layers read the KV cache of others"),
    "embedding_length_per_layer_input": (0, "it has token embeddings for each of them"),
    "interleave_moe_layer_step": (1, "their kinds alternate by a fixed step"),
    "full_attention_interval": (1, "their kinds alternate by a fixed step"),
}
"""Keys that tie a layer to its number if they are above a limit, and how."""
_COPY_STEP = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class _Copy:
    """What `copy_layers` writes: the source's header, and old layer numbers in their new order."""

    header: Header
    layers: Sequence[int]
    swa_layers: Sequence[bool] | None

    @property
    def tensors(self) -> list[tuple[str, TensorInfo]]:
        """The kept tensors with their new names."""
        new_numbers = {old: new for new, old in enumerate(self.layers)}
        kept = []
        for tensor in self.header.tensors:
            match = _LAYER_TENSOR.fullmatch(tensor.name)
            if match is None:
                kept.append((tensor.name, tensor))
            elif (new := new_numbers.get(int(match[1]))) is not None:
                kept.append((f"blk.{new}.{match[2]}", tensor))
        return kept


def find_exit_layer(header: Header) -> int | None:
    """How many layers a LayerSkip checkpoint (arXiv 2404.16710) drafts with; None for another."""
    exits = (value for key, value in header.keys.items() if key.endswith("exit_layer"))
    return next((n for n in exits if isinstance(n, int) and 0 < n < header.n_layer), None)


def copy_layers(
    source: Path, destination: Path, layers: Sequence[int], swa_layers: Sequence[bool] | None = None
) -> int:
    """Write a model with only these layers of `source`, in ascending order; returns its bytes.

    `swa_layers` says for every layer of the source whether its attention has a sliding window:
    llama.cpp derives it from the layer's number if the file does not say. Keys keep their types
    and tensors their bytes. Raises UsageError if the model's layers cannot be renumbered.
    """
    header = reader.read(source)
    _check_layers(header, source.name, layers)
    with source.open("rb") as file:
        data = file.read(header.data_offset)
    contents = parser.parse(GgufByteStream(data, header.size))
    copy = _Copy(header, layers, swa_layers)
    temporary = destination.with_name(destination.name + ".part")
    try:
        with source.open("rb") as file, temporary.open("wb") as out:
            out.write(_serialize_header(copy, contents, data))
            for _, tensor in copy.tensors:
                _copy_data(file, out, header, tensor)
            size = out.tell()
        os.replace(temporary, destination)
    except OSError as error:
        raise StorageError(
            f"{destination.name} cannot be written: {error.strerror}.", "Choose another --out."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return size


def _check_layers(header: Header, name: str, layers: Sequence[int]) -> None:
    n = header.n_layer - header.hparam("nextn_predict_layers")
    if wrong := [layer for layer in layers if not 0 <= layer < n]:
        raise UsageError(f"{name} has no layer {wrong[0]}.", f"Its layers are 0 to {n - 1}.")
    if header.split is not None:
        raise UsageError(f"{name} is one of several parts.", "Merge them: llama-gguf-split --merge")
    if header.is_recurrent or header.is_hybrid:
        what = f"{name} has a recurrent state, so no copy of it can draft."
        raise UsageError(what, "Use a model whose layers all have attention.")
    for key, (limit, reason) in _FIXED_LAYERS.items():
        if header.hparam(key) > limit:
            raise UsageError(f"The layers of {name} cannot be chosen: {reason}.")


def _serialize_header(copy: _Copy, contents: GgufContents, data: bytes) -> bytes:
    moved, offset, alignment = list[TensorInfo](), 0, copy.header.alignment
    for name, tensor in copy.tensors:
        moved.append(tensor._replace(name=name, offset=offset))
        offset += tensor.n_bytes + -tensor.n_bytes % alignment
    return writer.serialize(list(_key_entries(copy, contents, data)), moved, alignment)


def _key_entries(copy: _Copy, contents: GgufContents, data: bytes) -> Iterator[bytes]:
    """Every key with its value as bytes of a GGUF file; those that count layers are adapted."""
    prefix, n_all = f"{copy.header.architecture}.", copy.header.n_layer
    new_numbers = {
        f"{prefix}block_count": len(copy.layers),
        f"{prefix}nextn_predict_layers": 0,
        f"{prefix}leading_dense_block_count": sum(
            layer < copy.header.hparam("leading_dense_block_count") for layer in copy.layers
        ),
    }
    pattern = f"{prefix}attention.sliding_window_pattern"
    for key, (start, end) in contents.key_spans.items():
        entry = data[start:end]
        array = contents.arrays.get(key)
        if key in new_numbers and array is None:
            width = len(entry) - (8 + len(key.encode()) + 4)  # of the value, after key and type
            yield entry[:-width] + new_numbers[key].to_bytes(width, "little")
        elif key == pattern and array is None and copy.swa_layers:
            continue  # a period; the pattern follows below
        elif (
            array is not None
            and array.element_type != STRING
            and array.count in (n_all, n_all - copy.header.hparam("nextn_predict_layers"))
            and key.startswith(prefix)
            and key.removeprefix(prefix) not in _NOT_PER_LAYER
        ):
            width = len(array.data) // array.count
            values = [array.data[width * i : width * (i + 1)] for i in copy.layers]
            yield _array_entry(key, array.element_type, values)
        else:
            yield entry
    if copy.swa_layers and pattern not in contents.arrays:
        yield _array_entry(pattern, BOOL, [bytes([copy.swa_layers[i]]) for i in copy.layers])


def _array_entry(key: str, element_type: int, values: Sequence[bytes]) -> bytes:
    about = struct.pack("<IIQ", ARRAY, element_type, len(values))
    return b"".join((writer.pack_string(key), about, *values))


def _copy_data(file: BinaryIO, out: BinaryIO, header: Header, tensor: TensorInfo) -> None:
    file.seek(header.data_offset + tensor.offset)
    left = tensor.n_bytes
    while left:
        chunk = file.read(min(left, _COPY_STEP))
        if not chunk:
            raise OSError(0, "the source file became shorter")
        out.write(chunk)
        left -= len(chunk)
    out.write(bytes(-tensor.n_bytes % header.alignment))
