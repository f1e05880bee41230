"""The metadata of one GGUF file, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from localspec.models.gguf import architectures
from localspec.models.gguf.parser import FILE_TYPES, GGML_TYPES, TensorInfo, Value
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
        """The value of an architecture key; for an array with one value per layer, the
        largest.
        """
        value = self.keys.get(f"{self.architecture}.{key}", default)
        values = value if isinstance(value, tuple) else (value,)
        return max((v for v in values if isinstance(v, int)), default=default)

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

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def quantization(self) -> str:
        """As in file names (Q4_K_M); without general.file_type, the type with the most
        bytes.
        """
        file_type = self.keys.get("general.file_type")
        if isinstance(file_type, int) and file_type in FILE_TYPES:
            return FILE_TYPES[file_type]
        return self.main_type

    @property
    def main_type(self) -> str:
        """The type with the most bytes, such as Q4_K; empty without tensors."""
        sizes: Counter[int] = Counter()
        for tensor in self.tensors:
            sizes[tensor.type] += tensor.n_bytes
        return GGML_TYPES[sizes.most_common(1)[0][0]][0] if sizes else ""

    @property
    def has_trimmed_vocabulary(self) -> bool:
        """Whether its output has the rows of some tokens only (`trimmed_vocabulary`)."""
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
            kind, name = "architecture", self.architecture
        elif not self.tokenizer.is_supported:
            kind, name = (
                "tokenizer",
                f"{self.tokenizer.model} {self.tokenizer.pre}".strip(),
            )
        else:
            return ""
        shown = repr(sanitize(name[:80], multiline=False))
        return f"its {kind} {shown} is unknown to this llama.cpp"


def merge_splits(splits: Sequence[Header]) -> Header:
    """The header that a split model would have in one file."""
    first = splits[0]
    if len(splits) == 1:
        return first
    tensors: list[TensorInfo] = []
    offset = 0
    for tensor in (tensor for split in splits for tensor in split.tensors):
        tensors.append(tensor._replace(offset=offset))
        offset += tensor.n_bytes + -tensor.n_bytes % first.alignment
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
