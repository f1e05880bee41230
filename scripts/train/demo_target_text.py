"""Training text for heads: windows that start with library code and that the target continues.

A head drafts the target's output, which is simpler and more repetitive than human text. Training on
that output raises the acceptance rate.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from demo_heads import LENGTH
from demo_network import Block, Llama
from head_network import heads, rotate
from torch import Tensor

BEGUN = (48, 112, 160, 192)
"""Tokens of library code at a window's start, cycling over the batches."""
TOGETHER = 256
"""Windows generated at a time."""
TEMPERATURES = (0.0, 0.0, 0.3, 0.7)
"""Cycling over the windows."""


@dataclass(frozen=True)
class TargetText:
    """Windows; `begun`: the number of tokens at the start that are library code."""

    ids: Tensor
    begun: Tensor


class Memory:
    """The KV cache of one layer."""

    def __init__(self, block: Block, rows: int) -> None:
        size = (rows, block.shape.n_head_kv, LENGTH, block.shape.head)
        self.keys, self.values = (torch.zeros(size, dtype=torch.bfloat16) for _ in range(2))

    def attend(self, block: Block, x: Tensor, at: int, table: tuple[Tensor, Tensor]) -> Tensor:
        h = block.attn_norm(x)
        query, key, value = (
            heads(f(h), block.shape) for f in (block.attn_q, block.attn_k, block.attn_v)
        )
        end = at + x.shape[1]
        here = tuple(t[at:end] for t in table)
        self.keys[:, :, at:end], self.values[:, :, at:end] = rotate(key, here), value
        known = self.keys[:, :, :end], self.values[:, :, :end]
        query = rotate(query, here)
        if at == 0:
            a = F.scaled_dot_product_attention(query, *known, is_causal=True, enable_gqa=True)
        else:  # One new token: the heads that share keys become rows.
            a = F.scaled_dot_product_attention(
                query.view(*key.shape[:2], -1, key.shape[-1]), *known
            )
            a = a.view(query.shape)
        return x + block.attn_output(a.transpose(1, 2).flatten(-2))


def choose(logits: Tensor, temperature: Tensor, rng: torch.Generator) -> Tensor:
    """A token for each row; with Gumbel noise the argmax is a sample."""
    chosen = logits.argmax(-1)
    warm = temperature > 0
    noise = -torch.empty(logits[warm].shape).exponential_(generator=rng).log()
    chosen[warm] = (logits[warm].float() + temperature[warm, None] * noise).argmax(-1)
    return chosen


def feed(target: Llama, memories: list[Memory], ids: Tensor, at: int) -> Tensor:
    """Logits after the last of these tokens."""
    x = target.token_embd(ids)
    for block, memory in zip(target.blk, memories, strict=True):
        x = memory.attend(block, x, at, target.table)
        h = block.ffn_norm(x)
        x = x + block.ffn_down(F.silu(block.ffn_gate(h)) * block.ffn_up(h))
    return F.linear(target.output_norm(x[:, -1]), target.token_embd.weight)


@torch.no_grad()
def write(target: Llama, begun: Tensor, temperatures: tuple[float, ...], seed: int) -> Tensor:
    """The rows, continued to full windows."""
    rng = torch.Generator().manual_seed(seed)
    target = deepcopy(target).bfloat16()
    memories = [Memory(block, len(begun)) for block in target.blk]
    temperature = torch.tensor(temperatures).repeat(len(begun))[: len(begun)]
    ids, new, at = begun, begun, 0
    while ids.shape[1] < LENGTH:
        logits = feed(target, memories, new, at)
        at = ids.shape[1]
        new = choose(logits, temperature, rng)[:, None]
        ids = torch.cat((ids, new), 1)
    return ids


@dataclass(frozen=True)
class Plan:
    """How many windows to generate, from beginnings of which lengths."""

    batches: int
    seed: int
    begun: tuple[int, ...] = BEGUN
    temperatures: tuple[float, ...] = TEMPERATURES
    together: int = TOGETHER


def beginnings(
    text: Tensor, functions: Tensor, size: tuple[int, int], rng: torch.Generator
) -> Tensor:
    """Half of them start at a function's first line, half anywhere."""
    count, length = size
    anywhere = torch.randint(len(text) - length, (count // 2,), generator=rng)
    place = torch.randint(len(functions), (count // 2,), generator=rng)
    named = functions[place].clamp(1, len(text) - length) - 1
    starts = torch.stack((named, anywhere), 1).flatten()
    return torch.stack([text[s : s + length] for s in starts.tolist()])


def write_windows(target: Llama, text: Tensor, functions: Tensor, plan: Plan) -> TargetText:
    """Generates windows; `functions`: positions in the text at which a function begins."""
    rng = torch.Generator().manual_seed(plan.seed)
    ids, begun = [], []
    for i in range(plan.batches):
        length = plan.begun[i % len(plan.begun)]
        start = beginnings(text, functions, (plan.together, length), rng)
        ids.append(write(target, start, plan.temperatures, plan.seed + i))
        begun += [length] * len(start)
    return TargetText(torch.cat(ids), torch.tensor(begun))
