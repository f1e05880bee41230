"""The EAGLE-3 network for any llama-like target, and the parts that all heads share.

Parameters have the names of llama.cpp's tensors, so `state_dict` is the content of the
file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS_READ = 3
"""Hidden states that an EAGLE-3 head reads; llama.cpp requires this number."""


@dataclass(frozen=True)
class Shape:
    """A llama-architecture network."""

    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    eps: float = 1e-5
    rope_base: float = 10000.0
    head: int = 64


def rope_table(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    frequency = shape.rope_base ** (
        -torch.arange(0, shape.head, 2).float() / shape.head
    )
    angle = torch.outer(torch.arange(length).float(), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE over adjacent pairs.

    That is the layout of llama.cpp's architectures `llama` and `eagle3`.
    """
    cos, sin = (t[: x.shape[-2]] for t in table)
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return (
        torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
        .flatten(-2)
        .type_as(x)
    )


def linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


def heads(x: Tensor, shape: Shape) -> Tensor:
    """[rows, tokens, heads × size] to [rows, heads, tokens, size]."""
    return x.unflatten(-1, (-1, shape.head)).transpose(1, 2)


def spread(x: Tensor, shape: Shape) -> Tensor:
    """Repeats KV heads: one for each query head."""
    return x.repeat_interleave(shape.n_head // shape.n_head_kv, 1)


def later(x: Tensor) -> Tensor:
    """Shifts the states by one row; the first row, which has no loss, stays."""
    return torch.cat((x[:, :1], x[:, :-1]), 1)


def unrolled(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attention of the last of several steps.

    Each step has the states of the previous one as input. At step j, row i is the j-th draft token after row i - j: it attends to the first
    step's rows up to there, and to one row of each later step. Rows below j are
    undefined.
    """
    step = len(keys) - 1
    length = query.shape[2]
    if step == 0:
        return F.scaled_dot_product_attention(query, keys[0], values[0], is_causal=True)
    row = torch.arange(length)
    known = row[None, :] <= row[:, None] - step
    scale = query.shape[-1] ** -0.5
    scores = [(query @ keys[0].transpose(-1, -2)).float().masked_fill(~known, -1e9)]
    moved = []
    for i in range(1, step + 1):
        key, value = (t[i].roll(step - i, 2) for t in (keys, values))
        scores.append((query.float() * key.float()).sum(-1, keepdim=True))
        moved.append(value)
    share = (torch.cat(scores, -1) * scale).softmax(-1).to(query.dtype)
    total = share[..., :length] @ values[0]
    for i, value in enumerate(moved):
        total = total + share[..., length + i, None] * value
    return total


class Eagle3Block(nn.Module):
    """A layer with the token's embedding and the state as input; it adds to the state."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        d = shape.n_embd
        q = shape.n_head * shape.head
        kv = shape.n_head_kv * shape.head
        self.attn_norm = nn.RMSNorm(d, shape.eps)
        self.attn_norm_2 = nn.RMSNorm(d, shape.eps)
        self.ffn_norm = nn.RMSNorm(d, shape.eps)
        self.attn_q = linear(2 * d, q)
        self.attn_k = linear(2 * d, kv)
        self.attn_v = linear(2 * d, kv)
        self.attn_output = linear(q, d)
        self.ffn_gate = linear(d, shape.n_ff)
        self.ffn_up = linear(d, shape.n_ff)
        self.ffn_down = linear(shape.n_ff, d)

    def forward(
        self, embedding: Tensor, state: Tensor, keys: list[Tensor], values: list[Tensor],
        table: tuple[Tensor, Tensor],
    ) -> Tensor:  # fmt: skip
        shape = self.shape
        h = torch.cat((self.attn_norm(embedding), self.attn_norm_2(state)), -1)
        keys.append(spread(rotate(heads(self.attn_k(h), shape), table), shape))
        values.append(spread(heads(self.attn_v(h), shape), shape))
        a = unrolled(rotate(heads(self.attn_q(h), shape), table), keys, values)
        x = state + self.attn_output(a.transpose(1, 2).flatten(-2))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Eagle3(nn.Module):
    """One layer over the hidden states.

    Row p contains token p + 1 and predicts token p + 2.
    """

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__()
        self.fc = linear(LAYERS_READ * shape.n_embd, shape.n_embd)
        self.blk = nn.ModuleList([Eagle3Block(shape)])
        self.output_norm = nn.RMSNorm(shape.n_embd, shape.eps)
        self.table = rope_table(shape, length)

    @torch.no_grad()
    def start_from_layer(self, target: Mapping[str, Tensor], layer: int) -> None:
        """Start from a layer of the target.

        The head then computes that layer over the last hidden state that it reads.
        `target` has llama.cpp's names, and query and key rows in adjacent pairs;
        matrices that it lacks (a mixture of experts) stay random.
        """
        block = self.blk[0]
        d = self.fc.weight.shape[0]
        self.fc.weight[:, -d:] += torch.eye(d)
        self.output_norm.weight.copy_(target["output_norm.weight"])
        for name, module in block.named_children():
            theirs = target.get(f"blk.{layer}.{name}.weight")
            if name == "attn_norm_2":
                theirs = target[f"blk.{layer}.attn_norm.weight"]
            if theirs is None or name == "attn_norm":
                continue
            own = module.weight
            if name in ("attn_q", "attn_k", "attn_v"):
                own = own[:, d:]
            own.copy_(theirs)

    def forward(
        self, embedding: Tensor, hidden_states: Tensor, steps: int
    ) -> list[Tensor]:
        """The normed states of each step."""
        state = self.fc(hidden_states).float()
        keys: list[Tensor] = []
        values: list[Tensor] = []
        found = []
        for _ in range(steps):
            state = self.blk[0](embedding, state, keys, values, self.table)
            found.append(self.output_norm(state).bfloat16())
            state = later(state)
        return found
