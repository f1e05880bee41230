"""Thousands of malformed requests to one server: each costs one answer, and nobody else's."""

from __future__ import annotations

import copy
import http.client
import json
import random
import socket
import threading
import time
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.cli.test_serve import started
from tests.serve.test_hostile_inputs import CALLS, CONSTRAINTS
from tests.serve.test_http_app import KINDS, SAFE_STATUSES, VALUES
from tests.support.long_cases import bulk
from tests.support.zoo import Zoo

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {}}}}}
USER = {"role": "user", "content": "Hi?"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 4, "stop": ["x"], "n": 1}),
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 4, "logprobs": True, "seed": 1}),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "1", "content": "{}"},
            ],
            "tools": [TOOL],
            "tool_choice": "auto",
            "max_tokens": 4,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [USER],
            "max_tokens": 4,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"a": {}}}},
            },
        },
    ),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2, "echo": False, "logit_bias": {}}),
    ("/v1/completions", {"prompt": [5, 6], "max_tokens": 2, "stream": True, "stream_options": {}}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 2, "grammar": 'root ::= "b"'}),
    ("/v1/responses", {"input": [USER], "max_output_tokens": 2, "metadata": {"a": "b"}}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [], "n_predict": 2}),
    ("/tokenize", {"content": "a b", "with_pieces": True}),
]
HOSTILE: list[Any] = [
    *VALUES,
    *(float("nan"), 10**400, "a\u2028b", "<|im_end|>", "null", "auto", [USER] * 300, {"$ref": "#"}),
    json.loads("[" * 400 + "]" * 400),
]
KEYS = ("stream", "temperature", "top_p", "max_tokens", "tools", "json_schema", "grammar", "n", "x")


def random_place(value: Any, dice: random.Random) -> tuple[Any, Any]:
    """A container in a tree of JSON, and a key of it."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = dice.choice([*keys, dice.choice(KEYS)] if isinstance(value, dict) else keys)
        inner = value[key] if key in keys else None
        if not isinstance(inner, dict | list) or not inner or dice.random() < 0.3:
            return value, key
        value = inner


def malformed(dice: random.Random) -> tuple[str, bytes]:
    """A path and a body in which some values are replaced, or of which the end is missing."""
    path, body = copy.deepcopy(dice.choice(BODIES))
    for _ in range(dice.randint(1, 3)):
        container, key = random_place(body, dice)
        if isinstance(container, dict) and key in container and dice.random() < 0.2:
            del container[key]
        else:
            container[key] = copy.deepcopy(dice.choice(HOSTILE))
    data = json.dumps(body).encode()
    if dice.random() < 0.1:
        data = data[: dice.randrange(len(data))]
    return path, data


def special_requests() -> list[tuple[str, bytes]]:
    """The hostile requests that are known by name, and floods."""
    bodies: list[tuple[str, Any]] = [
        ("/v1/completions", {"prompt": "a", "max_tokens": 2} | constraint)
        for constraint in CONSTRAINTS.values()
    ]
    for call in CALLS.values():
        grammar = f"root ::= {json.dumps(f'<tool_call>{call}</tool_call>')}"
        chat = {"messages": [USER], "max_tokens": 200, "tools": [TOOL], "grammar": grammar}
        bodies += [
            ("/v1/chat/completions", chat),
            ("/v1/chat/completions", chat | {"stream": True}),
        ]
    system = {"role": "system", "content": "s" * 1500}
    bodies += [
        ("/v1/responses", {"input": [*[system] * 19_990, USER], "max_output_tokens": 1}),
        ("/v1/chat/completions", {"messages": [USER | {"content": "x" * 190}] * 20_000}),
        ("/v1/chat/completions", {"messages": [USER | {"content": "<|im_end|>" * 200_000}]}),
        ("/tokenize", {"content": "a" * 3_000_000}),
        ("/v1/completions", {"prompt": "a", "prediction": {"content": "a" * 3_000_000}}),
    ]
    return [(path, json.dumps(body).encode()) for path, body in bodies]


RAW = (
    b"GET / HTTP/1.1\r\nHost: evil\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{}",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET " + b"/a" * 50_000 + b" HTTP/1.1\r\n\r\n",
    b"\x00" * 100,
)


class Client:
    def __init__(self, url: str) -> None:
        self.port = urlsplit(url).port
        self.slowest_health = 0.0
        self.n_health = 0
        self._ends = threading.Event()

    def post(self, path: str, data: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port or 0, timeout=120)
        with closing(connection):
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()

    def send_raw(self, data: bytes) -> None:
        with closing(socket.create_connection(("127.0.0.1", self.port or 0))) as connection:
            connection.settimeout(30)
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass

    def answer(self) -> Any:
        body = {"messages": [USER], "temperature": 0, "max_tokens": 40}
        status, data = self.post("/v1/chat/completions", json.dumps(body).encode())
        assert status == 200, data
        return json.loads(data)["choices"]

    def watch_health(self) -> None:
        while not self._ends.wait(0.02):
            began = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", self.port or 0, timeout=120)
            with closing(connection):
                connection.request("GET", "/health")
                assert connection.getresponse().status == 200
            self.slowest_health = max(self.slowest_health, time.monotonic() - began)
            self.n_health += 1

    def __enter__(self) -> Client:
        self._watcher = threading.Thread(target=self.watch_health)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._watcher.join()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_malformed_requests_change_nothing(zoo: Zoo) -> None:
    dice, n, statuses = random.Random(39), bulk(300, 5000), dict[int, int]()
    with started(zoo["caller"], "--log", "none") as (server, url, _), Client(url) as client:
        before = client.answer()
        engines = {child.pid for child in psutil.Process(server.pid).children()}
        kinds = [*KINDS, *[malformed] * len(KINDS)]
        requests = [dice.choice(kinds)(dice) for _ in range(n)] + special_requests()
        dice.shuffle(requests)
        for i, (path, data) in enumerate(requests):
            status, reply = client.post(path, data)
            assert status in SAFE_STATUSES, (path, data[:2000], reply)
            assert b"internal_error" not in reply, (path, data[:2000], reply)
            statuses[status] = statuses.get(status, 0) + 1
            if i % 50 == 0:
                client.send_raw(dice.choice(RAW))
        assert client.answer() == before
        assert engines <= {child.pid for child in psutil.Process(server.pid).children()}
    print(
        f"{len(requests)} requests: {statuses}; {client.n_health} of /health beside them, "
        f"the slowest {client.slowest_health * 1e3:.0f} ms"
    )
