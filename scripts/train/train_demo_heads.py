#!/usr/bin/env python3
"""Train heads for the bundled demo target: EAGLE-3, DSpark or DFlash.

    pip install -e '.[train]'
    scripts/train/train_demo_heads.py --kind eagle3 --out localspec/data/demo/demo-eagle3.gguf

The text comes from demo_text.py; in half of the windows the target continues it. The target is the
bundled Q8_0 file, whose hidden states the head reads. EAGLE-3 is unrolled: after a tenth of the
steps its own states are its input, as in drafting. The same interpreter, torch and
number of threads give the same file.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import head_files
import torch
from demo_blocks import BLOCK, DFlash, DSpark
from demo_files import load_weights
from demo_heads import LENGTH, TARGET_LAYERS, DemoEagle3, Reading
from demo_learning import STEPS_UNROLLED, Batch, Blocks, Unrolled
from demo_network import TARGET, Llama
from demo_target_text import Plan, write_windows
from demo_text import EOS, SEED, VOCAB, read_corpus, to_ids
from demo_windows import HELD_OUT, Windows, begin_of, functions_of, windows_of
from head_files import Source
from head_training import Optimizer, average
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from train_demo_pair import keep_freed_memory

DEMO = Path(__file__).resolve().parents[2] / "localspec" / "data" / "demo"
ALONE = 0.1
"""Share of the steps, at the start, without unrolling."""
UNROLLED_EACH = 2
"""Every so many steps one is unrolled; it costs more than twice as much."""

# --- the data -------------------------------------------------------------------------


def tokenizer_of(source: Source) -> Tokenizer:
    """The tokenizer in the target's file; a new one would depend on this Python's library."""
    tokens = source.value("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in source.value("tokenizer.ggml.merges")]
    vocabulary = {t: i for i, t in enumerate(tokens) if t != EOS}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    if tokenizer.token_to_id(EOS) != tokens.index(EOS):
        raise SystemExit("the target's end token is not its last")
    return tokenizer


# --- training -------------------------------------------------------------------------


class Training:
    """Trains one head with a frozen target; each thread takes a part of the batch."""

    def __init__(self, work: Unrolled | Blocks, args: argparse.Namespace) -> None:
        self.work, self.threads = work, args.threads
        self.parameters = list(work.head.parameters())
        self.mean = deepcopy(work.head)
        self.optimizer = Optimizer(work.head, args.lr, tables=("markov", "conf"))
        self.pool = ThreadPoolExecutor(args.threads)
        self.warm = set[int]()
        self.done = 0

    def step(self, reading: Reading, batch: Batch, progress: float) -> float:
        steps = 1 if progress < ALONE or self.done % UNROLLED_EACH else STEPS_UNROLLED
        parts = batch.parts(2 * self.threads)
        if steps not in self.warm:  # Compiled by one thread alone.
            self.work.gradients(reading, parts[0], steps)
            self.warm.add(steps)
        found = list(self.pool.map(lambda part: self.work.gradients(reading, part, steps), parts))
        for p, *grads in zip(self.parameters, *(g for _, g in found), strict=True):
            p.grad = torch.stack(grads).sum(0)
        self.optimizer.step(min(1.0, (progress + 0.001) / 0.02, (1 - progress) / 0.5))
        average(self.mean, self.work.head, self.done)
        self.done += 1
        return sum(loss for loss, _ in found)


# --- the files ------------------------------------------------------------------------


def write_head(path: Path, head: nn.Module, source: Source, kind: str) -> None:
    arch = "eagle3" if kind == "eagle3" else "dflash"
    description = f"{kind} head of localspec demo: drafts Python code for it"
    out = head_files.begin(path, source, arch, f"localspec demo {kind}", description)
    if kind == "eagle3":
        head_files.add_eagle3_keys(out, TARGET_LAYERS, TARGET.n_embd)
    else:
        add_block(out, head)
    weights = {k: v.detach().float().numpy() for k, v in head.state_dict().items()}
    head_files.add_tensors(out, weights)
    head_files.finish(out)


def add_block(out: Any, head: nn.Module) -> None:
    out.add_block_count(len(head.blk))
    out.add_array("dflash.target_layers", list(TARGET_LAYERS))
    out.add_uint32("dflash.block_size", BLOCK)
    out.add_bool("dflash.attention.causal", False)
    out.add_uint32("tokenizer.ggml.mask_token_id", head.mask)
    if isinstance(head, DSpark):
        out.add_bool("dflash.sample_from_anchor", True)
        out.add_bool("dflash.has_confidence_head", True)


# --- the run --------------------------------------------------------------------------


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=["eagle3", "dspark", "dflash"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", type=Path, default=DEMO / "demo-target.gguf")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rows", type=int, default=8, help=f"windows of {LENGTH} tokens a step")
    parser.add_argument("--lr", type=float, default=1.4e-2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=60, help="write the file every so many steps")
    parser.add_argument("--said", type=int, default=16, help="batches of the target's own text")
    return parser.parse_args()


def new_head(kind: str, mask: int) -> nn.Module:
    if kind == "eagle3":
        return DemoEagle3()
    return DSpark(mask) if kind == "dspark" else DFlash(mask)


def target_of(path: Path) -> Llama:
    target = Llama(TARGET).eval().requires_grad_(False)
    load_weights(target, path)
    return target


def rarest(parts: list[Tensor]) -> int:
    """The rarest token of the text: the mask token of blocks."""
    return int(torch.bincount(torch.cat(parts), minlength=VOCAB)[: VOCAB - 1].argmin())


def load_head(head: nn.Module, path: Path) -> None:
    state = {k: torch.from_numpy(v.copy()) for k, v in Source(path).weights().items()}
    head.load_state_dict({k: v for k, v in state.items() if k in head.state_dict()}, strict=False)


def acceptance(hits: Tensor) -> dict[str, float]:
    """Acceptance rate for drafts of 1, 3, … tokens."""
    chain = hits.cumprod(-1)
    return {f"accepted@{k}": round(chain[:, :k].mean().item(), 3) for k in (1, 3, hits.shape[1])}


def train(
    work: Training, windows: Windows, held_out: tuple[Reading, Batch], args: argparse.Namespace
) -> None:
    source = Source(args.target)
    began = time.monotonic()
    for step in range(args.steps):
        loss = work.step(windows.reading, windows.next(), step / args.steps)
        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            write_head(args.out, work.mean, source, args.kind)
            shares = acceptance(work.work.hits(work.mean, *held_out))
            seconds = time.monotonic() - began
            speed = (step + 1) * args.rows * LENGTH / seconds
            now = f"step {step + 1} {seconds:.0f} s loss {loss:.3f} {shares}"
            print(f"{now} {speed:.0f} tok/s", flush=True)


def main() -> None:
    args = options()
    keep_freed_memory()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # Each thread of Training computes alone.
    source = Source(args.target)
    tokenizer = tokenizer_of(source)
    corpus = read_corpus()
    texts = [to_ids(tokenizer, t) for t in (corpus.library, corpus.tests, corpus.edits)]
    unseen = to_ids(tokenizer, corpus.held_out)
    print("text:", corpus.sha256(), "tokens:", [len(t) for t in texts], flush=True)
    target = target_of(args.target)
    head = new_head(args.kind, rarest(texts))
    head.start_from(target)
    print("parameters:", sum(p.numel() for p in head.parameters()), flush=True)
    plan, places = Plan(args.said, SEED + 4), functions_of(texts[0], source)
    spoken = write_windows(target, texts[0], places, plan)
    held_out = begin_of(
        target, write_windows(target, unseen, functions_of(unseen, source), HELD_OUT)
    )
    windows = Windows(target, *windows_of(texts, spoken), args.rows, args.threads)
    work = Unrolled(head, target) if args.kind == "eagle3" else Blocks(head, target)
    train(Training(work, args), windows, held_out, args)


if __name__ == "__main__":
    main()
