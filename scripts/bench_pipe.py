#!/usr/bin/env python3
"""Overhead of the engine process: the same answer in this process and through the pipe.

    .venv/bin/python scripts/bench_pipe.py [--rounds 10] [--tokens 500] [--spec off model lookup]

Both engines are loaded before anything is timed; runs alternate A B B A. Ratios are computed within
a pair, and medians are printed (range in brackets). Speed counts after the first token, by the
caller's clock. The prompt is cached by the warm-up, so the first token takes one pass; the rest of
its delay is the pipe.
Budgets: speed at least 0.98, first token at most 5 ms later.  Let nothing else run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from localspec.engine.session import Session
from localspec.engine_process.client import EngineProcess
from localspec.paths import package_data_dir
from localspec.protocol.events import EngineExit, Event, Round
from localspec.protocol.wire import ContextSettings, GenerateCommand, LoadCommand, SamplingParams

PROMPT = "def fibonacci(n):\n"
DEMO = package_data_dir() / "demo"
Ask = Callable[[GenerateCommand], Iterator[Event]]


@dataclass(frozen=True)
class Run:
    """One answer, timed by the caller."""

    text: str
    first_ms: float
    tokens_per_second: float


@dataclass(frozen=True)
class Pair:
    """The same answer, in this process and through the pipe."""

    inside: Run
    piped: Run

    @property
    def speed(self) -> float:
        return self.piped.tokens_per_second / self.inside.tokens_per_second

    @property
    def later_ms(self) -> float:
        return self.piped.first_ms - self.inside.first_ms


def run(ask: Ask, request: GenerateCommand) -> Run:
    text, later = "", 0
    began = first = last = time.perf_counter()
    for event in ask(request):
        if isinstance(event, EngineExit):
            raise SystemExit(f"The engine exited: {event.how}.")
        if isinstance(event, Round):
            last = time.perf_counter()
            if first == began:
                first = last
            else:
                later += len(event.tokens)
            text += "".join(token.text for token in event.tokens)
    if last <= first:
        raise SystemExit("The answer is too short to be timed: increase --tokens.")
    return Run(text, (first - began) * 1e3, later / (last - first))


def pairs(inside: Ask, piped: Ask, request: GenerateCommand, rounds: int) -> Iterator[Pair]:
    run(inside, request)
    run(piped, request)
    for n in range(rounds):
        if n % 2:
            b, a = run(piped, request), run(inside, request)
        else:
            a, b = run(inside, request), run(piped, request)
        yield Pair(a, b)


def row(name: str, found: Sequence[Pair]) -> str:
    speeds = [pair.speed for pair in found]
    delays = [pair.later_ms for pair in found]
    same = all(pair.inside.text == pair.piped.text for pair in found)
    return (
        f"{name:8} {median(p.inside.tokens_per_second for p in found):8.1f}"
        f" {median(p.piped.tokens_per_second for p in found):8.1f}"
        f"   {median(speeds):.3f} [{min(speeds):.3f} … {max(speeds):.3f}]"
        f"   {median(delays):+.2f} [{min(delays):+.2f} … {max(delays):+.2f}]"
        f"   {'yes' if same else 'no'}"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, default=DEMO / "demo-target.gguf")
    parser.add_argument("--draft", type=Path, default=DEMO / "demo-draft.gguf")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=10, help="pairs of runs")
    parser.add_argument("--spec", nargs="+", default=["off", "model"])
    return parser.parse_args()


def main() -> None:
    args = parse()
    settings = ContextSettings(n_ctx=2048, n_threads=args.threads)
    load = LoadCommand(str(args.target), str(args.draft), settings, settings)
    busy = f"load {os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "load unknown"
    print(
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, {busy}; "
        f"{args.target.name}, {args.threads} threads, {args.tokens} tokens, {args.rounds} pairs"
    )
    print("spec      in-process  piped tok/s   ratio   first token later, ms   same text")
    session, worker = Session(load), EngineProcess()
    try:
        worker.load(load)
        for spec in args.spec:
            request = GenerateCommand(PROMPT, SamplingParams(temperature=0), args.tokens, spec=spec)
            print(row(spec, list(pairs(session.generate, worker.generate, request, args.rounds))))
    finally:
        worker.close()
        session.close()


if __name__ == "__main__":
    main()
