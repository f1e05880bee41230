"""Trains an EAGLE-3 head on the answers in shards, and measures it on held-out ones."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from head_files import Source
from head_network import Eagle3, Shape
from head_shards import SEQUENCE_TOKENS, shards
from torch import Tensor, nn

STEPS = 4
"""Unrolled steps; every other batch has SHORT_STEPS, which cost half."""
SHORT_STEPS = 2
STEP_DECAY = 0.8
"""Weight of a later draft token's loss: it is reached only if the earlier ones are
accepted.
"""
BATCH_ROWS = 2048
"""The target's own tokens of a batch."""
LOSS_ROWS = 256
"""Rows of one product with the output matrix; the logits then stay in the CPU's caches.
"""
HIGHEST = 80.0
"""Larger logits would overflow in exp; those of a trained head are far smaller."""
MEASURED_STEPS = 5
AVERAGE_DECAY = 0.02
"""Per step, of the moving average of the weights, which is what is exported."""
WARM_UP = 40
"""Batches in which the learning rate rises."""
COOL_DOWN = 0.5
"""Share of the training, at its end, in which the learning rate falls."""
MEASURED = 64
"""Held-out conversations that a measurement reads."""
SAVE_SECONDS = 300
"""Between two checkpoints."""


# --- the data -------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """A conversation.

    Row p of a head reads the states of token p and token p + 1, and predicts token
    p + 2.
    """

    tokens: Tensor
    states: Tensor
    """[tokens, layers × n_embd]"""
    finals: Tensor
    """[loss rows, n_embd]: the target's output after token p + 1."""
    loss_rows: Tensor
    """Rows p whose tokens p + 1 and p + 2 are the target's own."""


class Shard:
    """One folder of arrays, read from disk as they are used."""

    def __init__(self, folder: Path) -> None:
        self.arrays = {p.stem: np.load(p, mmap_mode="r") for p in folder.glob("*.npy")}
        self.ends = self.arrays["lengths"].cumsum()
        self.own_before = np.concatenate(([0], self.arrays["own"].cumsum()))

    def __len__(self) -> int:
        return len(self.ends)

    def example(self, i: int) -> Example:
        end = int(self.ends[i])
        start = end - int(self.arrays["lengths"][i])
        own = np.array(self.arrays["own"][start:end])
        rows = np.flatnonzero(own[1:-1] & own[2:])
        # The array `finals` has a row for each of the target's own tokens.
        finals_rows = self.own_before[start] + own.cumsum()[rows + 1] - 1
        tokens = self.arrays["tokens"][start:end].astype(np.int64)
        states = np.array(self.arrays["states"][start : end - 2])
        finals = np.array(self.arrays["finals"][finals_rows])
        return Example(
            tokens=torch.from_numpy(tokens),
            states=torch.from_numpy(states).float(),
            finals=torch.from_numpy(finals),
            loss_rows=torch.from_numpy(rows),
        )

    def examples(self) -> list[Example]:
        return [self.example(i) for i in range(len(self))]


def load(folder: Path) -> list[Shard]:
    return [Shard(path) for path in shards(folder)]


def batches(folder: Path, seed: int) -> Iterator[list[Example]]:
    """Batches without end.

    Shards that are added meanwhile count from the next epoch on.
    """
    rng = np.random.default_rng(seed)
    while True:
        places: list[tuple[Shard, int]] = []
        for shard in load(folder):
            places += [(shard, i) for i in range(len(shard))]
        batch: list[Example] = []
        for n in rng.permutation(len(places)):
            shard, i = places[n]
            batch.append(shard.example(i))
            if sum(len(e.loss_rows) for e in batch) >= BATCH_ROWS:
                yield batch
                batch = []


def draft_vocabulary(folder: Path, size: int) -> Tensor:
    """The tokens that the target says most often in the training text, ascending."""
    counts = np.zeros(0, np.int64)
    for shard in load(folder):
        said = np.bincount(shard.arrays["tokens"][shard.arrays["own"]])
        counts = np.pad(counts, (0, max(0, len(said) - len(counts))))
        counts[: len(said)] += said
    kept = np.sort(np.argsort(-counts, kind="stable")[:size])
    print(
        f"{size:,} tokens are {counts[kept].sum() / counts.sum():.1%} of the answers",
        flush=True,
    )
    return torch.from_numpy(kept)


# --- the target -----------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What a head shares with its target."""

    shape: Shape
    embeddings: Tensor
    """[vocabulary, n_embd]"""
    output: Tensor
    """[vocabulary, n_embd]; the embeddings, if the target has no other matrix."""
    weights: dict[str, Tensor]
    """Of the last layer and the final norm."""

    @classmethod
    def read(cls, path: Path) -> Target:
        source = Source(path)
        shape = shape_of(source)
        last = f"blk.{shape.n_layer - 1}."
        names = ("token_embd.weight", "output.weight", "output_norm.weight")
        stored = source.weights(lambda name: name in names or name.startswith(last))
        weights = {
            name: torch.from_numpy(np.array(values)) for name, values in stored.items()
        }
        if source.value("general.architecture") != "llama":
            for name in ("attn_q", "attn_k"):
                key = f"{last}{name}.weight"
                weights[key] = in_pairs(weights[key], shape.head)
        embeddings = weights.pop("token_embd.weight")
        output = weights.pop("output.weight", embeddings)
        return cls(shape, embeddings=embeddings, output=output, weights=weights)


def shape_of(source: Source) -> Shape:
    return Shape(
        n_embd=source.size("embedding_length"),
        n_layer=source.size("block_count"),
        n_head=source.size("attention.head_count"),
        n_head_kv=source.size("attention.head_count_kv"),
        n_ff=source.size("feed_forward_length"),
        eps=source.size("attention.layer_norm_rms_epsilon"),
        rope_base=source.size("rope.freq_base"),
        head=source.size("attention.key_length"),
    )


def in_pairs(weight: Tensor, head: int) -> Tensor:
    """Reorders the rows of a query or key matrix from halves to adjacent pairs."""
    return weight.unflatten(0, (-1, 2, head // 2)).transpose(1, 2).flatten(0, 2)


# --- learning -------------------------------------------------------------------------


@torch.compile(dynamic=False)
def soft_loss(
    logits: Tensor, probabilities: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Weighted cross-entropy of these rows to the target's probabilities, and its gradient.

    The gradient is with respect to the logits. In two passes over them it takes a tenth
    of autograd's time.
    """
    logits = logits.float()
    probabilities = probabilities.float()
    grown = logits.clamp(max=HIGHEST).exp()
    total = grown.sum(-1, keepdim=True)
    loss = total.log()[:, 0] - (probabilities * logits).sum(-1)
    back = grown * (weight[:, None] / total) - probabilities * weight[:, None]
    return (loss * weight).sum(), back.bfloat16()


class Optimizer:
    """Muon for the matrices, AdamW for norms and tables.

    `tables` are the beginnings of the names of matrices that are tables.
    """

    def __init__(
        self, model: nn.Module, lr: float, tables: tuple[str, ...] = ()
    ) -> None:
        named = list(model.named_parameters())
        others = [p for n, p in named if p.dim() != 2 or n.startswith(tables)]
        matrices = [p for n, p in named if p.dim() == 2 and not n.startswith(tables)]
        self.parts = [
            torch.optim.Muon(
                matrices, lr=lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.01),
        ]
        self.model = model
        self.lr = lr

    def step(self, scale: float) -> None:
        """One step with `scale` times the learning rate; the gradients are dropped."""
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = self.lr * scale
            part.step()
            part.zero_grad(set_to_none=True)


@torch.no_grad()
def average(mean: nn.Module, model: nn.Module, done: int) -> None:
    """Update the moving average of the weights after `done` earlier steps."""
    for ours, theirs in zip(mean.parameters(), model.parameters(), strict=True):
        ours.lerp_(theirs, max(AVERAGE_DECAY, 1 / (1 + done)))


class Learner:
    """A head in training, and the moving average of its weights."""

    def __init__(self, target: Target, lr: float) -> None:
        self.target = target
        self.head = Eagle3(target.shape, SEQUENCE_TOKENS)
        self.head.start_from_layer(target.weights, target.shape.n_layer - 1)
        self.mean = deepcopy(self.head)
        self.optimizer = Optimizer(self.head, lr)
        self.batches_done = 0
        self.tokens_seen = 0

    def set_vocabulary(self, vocabulary: Tensor) -> None:
        """The tokens to draft.

        They may change at any time: their output rows are not trained.
        """
        self.vocabulary = vocabulary
        self.rows = self.target.output[vocabulary].bfloat16()
        self.is_drafted = torch.zeros(len(self.target.output), dtype=torch.bool)
        self.is_drafted[vocabulary] = True

    def forward(self, head: Eagle3, example: Example, steps: int) -> list[Tensor]:
        """The states of each step, at all rows."""
        embedding = F.embedding(example.tokens[1:-1], self.target.embeddings)[None]
        with torch.autocast("cpu", torch.bfloat16):
            found: list[Tensor] = head(embedding, example.states[None], steps)
        return [state[0] for state in found]

    def learn(self, batch: Sequence[Example], progress: float) -> float:
        """One step of the optimizer; returns the loss of a token."""
        steps = SHORT_STEPS if self.batches_done % 2 else STEPS
        n_rows = sum(len(example.loss_rows) for example in batch)
        total = n_rows * sum(STEP_DECAY**j for j in range(steps))
        loss = 0.0
        for example in batch:
            states = self.forward(self.head, example, steps)
            pushes, found = self.push(states, example, 1 / total)
            torch.autograd.backward(states, pushes)
            loss += found
        warm = (1 + self.batches_done) / WARM_UP
        cool = (1 - progress) / COOL_DOWN
        self.optimizer.step(max(0.01, min(1.0, warm, cool)))
        average(self.mean, self.head, self.batches_done)
        self.batches_done += 1
        self.tokens_seen += n_rows
        return loss

    @torch.no_grad()
    def push(
        self, states: list[Tensor], example: Example, weight: float
    ) -> tuple[list[Tensor], float]:
        """Gradients of the loss with respect to the states of each step, and the loss.

        They are computed for LOSS_ROWS rows at a time, because the logits of a batch
        are far larger than the CPU's caches.
        """
        pushes = [torch.zeros_like(state) for state in states]
        loss = 0.0
        right = self.is_drafted[example.tokens[2:]]
        is_loss_row = torch.zeros(len(right), dtype=torch.bool)
        is_loss_row[example.loss_rows] = True
        for start in range(0, len(example.loss_rows), LOSS_ROWS):
            rows = example.loss_rows[start : start + LOSS_ROWS]
            finals = padded(example.finals[start : start + LOSS_ROWS].bfloat16())
            probabilities = (finals @ self.rows.T).float().softmax(-1).bfloat16()
            weights = right[rows] * weight
            for j, state in enumerate(states):
                # Step j at row p is the j-th draft token after row p - j: that too must
                # be own.
                weights = weights * is_loss_row[(rows - j).clamp(min=0)]
                found, back = soft_loss(
                    padded(state[rows]) @ self.rows.T,
                    probabilities,
                    padded(weights * STEP_DECAY**j),
                )
                pushes[j][rows] = (back @ self.rows)[: len(rows)].type_as(state)
                loss += found.item()
        return pushes, loss

    @torch.no_grad()
    def accepted(self, example: Example) -> Tensor:
        """[first rows, MEASURED_STEPS]: 1 while the greedy draft is the target's text."""
        hits = []
        said = example.tokens[2:]
        for state in self.forward(self.mean, example, MEASURED_STEPS):
            drafted = self.vocabulary[(state @ self.rows.T).argmax(-1)]
            hits.append((drafted == said).float())
        last = int(example.loss_rows[-1]) + 1
        starts = example.loss_rows[example.loss_rows + MEASURED_STEPS <= last]
        chain = [hits[j][starts + j] for j in range(MEASURED_STEPS)]
        return torch.stack(chain, -1).cumprod(-1)

    def state(self) -> dict[str, Any]:
        return {
            "head": self.head.state_dict(),
            "mean": self.mean.state_dict(),
            "optimizers": [
                optimizer.state_dict() for optimizer in self.optimizer.parts
            ],
            "vocabulary": self.vocabulary,
            "batches_done": self.batches_done,
            "tokens_seen": self.tokens_seen,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.head.load_state_dict(state["head"])
        self.mean.load_state_dict(state["mean"])
        for optimizer, saved in zip(
            self.optimizer.parts, state["optimizers"], strict=True
        ):
            optimizer.load_state_dict(saved)
        self.batches_done = state["batches_done"]
        self.tokens_seen = state["tokens_seen"]


def padded(rows: Tensor) -> Tensor:
    """LOSS_ROWS rows, the rest zero: compiled code has one size."""
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, LOSS_ROWS - len(rows)))


# --- the stage ------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainPlan:
    answers: Path
    held_out: Path
    checkpoint: Path
    curve: Path
    """One JSON object a line, for each measurement."""
    vocabulary: int
    tokens: int
    """The target's own tokens to see, repeats included."""
    lr: float
    every: int
    """Tokens between two measurements."""


def train(target: Target, plan: TrainPlan) -> None:
    learner = Learner(target, plan.lr)
    learner.set_vocabulary(draft_vocabulary(plan.answers, plan.vocabulary))
    if plan.checkpoint.exists():
        learner.load(torch.load(plan.checkpoint))
        print(f"resumed after {learner.tokens_seen:,} tokens", flush=True)
    held_out: list[Example] = []
    for shard in load(plan.held_out):
        for example in shard.examples():
            if len(example.loss_rows) > MEASURED_STEPS:
                held_out.append(example)
    held_out = held_out[:MEASURED]
    smooth = 0.0
    first = learner.tokens_seen
    measured = first
    began = time.process_time()
    saved = time.monotonic()
    for batch in batches(plan.answers, seed=learner.tokens_seen):
        loss = learner.learn(batch, learner.tokens_seen / plan.tokens)
        smooth = loss if not smooth else 0.95 * smooth + 0.05 * loss
        finished = learner.tokens_seen >= plan.tokens
        if learner.tokens_seen - measured >= plan.every or finished:
            measured = learner.tokens_seen
            speed = (learner.tokens_seen - first) / (time.process_time() - began)
            learner.set_vocabulary(draft_vocabulary(plan.answers, plan.vocabulary))
            figures = {"loss": round(smooth, 3), "per_cpu_s": round(speed)}
            record(learner, held_out, plan, figures)
        if finished or time.monotonic() - saved > SAVE_SECONDS:
            save(learner, plan.checkpoint)
            saved = time.monotonic()
        if finished:
            break


def save(learner: Learner, path: Path) -> None:
    part = path.with_suffix(".part")
    torch.save(learner.state(), part)
    part.rename(path)


def record(
    learner: Learner,
    held_out: Sequence[Example],
    plan: TrainPlan,
    figures: dict[str, float],
) -> None:
    """Measure, print, and append to the curve."""
    chain = torch.cat([learner.accepted(e) for e in held_out]).mean(0)
    line = {
        "time": time.strftime("%H:%M:%S"),
        "tokens": learner.tokens_seen,
        **figures,
        "accepted": [round(x, 3) for x in chain.tolist()],
        "tau@3": round(1 + chain[:3].sum().item(), 3),
    }
    print(json.dumps(line), flush=True)
    with plan.curve.open("a") as curve:
        curve.write(json.dumps(line) + "\n")
