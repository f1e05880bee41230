"""The metadata of one GGUF file, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from localspec.models.gguf import architectures
from localspec.models.gguf.parser import FILE_TYPES, TensorInfo, Value, align
from localspec.models.gguf.tokenizer import TRIMMED_KEY, TokenizerMetadata
from localspec.sanitize import sanitize


class SplitInfo(Struct, frozen=True):
    """Which split of a model a file is."""

    number: int  # Counted from 0.
    count: int
    n_tensors: int  # In all splits together.


class Header(Struct, frozen=True):
    """The metadata of one GGUF file.

    Its texts are untrusted: `sanitize` them for display.
    """

    architecture: str
    name: str
    size: int  # The whole file, in bytes.
    keys: Mapping[str, Value]  # Scalars and short arrays.
    tensors: tuple[TensorInfo, ...]
    tokenizer: TokenizerMetadata
    chat_template: str
    split: SplitInfo | None
    data_offset: int

    def hparam(self, key: str, default: int = 0) -> int:
        """The number that the file has for a key of its architecture.

        `hparam("block_count")` of a llama model is that of `llama.block_count`. If the
        key has one number for each layer, this is the largest.
        """
        value = self.raw_hparam(key)
        values = value if isinstance(value, tuple) else (value,)
        return max((n for n in values if isinstance(n, int)), default=default)

    def layer_hparam(self, key: str, il: int, default: int = 0) -> int:
        """The number for one layer; the last layer is -1.

        The key has a number for each layer, or one that holds for all.
        """
        value = self.raw_hparam(key)
        values = value if isinstance(value, tuple) else (value,)
        if len(values) == self.n_layer:
            found = values[il]
        elif values:
            found = values[0]
        else:
            return default
        return found if isinstance(found, int) else default

    def raw_hparam(self, key: str) -> Value | None:
        """What the file has for a key of its architecture, of whatever type."""
        return self.keys.get(f"{self.architecture}.{key}")

    @property
    def n_layer(self) -> int:
        return self.hparam("block_count")

    @property
    def n_ctx_train(self) -> int:
        return self.hparam("context_length")

    @property
    def n_embd(self) -> int:
        return self.hparam("embedding_length")

    @property
    def n_head(self) -> int:
        return self.hparam("attention.head_count")

    @property
    def n_head_kv(self) -> int:
        return self.hparam("attention.head_count_kv", self.n_head)

    @property
    def alignment(self) -> int:
        """Of the tensors' data, in bytes."""
        value = self.keys.get("general.alignment", 32)
        return value if isinstance(value, int) else 32

    @property
    def parameters(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def tensors_by_name(self) -> dict[str, TensorInfo]:
        return {tensor.name: tensor for tensor in self.tensors}

    def has_tensor(self, name: str) -> bool:
        return any(tensor.name == name for tensor in self.tensors)

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def quantization(self) -> str:
        """As in file names, such as Q4_K_M; `main_type` if the file does not say."""
        file_type = self.keys.get("general.file_type")
        if isinstance(file_type, int) and file_type in FILE_TYPES:
            return FILE_TYPES[file_type]
        return self.main_type

    @property
    def main_type(self) -> str:
        """The type with the most bytes, such as Q4_K; empty without tensors."""
        sizes: Counter[str] = Counter()
        for tensor in self.tensors:
            sizes[tensor.type_name] += tensor.n_bytes
        return max(sizes, key=sizes.__getitem__, default="")

    @property
    def has_trimmed_vocabulary(self) -> bool:
        """Whether its output has rows of some tokens only (`trimmed_vocabulary`)."""
        return TRIMMED_KEY in self.keys

    @property
    def is_recurrent(self) -> bool:
        return self.architecture in architectures.RECURRENT

    @property
    def is_hybrid(self) -> bool:
        return self.architecture in architectures.HYBRID

    @property
    def is_moe(self) -> bool:
        return self.hparam("expert_count") > 1

    @property
    def unsupported_reason(self) -> str:
        """Why the pinned llama.cpp cannot run the model; empty if it can."""
        if self.architecture not in architectures.KNOWN:
            return _unknown("architecture", self.architecture)
        if not self.tokenizer.is_supported:
            name = f"{self.tokenizer.model} {self.tokenizer.pre}".strip()
            return _unknown("tokenizer", name)
        return ""


def _unknown(part: str, name: str) -> str:
    shown = repr(sanitize(name[:80], multiline=False))
    return f"its {part} {shown} is unknown to this llama.cpp"


def merge_splits(splits: Sequence[Header]) -> Header:
    """The header that a split model would have in one file."""
    first = splits[0]
    if len(splits) == 1:
        return first
    tensors: list[TensorInfo] = []
    offset = 0
    for split in splits:
        for tensor in split.tensors:
            tensors.append(tensor._replace(offset=offset))
            offset += align(tensor.n_bytes, first.alignment)
    keys = {
        key: value for key, value in first.keys.items() if not key.startswith("split.")
    }
    return msgspec.structs.replace(
        first,
        keys=keys,
        tensors=tuple(tensors),
        split=None,
        size=first.data_offset + offset,
    )
