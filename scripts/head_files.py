"""The GGUF files of the demo target's heads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

Q8_0 = gguf.GGMLQuantizationType.Q8_0
ARRAY = gguf.GGUFValueType.ARRAY
KEPT = ("tokenizer.", "general.license", "general.author", "general.quantization_version")
"""Keys that a head copies from its target: it needs the same vocabulary."""


class Source:
    """The target's file."""

    def __init__(self, path: Path) -> None:
        self.reader = gguf.GGUFReader(path)

    def value(self, key: str) -> Any:
        return self.reader.fields[key].contents()

    def weights(self) -> dict[str, NDArray[np.float32]]:
        return {t.name: dequantize(t.data, t.tensor_type) for t in self.reader.tensors}

    def copy_keys(self, out: gguf.GGUFWriter) -> None:
        for key, field in self.reader.fields.items():
            if key.startswith(KEPT):
                kind = field.types[0]
                of = field.types[-1] if kind == ARRAY else None
                out.add_key_value(key, field.contents(), kind, of)


def begin(path: Path, source: Source, arch: str, name: str, description: str) -> gguf.GGUFWriter:
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
        out.add_uint32(f"{arch}.{key}", source.value(f"llama.{key}"))
    for key in ("attention.layer_norm_rms_epsilon", "rope.freq_base"):
        out.add_float32(f"{arch}.{key}", source.value(f"llama.{key}"))
    return out


def add_tensors(out: gguf.GGUFWriter, weights: Mapping[str, NDArray[np.float32]]) -> None:
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
