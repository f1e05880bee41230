"""Tokens a round and time a token of the ways to verify sampled drafts.

    bench.py verifiers --target T.gguf --draft D.gguf [--length 3] [--temperature 0.8 1]
                       [--seeds N] [--tokens N] [--prompts FILE]

All use the same drafts of a fixed length. The methods take turns on each prompt, each
second time in reverse order. "Priced" charges a target pass the median of its width and
leaves out the noise of the clock; "clock" is real time. Both are ratios to `coupled`,
means over the answers.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

from auto import Prompt, list_prompts, load_command, make_request, speeds, speedups
from msgspec.structs import replace
from programs import generate_answer, loaded_engine
from turns import table

from localspec.engine_process.client import EngineProcess
from localspec.protocol.events import Round
from localspec.protocol.wire import GenerateCommand, SamplingParams, VerifyMode

METHODS: tuple[VerifyMode, ...] = ("coupled", "rejection", "block")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", required=True, metavar="GGUF")
    add("--draft", required=True, metavar="GGUF")
    add("--texts", type=Path, metavar="FILE")
    add("--prompts", type=Path, metavar="FILE")
    add("--length", type=int, default=3, metavar="N", help="draft tokens")
    add("--seeds", type=int, default=2, metavar="N")
    add("--tokens", type=int, default=128, metavar="N")
    add("--ctx", type=int, default=2048, metavar="N")
    add("--temperature", type=float, nargs="+", default=[0.8, 1.0], metavar="T")


def main(args: argparse.Namespace) -> None:
    prompts = list_prompts(args)
    rows: list[list[str]] = []
    with loaded_engine(load_command(args.target, args)) as engine:
        for temperature in args.temperature:
            requests = list_requests(prompts, temperature, args)
            answers = ask_in_turns(engine, requests)
            rows += report(f"T {temperature:g}", answers)
    columns = ["temperature", "method", "tokens a round", "priced", "clock"]
    print(table([columns, *rows]))


def list_requests(
    prompts: Sequence[Prompt], temperature: float, args: argparse.Namespace
) -> list[GenerateCommand]:
    requests = []
    for seed in range(args.seeds):
        sampling = SamplingParams(temperature, seed=seed)
        for prompt in prompts:
            request = make_request(prompt, sampling, args)
            requests.append(replace(request, spec="model", draft_length=args.length))
    return requests


def ask_in_turns(
    engine: EngineProcess, requests: Sequence[GenerateCommand]
) -> dict[str, list[Sequence[Round]]]:
    """The rounds of each answer by method, without the round that reads the prompt."""
    answers = defaultdict[str, list[Sequence[Round]]](list)
    for number, request in enumerate(requests):
        print(f"{number + 1} of {len(requests)}", file=sys.stderr)
        methods = METHODS if number % 2 == 0 else METHODS[::-1]
        # So that no method finds the prompt read: all do.
        generate_answer(engine, replace(request, max_tokens=1))
        for method in methods:
            answer = generate_answer(engine, replace(request, verify=method))
            answers[method].append(answer.rounds[1:])
    return answers


def report(label: str, answers: dict[str, list[Sequence[Round]]]) -> list[list[str]]:
    flat = [rounds for method in METHODS for rounds in answers[method]]
    n = len(answers[METHODS[0]])
    priced = speedups(flat)
    clock = speeds(flat)
    rows = []
    for place, method in enumerate(METHODS):
        first = place * n
        by_price = geometric_mean(
            [a / b for a, b in zip(priced[first : first + n], priced[:n], strict=True)]
        )
        by_clock = geometric_mean(
            [a / b for a, b in zip(clock[first : first + n], clock[:n], strict=True)]
        )
        n_rounds = sum(len(rounds) for rounds in answers[method])
        n_tokens = sum(len(r.tokens) for rounds in answers[method] for r in rounds)
        rows.append(
            [
                label,
                method,
                f"{n_tokens / n_rounds:.3f} ({n_rounds} rounds)",
                f"{by_price:.3f}",
                f"{by_clock:.3f}",
            ]
        )
    return rows
