"""Overhead of the HTTP server: the same answer through the engine's pipe and over HTTP.

    bench.py serve [--rounds 10] [--tokens 500] [--spec off model]

The server runs in a process of its own. Speeds are compared as by `bench.py pipe`. The second table
is the time from sending a streamed request to the first byte of its headers: with the prompt in the
KV cache, with a new long prompt, and while another answer is written.
Budgets: speed at least 0.97 of the pipe's, headers within 20 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from statistics import median
from typing import Any

import pipe
from pipe import N_CTX, PROMPT
from programs import BenchError, conditions, loaded_engine
from turns import table

from localspec.chat.settings import ChatSettings
from localspec.launch import LoadOptions, ResolvedPair
from localspec.launch.engine_host import EngineHost
from localspec.serve.http_server import HttpServer, ServerOptions
from localspec.serve.served_model import ServedModel

LONG_PROMPT = "".join(f"def add_{i}(x):\n    return x + {i}\n\n" for i in range(60))
SHORT_REQUEST = {"prompt": PROMPT, "temperature": 0, "max_tokens": 4}
N_HEADERS = 20
add_options = pipe.add_options


def main(args: argparse.Namespace) -> None:
    print(conditions(), f"{args.target.name}, {args.threads} threads", sep="\n")
    with loaded_engine(pipe.load_command(args)) as engine, server_process(args) as port:
        rows = [pipe.columns("pipe", "HTTP")]
        for spec in args.spec:
            request = pipe.greedy_request(args, spec)
            body = {"prompt": PROMPT, "temperature": 0, "max_tokens": args.tokens}
            body |= {"localspec": {"spec": spec}}
            over_pipe = partial(pipe.texts, engine.generate, request)
            rows.append(
                pipe.compare(spec, over_pipe, partial(read_stream, port, body), args.rounds)
            )
        print(table(rows), "", table(list(header_rows(port))), sep="\n")


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
            choices = json.loads(line[6:])["choices"] if line.startswith(b"data: {") else ()
            if choices and choices[0]["text"]:
                yield choices[0]["text"]


@contextmanager
def streaming(port: int, body: dict[str, Any]) -> Iterator[HTTPResponse]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=600)) as connection:
        data = json.dumps(body | {"stream": True})
        connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            if response.status != 200:
                raise BenchError(f"The server answers {response.status}: {response.read()!r}")
            yield response


def header_rows(port: int) -> Iterator[tuple[str, ...]]:
    yield "headers of a stream", "median, ms", "range"
    new_prompts = [SHORT_REQUEST | {"prompt": f"# {i}\n{LONG_PROMPT}"} for i in range(10)]
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
