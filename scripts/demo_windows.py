"""The windows that the demo target's heads are trained and measured on.

Half of them people wrote, and half the target itself, which a head has to draft: what it says is
plainer, but soon repeats itself, and from that alone little is learnt about the rest.
"""

from __future__ import annotations

import random

import torch
from demo_heads import LENGTH, Reading
from demo_learning import Batch
from demo_network import Llama
from demo_said import Plan, Said
from demo_text import SEED
from head_files import Source
from torch import Tensor

FRESH = 96
"""Tokens that the target says before it begins to repeat itself, mostly; those count."""
REPEATED = 0.3
"""What the loss counts after them, and in what they were begun with."""
HUMAN = 0.5
"""What it counts in what people wrote."""
SHARES = [0.5, 0.25, 0.25]
"""Of that, from the library, from tests and from edits."""
HELD_OUT = Plan(1, seed=99, begun=(96,), temperatures=(0.0,), together=64)
MEASURED = 64
"""Tokens of each held-out window that count, from where the target begins to speak."""


class Windows:
    """All windows, read by the target, in random order."""

    def __init__(self, target: Llama, ids: Tensor, weight: Tensor, rows: int, threads: int) -> None:
        self.reading = Reading(target, ids, threads)
        self.weight, self.rows, self.count = weight, rows, 0
        self.rng = torch.Generator().manual_seed(SEED + 2)
        self.left = torch.empty(0, dtype=torch.int64)

    def next(self) -> Batch:
        if len(self.left) < self.rows:
            self.left = torch.randperm(len(self.weight), generator=self.rng)
        at, self.left = self.left[: self.rows], self.left[self.rows :]
        self.count += 1
        weight = self.weight[at]
        return Batch(at, weight / weight.sum(), self.count)


def windows_of(texts: list[Tensor], said: Said) -> tuple[Tensor, Tensor]:
    """As many windows of what people wrote as of what the target said, and what is counted."""
    rng = random.Random(SEED + 1)
    rows = []
    for text in rng.choices(texts, SHARES, k=len(said.ids)):
        start = rng.randrange(len(text) - LENGTH)
        rows.append(text[start : start + LENGTH])
    after = torch.arange(1, LENGTH + 1) - said.begun[:, None]
    weight = torch.where((after >= 0) & (after < FRESH), 1.0, REPEATED)
    human = torch.full(weight.shape, HUMAN)
    return torch.cat((said.ids, torch.stack(rows))), torch.cat((weight, human))


def functions_of(ids: Tensor, source: Source) -> Tensor:
    """Where functions begin."""
    words = [i for i, t in enumerate(source.value("tokenizer.ggml.tokens")) if t in ("def", "Ġdef")]
    return torch.isin(ids, torch.tensor(words)).nonzero()[:, 0]


def begin_of(target: Llama, said: Said) -> tuple[Reading, Batch]:
    """What the target says first, to measure heads on."""
    after = torch.arange(1, LENGTH + 1) - said.begun[:, None]
    weight = ((after >= 0) & (after < MEASURED)).float()
    return Reading(target, said.ids), Batch(torch.arange(len(weight)), weight)
