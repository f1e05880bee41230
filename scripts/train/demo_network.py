"""The demo pair's networks: llama architecture, with llama.cpp's tensor names."""

from __future__ import annotations

import math

import torch.nn.functional as F
from demo_text import VOCAB
from head_network import Shape, rope_table, rotate
from torch import Tensor, nn

CONTEXT = 1024


TARGET = Shape(n_embd=384, n_layer=6, n_head=6, n_head_kv=2, n_ff=1024)
DRAFT = Shape(n_embd=128, n_layer=3, n_head=2, n_head_kv=1, n_ff=352)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d, kv = shape.n_embd, shape.n_head_kv * shape.head
        self.shape = shape
        self.attn_norm = nn.RMSNorm(d, shape.eps)
        self.attn_q = nn.Linear(d, shape.n_head * shape.head, bias=False)
        self.attn_k = nn.Linear(d, kv, bias=False)
        self.attn_v = nn.Linear(d, kv, bias=False)
        self.attn_output = nn.Linear(shape.n_head * shape.head, d, bias=False)
        self.ffn_norm = nn.RMSNorm(d, shape.eps)
        self.ffn_gate = nn.Linear(d, shape.n_ff, bias=False)
        self.ffn_up = nn.Linear(d, shape.n_ff, bias=False)
        self.ffn_down = nn.Linear(shape.n_ff, d, bias=False)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        h = self.attn_norm(x)
        q, k, v = (
            f(h).unflatten(-1, (-1, self.shape.head)).transpose(1, 2)
            for f in (self.attn_q, self.attn_k, self.attn_v)
        )
        group = self.shape.n_head // self.shape.n_head_kv
        k, v = (t.repeat_interleave(group, 1) for t in (rotate(k, table), v))
        a = F.scaled_dot_product_attention(rotate(q, table), k, v, is_causal=True)
        x = x + self.attn_output(a.transpose(1, 2).flatten(-2))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(VOCAB, shape.n_embd)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.output_norm = nn.RMSNorm(shape.n_embd, shape.eps)
        self.table = rope_table(shape, CONTEXT)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                back = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * shape.n_layer) if back else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, self.table)
        return F.linear(self.output_norm(x), self.token_embd.weight)
