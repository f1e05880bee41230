"""Writes a draft: a copy of a model file with some of its layers, or some of its output
rows.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from localspec.errors import StorageError, UsageError
from localspec.models.gguf import (
    architectures,
    parser,
    reader,
    tokenizer,
    trimmed_vocabulary,
    writer,
)
from localspec.models.gguf.header import Header
from localspec.models.gguf.parser import (
    ARRAY,
    BOOL,
    STRING,
    GgufByteStream,
    GgufContents,
    TensorInfo,
    Value,
)
from localspec.sanitize import sanitize

_NOT_PER_LAYER = ("rope.dimension_sections", "target_layers")
"""Arrays that may have as many elements as the model has layers, by chance."""
_FIXED_LAYERS = {
    "attention.shared_kv_layers": (0, "its last layers read the KV cache of others"),
    "embedding_length_per_layer_input": (0, "it has token embeddings for each of them"),
    "interleave_moe_layer_step": (1, "their kinds alternate by a fixed step"),
    "full_attention_interval": (1, "their kinds alternate by a fixed step"),
}
"""Keys that tie a layer to its number if they are above a limit, and how."""


def find_exit_layer(header: Header) -> int | None:
    """How many layers a LayerSkip checkpoint (arXiv 2404.16710) drafts with; None for
    another.
    """
    exits = (value for key, value in header.keys.items() if key.endswith("exit_layer"))
    return next(
        (n for n in exits if isinstance(n, int) and 0 < n < header.n_layer), None
    )


def copy_layers(
    source: Path,
    destination: Path,
    layers: Sequence[int],
    swa_layers: Sequence[bool] | None = None,
    kept_tokens: Sequence[int] = (),
) -> int:
    """Write a model with only these layers of `source`, in ascending order; returns its
    bytes.

    `swa_layers` says for every layer of the source whether its attention has a sliding
    window: llama.cpp derives it from the layer's number if the file does not say. Keys
    keep their types and tensors their bytes. With `kept_tokens`, which needs
    `check_vocabulary`, the output has the rows of these only. Raises UsageError if the
    model's layers cannot be renumbered.
    """
    header = reader.read(source)
    _check_layers(header, source.name, layers)
    with source.open("rb") as file:
        data = file.read(header.data_offset)
    contents = parser.parse(GgufByteStream(data, header.size))
    entries = list(_key_entries(header, layers, swa_layers, contents, data))
    entries = (
        _trim_entries(entries, header, len(kept_tokens)) if kept_tokens else entries
    )
    kept = _keep_tensors(header, layers, len(kept_tokens))
    temporary = destination.with_name(destination.name + ".part")
    try:
        with source.open("rb") as file, temporary.open("wb") as out:
            out.write(writer.serialize(entries, list(kept), header.alignment))
            for new, old in kept.items():
                rows = kept_tokens if new.n_bytes < old.n_bytes else ()
                _copy_data(file, out, header, old, rows)
            if kept_tokens:
                out.write(struct.pack(f"<{len(kept_tokens)}i", *kept_tokens))
                _copy_data(
                    file, out, header, header.tensors_by_name["token_embd.weight"]
                )
            size = out.tell()
        os.replace(temporary, destination)
    except OSError as error:
        what = f"{destination.name} cannot be written: {error.strerror}."
        raise StorageError(what, "Choose another --out.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return size


def _check_layers(header: Header, name: str, layers: Sequence[int]) -> None:
    n = header.n_layer - header.hparam("nextn_predict_layers")
    if wrong := [layer for layer in layers if not 0 <= layer < n]:
        raise UsageError(
            f"{name} has no layer {wrong[0]}.", f"Its layers are 0 to {n - 1}."
        )
    if header.split is not None:
        raise UsageError(
            f"{name} is one of several parts.", "Merge them: llama-gguf-split --merge"
        )
    if header.is_recurrent or header.is_hybrid:
        what = f"{name} has a recurrent state, so no copy of it can draft."
        raise UsageError(what, "Use a model whose layers all have attention.")
    for key, (limit, reason) in _FIXED_LAYERS.items():
        if header.hparam(key) > limit:
            raise UsageError(f"The layers of {name} cannot be chosen: {reason}.")


def check_vocabulary(header: Header, name: str) -> None:
    """Raises UsageError if the model's vocabulary cannot be trimmed."""
    if header.has_trimmed_vocabulary:
        raise UsageError(
            f"The vocabulary of {name} is trimmed already.", "Use its source."
        )
    if header.architecture not in architectures.TRIMMING_VOCABULARY:
        what = (
            f"The vocabulary of {sanitize(header.architecture, multiline=False)} models"
        )
        tried = ", ".join(sorted(architectures.TRIMMING_VOCABULARY))
        raise UsageError(f"{what} cannot be trimmed.", f"Those of these can: {tried}")


def _trim_entries(entries: Sequence[bytes], header: Header, n_kept: int) -> list[bytes]:
    """The keys of a file that is a model of `n_kept` tokens without a tokenizer."""
    changed: dict[str, Value] = {
        "tokenizer.ggml.model": "none",
        tokenizer.TRIMMED_KEY: header.tokenizer.model,
        f"{header.architecture}.vocab_size": n_kept,
    }
    replaced = tuple(map(writer.pack_string, changed))
    rest = [entry for entry in entries if not entry.startswith(replaced)]
    return [*rest, *(writer.pack_entry(key, value) for key, value in changed.items())]


def _keep_tensors(
    header: Header, layers: Sequence[int], n_kept: int
) -> dict[TensorInfo, TensorInfo]:
    """Each tensor of the copy, and the source's that it is."""
    new_numbers = {old: new for new, old in enumerate(layers)}
    kept: dict[TensorInfo, TensorInfo] = {}
    offset = 0
    for tensor in header.tensors:
        name, match = tensor.name, re.fullmatch(r"blk\.(\d+)\.(.+)", tensor.name)
        if match and int(match[1]) not in new_numbers:
            continue
        if match:
            name = f"blk.{new_numbers[int(match[1])]}.{match[2]}"
        shape, n_bytes = tensor.shape, tensor.n_bytes
        if n_kept and name in trimmed_vocabulary.ROW_TENSORS:
            shape, n_bytes = (*shape[:-1], n_kept), n_bytes // shape[-1] * n_kept
        kept[TensorInfo(name, shape, tensor.type, offset, n_bytes)] = tensor
        offset += n_bytes + -n_bytes % header.alignment
    return kept


def _key_entries(
    header: Header,
    layers: Sequence[int],
    swa_layers: Sequence[bool] | None,
    contents: GgufContents,
    data: bytes,
) -> Iterator[bytes]:
    """Every key with its value as bytes of a GGUF file; those that count layers are
    adapted.
    """
    prefix, n_all = f"{header.architecture}.", header.n_layer
    new_numbers = {
        f"{prefix}block_count": len(layers),
        f"{prefix}nextn_predict_layers": 0,
        f"{prefix}leading_dense_block_count": sum(
            layer < header.hparam("leading_dense_block_count") for layer in layers
        ),
    }
    pattern = f"{prefix}attention.sliding_window_pattern"
    for key, (start, end) in contents.key_spans.items():
        entry = data[start:end]
        array = contents.arrays.get(key)
        if key in new_numbers and array is None:
            # of the value, after key and type
            width = len(entry) - (8 + len(key.encode()) + 4)
            yield entry[:-width] + new_numbers[key].to_bytes(width, "little")
        elif key == pattern and array is None and swa_layers:
            continue  # a period; the pattern follows below
        elif (
            array is not None
            and array.element_type != STRING
            and array.count in (n_all, n_all - header.hparam("nextn_predict_layers"))
            and key.startswith(prefix)
            and key.removeprefix(prefix) not in _NOT_PER_LAYER
        ):
            width = len(array.data) // array.count
            values = [array.data[width * i : width * (i + 1)] for i in layers]
            yield _array_entry(key, array.element_type, values)
        else:
            yield entry
    if swa_layers and pattern not in contents.arrays:
        yield _array_entry(pattern, BOOL, [bytes([swa_layers[i]]) for i in layers])


def _array_entry(key: str, element_type: int, values: Sequence[bytes]) -> bytes:
    about = struct.pack("<IIQ", ARRAY, element_type, len(values))
    return b"".join((writer.pack_string(key), about, *values))


def _copy_data(
    file: BinaryIO,
    out: BinaryIO,
    header: Header,
    tensor: TensorInfo,
    rows: Sequence[int] = (),
) -> None:
    """All of a tensor, or only these rows of it."""
    start, left = header.data_offset + tensor.offset, tensor.n_bytes
    if rows:
        width = left // tensor.shape[-1]
        for row in rows:
            file.seek(start + row * width)
            out.write(file.read(width))
        out.write(bytes(-width * len(rows) % header.alignment))
        return
    file.seek(start)
    while left:
        chunk = file.read(min(left, 16 << 20))
        if not chunk:
            raise OSError(0, "the source file became shorter")
        out.write(chunk)
        left -= len(chunk)
    out.write(bytes(-tensor.n_bytes % header.alignment))
