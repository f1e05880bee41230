"""Overhead of the engine process and of the HTTP server: the same answer three ways.

    bench.py serve [--rounds 10] [--tokens 500] [--spec off model lookup]

In this process, through the engine's pipe, and over HTTP from a server in a process of
its own. All engines are loaded before anything is timed; runs alternate A B B A. Ratios
are computed within a pair, and medians are printed (range in brackets). Speed is
characters per second after the first text, by the caller's clock. The prompt is cached
by the warm-up, so the first token takes one pass; the rest of its delay is the way's.
The second table is the time from sending a streamed request to the first byte of its
headers: with the prompt in the KV cache, with a new long prompt, and while another
answer is written. Budgets: speed through the pipe at least 0.98, first text at most 5
ms later; over HTTP 0.97 of the pipe's, headers within 20 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from statistics import median
from typing import Any

from programs import BenchError, conditions, loaded_engine
from turns import table

from localspec.chat.settings import ChatSettings
from localspec.engine.session import Session
from localspec.launch import LoadOptions, ResolvedPair
from localspec.launch.engine_host import EngineHost
from localspec.paths import package_data_dir
from localspec.protocol.events import EngineExit, Event, Round
from localspec.protocol.wire import (
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    SamplingParams,
)
from localspec.serve.http_server import HttpServer, ServerOptions
from localspec.serve.served_model import ServedModel

PROMPT = "def fibonacci(n):\n"
DEMO = package_data_dir() / "demo"
N_CTX = 2048
LONG_PROMPT = "".join(f"def add_{i}(x):\n    return x + {i}\n\n" for i in range(60))
SHORT_REQUEST = {"prompt": PROMPT, "temperature": 0, "max_tokens": 4}
N_HEADERS = 20


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
    with loaded_engine(load_command(args)) as engine, server_process(args) as port:
        piped = [columns("in this process", "pipe")]
        served = [columns("pipe", "HTTP")]
        for spec in args.spec:
            request = GenerateCommand(
                PROMPT, SamplingParams(temperature=0), args.tokens, spec=spec
            )
            body = {
                "prompt": PROMPT,
                "temperature": 0,
                "max_tokens": args.tokens,
                "localspec": {"spec": spec},
            }
            inside = partial(texts, session.generate, request)
            over_pipe = partial(texts, engine.generate, request)
            over_http = partial(read_stream, port, body)
            piped.append(compare(spec, inside, over_pipe, args.rounds))
            served.append(compare(spec, over_pipe, over_http, args.rounds))
        headers = list(header_rows(port))
        print(table(piped), table(served), table(headers), sep="\n\n")
    session.close()


def load_command(args: argparse.Namespace) -> LoadCommand:
    settings = ContextSettings(n_ctx=N_CTX, n_threads=args.threads)
    return LoadCommand(str(args.target), str(args.draft), settings, settings)


def texts(
    generate: Callable[[GenerateCommand], Iterator[Event]], request: GenerateCommand
) -> Iterator[str]:
    for event in generate(request):
        if isinstance(event, EngineExit):
            raise BenchError(f"The engine exited: {event.how}.")
        if isinstance(event, Round):
            text = "".join(token.text for token in event.tokens)
            if text:
                yield text


@dataclass(frozen=True)
class TimedAnswer:
    text: str
    first_ms: float
    chars_per_second: float  # After the first text, which may be several tokens.


def time_answer(ask: Callable[[], Iterator[str]]) -> TimedAnswer:
    parts: list[str] = []
    began = time.perf_counter()
    first = began
    last = began
    for text in ask():
        last = time.perf_counter()
        if not parts:
            first = last
        parts.append(text)
    if last <= first:
        raise BenchError("The answer is too short to be timed: increase --tokens.")
    n_later = sum(map(len, parts[1:]))
    return TimedAnswer("".join(parts), (first - began) * 1e3, n_later / (last - first))


def columns(first: str, second: str) -> tuple[str, ...]:
    return (
        "spec",
        f"{first}, chars/s",
        second,
        "ratio",
        "first text later, ms",
        "same text",
    )


def compare(
    name: str,
    first: Callable[[], Iterator[str]],
    second: Callable[[], Iterator[str]],
    rounds: int,
) -> tuple[str, ...]:
    """A row of the table: the second way beside the first."""
    time_answer(first)
    time_answer(second)
    firsts: list[TimedAnswer] = []
    seconds: list[TimedAnswer] = []
    for turn in range(rounds):
        if turn % 2:
            seconds.append(time_answer(second))
            firsts.append(time_answer(first))
        else:
            firsts.append(time_answer(first))
            seconds.append(time_answer(second))
    pairs = list(zip(firsts, seconds, strict=True))
    ratios = [b.chars_per_second / a.chars_per_second for a, b in pairs]
    later = [b.first_ms - a.first_ms for a, b in pairs]
    has_same_text = all(a.text == b.text for a, b in pairs)
    return (
        name,
        f"{median(a.chars_per_second for a in firsts):.0f}",
        f"{median(b.chars_per_second for b in seconds):.0f}",
        f"{median(ratios):.3f} [{min(ratios):.3f} … {max(ratios):.3f}]",
        f"{median(later):+.2f} [{min(later):+.2f} … {max(later):+.2f}]",
        "yes" if has_same_text else "no",
    )


@contextmanager
def server_process(args: argparse.Namespace) -> Iterator[int]:
    """The port of a server that has loaded its pair."""
    words = map(str, (args.target, args.draft, args.threads))
    command = [sys.executable, __file__, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def serve(target: str, draft: str, threads: str) -> None:
    """As `localspec serve`, but nothing is profiled meanwhile; prints its port."""
    pair = ResolvedPair(Path(target), Path(draft))
    request = LoadOptions(ctx=N_CTX, threads=int(threads)).to_request(pair, "auto")
    options = ServerOptions((ServedModel("bench", pair, ChatSettings()),), port=0)
    server = HttpServer(options, EngineHost(request, probe=False))
    asyncio.run(server.serve(lambda _: print(server.port, flush=True)))


def read_stream(port: int, body: dict[str, Any]) -> Iterator[str]:
    with streaming(port, body) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            choices = json.loads(line.removeprefix(b"data: "))["choices"]
            if choices and choices[0]["text"]:
                yield choices[0]["text"]


@contextmanager
def streaming(port: int, body: dict[str, Any]) -> Iterator[HTTPResponse]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=600)) as connection:
        data = json.dumps(body | {"stream": True})
        connection.request(
            "POST", "/v1/completions", data, {"Content-Type": "application/json"}
        )
        with connection.getresponse() as response:
            if response.status != 200:
                raise BenchError(
                    f"The server answers {response.status}: {response.read()!r}"
                )
            yield response


def header_rows(port: int) -> Iterator[tuple[str, ...]]:
    yield "headers of a stream", "median, ms", "range"
    new_prompts = [
        SHORT_REQUEST | {"prompt": f"# {i}\n{LONG_PROMPT}"} for i in range(10)
    ]
    yield header_row("prompt in the KV cache", port, [SHORT_REQUEST] * N_HEADERS)
    yield header_row("new prompt of 60 functions", port, new_prompts)
    endless = {"prompt": "a", "temperature": 0, "max_tokens": N_CTX, "stop": []}
    with streaming(port, endless) as response:
        response.readline()
        # Each leaves the queue again, so the endless answer goes on.
        yield header_row("behind a running answer", port, [SHORT_REQUEST] * 10)


def header_row(name: str, port: int, bodies: list[dict[str, Any]]) -> tuple[str, ...]:
    times = []
    for body in bodies:
        began = time.perf_counter()
        with streaming(port, body):
            times.append((time.perf_counter() - began) * 1e3)
        wait_until_idle(port)
    return name, f"{median(times):.2f}", f"{min(times):.2f} … {max(times):.2f}"


def wait_until_idle(port: int) -> None:
    """Wait until no request but the endless one, if any, is in the server."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        while True:
            connection.request("GET", "/metrics")
            if b"requests_deferred 0\n" in connection.getresponse().read():
                return
            time.sleep(0.01)


if __name__ == "__main__":
    serve(*sys.argv[1:])
