#!/usr/bin/env python3
"""Serve a model to a random mix of clients for some minutes, and compare end and start.

    scripts/soak_serve.py MODEL.gguf [--minutes 10] [--clients 12] [--pause 1] [--seed 0]
                          [--options "--spec off"]

A third of the clients are polite, a third are slow or leave (a byte a second, an answer
that is never read, a closed half, a reset), and a third are hostile (broken JSON, floods
of special tokens, schemas and grammars that grow, bodies of 33 MB, random bytes). Which
client comes next is random; the same seed gives the same clients.

Before and after, while nobody else is connected: places in the queue that are taken,
open sockets, threads and memory of the server and of the engine, and three texts at
temperature 0. At the end each place of the queue is used once. The exit code is 1 if a
place is lost, a text is another one, the engine was restarted, a polite client got
something other than its answer (or 429), or any client got a status of 500 or above.
Memory is printed, not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shlex
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct

HOST = "127.0.0.1"
N_PLACES = 16
"""Requests that may wait in the server's queue."""
ANSWER_LIMIT_S = 900.0
"""A polite client gives up after this time, which is an error of the server."""
SETTLE_S = 90.0
"""The time the server has to give up the last clients before the end is measured."""
BEGINNINGS = (
    "A bicycle is a vehicle that",
    "Red, green and blue are",
    "The capital of France is",
)
"""Beginnings of text that no client of the mix shares a token with.

So each is read in one pass at the start and at the end, and rounds alike: after a part
of a prompt that another client left in the KV cache, a near tie might be decided
otherwise.
"""
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


class SoakError(Exception):
    """The server cannot be started, or does not answer."""


# Requests as bytes, and answers.


def http_request(path: str, body: object = None, *, close: bool = True) -> bytes:
    """A POST of JSON, or of bytes as they are; without a body a GET."""
    lines = [f"Host: {HOST}"]
    data = b""
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    if close:
        lines.append("Connection: close")
    verb = "GET" if body is None else "POST"
    return "\r\n".join([f"{verb} {path} HTTP/1.1", *lines, "", ""]).encode() + data


class Answer(Struct, frozen=True):
    """What a client received until the server closed the connection."""

    raw: bytes

    @property
    def status(self) -> int:
        """0 if the server closed the connection without an answer."""
        words = self.raw[:64].split()
        if len(words) < 2 or not words[0].startswith(b"HTTP/"):
            return 0
        return int(words[1])

    @property
    def json(self) -> Any:
        return json.loads(self.raw.partition(b"\r\n\r\n")[2])


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, *, receive_bytes: int | None = None) -> Connection:
    """`receive_bytes` is the size of the system's buffer for what is not read."""
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (HOST, port))
    # The reader takes little beyond what its client asks for, so that slow means slow.
    return await asyncio.open_connection(sock=connection, limit=1024)


async def exchange(port: int, request: bytes) -> Answer:
    """A whole request and its whole answer."""
    reader, writer = await connect(port)
    try:
        writer.write(request)
        with suppress(ConnectionError):  # The server may answer before it has read all.
            await writer.drain()
        return Answer(await read_all(reader))
    finally:
        writer.transport.abort()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection is closed, in order or not."""
    parts = []
    with suppress(ConnectionError):
        while part := await reader.read(65536):
            parts.append(part)
    return b"".join(parts)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection with a reset in place of an orderly end."""
    transport_socket = writer.get_extra_info("socket")
    linger = struct.pack("ii", 1, 0)
    with suppress(OSError):
        transport_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


# Polite clients: each returns what it got.


def chat_body(rng: random.Random, **more: Any) -> dict[str, Any]:
    topic = rng.choice(("a river", "bread", "the moon", "a clock", "rust", "a song"))
    question = f"Write {rng.randint(1, 9)} words about {topic}."
    messages = [{"role": "user", "content": question}]
    return {"messages": messages, "max_tokens": rng.randint(4, 48)} | more


async def ask_chat(port: int, rng: random.Random) -> Answer:
    body = chat_body(rng, temperature=rng.choice((0, 0.8)), n=rng.choice((1, 1, 2)))
    return await exchange(port, http_request("/v1/chat/completions", body))


async def ask_long_chat(port: int, rng: random.Random) -> Answer:
    """A conversation of some rounds, each with all that went before."""
    body = chat_body(rng)
    answer = Answer(b"")
    for _ in range(rng.randint(2, 4)):
        answer = await exchange(port, http_request("/v1/chat/completions", body))
        if answer.status != 200:
            return answer
        said = answer.json["choices"][0]["message"]["content"]
        body["messages"] += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": "Go on."},
        ]
    return answer


async def ask_stream(port: int, rng: random.Random) -> Answer:
    body = chat_body(rng, stream=True)
    answer = await exchange(port, http_request("/v1/chat/completions", body))
    if answer.status == 200 and b"data: [DONE]" not in answer.raw:
        return Answer(b"HTTP/1.1 599 stream without its end\r\n\r\n")
    return answer


async def ask_text(port: int, rng: random.Random) -> Answer:
    body = {"prompt": "def f(x):\n", "max_tokens": 32, "logprobs": rng.randint(0, 20)}
    return await exchange(port, http_request("/v1/completions", body))


async def ask_response(port: int, rng: random.Random) -> Answer:
    stream = rng.random() < 0.5
    body = {"input": "Say hello.", "max_output_tokens": 16, "stream": stream}
    return await exchange(port, http_request("/v1/responses", body))


async def ask_message(port: int, rng: random.Random) -> Answer:
    body = chat_body(rng, system="You are terse.", stream=rng.random() < 0.5)
    return await exchange(port, http_request("/v1/messages", body))


async def ask_with_tools(port: int, rng: random.Random) -> Answer:
    choice = rng.choice(("auto", "required"))
    tools = [{"type": "function", "function": TOOL}]
    body = chat_body(rng, tools=tools, tool_choice=choice)
    return await exchange(port, http_request("/v1/chat/completions", body))


async def ask_for_json(port: int, rng: random.Random) -> Answer:
    schema = {"name": "x", "schema": TOOL["parameters"]}
    wanted = {"type": "json_schema", "json_schema": schema}
    body = chat_body(rng, response_format=wanted)
    return await exchange(port, http_request("/v1/chat/completions", body))


async def look_around(port: int, rng: random.Random) -> Answer:
    path = rng.choice(("/v1/models", "/health", "/metrics"))
    return await exchange(port, http_request(path))


async def count_tokens(port: int, rng: random.Random) -> Answer:
    del rng
    body = {"content": "Hello, world! " * 50}
    return await exchange(port, http_request("/tokenize", body))


# Clients that are slow, or leave.


ENDLESS = {"prompt": "Once upon a time", "max_tokens": 3000, "stream": True}


async def send_slowly(port: int, rng: random.Random) -> Answer:
    """A byte now and then, until the server gives up or the client does."""
    request = http_request("/v1/chat/completions", chat_body(rng))
    reader, writer = await connect(port)
    try:
        with suppress(ConnectionError, TimeoutError):
            for byte in request[: rng.randint(5, 40)]:
                if writer.is_closing():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(1)
            return Answer(await asyncio.wait_for(read_all(reader), 15))
        return Answer(b"")
    finally:
        writer.transport.abort()


async def read_slowly(port: int, rng: random.Random) -> Answer:
    """The client takes some bytes a second of a stream, and leaves."""
    reader, writer = await connect(port, receive_bytes=2048)
    try:
        writer.write(http_request("/v1/completions", ENDLESS))
        head = b""
        for _ in range(rng.randint(5, 30)):
            head += await reader.read(64)
            await asyncio.sleep(1)
        return Answer(head)
    finally:
        writer.transport.abort()


async def never_read(port: int, rng: random.Random) -> Answer:
    """Many answers are asked for, a stream behind them, and nothing is read."""
    _, writer = await connect(port, receive_bytes=2048)
    try:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        models = http_request("/v1/models", close=False)
        writer.write(models * 2000 + http_request("/v1/completions", ENDLESS))
        await asyncio.sleep(rng.randint(5, 60))
        return Answer(b"")
    finally:
        writer.transport.abort()


async def leave_early(port: int, rng: random.Random) -> Answer:
    """The client resets the connection at some point of a stream."""
    reader, writer = await connect(port)
    writer.write(http_request("/v1/completions", ENDLESS))
    head = b""
    with suppress(TimeoutError):
        head = await asyncio.wait_for(reader.read(64), rng.uniform(0, 10))
    await asyncio.sleep(rng.uniform(0, 2))
    reset(writer)
    return Answer(head)


async def leave_whole_answer(port: int, rng: random.Random) -> Answer:
    """The client leaves while it waits for an answer that is not streamed."""
    _, writer = await connect(port)
    writer.write(http_request("/v1/completions", ENDLESS | {"stream": False}))
    await asyncio.sleep(rng.uniform(0, 10))
    reset(writer)
    return Answer(b"")


async def half_close(port: int, rng: random.Random) -> Answer:
    """The client ends its own side right after the request, as `nc -N` does."""
    reader, writer = await connect(port)
    try:
        body = chat_body(rng, stream=rng.random() < 0.5)
        writer.write(http_request("/v1/chat/completions", body))
        writer.write_eof()
        return Answer(await read_all(reader))
    finally:
        writer.transport.abort()


async def say_nothing(port: int, rng: random.Random) -> Answer:
    _, writer = await connect(port)
    await asyncio.sleep(rng.uniform(1, 30))
    writer.transport.abort()
    return Answer(b"")


# Hostile clients.


async def send_broken_json(port: int, rng: random.Random) -> Answer:
    whole = json.dumps(chat_body(rng)).encode()
    broken = bytearray(whole)
    for _ in range(rng.randint(1, 8)):
        broken[rng.randrange(len(broken))] = rng.randrange(256)
    bodies = (
        bytes(broken),
        whole[: rng.randrange(len(whole))],
        b"[" * rng.randint(1, 200_000),
        b'{"a":' * rng.randint(1, 50_000),
        b"9" * 100_000,
        b"\xff\xfe" + whole,
    )
    path = rng.choice(("/v1/chat/completions", "/v1/messages", "/v1/responses"))
    return await exchange(port, http_request(path, rng.choice(bodies)))


async def send_wrong_values(port: int, rng: random.Random) -> Answer:
    values: tuple[Any, ...] = (
        None,
        -1,
        1e308,
        "x",
        [],
        {},
        True,
        [None],
        {"type": "x"},
        2**63,
    )
    names = ("temperature", "max_tokens", "stop", "tools", "messages", "n", "seed")
    extra = {rng.choice(names): rng.choice(values) for _ in range(rng.randint(1, 3))}
    # What is accepted is short, so that the mix goes on.
    body = chat_body(rng) | {"max_tokens": 4} | extra
    if body["max_tokens"] != 4:
        body["stop"] = ["e"]
    return await exchange(port, http_request("/v1/chat/completions", body))


async def send_flood(port: int, rng: random.Random) -> Answer:
    """Special tokens in each kind of text."""
    flood = "<|im_start|>system\n" * rng.randint(100, 60_000)
    messages = [{"role": "user", "content": "Hi"}]
    bodies: tuple[dict[str, Any], ...] = (
        {"messages": [{"role": "user", "content": flood}]},
        {"messages": [*messages, {"role": "assistant", "content": flood}]},
        {"messages": messages, "prediction": {"type": "content", "content": flood}},
        {
            "messages": messages,
            "tools": [{"type": "function", "function": TOOL | {"description": flood}}],
        },
        {"messages": [{"role": flood[:100], "content": "Hi"}]},
    )
    body = rng.choice(bodies) | {"max_tokens": 2}
    return await exchange(port, http_request("/v1/chat/completions", body))


async def send_schema(port: int, rng: random.Random) -> Answer:
    """Schemas and grammars that grow when they are expanded."""
    n = rng.randint(2, 200)
    itself = {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * n}}}
    words = [f"w{i}" for i in range(n * 5)]
    named = {
        "oneOf": [{"$ref": "#/$defs/a"}] * n,
        "$defs": {"a": {"properties": {"x": {"enum": words}}}},
    }
    deep: dict[str, Any] = {}
    for _ in range(n):
        deep = {"properties": {"a": deep}, "required": ["a"]}
    schema = rng.choice((itself, named, deep, {"pattern": "(a+)+$", "type": "string"}))
    bodies = (
        {"json_schema": schema},
        {"grammar": "root ::= root root | root"},
        {"grammar": "root ::= " + "(" * 5000},
        {"grammar": 'root ::= "a"{1,100000}'},
        {"tools": [{"type": "function", "function": TOOL | {"parameters": schema}}]},
    )
    body = chat_body(rng) | rng.choice(bodies) | {"max_tokens": 8}
    return await exchange(port, http_request("/v1/chat/completions", body))


async def send_too_much(port: int, rng: random.Random) -> Answer:
    size = rng.choice((1, 8, 33)) << 20
    body = chat_body(rng)
    body["messages"][0]["content"] = "lorem ipsum " * (size // 12)
    return await exchange(port, http_request("/v1/chat/completions", body))


async def send_bytes(port: int, rng: random.Random) -> Answer:
    requests = (
        rng.randbytes(rng.randint(1, 5000)),
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    )
    reader, writer = await connect(port)
    try:
        writer.write(rng.choice(requests))
        writer.write_eof()
        with suppress(TimeoutError):
            return Answer(await asyncio.wait_for(read_all(reader), 30))
        return Answer(b"")
    except ConnectionError:
        return Answer(b"")
    finally:
        writer.transport.abort()


Client = Callable[[int, random.Random], Awaitable[Answer]]
POLITE: tuple[Client, ...] = (
    ask_chat,
    ask_long_chat,
    ask_stream,
    ask_text,
    ask_response,
    ask_message,
    ask_with_tools,
    ask_for_json,
    look_around,
    count_tokens,
)
SLOW: tuple[Client, ...] = (
    send_slowly,
    read_slowly,
    never_read,
    leave_early,
    leave_whole_answer,
    half_close,
    say_nothing,
)
HOSTILE: tuple[Client, ...] = (
    send_broken_json,
    send_wrong_values,
    send_flood,
    send_schema,
    send_too_much,
    send_bytes,
)


# The server, and its state.


class ServerState(Struct, frozen=True):
    """Taken while no client is connected."""

    n_taken: int
    """Requests that the server processes or keeps waiting."""
    n_sockets: int
    n_threads: int
    server_mib: float
    engine_mib: float
    engine_pid: int
    answers: tuple[str, ...]


class Server:
    """`localspec serve` in a process of its own, with a data folder of its own."""

    def __init__(self, process: psutil.Popen, port: int) -> None:
        self.process = process
        self.port = port

    def find_engine(self) -> psutil.Process:
        for child in self.process.children():
            if "localspec.engine" in child.cmdline():
                return child
        raise SoakError("The server has no engine.")

    async def wait_until_ready(self) -> None:
        for _ in range(600):
            if self.process.poll() is not None:
                raise SoakError(f"The server ended with {self.process.returncode}.")
            with suppress(OSError):
                answer = await exchange(self.port, http_request("/health"))
                if answer.status == 200:
                    return
            await asyncio.sleep(0.5)
        raise SoakError("The model was not loaded in five minutes.")

    async def count_taken(self) -> int:
        answer = await exchange(self.port, http_request("/metrics"))
        taken = 0
        for line in answer.raw.decode().splitlines():
            name, _, value = line.partition(" ")
            if name in ("llamacpp:requests_processing", "llamacpp:requests_deferred"):
                taken += int(value)
        return taken

    async def ask(self, beginning: str) -> str:
        """The text at temperature 0, or what came in place of it."""
        body = {"prompt": beginning, "temperature": 0, "max_tokens": 24}
        # Passes of one token, whatever drafting would pay at the moment.
        body["localspec"] = {"spec": "off"}
        answer = await exchange(self.port, http_request("/v1/completions", body))
        if answer.status != 200:
            return f"status {answer.status}"
        text: str = answer.json["choices"][0]["text"]
        return text

    async def look(self) -> ServerState:
        n_taken = await self.count_taken()
        answers = [await self.ask(beginning) for beginning in BEGINNINGS]
        await asyncio.sleep(1)  # The connections of the requests are closed by then.
        engine = self.find_engine()
        return ServerState(
            n_taken=n_taken,
            n_sockets=len(self.process.net_connections(kind="tcp")),
            n_threads=self.process.num_threads(),
            server_mib=self.process.memory_info().rss / 2**20,
            engine_mib=engine.memory_info().rss / 2**20,
            engine_pid=engine.pid,
            answers=tuple(answers),
        )

    async def use_all_places(self) -> Counter[int]:
        """One request at work and one in each place of the queue, at the same time."""
        body = {"prompt": "a", "max_tokens": 32}
        request = http_request("/v1/completions", body)
        requests = (exchange(self.port, request) for _ in range(N_PLACES + 1))
        answers = await asyncio.gather(*requests)
        return Counter(answer.status for answer in answers)


@contextmanager
def running_server(model: str, words: list[str]) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "localspec", "serve", model, "--port", str(port)]
    command += ["--queue", str(N_PLACES), "--log", "none", "--ctx", "4096", *words]
    with tempfile.TemporaryDirectory() as folder:
        # The packaged model is not converted meanwhile: that takes the CPU for itself.
        environment = os.environ | {"LOCALSPEC_STARTER_TYPE": "own"}
        environment["LOCALSPEC_DATA_DIR"] = str(Path(folder) / "data")
        process = psutil.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        try:
            yield Server(process, port)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except psutil.TimeoutExpired:
                process.kill()


# The mix.


@dataclass
class Tally:
    """Statuses by client, and what must not happen."""

    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, client: Client, answer: Answer) -> None:
        name = client.__name__
        self.statuses.setdefault(name, Counter())[answer.status] += 1
        is_refused = client in POLITE and answer.status not in (200, 429)
        if is_refused or answer.status >= 500:
            self.faults[f"{name} got {answer.status}: {answer.raw[-200:]!r}"] += 1

    @property
    def n_clients(self) -> int:
        return sum(counter.total() for counter in self.statuses.values())


async def run_client(
    client: Client, port: int, rng: random.Random, tally: Tally
) -> None:
    try:
        answer = await asyncio.wait_for(client(port, rng), ANSWER_LIMIT_S)
    except TimeoutError:
        tally.faults[f"{client.__name__} waited {ANSWER_LIMIT_S:.0f} s"] += 1
    except OSError as error:
        # Slow and hostile clients may be cut off in the middle of what they send.
        if client in POLITE:
            tally.faults[f"{client.__name__}: {error!r}"] += 1
    else:
        tally.add(client, answer)


async def come_and_go(
    port: int, rng: random.Random, tally: Tally, *, until: float, pause_s: float
) -> None:
    """One client after another, until the time is over."""
    while time.monotonic() < until:
        client = rng.choice(rng.choice((POLITE, SLOW, HOSTILE)))
        await run_client(client, port, rng, tally)
        await asyncio.sleep(rng.expovariate(1 / pause_s))


async def report_minutes(server: Server, tally: Tally, *, until: float) -> None:
    """A line a minute: clients so far, and memory."""
    began = time.monotonic()
    while time.monotonic() < until:
        await asyncio.sleep(min(60.0, max(0.1, until - time.monotonic())))
        engine = server.find_engine()
        print(
            f"{time.monotonic() - began:6.0f} s  {tally.n_clients:6} clients"
            f"  server {server.process.memory_info().rss / 2**20:6.0f} MiB"
            f"  engine {engine.memory_info().rss / 2**20:6.0f} MiB"
            f"  faults {tally.faults.total()}",
            flush=True,
        )


def describe(name: str, state: ServerState) -> str:
    return (
        f"{name:6} places taken {state.n_taken}, sockets {state.n_sockets}, threads"
        f" {state.n_threads}, server {state.server_mib:.0f} MiB, engine"
        f" {state.engine_mib:.0f} MiB (process {state.engine_pid})"
    )


async def soak(server: Server, args: argparse.Namespace) -> bool:
    """Whether the end is as the start."""
    await server.wait_until_ready()
    first = await server.look()
    print(describe("start", first), flush=True)

    tally = Tally()
    until = time.monotonic() + args.minutes * 60
    comers = [
        come_and_go(
            server.port,
            random.Random(f"{args.seed} {n}"),
            tally,
            until=until,
            pause_s=args.pause,
        )
        for n in range(args.clients)
    ]
    await asyncio.gather(report_minutes(server, tally, until=until), *comers)

    settled = time.monotonic() + SETTLE_S
    while await server.count_taken() and time.monotonic() < settled:
        await asyncio.sleep(1)
    last = await server.look()
    places = await server.use_all_places()

    print(describe("end", last))
    for name, counter in sorted(tally.statuses.items()):
        statuses = ", ".join(f"{status}: {n}" for status, n in sorted(counter.items()))
        print(f"  {name:20} {statuses}")
    faults = find_faults(first, last, places, tally)
    for beginning, before, after in zip(
        BEGINNINGS, first.answers, last.answers, strict=True
    ):
        print(f"  {beginning}\n    start {before!r}\n    end   {after!r}")
    print(f"{N_PLACES + 1} requests at once: {dict(places)}")
    for fault in faults:
        print(f"FAULT {fault}")
    if not faults:
        print(f"After {tally.n_clients} clients all is as at the start.")
    return not faults


def find_faults(
    first: ServerState, last: ServerState, places: Counter[int], tally: Tally
) -> list[str]:
    faults = [f"{n} times: {fault}" for fault, n in tally.faults.most_common()]
    if last.n_taken:
        faults.append(f"{last.n_taken} places are taken, and nobody is connected")
    if places != Counter({200: N_PLACES + 1}):
        faults.append(f"not every place of the queue can be used: {dict(places)}")
    if last.answers != first.answers:
        faults.append("a text at temperature 0 is another one")
    if last.engine_pid != first.engine_pid:
        faults.append("the engine was started again")
    if last.n_sockets > first.n_sockets:
        faults.append(f"{last.n_sockets - first.n_sockets} more sockets are open")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a GGUF file, or another model of `serve`")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=12, help="at the same time")
    parser.add_argument(
        "--pause", type=float, default=1, help="mean seconds between two clients"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--options",
        type=shlex.split,
        default=[],
        help="options of `localspec serve`, in one argument",
    )
    args = parser.parse_args()
    with running_server(args.model, args.options) as server:
        is_same = asyncio.run(soak(server, args))
    raise SystemExit(0 if is_same else 1)


if __name__ == "__main__":
    main()
