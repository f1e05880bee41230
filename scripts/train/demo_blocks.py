"""Networks of the demo target's block drafters, DSpark and DFlash."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from demo_heads import LENGTH, SHAPE, TARGET_LAYERS, Read, in_halves, norm, rotate_halves
from demo_network import Block, Llama
from demo_text import VOCAB
from head_network import heads, linear, rope_table, spread
from torch import Tensor, nn

BLOCK = 8
"""Rows of DSpark's and DFlash's block."""
RANK = 64
"""Of DSpark's Markov matrices."""


class BlockLayer(Block):
    """A layer of the block drafters: the target's, with norms on the heads of query and key."""

    def __init__(self) -> None:
        super().__init__(SHAPE)
        self.attn_q_norm, self.attn_k_norm = norm(SHAPE.head), norm(SHAPE.head)

    def key(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        return rotate_halves(self.attn_k_norm(heads(self.attn_k(x), SHAPE).float()), table)


class DFlash(nn.Module):
    """Drafts a whole block in one pass; its rows attend to the injected states and to each other.

    The block at position n contains the token there, then mask tokens. DFlash's row i predicts
    token n + i; DSpark's row i predicts the token after it.
    """

    first = 1
    """The first row that predicts."""

    def __init__(self, mask: int) -> None:
        super().__init__()
        self.mask = mask
        self.fc = linear(len(TARGET_LAYERS) * SHAPE.n_embd, SHAPE.n_embd)
        self.enc = nn.ModuleDict({"output_norm": norm()})
        self.blk = nn.ModuleList(BlockLayer() for _ in range(2))
        self.output_norm = norm()
        self.table = rope_table(SHAPE, LENGTH)

    @torch.no_grad()
    def start_from(self, target: Llama) -> None:
        d = SHAPE.n_embd
        self.fc.weight[:, -d:] += torch.eye(d)
        self.output_norm.load_state_dict(target.output_norm.state_dict())
        for layer, theirs in zip(self.blk, target.blk[-2:], strict=True):
            state = dict(theirs.state_dict())
            for name in ("attn_q.weight", "attn_k.weight"):
                state[name] = in_halves(state[name])
            layer.load_state_dict(state, strict=False)

    def inputs(self, target: Llama, seen: Read, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of the blocks at these positions, [rows, anchors × BLOCK, n]; states."""
        tokens = torch.full((*anchors.shape, BLOCK), self.mask)
        tokens[:, :, 0] = seen.ids.gather(1, anchors)
        return target.token_embd(tokens.flatten(1)), seen.hidden_states

    def forward(self, x: Tensor, hidden_states: Tensor, anchors: Tensor, lengths: Tensor) -> Tensor:
        """Returns the normed output, [rows, anchors, BLOCK, n_embd].

        Rows beyond a block's length are masked out for the others.
        """
        count = anchors.shape[1]
        position = (anchors[..., None] + torch.arange(BLOCK)).flatten(1)
        context = self.enc["output_norm"](self.fc(hidden_states).float())
        length = context.shape[1]
        before = torch.arange(length) < anchors.repeat_interleave(BLOCK, 1)[..., None]
        block = torch.arange(count * BLOCK) // BLOCK
        used = (torch.arange(BLOCK) < lengths[..., None]).flatten(1)
        beside = (block[:, None] == block) & used[:, None]
        visible = torch.cat((before, beside), -1)[:, None]
        whole = tuple(t[:length] for t in self.table)
        here = tuple(t[position][:, None] for t in self.table)
        for layer in self.blk:
            h = layer.attn_norm(x)
            query = rotate_halves(layer.attn_q_norm(heads(layer.attn_q(h), SHAPE).float()), here)
            key = torch.cat((layer.key(context, whole), layer.key(h, here)), 2)
            value = heads(torch.cat((layer.attn_v(context), layer.attn_v(h)), 1), SHAPE)
            a = F.scaled_dot_product_attention(
                query.to(value.dtype),
                spread(key, SHAPE).to(value.dtype),
                spread(value, SHAPE),
                attn_mask=visible,
            )
            x = x + layer.attn_output(a.transpose(1, 2).flatten(-2))
            h = layer.ffn_norm(x)
            x = x + layer.ffn_down(F.silu(layer.ffn_gate(h)) * layer.ffn_up(h))
        return self.output_norm(x).unflatten(1, (count, BLOCK))

    def output(self, target: Llama) -> Tensor:
        """The matrix from the states of `draft_states` to logits."""
        return target.token_embd.weight

    def with_before(self, states: Tensor, before: Tensor) -> Tensor:
        """The states, extended by an embedding of the previous token if the head has one."""
        return states

    def draft_states(self, states: Tensor, seen: Read, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """States [rows, anchors, draft tokens, …] for `output`, and the target's probabilities."""
        place = anchors[..., None] + torch.arange(BLOCK - self.first)
        row = torch.arange(len(anchors))[:, None, None]
        states = states[:, :, self.first :]
        return self.with_before(states, seen.ids[row, place]), seen.probabilities[row, place]


class DSpark(DFlash):
    """DFlash with a low-rank term for the previous token and a confidence head."""

    first = 0

    def __init__(self, mask: int) -> None:
        super().__init__(mask)
        self.markov_w1 = nn.Embedding(VOCAB, RANK)
        self.markov_w2 = linear(RANK, VOCAB)
        self.conf_proj = nn.Linear(SHAPE.n_embd + RANK, 1)
        nn.init.normal_(self.markov_w1.weight, std=0.02)

    def output(self, target: Llama) -> Tensor:
        return torch.cat((target.token_embd.weight, self.markov_w2.weight), 1)

    def with_before(self, states: Tensor, before: Tensor) -> Tensor:
        return torch.cat((states, self.markov_w1(before)), -1)

    def confidence(self, both: Tensor) -> Tensor:
        """Logits that a draft token is the target's choice; trained separately."""
        return self.conf_proj(both.detach()).squeeze(-1)
