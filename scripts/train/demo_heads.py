"""The demo target's outputs, and the network of its EAGLE-3 head.

Parameters have the names of llama.cpp's tensors, so `state_dict` is the content of the file. A head
shares the target's embeddings and output matrix, reads its hidden states and never changes it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from demo_network import TARGET, Llama
from head_network import Eagle3
from torch import Tensor, nn

SHAPE = TARGET
TARGET_LAYERS = (1, 3, 5)
"""The target's layers whose inputs a head reads."""
READ_AT_ONCE = 8  # Windows.
LENGTH = 256  # Tokens of a training window.


@dataclass(frozen=True)
class Read:
    """The target's outputs for a batch of windows."""

    ids: Tensor
    hidden_states: Tensor
    """[rows, tokens, layers × n_embd]: the inputs of the layers TARGET_LAYERS."""
    last: Tensor
    """[rows, tokens, n_embd]: the output of the last layer, before the final norm."""
    probabilities: Tensor
    """[rows, tokens, vocabulary]: probabilities of the next token."""


@torch.compile(dynamic=False)
def read(target: Llama, ids: Tensor) -> tuple[Tensor, Tensor]:
    x = target.token_embd(ids)
    hidden_states = []
    for i, block in enumerate(target.blk):
        if i in TARGET_LAYERS:
            hidden_states.append(x)
        x = block(x, target.table)
    return torch.cat(hidden_states, -1), x


@torch.compile(dynamic=False)
def _probabilities(target: Llama, last: Tensor) -> Tensor:
    logits = F.linear(target.output_norm(last.float()), target.token_embd.weight)
    return logits.float().softmax(-1).bfloat16()


class Reading:
    """The target's outputs for all windows, cached: each is used many times in training."""

    def __init__(self, target: Llama, ids: Tensor, threads: int = 1) -> None:
        self.target, self.ids = target, ids
        size = SHAPE.n_embd
        self.hidden_states = torch.empty(
            *ids.shape, len(TARGET_LAYERS) * size, dtype=torch.bfloat16
        )
        self.last = torch.empty(*ids.shape, size, dtype=torch.bfloat16)
        first, *others = range(0, len(ids), READ_AT_ONCE)
        self._take(first)  # Compiled by one thread alone.
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self._take, others))

    def _take(self, start: int) -> None:
        part = slice(start, start + READ_AT_ONCE)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            self.hidden_states[part], self.last[part] = read(self.target, self.ids[part])

    @torch.no_grad()
    def of(self, windows: Tensor) -> Read:
        last = self.last[windows]
        with torch.autocast("cpu", torch.bfloat16):
            probabilities = _probabilities(self.target, last)
        return Read(self.ids[windows], self.hidden_states[windows], last, probabilities)


def norm(size: int = SHAPE.n_embd) -> nn.RMSNorm:
    return nn.RMSNorm(size, SHAPE.eps)


def rotate_halves(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE over the two halves of a head, the layout of llama.cpp's newer architectures."""
    cos, sin = (t[..., : x.shape[-2], :] for t in table)
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).type_as(x)


def in_halves(weight: Tensor) -> Tensor:
    """Reorders the rows of a query or key matrix from adjacent pairs to halves."""
    return weight.unflatten(0, (-1, SHAPE.head // 2, 2)).transpose(1, 2).flatten(0, 2)


class DemoEagle3(Eagle3):
    """EAGLE-3 over windows: row p contains token p + 1 and predicts token p + 2."""

    def __init__(self) -> None:
        super().__init__(SHAPE, LENGTH)

    def start_from(self, target: Llama) -> None:
        self.start_from_layer(target.state_dict(), SHAPE.n_layer - 1)

    def inputs(self, target: Llama, seen: Read) -> tuple[Tensor, Tensor]:
        return target.token_embd(seen.ids[:, 1:-1]), seen.hidden_states[:, :-2]

    def targets_of(self, x: Tensor) -> Tensor:
        """Values of the token before each row's first draft token."""
        return x[:, 1:-1]
