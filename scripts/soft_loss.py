"""Cross-entropy to another model's chances, through a large output matrix, a window at a time.

The logits of a batch are far larger than a processor's caches; made, turned into the gradient
and forgotten a window at a time, in two passes over them, they cost a tenth of autograd's way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

HIGHEST = 80.0
"""Logits above it would overflow once exponentiated; a trained head's stay far below."""


@dataclass(frozen=True)
class Push:
    """A loss, and its gradient by the states and by the last columns of the matrix."""

    loss: Tensor
    states: Tensor
    columns: Tensor | None


@torch.compile(dynamic=False)
def _back(logits: Tensor, chances: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of these rows, and its gradient by their logits."""
    logits, chances = logits.float(), chances.float()
    grown = logits.clamp(max=HIGHEST).exp()
    total = grown.sum(-1, keepdim=True)
    loss = total.log()[:, 0] - (chances * logits).sum(-1)
    back = grown * (weight[:, None] / total) - chances * weight[:, None]
    return (loss * weight).sum(), back.bfloat16()


@torch.no_grad()
def soft_loss(
    states: Tensor, table: Tensor, chances: Tensor, weight: Tensor, learnt: int = 0
) -> Push:
    """The weighted sum of the losses over windows.

    `states` [windows, …, n] times `table` [vocabulary, n] are the logits; the last `learnt`
    columns of the table are trained as well.
    """
    total, grads = torch.zeros(()), []
    columns = torch.zeros(len(table), learnt) if learnt else None
    for x, p, w in zip(states, chances, weight, strict=True):
        rows = x.reshape(-1, x.shape[-1]).bfloat16()
        loss, back = _back(rows @ table.T, p.reshape(len(rows), -1), w.reshape(-1))
        total += loss
        grads.append((back @ table).view(x.shape))
        if columns is not None:
            columns += back.T @ rows[:, -learnt:]
    return Push(total, torch.stack(grads).type_as(states), columns)


@torch.no_grad()
def agree(states: Tensor, table: Tensor, chances: Tensor) -> Tensor:
    """Where both would say the same, as 1 and 0."""
    pairs = zip(states, chances, strict=True)
    said = [((x.bfloat16() @ table.T).argmax(-1) == p.argmax(-1)).float() for x, p in pairs]
    return torch.stack(said)
