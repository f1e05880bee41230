"""Training of the demo target's heads: gradients of the losses, and acceptance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from demo_blocks import BLOCK, RANK, DFlash, DSpark
from demo_heads import DemoEagle3, Reading
from demo_network import Llama
from soft_loss import agree, soft_loss
from torch import Tensor

STEPS_UNROLLED = 3
DECAY = 0.8
"""Weight of a later draft token's loss: it is reached only if the earlier ones are accepted."""
ANCHORS = 32
"""Blocks per window, at random positions that may overlap."""
FADING = 4.0
"""Draft tokens of a block after which the weight is 1 / e."""
CONFIDENCE_WEIGHT = 0.2
"""Weight of the loss of DSpark's confidence head."""

Gradients = tuple[Tensor, ...]


@dataclass(frozen=True)
class Batch:
    windows: Tensor
    """Indices in the Reading."""
    weight: Tensor
    """[windows, tokens]: what the target's probabilities after each token count."""
    seed: int = 0

    def parts(self, count: int) -> list[Batch]:
        pairs = zip(self.windows.chunk(count), self.weight.chunk(count), strict=True)
        return [Batch(*pair, self.seed * count + i) for i, pair in enumerate(pairs)]

    def own(self) -> Tensor:
        """Mask of the target's own tokens."""
        return self.weight == self.weight.amax(-1, keepdim=True)


class Unrolled:
    """EAGLE-3: the input of each step is the states of the previous one."""

    def __init__(self, head: DemoEagle3, target: Llama) -> None:
        self.head, self.target = head, target
        self.table = target.token_embd.weight.bfloat16()
        self.run = torch.compile(head.forward, dynamic=False)

    def gradients(self, reading: Reading, batch: Batch, steps: int) -> tuple[float, Gradients]:
        with torch.autocast("cpu", torch.bfloat16):
            seen = reading.of(batch.windows)
            states = self.run(*self.head.inputs(self.target, seen), steps)
        probabilities, weight = (
            self.head.targets_of(seen.probabilities),
            self.head.targets_of(batch.weight),
        )
        total, pushes = 0.0, []
        for i, state in enumerate(states):
            found = soft_loss(
                state[:, i:], self.table, probabilities[:, i:], weight[:, i:] * DECAY**i
            )
            total += found.loss.item()
            pushes.append(F.pad(found.states, (0, 0, i, 0)))
        return total, torch.autograd.grad(states, list(self.head.parameters()), pushes)

    @torch.no_grad()
    def hits(self, head: DemoEagle3, reading: Reading, batch: Batch) -> Tensor:
        """[the target's own tokens, draft tokens]: 1 if the draft token is the target's choice."""
        with torch.autocast("cpu", torch.bfloat16):
            seen = reading.of(batch.windows)
            states = head(*head.inputs(self.target, seen), STEPS_UNROLLED)
        probabilities, most = head.targets_of(seen.probabilities), STEPS_UNROLLED
        found = [
            agree(x[:, i:], self.table, probabilities[:, i:])[:, : x.shape[1] - most]
            for i, x in enumerate(states)
        ]
        own = head.targets_of(batch.own())[:, :-most]
        return torch.stack(found, -1)[own]


def blocks_in(batch: Batch, shortest: int) -> tuple[Tensor, Tensor]:
    """Positions of blocks, and the number of rows used: a short draft is a short block."""
    rng = np.random.default_rng(batch.seed)
    own = batch.own().numpy()
    low, last = own.argmax(-1).clip(4), own.shape[1] - 1 - own[:, ::-1].argmax(-1)
    high = np.minimum(last + 1, own.shape[1] - BLOCK)
    size = (len(own), ANCHORS)
    anchors = rng.integers(low[:, None], high[:, None], size)
    lengths = rng.integers(shortest, BLOCK + 1, size)
    lengths[rng.random(size) < 0.5] = BLOCK
    return torch.from_numpy(anchors), torch.from_numpy(lengths)


class Blocks:
    """DFlash and DSpark: blocks at random positions of the target's own text."""

    def __init__(self, head: DFlash, target: Llama) -> None:
        self.head, self.target = head, target
        self.run = torch.compile(head.forward, dynamic=False)
        self.learnt = RANK if isinstance(head, DSpark) else 0

    def table(self) -> Tensor:
        return self.head.output(self.target).detach().bfloat16()

    def gradients(self, reading: Reading, batch: Batch, steps: int) -> tuple[float, Gradients]:
        head = self.head
        anchors, lengths = blocks_in(batch, 1 + head.first)
        with torch.autocast("cpu", torch.bfloat16):
            seen = reading.of(batch.windows)
            states = self.run(*head.inputs(self.target, seen, anchors), anchors, lengths)
        both, probabilities = head.draft_states(states, seen, anchors)
        place = torch.arange(both.shape[2])
        weight = torch.exp(-place / FADING) * (place + head.first < lengths[..., None])
        total = batch.weight.sum() / weight.sum()
        table = self.table()
        found = soft_loss(both.detach(), table, probabilities, weight * total, self.learnt)
        outputs, pushes, parameters = [both], [found.states], list(head.parameters())
        if isinstance(head, DSpark):
            right = agree(both[:1], table, probabilities[:1])
            sure = F.binary_cross_entropy_with_logits(head.confidence(both[:1]), right)
            outputs.append(sure * CONFIDENCE_WEIGHT * total)
            pushes.append(torch.ones(()))
        grads = list(torch.autograd.grad(outputs, parameters, pushes, allow_unused=True))
        if isinstance(head, DSpark):
            at = next(i for i, p in enumerate(parameters) if p is head.markov_w2.weight)
            grads[at] = found.columns
        return found.loss.item(), tuple(grads)

    @torch.no_grad()
    def hits(self, head: DFlash, reading: Reading, batch: Batch) -> Tensor:
        anchors, lengths = blocks_in(batch, BLOCK)
        with torch.autocast("cpu", torch.bfloat16):
            seen = reading.of(batch.windows)
            inputs = head.inputs(self.target, seen, anchors)
            states = head(*inputs, anchors, lengths)
        both, probabilities = head.draft_states(states, seen, anchors)
        return agree(both, head.output(self.target).bfloat16(), probabilities).flatten(0, 1)
