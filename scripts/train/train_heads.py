#!/usr/bin/env python3
"""Train an EAGLE-3 head for a GGUF model from the model's own answers.

    scripts/train/train_heads.py all --target MODEL.gguf --data DIR

Stages: prompts, generate, train, export; docs/make-a-head.md explains them. Each goes
on with what DIR has.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "bench"))
import head_answers
import head_files
import head_prompts

try:
    import torch
except ImportError as missing:
    sys.exit(f"train_heads: {missing}.\n  Install it: pip install -e '.[train]'")
import head_training
from gguf import GGMLQuantizationType
from head_answers import AnswerPlan, BatchedTarget
from head_files import Source
from head_training import Target, TrainPlan
from pair import quantize


class Workspace:
    """The data directory.

    A stage that is run again continues from what it has written there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.prompts = folder / "prompts.json"
        self.copy = folder / "copy.gguf"
        self.answers = folder / "answers"
        self.held_out = folder / "held_out"
        self.checkpoint = folder / "checkpoint.pt"
        self.curve = folder / "curve.jsonl"
        self.head = folder / "head.gguf"


def write_prompts(space: Workspace, args: argparse.Namespace) -> None:
    if space.prompts.exists():  # answers refer to prompts by number
        return
    made = {
        "train": head_prompts.make_prompts(args.prompts, held_out=False),
        "held_out": head_prompts.make_prompts(args.held_out, held_out=True),
    }
    space.prompts.write_text(json.dumps(made, indent=0), "utf-8")
    print({name: len(prompts) for name, prompts in made.items()}, flush=True)


def generate(space: Workspace, args: argparse.Namespace) -> None:
    """Held-out answers first, so that training can be measured at any time."""
    path = args.target
    if args.copy != "none":
        path = space.copy
        if not path.exists():
            quantize(args.target, path, args.copy)
    prompts = json.loads(space.prompts.read_text("utf-8"))
    target = BatchedTarget(
        path, layers_of(args.target), args.threads, seed=int(time.time())
    )
    head_answers.write_answers(target, AnswerPlan(space.held_out, prompts["held_out"]))
    plan = AnswerPlan(
        space.answers, prompts["train"], head_prompts.follow_ups(), args.tokens
    )
    head_answers.write_answers(target, plan)
    target.close()


def layers_of(path: Path) -> tuple[int, int, int]:
    """The layers whose inputs the head reads: an early, the middle and the last one."""
    layers = int(Source(path).size("block_count"))
    return 2, layers // 2, layers - 1


def train(space: Workspace, args: argparse.Namespace) -> None:
    torch.manual_seed(head_prompts.SEED)
    torch.set_num_threads(args.threads)
    plan = TrainPlan(
        answers=space.answers,
        held_out=space.held_out,
        checkpoint=space.checkpoint,
        curve=space.curve,
        vocabulary=args.vocabulary,
        tokens=args.train_tokens,
        lr=args.lr,
        every=args.every,
    )
    head_training.train(Target.read(args.target), plan)


def export(space: Workspace, args: argparse.Namespace) -> None:
    saved = torch.load(space.checkpoint)
    weights = {k: v.float().numpy() for k, v in saved["mean"].items()}
    vocabulary = head_training.draft_vocabulary(space.answers, args.vocabulary).numpy()
    output_type = GGMLQuantizationType[args.output_type.upper()]
    source = Source(args.target)
    layers = layers_of(args.target)
    head_files.write_eagle3(
        space.head, source, layers, weights, vocabulary, output_type
    )
    size = space.head.stat().st_size
    print(
        f"{space.head}: {size:,} bytes, {saved['tokens_seen']:,} tokens seen",
        flush=True,
    )


RUN = {"prompts": write_prompts, "generate": generate, "train": train, "export": export}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("stage", choices=[*RUN, "all"])
    parser.add_argument(
        "--target", type=Path, required=True, help="the model, a GGUF file"
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="directory for all results"
    )
    parser.add_argument("--threads", type=int, default=1)
    group = parser.add_argument_group("prompts and generate")
    group.add_argument("--prompts", type=int, default=14000, help="for training")
    group.add_argument(
        "--held-out", type=int, default=160, help="prompts for measuring"
    )
    group.add_argument(
        "--tokens", type=int, default=1_500_000, help="of answers to generate"
    )
    group.add_argument(
        "--copy", choices=["bf16", "q8_0", "none"], default="none",
        help="answer with a copy of this type: with many sequences it can be faster",
    )  # fmt: skip
    group = parser.add_argument_group("train and export")
    group.add_argument(
        "--vocabulary", type=int, default=10240, help="tokens that it can draft"
    )
    group.add_argument(
        "--train-tokens", type=int, default=10_000_000, help="with repeats"
    )
    group.add_argument("--lr", type=float, default=6e-3)
    group.add_argument(
        "--every", type=int, default=100_000, help="tokens between measurements"
    )
    group.add_argument(
        "--output-type", choices=["q4_1", "q5_0", "q5_1", "q8_0"], default="q8_0",
        help="of the output matrix in the file",
    )  # fmt: skip
    return parser.parse_args()


def main() -> None:
    args = options()
    space = Workspace(args.data)
    stages = [args.stage]
    if args.stage == "all":
        stages = list(RUN)
    for stage in stages:
        RUN[stage](space, args)


if __name__ == "__main__":
    main()
