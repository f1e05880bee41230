"""Windows for training and measuring the demo target's heads.

Half are human text, half the target's own text, which a head has to draft. The target's text is
simpler but soon repeats itself, so it alone is not enough.
"""

from __future__ import annotations

import random

import torch
from demo_heads import LENGTH, Reading
from demo_learning import Batch
from demo_network import Llama
from demo_target_text import Plan, TargetText
from demo_text import SEED
from head_files import Source
from torch import Tensor

FRESH = 96
"""The target's tokens with full weight; after about as many it repeats itself."""
REPEATED = 0.3
"""Weight of the loss after them, and in the given beginning."""
HUMAN = 0.5
"""Weight of the loss in human text."""
SHARES = [0.5, 0.25, 0.25]
"""Of human text: library, tests, edits."""
HELD_OUT = Plan(1, seed=99, begun=(96,), temperatures=(0.0,), together=64)
MEASURED = 64
"""The target's first tokens in a held-out window that count."""


class Windows:
    """All windows with the target's outputs, in random order."""

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


def windows_of(texts: list[Tensor], said: TargetText) -> tuple[Tensor, Tensor]:
    """All windows, as many of human text as of the target's, and their weights."""
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
    """Positions at which functions begin."""
    words = [i for i, t in enumerate(source.value("tokenizer.ggml.tokens")) if t in ("def", "Ġdef")]
    return torch.isin(ids, torch.tensor(words)).nonzero()[:, 0]


def begin_of(target: Llama, said: TargetText) -> tuple[Reading, Batch]:
    """The target's first tokens of each window, for measuring heads."""
    after = torch.arange(1, LENGTH + 1) - said.begun[:, None]
    weight = ((after >= 0) & (after < MEASURED)).float()
    return Reading(target, said.ids), Batch(torch.arange(len(weight)), weight)
