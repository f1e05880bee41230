#!/usr/bin/env python3
"""Train the bundled demo pair: a small Python-completing target and a smaller draft.

    pip install -e '.[train]'
    scripts/train/train_demo_pair.py --out localspec/data/demo

Data: the source of the Python standard library that runs this script (PSF licence).
Both models are llama-architecture, share one byte-level BPE vocabulary of 4,096
tokens and are written as Q8_0 GGUFs. The draft is distilled from the target's
distributions while the target is trained. The same interpreter, torch and
number of threads give the same files.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from demo_network import CONTEXT, DRAFT, TARGET, Llama, write_gguf
from demo_text import SEED, read_corpus, to_ids, train_tokenizer
from head_training import Optimizer
from tokenizers import Tokenizer
from torch import Tensor


class Batches:
    """Random windows of the parts, drawn by their weights."""

    def __init__(self, parts: list[Tensor], weights: list[float], rows: int) -> None:
        self.parts = parts
        self.weights = weights
        self.rows = rows
        self.rng = random.Random(SEED + 1)

    def next(self) -> Tensor:
        rows = []
        for part in self.rng.choices(self.parts, self.weights, k=self.rows):
            start = self.rng.randrange(len(part) - CONTEXT - 1)
            rows.append(part[start : start + CONTEXT + 1])
        return torch.stack(rows)


def losses(target: Llama, draft: Llama, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The target's loss and the draft's, means over positions.

    Nine tenths of the draft's loss are distillation.
    """
    with torch.autocast("cpu", torch.bfloat16):
        a = target(ids[:, :-1])
        b = draft(ids[:, :-1])
    wanted = ids[:, 1:].flatten()[:, None]
    log_p = a.float().flatten(0, 1).log_softmax(-1)
    log_q = b.float().flatten(0, 1).log_softmax(-1)
    target_loss = -log_p.gather(1, wanted).mean()
    distilled = -(log_p.detach().exp() * log_q).sum(-1).mean()
    draft_loss = -log_q.gather(1, wanted).mean()
    return target_loss, 0.9 * distilled + 0.1 * draft_loss


@torch.no_grad()
def measure(
    target: Llama, draft: Llama, ids: Tensor, windows: int | None = None
) -> dict[str, float]:
    """The held-out loss of each (nats a token), and how much both agree.

    `greedy_agreement` is that of their argmax; `overlap` is 1 - total variation.
    """
    total = np.zeros(5)
    for start in list(range(0, len(ids) - CONTEXT - 1, CONTEXT))[:windows]:
        row = ids[None, start : start + CONTEXT + 1]
        with torch.autocast("cpu", torch.bfloat16):
            a = target(row[:, :-1]).float().flatten(0, 1)
            b = draft(row[:, :-1]).float().flatten(0, 1)
        wanted = row[:, 1:].flatten()
        total += [
            F.cross_entropy(a, wanted, reduction="sum").item(),
            F.cross_entropy(b, wanted, reduction="sum").item(),
            (a.argmax(-1) == b.argmax(-1)).sum().item(),
            torch.minimum(a.softmax(-1), b.softmax(-1)).sum().item(),
            len(wanted),
        ]
    mean = total[:4] / total[4]
    keys = ("target_loss", "draft_loss", "greedy_agreement", "overlap")
    return {k: round(float(v), 4) for k, v in zip(keys, mean, strict=True)}


# --- the run


def keep_freed_memory() -> None:
    """Stop glibc from returning large tensors to the system.

    Page faults would take half the time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    m_trim_threshold = -1
    m_mmap_threshold = -3
    mallopt(m_mmap_threshold, 2**31 - 1)
    mallopt(m_trim_threshold, 2**31 - 1)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument(
        "--rows", type=int, default=6, help=f"windows of {CONTEXT} tokens a step"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--every", type=int, default=250, help="steps between reports and files"
    )
    return parser.parse_args()


@dataclass
class Pair:
    target: Llama
    draft: Llama
    tokenizer: Tokenizer

    def write(self, folder: Path) -> None:
        write_gguf(
            folder / "demo-target.gguf",
            self.target,
            self.tokenizer,
            name="localspec demo",
            description="completes Python code",
        )
        write_gguf(
            folder / "demo-draft.gguf",
            self.draft,
            self.tokenizer,
            name="localspec demo draft",
            description="drafts for localspec demo",
        )

    def sizes(self) -> list[int]:
        """The parameters of the target and of the draft."""
        sizes = []
        for model in (self.target, self.draft):
            sizes.append(sum(p.numel() for p in model.parameters()))
        return sizes


def train(
    pair: Pair, batches: Batches, held_out: Tensor, args: argparse.Namespace
) -> dict[str, float]:
    """Run all steps; return the final losses and agreement.

    The files are written regularly.
    """
    optimizers = [
        Optimizer(pair.target, lr=3e-3, tables=("token_embd",)),
        Optimizer(pair.draft, lr=4e-3, tables=("token_embd",)),
    ]
    compiled = torch.compile(losses)
    began = time.monotonic()
    figures: dict[str, float] = {}
    for step in range(args.steps):
        loss, distilled = compiled(pair.target, pair.draft, batches.next())
        (loss + distilled).backward()
        for optimizer in optimizers:
            progress = step / args.steps
            optimizer.step(min(1.0, progress / 0.02, (1 - progress) / 0.7))
        last = step + 1 == args.steps
        if (step + 1) % args.every == 0 or last:
            n_windows = None if last else 24
            figures = measure(pair.target, pair.draft, held_out, n_windows)
            speed = (step + 1) * args.rows * CONTEXT / (time.monotonic() - began)
            now = f"step {step + 1} train {loss.item():.3f}"
            print(f"{now} {figures} {speed:.0f} tok/s", flush=True)
            pair.write(args.out)
    return figures


def main() -> None:
    args = options()
    keep_freed_memory()
    torch.manual_seed(SEED)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    corpus = read_corpus()
    tokenizer = train_tokenizer(corpus)
    parts = [to_ids(tokenizer, t) for t in (corpus.library, corpus.tests, corpus.edits)]
    held_out = to_ids(tokenizer, corpus.held_out)
    print("tokens:", [len(p) for p in parts], "held out:", len(held_out), flush=True)
    pair = Pair(Llama(TARGET), Llama(DRAFT), tokenizer)
    print("text:", corpus.sha256(), "parameters:", pair.sizes(), flush=True)
    print(
        json.dumps(
            train(pair, Batches(parts, [0.6, 0.3, 0.1], args.rows), held_out, args)
        )
    )


if __name__ == "__main__":
    main()
