"""What a head and prompt lookup give a chat model on real text.

    bench.py chat --target MODEL.gguf --head HEAD.gguf
        [--types Q8_0 BF16] [--copies DIR]

It is measured for several types of the model's weights.

The workloads of `localspec bench` as requests to a chat model, each answered plainly
(`--spec off`), with the head (`--spec eagle3`, 3 draft tokens), with prompt lookup
(`--spec lookup`), and by `auto`, which has both. The copies in other types are made by
llama.cpp. Speed-ups are ratios of tokens per second after the first token, of the same
prompt; geometric means over the prompts.

A small model is limited by computing, not by reading memory. The same text at the cost
of a model that is limited by reading:

    bench.py pair DIR --from MODEL.gguf --size 1b --head HEAD.gguf
    bench.py chat --target DIR/1b-target-BF16.gguf --head DIR/1b-BF16-HEAD.gguf --types

Everything in a workload is asked one way, then the next way, in reverse order every
second time, so that no prompt follows itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean, median

from msgspec.structs import replace
from pair import TOLERANCE, quantize
from programs import generate_answer, loaded_engine, measured_costs
from turns import in_turn, table

from localspec.bench import workloads
from localspec.engine_process.client import EngineProcess
from localspec.models.reference import parse_file_name
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import (
    ChatMessage,
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    MeasuredCosts,
    SamplingParams,
)

REQUESTS = {
    "code": "Complete this Python code:\n\n",
    "prose": "Continue this story:\n\n",
    "chat": "",
    "long-form": "Continue this article:\n\n",
    "copy-edit": "Write the changed code:\n\n",
}
"""What turns a text of a workload into a request."""
ARMS: dict[str, tuple[str, int | None]] = {
    "plain": ("off", None),
    "head": ("eagle3", 3),
    "lookup": ("lookup", None),
    "both": ("auto", None),
}
"""The drafter, and its draft length; None for localspec's default."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", type=Path, required=True)
    add("--head", type=Path, required=True)
    add("--types", nargs="*", choices=list(TOLERANCE), default=["Q8_0", "BF16"])
    add("--copies", type=Path, default=Path("build/copies"), metavar="DIR")
    add("--workload", action="append", default=[], choices=list(REQUESTS))
    add("--prompts", type=int, default=3, help="of a workload")
    add("--rounds", type=int, default=1, help="times that each is answered")
    add("--tokens", type=int, default=64, help="of an answer, at most")
    add("--temperature", type=float, default=0.0)
    add("--threads", type=int, help="localspec's choice by default")


def main(args: argparse.Namespace) -> None:
    args.copies.mkdir(parents=True, exist_ok=True)
    files = {parse_file_name(args.target.name).tag or "as it is": args.target}
    for kind in args.types:
        files[kind] = args.copies / f"{args.target.stem}-{kind}.gguf"
        if not files[kind].exists():
            quantize(args.target, files[kind], kind)
    speeds: list[Sequence[str]] = [
        ("type", "workload", "plain, tok/s", "head", "lookup", "both")
    ]
    curves = []
    for name, path in files.items():
        settings = ContextSettings(n_ctx=2048, n_threads=args.threads)
        load = LoadCommand(
            target=str(path.resolve()),
            draft=str(args.head.resolve()),
            target_settings=settings,
            draft_settings=settings,
        )
        sampling = SamplingParams(temperature=args.temperature, seed=1)
        with loaded_engine(load) as engine:
            curves.append(f"- {name}: {describe_costs(measured_costs(engine))}")
            model = ChatModel(engine, sampling)
            measure(model, ["Hello"], rounds=1, max_tokens=8)  # warm caches
            for cells in workload_rows(name, model, args):
                speeds.append(cells)
                print(*cells, file=sys.stderr, flush=True)
    print("Speed-up (acceptance rate, tokens a pass):\n")
    print(table(speeds))
    print(
        "\nA pass of one token, passes of several in such passes, "
        "a draft token of the head:\n"
    )
    print("\n".join(curves))


@dataclass
class WorkloadResults:
    """What one way of drafting did with a workload, by prompt and turn."""

    # Tokens per second after the first.
    speeds: list[float] = field(default_factory=list)
    totals: RoundTotals = field(default_factory=RoundTotals)

    def describe(self, plain: WorkloadResults) -> str:
        pairs = zip(self.speeds, plain.speeds, strict=True)
        speedup = geometric_mean([ours / theirs for ours, theirs in pairs])
        rate = self.totals.acceptance_rate
        share = "–" if rate is None else f"{rate:.0%}"
        return f"{speedup:.2f} × ({share}, {self.totals.tokens_per_pass:.2f})"


@dataclass(frozen=True)
class ChatModel:
    """A target with its head, in an engine of its own."""

    engine: EngineProcess
    sampling: SamplingParams

    def ask(
        self, request: str, arm: str, max_tokens: int, results: WorkloadResults
    ) -> None:
        spec, length = ARMS[arm]
        messages = (ChatMessage("user", request),)
        command = GenerateCommand(
            "", self.sampling, max_tokens, spec=spec, messages=messages
        )
        answer = generate_answer(self.engine, replace(command, draft_length=length))
        results.speeds.append(answer.tokens_per_second or 0.0)
        for done in answer.rounds:
            results.totals.add(done)


def describe_costs(costs: MeasuredCosts) -> str:
    """The costs of passes: one token, several, and one of the head."""
    widths = [f"v({w}) {v:.2f}" for w, v in costs.curve.items() if w != "1"]
    return f"{costs.t1_ms:.1f} ms · {', '.join(widths)} · c {costs.c or 0:.2f}"


def chat_requests(workload: workloads.Workload) -> list[str]:
    if workload.name == "chat":
        return [
            text.split("Question: ")[-1].removesuffix("Answer:")
            for text in workload.prompts
        ]
    return [f"{REQUESTS[workload.name]}{text}" for text in workload.prompts]


def measure(
    model: ChatModel, requests: Sequence[str], rounds: int, max_tokens: int
) -> dict[str, WorkloadResults]:
    found = {arm: WorkloadResults() for arm in ARMS}
    for turn in range(rounds):
        for arm in in_turn(list(ARMS), turn):
            for request in requests:
                model.ask(request, arm, max_tokens, found[arm])
    return found


def workload_rows(
    name: str, model: ChatModel, args: argparse.Namespace
) -> Iterator[tuple[str, ...]]:
    for workload in workloads.load(args.workload):
        requests = chat_requests(workload)[: args.prompts]
        found = measure(model, requests, args.rounds, args.tokens)
        plain = found.pop("plain")
        cells = (results.describe(plain) for results in found.values())
        yield name, workload.name, f"{median(plain.speeds):.0f}", *cells
