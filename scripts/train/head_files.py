"""GGUF files of heads, made from those of their targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

Q8_0 = gguf.GGMLQuantizationType.Q8_0
ARRAY = gguf.GGUFValueType.ARRAY
KEPT = (
    "tokenizer.",
    "general.license",
    "general.author",
    "general.quantization_version",
)
"""Keys that a head copies from its target: it needs the same vocabulary."""


class Source:
    """The target's file."""

    def __init__(self, path: Path) -> None:
        self.reader = gguf.GGUFReader(path)
        name = self.reader.fields.get("general.name")
        self.name = str(name.contents()) if name else path.stem

    def value(self, key: str) -> Any:
        return self.reader.fields[key].contents()

    def size(self, key: str) -> Any:
        """A value of the model's architecture, such as `block_count`.

        A value that the file does not have is llama.cpp's default.
        """
        field = self.reader.fields.get(f"{self.value('general.architecture')}.{key}")
        if field is not None:
            return field.contents()
        if key in ("attention.key_length", "attention.value_length"):
            return self.size("embedding_length") // self.size("attention.head_count")
        defaults = {
            "attention.head_count_kv": "attention.head_count",
            "rope.dimension_count": "attention.key_length",
        }
        if key in defaults:
            return self.size(defaults[key])
        return {
            "vocab_size": len(self.value("tokenizer.ggml.tokens")),
            "rope.freq_base": 10000.0,
        }[key]

    def weights(
        self, wanted: Callable[[str], bool] = bool
    ) -> dict[str, NDArray[np.float32]]:
        """The tensors whose names are `wanted`, in single precision."""
        found = (t for t in self.reader.tensors if wanted(t.name))
        return {t.name: dequantize(t.data, t.tensor_type) for t in found}

    def copy_keys(self, out: gguf.GGUFWriter) -> None:
        for key, field in self.reader.fields.items():
            if key.startswith(KEPT):
                kind = field.types[0]
                of = field.types[-1] if kind == ARRAY else None
                out.add_key_value(key, field.contents(), kind, of)


def begin(
    path: Path, source: Source, arch: str, name: str, description: str
) -> gguf.GGUFWriter:
    """A writer with the target's vocabulary and the sizes that its heads share."""
    out = gguf.GGUFWriter(path, arch)
    out.add_name(name)
    out.add_description(description)
    out.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    source.copy_keys(out)
    for key in (
        "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "attention.key_length", "attention.value_length",
        "rope.dimension_count", "vocab_size",
    ):  # fmt: skip
        out.add_uint32(f"{arch}.{key}", source.size(key))
    for key in ("attention.layer_norm_rms_epsilon", "rope.freq_base"):
        out.add_float32(f"{arch}.{key}", source.size(key))
    return out


def add_eagle3_keys(out: gguf.GGUFWriter, layers: Sequence[int], n_embd: int) -> None:
    """`layers`: those of the target whose inputs the head reads."""
    out.add_block_count(1)
    out.add_array("eagle3.target_layers", list(layers))
    out.add_uint32("eagle3.target_hidden_size", n_embd)
    out.add_bool("eagle3.norm_before_residual", False)
    out.add_bool("eagle3.norm_before_fc", False)


def add_tensors(
    out: gguf.GGUFWriter, weights: Mapping[str, NDArray[np.float32]]
) -> None:
    """Matrices as Q8_0, tensors of one row as F32."""
    for name, data in weights.items():
        if data.ndim == 2 and len(data) > 1:
            out.add_tensor(name, quantize(data, Q8_0), raw_dtype=Q8_0)
        else:
            out.add_tensor(name, data)


def finish(out: gguf.GGUFWriter) -> None:
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def write_eagle3(
    path: Path,
    source: Source,
    layers: Sequence[int],
    weights: Mapping[str, NDArray[np.float32]],
    vocabulary: NDArray[np.int64],
    output_type: gguf.GGMLQuantizationType = Q8_0,
) -> None:
    """A head that drafts only the tokens `vocabulary`, by the target's own output rows."""
    description = f"EAGLE-3 head: drafts for {source.name}"
    out = begin(path, source, "eagle3", f"{source.name} EAGLE-3", description)
    add_eagle3_keys(out, layers, source.size("embedding_length"))
    add_tensors(out, weights)
    tensors = {t.name: t for t in source.reader.tensors}
    output = tensors.get("output.weight", tensors["token_embd.weight"])
    rows = dequantize(output.data[vocabulary], output.tensor_type)
    out.add_tensor("output.weight", quantize(rows, output_type), raw_dtype=output_type)
    # absolute ids; llama.cpp aborts unless they are I64
    out.add_tensor("d2t", vocabulary)
    finish(out)
