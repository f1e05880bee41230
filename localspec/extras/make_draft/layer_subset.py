"""Writes a draft model: a copy of a model's file with fewer layers or output rows."""

from __future__ import annotations

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
    GgufArray,
    GgufByteStream,
    GgufContents,
    TensorInfo,
    Value,
)
from localspec.sanitize import sanitize
from localspec.temporary_files import unnamed_file

_NOT_PER_LAYER = ("rope.dimension_sections", "target_layers")
"""Arrays that may have as many elements as the model has layers, by chance."""
_CHUNK = 16 << 20  # So many bytes of a tensor are copied at once.
_FIXED_LAYERS = {
    "attention.shared_kv_layers": (0, "its last layers read the KV cache of others"),
    "embedding_length_per_layer_input": (0, "it has token embeddings for each of them"),
    "interleave_moe_layer_step": (1, "their kinds alternate by a fixed step"),
    "full_attention_interval": (1, "their kinds alternate by a fixed step"),
}
"""Keys that tie a layer to its number if they are above a limit, and how."""


def find_exit_layer(header: Header) -> int | None:
    """How many layers a LayerSkip checkpoint (arXiv 2404.16710) drafts with.

    None for any other model.
    """
    for key, value in header.keys.items():
        if not key.endswith("exit_layer") or not isinstance(value, int):
            continue
        if 0 < value < header.n_layer:
            return value
    return None


def copy_layers(
    source: Path,
    destination: Path,
    layers: Sequence[int],
    swa_layers: Sequence[bool] | None = None,
    kept_tokens: Sequence[int] = (),
) -> int:
    """Write a model with only these layers of `source`, in ascending order.

    Returns its size in bytes. `swa_layers` says for every layer of the source whether its
    attention has a sliding window: llama.cpp derives it from the layer's number if the
    file does not say. Keys keep their types and tensors their bytes. With `kept_tokens`,
    which needs `check_vocabulary`, the output has the rows of these tokens only. Raises
    UsageError if the model's layers cannot be renumbered, StorageError.
    """
    header = reader.read(source)
    _check_layers(header, source.name, layers)
    with source.open("rb") as file:
        data = file.read(header.data_offset)
    contents = parser.parse(GgufByteStream(data, header.size))
    entries = list(
        _key_entries(
            header, layers, contents=contents, data=data, swa_layers=swa_layers
        )
    )
    if kept_tokens:
        entries = _trim_entries(entries, header, len(kept_tokens))
    kept = _keep_tensors(header, layers, len(kept_tokens))
    try:
        with (
            unnamed_file(destination) as (path, give_name),
            source.open("rb") as file,
            open(path, "wb") as out,
        ):
            out.write(writer.serialize(entries, list(kept), header.alignment))
            for new, old in kept.items():
                if new.n_bytes < old.n_bytes:
                    _copy_rows(file, out, header, old, rows=kept_tokens)
                else:
                    _copy_tensor(file, out, header, old)
            if kept_tokens:
                # `TrimmedDraftContext` reads them behind the tensors: the ids of the
                # kept tokens, and the embeddings of all tokens.
                embeddings = header.tensors_by_name["token_embd.weight"]
                out.write(struct.pack(f"<{len(kept_tokens)}i", *kept_tokens))
                _copy_tensor(file, out, header, embeddings)
            size = out.tell()
            out.close()
            destination.unlink(missing_ok=True)
            give_name()
    except OSError as error:
        what = f"{destination.name} cannot be written: {error.strerror}."
        raise StorageError(what, "Choose another --out.") from error
    return size


def _check_layers(header: Header, name: str, layers: Sequence[int]) -> None:
    """Raises UsageError if these layers of the model cannot be renumbered."""
    n = header.n_layer - header.hparam("nextn_predict_layers")
    for layer in layers:
        if not 0 <= layer < n:
            what = f"{name} has no layer {layer}."
            raise UsageError(what, f"Its layers are 0 to {n - 1}.")
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
        architecture = sanitize(header.architecture, multiline=False)
        what = f"The vocabulary of {architecture} models cannot be trimmed."
        tried = ", ".join(sorted(architectures.TRIMMING_VOCABULARY))
        raise UsageError(what, f"Those of these can: {tried}")


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
    """Each tensor of the copy, with the source's tensor from which it is copied.

    For example, with layers 0 and 24, `blk.24.attn_q.weight` becomes
    `blk.1.attn_q.weight`. With `n_kept` tokens, 32,000 of 128,000 say, an output matrix
    has 32,000 rows instead, and a quarter of the bytes.
    """
    new_numbers = {old: new for new, old in enumerate(layers)}
    kept: dict[TensorInfo, TensorInfo] = {}
    offset = 0
    for tensor in header.tensors:
        name = tensor.name
        in_layer = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        if in_layer:
            number = int(in_layer[1])
            if number not in new_numbers:
                continue
            name = f"blk.{new_numbers[number]}.{in_layer[2]}"
        shape = tensor.shape
        n_bytes = tensor.n_bytes
        if n_kept and name in trimmed_vocabulary.ROW_TENSORS:
            *width, n_rows = shape
            shape = (*width, n_kept)
            n_bytes = n_bytes // n_rows * n_kept
        copy = TensorInfo(
            name=name, shape=shape, type=tensor.type, offset=offset, n_bytes=n_bytes
        )
        kept[copy] = tensor
        offset += n_bytes + _padding(n_bytes, header)
    return kept


def _padding(n_bytes: int, header: Header) -> int:
    """How many zeros follow so many bytes up to the file's next aligned place."""
    return -n_bytes % header.alignment


def _key_entries(
    header: Header,
    layers: Sequence[int],
    *,
    contents: GgufContents,
    data: bytes,
    swa_layers: Sequence[bool] | None,
) -> Iterator[bytes]:
    """Every key with its value, as bytes of a GGUF file.

    Numbers that count layers are changed, and arrays with an element for each layer get
    those of `layers`. `data` is the source's header, which `contents` was parsed from.
    """
    prefix = f"{header.architecture}."
    n_dense = header.hparam("leading_dense_block_count")
    new_numbers = {
        f"{prefix}block_count": len(layers),
        f"{prefix}nextn_predict_layers": 0,
        f"{prefix}leading_dense_block_count": len([i for i in layers if i < n_dense]),
    }
    pattern = f"{prefix}attention.sliding_window_pattern"
    for key, (start, end) in contents.key_spans.items():
        entry = data[start:end]
        array = contents.arrays.get(key)
        if array is not None:
            name = key.removeprefix(prefix)
            if key.startswith(prefix) and _has_element_per_layer(name, array, header):
                width = len(array.data) // array.count
                values = [array.data[width * i : width * (i + 1)] for i in layers]
                yield _array_entry(key, array.element_type, values)
            else:
                yield entry
        elif key in new_numbers:
            # An entry is the key's length (8 bytes), the key, the value's type (4 bytes)
            # and the value.
            width = len(entry) - (8 + len(key.encode()) + 4)
            yield entry[:-width] + new_numbers[key].to_bytes(width, "little")
        elif key == pattern and swa_layers:
            # It is a number: every how many layers the pattern repeats. The array below
            # replaces it.
            continue
        else:
            yield entry
    if swa_layers and pattern not in contents.arrays:
        yield _array_entry(pattern, BOOL, [bytes([swa_layers[i]]) for i in layers])


def _has_element_per_layer(name: str, array: GgufArray, header: Header) -> bool:
    """Whether an array of the architecture's keys has an element for each layer."""
    n_own = header.n_layer - header.hparam("nextn_predict_layers")
    if array.element_type == STRING or name in _NOT_PER_LAYER:
        return False
    return array.count in (header.n_layer, n_own)


def _array_entry(key: str, element_type: int, values: Sequence[bytes]) -> bytes:
    about = struct.pack("<IIQ", ARRAY, element_type, len(values))
    return b"".join((writer.pack_string(key), about, *values))


def _copy_tensor(
    file: BinaryIO, out: BinaryIO, header: Header, tensor: TensorInfo
) -> None:
    file.seek(header.data_offset + tensor.offset)
    n_left = tensor.n_bytes
    while n_left:
        chunk = file.read(min(n_left, _CHUNK))
        if not chunk:
            raise OSError(0, "the source file became shorter")
        out.write(chunk)
        n_left -= len(chunk)
    out.write(bytes(_padding(tensor.n_bytes, header)))


def _copy_rows(
    file: BinaryIO,
    out: BinaryIO,
    header: Header,
    tensor: TensorInfo,
    *,
    rows: Sequence[int],
) -> None:
    start = header.data_offset + tensor.offset
    width = tensor.n_bytes // tensor.shape[-1]
    for row in rows:
        file.seek(start + row * width)
        out.write(file.read(width))
    out.write(bytes(_padding(width * len(rows), header)))
