"""Cross-entropy to another model's probabilities through a large output matrix, by windows.

The logits of a batch are far larger than the CPU caches. Computing the gradient window by window,
in two passes over the logits, takes a tenth of autograd's time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

HIGHEST = 80.0
"""Larger logits would overflow in exp; those of a trained head are far smaller."""


@dataclass(frozen=True)
class Push:
    """A loss, and its gradients with respect to the states and the matrix's last columns."""

    loss: Tensor
    states: Tensor
    columns: Tensor | None


@torch.compile(dynamic=False)
def _back(logits: Tensor, probabilities: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of these rows, and its gradient with respect to their logits."""
    logits, probabilities = logits.float(), probabilities.float()
    grown = logits.clamp(max=HIGHEST).exp()
    total = grown.sum(-1, keepdim=True)
    loss = total.log()[:, 0] - (probabilities * logits).sum(-1)
    back = grown * (weight[:, None] / total) - probabilities * weight[:, None]
    return (loss * weight).sum(), back.bfloat16()


@torch.no_grad()
def soft_loss(
    states: Tensor, table: Tensor, probabilities: Tensor, weight: Tensor, learnt: int = 0
) -> Push:
    """The weighted sum of the losses over windows.

    `states` [windows, …, n] times `table` [vocabulary, n] are the logits; the last `learnt`
    columns of the table are trained too.
    """
    total, grads = torch.zeros(()), []
    columns = torch.zeros(len(table), learnt) if learnt else None
    for x, p, w in zip(states, probabilities, weight, strict=True):
        rows = x.reshape(-1, x.shape[-1]).bfloat16()
        loss, back = _back(rows @ table.T, p.reshape(len(rows), -1), w.reshape(-1))
        total += loss
        grads.append((back @ table).view(x.shape))
        if columns is not None:
            columns += back.T @ rows[:, -learnt:]
    return Push(total, torch.stack(grads).type_as(states), columns)


@torch.no_grad()
def agree(states: Tensor, table: Tensor, probabilities: Tensor) -> Tensor:
    """1 where both argmaxes agree, else 0."""
    pairs = zip(states, probabilities, strict=True)
    said = [((x.bfloat16() @ table.T).argmax(-1) == p.argmax(-1)).float() for x, p in pairs]
    return torch.stack(said)
