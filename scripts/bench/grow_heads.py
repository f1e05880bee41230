"""Enlarges the heads of a model together with it: the same drafts at a real head's cost.

It is like growth.py for models: the layers of a head get the width, heads and FFN of the
larger target, so a draft step costs as much as one of that target's layers. Embeddings
and output stay those of the target. The indices of the hidden states and of the
target's layers change accordingly.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from growth import Growth, Tensor, blank, stored_as, write_gguf
from numpy.typing import NDArray

AXES = {
    "fc": ("embd", "hidden_states"),
    "attn_q": ("q", "in"),
    "attn_k": ("kv", "in"),
    "attn_v": ("kv", "in"),
    "attn_output": ("embd", "q"),
    "ffn_gate": ("ff", "embd"),
    "ffn_up": ("ff", "embd"),
    "ffn_down": ("embd", "ff"),
    "token_embd": ("all", "embd"),
    "output": ("all", "embd"),
    "conf_proj": ("all", "judged"),
}
"""The axes of the rows and columns of each matrix; all other tensors stay unchanged."""
NOISY = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
NORMS = {
    "attn_norm": "embd",
    "attn_norm_2": "embd",
    "ffn_norm": "embd",
    "output_norm": "embd",
    "enc.output_norm": "fused",
}


class Head:
    """A head's file, and the new index of each of its axes in the larger shape."""

    def __init__(self, path: Path, growth: Growth) -> None:
        self.reader = gguf.GGUFReader(path)
        self.growth = growth
        self.arch = str(self.reader.fields["general.architecture"].contents())
        if self.arch not in ("eagle3", "dflash"):
            raise ValueError(
                f"{path.name}: only EAGLE-3, DFlash and DSpark heads can be enlarged"
            )
        self.small = growth.small.n_embd
        self.big = growth.big.n_embd
        self.hidden_states = len(self.value("target_layers"))

    def value(self, key: str) -> Any:
        return self.reader.fields[f"{self.arch}.{key}"].contents()

    def places(self, axis: str, n: int) -> tuple[NDArray[np.int64], int]:
        """The new positions of an axis's n indices, and its new length."""
        if axis == "in":
            # EAGLE-3 reads a token's embedding and a state, side by side.
            n_states = 2 if self.arch == "eagle3" else 1
            return self.repeated(n_states)
        if axis == "fused":
            # EAGLE-3 norms the states before they are fused, the others after.
            n_states = self.hidden_states if n > self.small else 1
            return self.repeated(n_states)
        if axis == "hidden_states":
            return self.repeated(self.hidden_states)
        if axis == "judged":  # a state, and a row of the Markov matrix
            added = self.big - self.small
            state = np.arange(self.small)
            row = np.arange(self.small, n) + added
            return np.concatenate([state, row]), n + added
        if axis == "all":
            return np.arange(n), n
        return self.growth.places[axis], self.growth.big.axis(axis)

    def repeated(self, times: int) -> tuple[NDArray[np.int64], int]:
        """As `places`, of so many states side by side."""
        parts = [np.arange(self.small) + i * self.big for i in range(times)]
        return np.concatenate(parts), times * self.big

    def grown(self, tensor: Any) -> Tensor:
        name = _plain(tensor.name)
        kind = tensor.tensor_type
        if name in NORMS:
            values = dequantize(tensor.data, kind)
            at, n = self.places(NORMS[name], len(values))
            wide = np.zeros(n, np.float32)
            wide[at] = values * math.sqrt(self.growth.shrink)
            return Tensor(tensor.name, wide.shape, Kind.F32, lambda: wide)
        if name not in AXES or tensor.name.endswith(".bias"):
            shape = tuple(int(n) for n in reversed(tensor.shape))
            return Tensor(tensor.name, shape, kind, lambda: tensor.data)
        values = np.atleast_2d(dequantize(tensor.data, kind))
        row_axis, column_axis = AXES[name]
        rows, n_rows = self.places(row_axis, len(values))
        columns, n_columns = self.places(column_axis, values.shape[1])
        full = blank((n_rows, n_columns), name in NOISY)
        full[np.ix_(rows, columns)] = values
        kind = Kind.F32 if name == "conf_proj" else self.growth.kind
        return Tensor(tensor.name, full.shape, kind, lambda: stored_as(kind, full))

    def header(self) -> dict[str, Any]:
        """The metadata that changes."""
        growth = self.growth
        epsilon = "attention.layer_norm_rms_epsilon"
        target_layers = [
            layer * growth.big.n_layer // growth.small.n_layer
            for layer in self.value("target_layers")
        ]
        changed = {
            "embedding_length": self.big,
            "feed_forward_length": growth.big.n_ff,
            "attention.head_count": growth.big.n_head,
            "attention.head_count_kv": growth.big.n_head_kv,
            "target_hidden_size": self.big,
            "target_layers": target_layers,
            epsilon: self.value(epsilon) * growth.shrink,
        }
        return {f"{self.arch}.{key}": value for key, value in changed.items()}


def write(path: Path, head: Head) -> int:
    """Writes the enlarged head; returns its number of parameters."""
    tensors = [head.grown(tensor) for tensor in head.reader.tensors]
    return write_gguf(path, head.arch, head.reader, head.header(), tensors)


def _plain(name: str) -> str:
    """A tensor's name without its layer and its ending."""
    *_, name = name.removesuffix(".weight").rsplit("blk.", 1)
    if not name[:1].isdigit():
        return name
    _, _, name = name.partition(".")
    return name
