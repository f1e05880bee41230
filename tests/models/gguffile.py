"""GGUF headers byte by byte, right ones and wrong ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

U16 = 2
U32 = 4
I32 = 5
F32 = 6
BOOL = 7
STRING = 8
ARRAY = 9
_FORMS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
WORDS = [b"<unk>", b"<s>", b"</s>", *(b"word%d" % i for i in range(60))]


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def scalar(kind: int, value: Any) -> bytes:
    return text(value) if kind == STRING else struct.pack(f"<{_FORMS[kind]}", value)


def array(kind: int, values: Sequence[Any]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(
        scalar(kind, v) for v in values
    )


@dataclass
class Tensor:
    name: bytes = b"token_embd.weight"
    shape: tuple[int, ...] = (32, 63)
    kind: int = 0
    offset: int | None = None
    """Where it stands; behind the one before where not said."""
    n_bytes: int | None = None

    def size(self) -> int:
        if self.n_bytes is not None:
            return self.n_bytes
        n = 4
        for dimension in self.shape:
            n *= dimension
        return n


@dataclass
class File:
    """A small model's file; tests change its parts."""

    keys: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=lambda: [Tensor()])
    version: int = 3
    n_keys: int | None = None
    n_tensors: int | None = None

    def add(self, key: bytes, kind: int, value: Any) -> File:
        self.keys[key] = (kind, scalar(kind, value))
        return self

    def put(self, key: bytes, kind: int, values: Sequence[Any]) -> File:
        self.keys[key] = (ARRAY, array(kind, values))
        return self

    def header(self) -> bytes:
        n_tensors = self.n_tensors
        if n_tensors is None:
            n_tensors = len(self.tensors)
        n_keys = self.n_keys
        if n_keys is None:
            n_keys = len(self.keys)
        parts = [b"GGUF", struct.pack("<IQQ", self.version, n_tensors, n_keys)]
        for key, (kind, value) in self.keys.items():
            parts += [text(key), struct.pack("<I", kind), value]
        offset = 0
        for tensor in self.tensors:
            at = offset if tensor.offset is None else tensor.offset
            shape = struct.pack(
                f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape
            )
            parts += [text(tensor.name), shape, struct.pack("<IQ", tensor.kind, at)]
            offset += _padded(tensor.size())
        return b"".join(parts)

    def data(self) -> bytes:
        header = self.header()
        start = bytes(_padded(len(header)) - len(header))
        body = b"".join(bytes(_padded(t.size())) for t in self.tensors)
        return header + start + body


def _padded(n: int) -> int:
    return -(-n // 32) * 32


def model(
    words: Sequence[bytes] = WORDS, tokenizer: bytes = b"llama", arch: bytes = b"llama"
) -> File:
    """A header that llama.cpp would take, of a vocabulary of these words."""
    file = File()
    file.add(b"general.architecture", STRING, arch)
    file.add(b"general.name", STRING, b"Tiny")
    file.add(b"general.file_type", U32, 15)
    file.add(arch + b".block_count", U32, 2)
    file.add(arch + b".context_length", U32, 512)
    file.add(arch + b".embedding_length", U32, 32)
    file.put(arch + b".attention.head_count", I32, [4, 2])
    file.add(arch + b".attention.layer_norm_rms_epsilon", F32, 1e-5)
    file.add(b"tokenizer.ggml.model", STRING, tokenizer)
    file.put(b"tokenizer.ggml.tokens", STRING, words)
    file.put(b"tokenizer.ggml.token_type", I32, [1] * len(words))
    file.put(b"tokenizer.ggml.merges", STRING, [b"a b", b"b c"])
    return file
