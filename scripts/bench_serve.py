#!/usr/bin/env python3
"""Overhead of the HTTP server: the same answer through the engine's pipe and over HTTP.

    .venv/bin/python scripts/bench_serve.py [--rounds 10] [--tokens 500] [--spec off model]

The server runs in a process of its own, as `localspec serve` does. Both engines are loaded before
anything is timed; runs alternate A B B A. Ratios are computed within a pair, and medians are
printed (range in brackets). Speed counts after the first text, by the caller's clock.
The second table is the time from sending a streamed request to the first byte of its headers: with
the prompt in the KV cache, with a new long prompt, and while another answer is written.
Budgets: speed at least 0.97 of the pipe's, headers within 20 ms.  Let nothing else run meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from statistics import median
from typing import Any

from localspec.chat.settings import ChatSettings
from localspec.engine_process.client import EngineProcess
from localspec.launch import LoadOptions, ResolvedPair
from localspec.launch.engine_host import EngineHost
from localspec.paths import package_data_dir
from localspec.protocol.events import EngineExit, Round
from localspec.protocol.wire import ContextSettings, GenerateCommand, LoadCommand, SamplingParams
from localspec.serve.http_server import HttpServer, ServerOptions

PROMPT = "def fibonacci(n):\n"
LONG_PROMPT = "".join(f"def add_{i}(x):\n    return x + {i}\n\n" for i in range(60))
DEMO = package_data_dir() / "demo"
N_CTX = 2048
N_HEADERS = 20


@dataclass(frozen=True)
class Run:
    """One answer, timed by the caller."""

    text: str
    first_ms: float
    chars_per_second: float
    """After the first text, which may be several tokens."""


def time_texts(texts: Iterator[str]) -> Run:
    parts: list[str] = []
    began = first = last = time.perf_counter()
    for text in texts:
        last = time.perf_counter()
        if not parts:
            first = last
        parts.append(text)
    if last <= first:
        raise SystemExit("The answer is too short to be timed: increase --tokens.")
    n_later = sum(map(len, parts[1:]))
    return Run("".join(parts), (first - began) * 1e3, n_later / (last - first))


def read_pipe(worker: EngineProcess, request: GenerateCommand) -> Iterator[str]:
    for event in worker.generate(request):
        if isinstance(event, EngineExit):
            raise SystemExit(f"The engine exited: {event.how}.")
        if isinstance(event, Round) and (text := "".join(token.text for token in event.tokens)):
            yield text


def read_stream(port: int, body: dict[str, Any]) -> Iterator[str]:
    with streaming(port, body) as response:
        for line in response:
            choices = json.loads(line[6:])["choices"] if line.startswith(b"data: {") else ()
            if choices and choices[0]["text"]:
                yield choices[0]["text"]


@contextmanager
def streaming(port: int, body: dict[str, Any]) -> Iterator[HTTPResponse]:
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    with closing(connection):
        data = json.dumps(body | {"stream": True})
        connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            if response.status != 200:
                raise SystemExit(f"The server answers {response.status}: {response.read()!r}")
            yield response


def time_headers(port: int, bodies: Iterator[dict[str, Any]]) -> list[float]:
    times = []
    for body in bodies:
        began = time.perf_counter()
        with streaming(port, body):
            times.append((time.perf_counter() - began) * 1e3)
        wait_until_idle(port)
    return times


def wait_until_idle(port: int) -> None:
    """Wait until no request but the endless one, if any, is in the server."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        while True:
            connection.request("GET", "/metrics")
            if b"requests_deferred 0\n" in connection.getresponse().read():
                return
            time.sleep(0.01)


def print_speeds(worker: EngineProcess, port: int, args: argparse.Namespace) -> None:
    print("spec       pipe chars/s    HTTP   ratio   first text later, ms   same text")
    for spec in args.spec:
        greedy = SamplingParams(temperature=0)
        command = GenerateCommand(PROMPT, greedy, args.tokens, spec=spec)
        body = {"prompt": PROMPT, "temperature": 0, "max_tokens": args.tokens}
        body |= {"localspec": {"spec": spec}}

        def ask_pipe(command: GenerateCommand = command) -> Run:
            return time_texts(read_pipe(worker, command))

        def ask_server(body: dict[str, Any] = body) -> Run:
            return time_texts(read_stream(port, body))

        runs = list(alternate(ask_pipe, ask_server, args.rounds))
        ratios = [served.chars_per_second / piped.chars_per_second for piped, served in runs]
        later = [served.first_ms - piped.first_ms for piped, served in runs]
        same = all(piped.text == served.text for piped, served in runs)
        print(
            f"{spec:9} {median(p.chars_per_second for p, _ in runs):12.0f}"
            f" {median(s.chars_per_second for _, s in runs):8.0f}"
            f"   {median(ratios):.3f} [{min(ratios):.3f} … {max(ratios):.3f}]"
            f"   {median(later):+.2f} [{min(later):+.2f} … {max(later):+.2f}]"
            f"   {'yes' if same else 'no'}"
        )


def alternate(
    first: Callable[[], Run], second: Callable[[], Run], rounds: int
) -> Iterator[tuple[Run, Run]]:
    first(), second()
    for n in range(rounds):
        if n % 2:
            b, a = second(), first()
        else:
            a, b = first(), second()
        yield a, b


def print_headers(port: int) -> None:
    short = {"prompt": PROMPT, "temperature": 0, "max_tokens": 4}
    endless = {"prompt": "a", "temperature": 0, "max_tokens": N_CTX, "stop": []}
    rows = [
        ("prompt in the KV cache", time_headers(port, (short for _ in range(N_HEADERS)))),
        (
            "new prompt of 60 functions",
            time_headers(port, (short | {"prompt": f"# {i}\n{LONG_PROMPT}"} for i in range(10))),
        ),
    ]
    with streaming(port, endless) as response:
        response.readline()
        # Each leaves the queue again, so the endless answer goes on.
        rows.append(("behind a running answer", time_headers(port, (short for _ in range(10)))))
    print("\nheaders of a stream             median, ms   range")
    for name, times in rows:
        print(f"{name:30} {median(times):9.2f}     [{min(times):.2f} … {max(times):.2f}]")


def serve(target: Path, draft: Path, threads: int) -> None:
    """The server's process: prints its port, and serves until it is killed."""
    pair = ResolvedPair(target, draft)
    request = LoadOptions(ctx=N_CTX, threads=threads).to_request(pair, "auto")
    options = ServerOptions(pair, "bench", ChatSettings(), port=0)
    server = HttpServer(options, EngineHost(request, probe=False))
    asyncio.run(server.serve(lambda _: print(server.port, flush=True)))


@contextmanager
def server_process(args: argparse.Namespace) -> Iterator[int]:
    """The port of a server that has loaded its pair."""
    words = ["--as-server", "--target", args.target, "--draft", args.draft]
    command = [sys.executable, __file__, *map(str, words), "--threads", str(args.threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


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
    parser.add_argument("--as-server", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.as_server:
        serve(args.target, args.draft, args.threads)
        return
    settings = ContextSettings(n_ctx=N_CTX, n_threads=args.threads)
    busy = f"load {os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "load unknown"
    print(
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, {busy}; "
        f"{args.target.name}, {args.threads} threads, {args.tokens} tokens, {args.rounds} pairs"
    )
    worker = EngineProcess()
    try:
        worker.load(LoadCommand(str(args.target), str(args.draft), settings, settings))
        with server_process(args) as port:
            print_speeds(worker, port, args)
            print_headers(port)
    finally:
        worker.close()


if __name__ == "__main__":
    main()
