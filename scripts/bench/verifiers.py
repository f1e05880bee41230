"""Tokens a round and time a token of the ways to verify sampled drafts.

    bench.py verifiers --target T.gguf --draft D.gguf [--length 3] [--temperature 0.8 1]
                       [--seeds N] [--tokens N] [--prompts FILE]

All use the same drafts of a fixed length. The methods take turns on each prompt, each
second time in reverse order. "Priced" charges a target pass the median of its width and
leaves out the noise of the clock; "clock" is real time. Both are rates of all answers
together, relative to `coupled`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from auto import Prompt, list_prompts, load_command, make_request, prices
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
    """A row for each method: tokens a round, and its rates relative to the first's.

    An answer may end after a token, so rates are those of all answers together.
    """
    flat = [rounds for method in METHODS for rounds in answers[method]]
    n = len(answers[METHODS[0]])
    price = prices(flat)
    rows: list[list[str]] = []
    by_price: list[float] = []
    by_clock: list[float] = []
    for place, method in enumerate(METHODS):
        rounds = list(itertools.chain.from_iterable(answers[method]))
        n_tokens = sum(len(each.tokens) for each in rounds)
        by_price.append(n_tokens / sum(price[place * n : (place + 1) * n]))
        by_clock.append(n_tokens / sum(each.ms.total for each in rounds))
        rows.append(
            [
                label,
                method,
                f"{n_tokens / len(rounds):.3f} ({len(rounds)} rounds)",
                f"{by_price[place] / by_price[0]:.3f}",
                f"{by_clock[place] / by_clock[0]:.3f}",
            ]
        )
    return rows
