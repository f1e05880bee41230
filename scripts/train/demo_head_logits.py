#!/usr/bin/env python3
"""Store torch's logits of a demo head, for the test that llama.cpp computes the same.

scripts/train/demo_head_logits.py localspec/data/demo/demo-eagle3.gguf tests/scripts/demo-eagle3.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from demo_blocks import BLOCK, DFlash, DSpark
from demo_heads import DemoEagle3, Read, read
from demo_network import Llama
from demo_text import read_corpus
from head_files import Source
from torch import Tensor
from torch.nn.functional import linear
from train_demo_heads import DEMO, load_head, new_head, target_of, tokenizer_of

CUTS = (24, 48, 72)
"""Tokens read by the target; the head gets one more."""
GUESSES = 3


def load_trained(path: Path, target: Llama) -> DemoEagle3 | DFlash:
    source = Source(path)
    arch = source.value("general.architecture")
    names = {tensor.name for tensor in source.reader.tensors}
    kind = "eagle3" if arch == "eagle3" else "dspark" if "markov_w1.weight" in names else "dflash"
    mask = 0 if kind == "eagle3" else int(source.value("tokenizer.ggml.mask_token_id"))
    head = new_head(kind, mask)
    head.start_from(target)
    load_head(head, path)
    return head


def seen_by(target: Llama, ids: Tensor) -> Read:
    """In full precision; heads draft without the target's probabilities."""
    return Read(ids, *read(target, ids), torch.empty(0))


def unrolled(head: DemoEagle3, target: Llama, ids: Tensor) -> list[Tensor]:
    """Logits of greedy draft tokens after the last token."""
    found: list[Tensor] = []
    first = len(ids) - 2
    for step in range(GUESSES):
        guessed = torch.tensor([x.argmax() for x in found], dtype=torch.int64)
        row = torch.cat((ids, guessed, ids[:1]))[None]  # The last token is ignored.
        seen = seen_by(target, row)
        states = head(*head.inputs(target, seen), step + 1)
        found.append(linear(states[step][0, first + step].float(), target.token_embd.weight))
    return found


def block(head: DFlash, target: Llama, ids: Tensor) -> list[Tensor]:
    anchor = torch.tensor([[len(ids) - 1]])
    seen = seen_by(target, ids[None])
    states = head(*head.inputs(target, seen, anchor), anchor, torch.tensor([[BLOCK]]))[0, 0]
    found, before = [], ids[-1]
    for row in states[head.first :]:
        joined = head.with_before(row, before)
        found.append(linear(joined.float(), head.output(target)))
        before = found[-1].argmax() if isinstance(head, DSpark) else before
    return found


@torch.no_grad()
def main() -> None:
    path, out = map(Path, sys.argv[1:])
    torch.compiler.set_stance("force_eager")
    target = target_of(DEMO / "demo-target.gguf")
    head = load_trained(path, target)
    text = read_corpus().held_out[0]
    tokenizer = tokenizer_of(Source(DEMO / "demo-target.gguf"))
    ids = torch.tensor(tokenizer.encode(text).ids[: CUTS[-1] + 1])
    compute = unrolled if isinstance(head, DemoEagle3) else block
    logits = [torch.stack(compute(head, target, ids[: cut + 1])) for cut in CUTS]
    stored = torch.stack(logits).numpy().astype(np.float16)
    np.savez_compressed(out, ids=ids.numpy(), cuts=np.array(CUTS), logits=stored)


if __name__ == "__main__":
    main()
