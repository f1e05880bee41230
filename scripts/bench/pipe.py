"""Overhead of the engine process: the same answer in this process and through the pipe.

    bench.py pipe [--rounds 10] [--tokens 500] [--spec off model lookup]

Both engines are loaded before anything is timed; runs alternate A B B A. Ratios are computed within
a pair, and medians are printed (range in brackets). Speed is characters per second after the first
text, by the caller's clock. The prompt is cached by the warm-up, so the first token takes one pass;
the rest of its delay is the pipe. Budgets: speed at least 0.98, first text at most 5 ms later.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from programs import BenchError, conditions, loaded_engine
from turns import table

from localspec.engine.session import Session
from localspec.paths import package_data_dir
from localspec.protocol.events import EngineExit, Event, Round
from localspec.protocol.wire import ContextSettings, GenerateCommand, LoadCommand, SamplingParams

PROMPT = "def fibonacci(n):\n"
DEMO = package_data_dir() / "demo"
N_CTX = 2048


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", type=Path, default=DEMO / "demo-target.gguf")
    add("--draft", type=Path, default=DEMO / "demo-draft.gguf")
    add("--threads", type=int, default=1)
    add("--tokens", type=int, default=500)
    add("--rounds", type=int, default=10, help="pairs of runs")
    add("--spec", nargs="+", default=["off", "model"])


def main(args: argparse.Namespace) -> None:
    print(conditions(), f"{args.target.name}, {args.threads} threads", sep="\n")
    session = Session(load_command(args))
    with loaded_engine(load_command(args)) as engine:
        rows = [columns("in this process", "pipe")]
        for spec in args.spec:
            request = greedy_request(args, spec)
            inside = partial(texts, session.generate, request)
            piped = partial(texts, engine.generate, request)
            rows.append(compare(spec, inside, piped, args.rounds))
        print(table(rows))
    session.close()


def load_command(args: argparse.Namespace) -> LoadCommand:
    settings = ContextSettings(n_ctx=N_CTX, n_threads=args.threads)
    return LoadCommand(str(args.target), str(args.draft), settings, settings)


def greedy_request(args: argparse.Namespace, spec: str) -> GenerateCommand:
    return GenerateCommand(PROMPT, SamplingParams(temperature=0), args.tokens, spec=spec)


def texts(
    generate: Callable[[GenerateCommand], Iterator[Event]], request: GenerateCommand
) -> Iterator[str]:
    for event in generate(request):
        if isinstance(event, EngineExit):
            raise BenchError(f"The engine exited: {event.how}.")
        if isinstance(event, Round) and (text := "".join(token.text for token in event.tokens)):
            yield text


@dataclass(frozen=True)
class TimedAnswer:
    text: str
    first_ms: float
    chars_per_second: float  # After the first text, which may be several tokens.


def time_answer(ask: Callable[[], Iterator[str]]) -> TimedAnswer:
    parts: list[str] = []
    began = first = last = time.perf_counter()
    for text in ask():
        last = time.perf_counter()
        first = last if not parts else first
        parts.append(text)
    if last <= first:
        raise BenchError("The answer is too short to be timed: increase --tokens.")
    n_later = sum(map(len, parts[1:]))
    return TimedAnswer("".join(parts), (first - began) * 1e3, n_later / (last - first))


def columns(first: str, second: str) -> tuple[str, ...]:
    return "spec", f"{first}, chars/s", second, "ratio", "first text later, ms", "same text"


def compare(
    name: str, first: Callable[[], Iterator[str]], second: Callable[[], Iterator[str]], rounds: int
) -> tuple[str, ...]:
    """A row of the table: the second way beside the first."""
    time_answer(first), time_answer(second)
    pairs = []
    for n in range(rounds):
        order = -1 if n % 2 else 1
        a, b = [time_answer(ask) for ask in (first, second)[::order]][::order]
        pairs.append((a, b))
    ratios = [b.chars_per_second / a.chars_per_second for a, b in pairs]
    later = [b.first_ms - a.first_ms for a, b in pairs]
    return (
        name,
        f"{median(a.chars_per_second for a, _ in pairs):.0f}",
        f"{median(b.chars_per_second for _, b in pairs):.0f}",
        f"{median(ratios):.3f} [{min(ratios):.3f} … {max(ratios):.3f}]",
        f"{median(later):+.2f} [{min(later):+.2f} … {max(later):+.2f}]",
        "yes" if all(a.text == b.text for a, b in pairs) else "no",
    )
