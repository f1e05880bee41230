"""Routes, and malformed requests: each gets an error of its own, none is a fault of the server."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest

from tests.serve.conftest import Served, serving, until
from tests.support.zoo import CHAT_TEXT, THOUGHT_TEXT, Zoo

CHAT = {"messages": [{"role": "user", "content": "Hi?"}], "max_tokens": 2}
TEXT = {"prompt": "a", "max_tokens": 2}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", TEXT),
    ("/v1/responses", {"input": "Hi?", "max_output_tokens": 2}),
    ("/infill", {"input_prefix": "a", "max_tokens": 2}),
]
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 1.5, -0.5, 1e308, "", "x", "\x00", "é",
    "\ud800", "a" * 5000, [], {}, [[]], [None], ["a", 1], {"a": {}}, [{"type": "text"}], [-1],
    [1e9], [[1, 2], "a"], {"type": "json_schema"}, {"type": "content", "content": [1]},
]  # fmt: skip
NAMES = [
    "messages", "prompt", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "logprobs",
    "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "max_tokens", "stream",
    "max_completion_tokens", "stream_options", "response_format", "tools", "tool_choice", "echo",
    "prediction", "localspec", "grammar", "json_schema", "repeat_penalty", "repeat_last_n", "model",
    "reasoning_effort", "chat_template_kwargs", "modalities", "suffix", "best_of", "user", "audio",
    "input", "instructions", "include", "text", "reasoning", "max_output_tokens", "n_predict",
    "n_probs", "input_prefix", "input_suffix", "input_extra", "previous_response_id", "metadata",
]  # fmt: skip
SAFE_STATUSES = {200, 400, 401, 403, 404, 405, 408, 411, 413, 415, 429, 501}


def wrong_field(rng: random.Random) -> tuple[str, bytes]:
    path, body = rng.choice(BODIES)
    changed = dict(body) | {rng.choice(NAMES): rng.choice(VALUES)}
    limits = ("max_tokens", "max_output_tokens", "max_completion_tokens", "n_predict")
    for name in limits:  # a short answer, where one is given
        if name in changed and type(changed[name]) in (int, float, type(None)):
            changed[name] = 2
    return path, json.dumps(changed).encode()


def wrong_message(rng: random.Random) -> tuple[str, bytes]:
    message: Any = {"role": "user", "content": "Hi?"}
    message[rng.choice(["role", "content", "tool_calls", "name"])] = rng.choice(VALUES)
    messages = rng.choice([[message], [message] * 3, [rng.choice(VALUES)], message])
    if rng.random() < 0.5:
        return "/v1/chat/completions", json.dumps(CHAT | {"messages": messages}).encode()
    message["type"] = rng.choice(["message", "function_call", "function_call_output", 3])
    return "/v1/responses", json.dumps({"input": messages, "max_output_tokens": 2}).encode()


def wrong_tokens(rng: random.Random) -> tuple[str, bytes]:
    return "/tokenize", json.dumps({"content": rng.choice(VALUES)}).encode()


def wrong_bytes(rng: random.Random) -> tuple[str, bytes]:
    body = bytearray(json.dumps(CHAT).encode())
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(body))
        body[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
    return "/v1/chat/completions", bytes(body)


def wrong_json(rng: random.Random) -> tuple[str, bytes]:
    deep = 100_000
    bodies = [
        b"", b"null", b"[]", b'"a"', b"{", b"\xff\xfe", b'{"messages": NaN}', b'{"a":1e999}',
        b"[" * deep, b'{"a":' * deep, b'{"n":' + b"9" * 5000 + b"}", b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "prompt": 3}', b'{"response_format": ' + b'{"schema":' * 400 + b"1",
        b'{"prompt":"a","json_schema":' + b'{"items":' * 300 + b"{}" + b"}" * 300 + b"}",
    ]  # fmt: skip
    return "/v1/completions", rng.choice(bodies)


KINDS: list[Callable[[random.Random], tuple[str, bytes]]] = [
    wrong_field,
    wrong_field,
    wrong_message,
    wrong_tokens,
    wrong_bytes,
    wrong_json,
]


def send_many(served: Served, n: int, seed: int) -> None:
    rng = random.Random(seed)
    connection = served.connect()
    with closing(connection):
        for _ in range(n):
            path, body = rng.choice(KINDS)(rng)
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
            assert response.status in SAFE_STATUSES, (path, body[:300], answer[:300])
            if response.status != 200:
                error = json.loads(answer)["error"]
                assert error["message"] and error["type"]
            elif not answer.startswith(b"data: "):
                json.loads(answer)


def test_no_malformed_request_is_a_fault(chatty: Served) -> None:
    """Each costs one answer; that to another request is the same before and afterwards."""
    ask = partial(chatty.post, "/v1/chat/completions", CHAT | {"temperature": 0})
    pid, before = chatty.engine_pid(), ask().json["choices"]
    send_many(chatty, 400, seed=1)
    assert chatty.engine_pid() == pid, "the engine has ended"
    assert ask().json["choices"] == before


def test_routes(chatty: Served) -> None:
    tokens = chatty.post("/tokenize", {"content": "Hi?"}).json["tokens"]
    pieces = chatty.post("/tokenize", {"content": "Hi?", "with_pieces": True}).json["tokens"]
    assert [piece["id"] for piece in pieces] == tokens
    assert "".join(piece["piece"] for piece in pieces).strip() == "Hi?"
    (model,) = chatty.get("/v1/models").json["data"]
    assert (model["id"], model["owned_by"], model["meta"]["n_ctx"]) == ("chatty", "localspec", 1024)
    assert chatty.get("/v1/models/chatty").json == model
    assert chatty.get("/v1/models/other").error["code"] == "model_not_found"
    assert chatty.post("/completions", TEXT).status == 200, "also without /v1"
    assert chatty.get("/v1/completions").status == 405
    for path in ("/v1/models/", "/v1//models", f"http://localhost:{chatty.server.port}/v1/models"):
        assert chatty.get(path).json["data"], path
    with_mark = b"\xef\xbb\xbf" + json.dumps(TEXT).encode()
    assert chatty.post("/v1/completions", with_mark).status == 200, "a byte order mark"
    for path in ("/props", "/slots", "/v1/nothing"):
        assert chatty.get(path).error["type"] == "not_found_error"


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.0\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,  # TLS
        b"GET /%ff%fe/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_malformed_http(chatty: Served, data: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """Answered or closed, and nothing is printed."""
    with socket.create_connection(("127.0.0.1", chatty.server.port), timeout=30) as connection:
        with suppress(OSError):  # it may have closed before all was sent
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        received = b""
        with suppress(OSError):
            while part := connection.recv(65536):
                received += part
    assert not received.startswith(b"HTTP/1.1 5") and b"Traceback" not in received
    assert b"root:" not in received
    assert chatty.get("/health").status == 200
    assert capfd.readouterr().err == ""


def test_two_hundred_clients_at_once(chatty: Served) -> None:
    """Those beyond the queue are refused at once; all others are answered."""
    statuses: list[int] = []

    def ask() -> None:
        try:
            statuses.append(chatty.post("/v1/chat/completions", CHAT).status)
        except (OSError, http.client.HTTPException):
            statuses.append(0)

    threads = [threading.Thread(target=ask) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 17
    until(chatty.is_idle)
    assert chatty.post("/v1/chat/completions", CHAT).status == 200


def test_a_request_is_answered_by_the_model_that_it_names(zoo: Zoo) -> None:
    thought = THOUGHT_TEXT.partition("</think>")[2]
    with serving(zoo["chatty"], others=(zoo["thinker"],)) as served:

        def ask(model: Any) -> tuple[Any, str]:
            body = {"messages": [{"role": "user", "content": "Hi?"}], "model": model}
            answer = served.post("/v1/chat/completions", body).json
            return answer["model"], answer["choices"][0]["message"]["content"]

        def statuses() -> list[str]:
            return [each["status"]["value"] for each in served.get("/v1/models").json["data"]]

        chatty, thinker = ("chatty", CHAT_TEXT), ("thinker", thought)
        assert statuses() == ["loaded", "unloaded"]
        for name, answer, states in (
            ("thinker", thinker, ["unloaded", "loaded"]),
            ("gpt-9", chatty, ["loaded", "unloaded"]),
            ("thinker", thinker, ["unloaded", "loaded"]),
            (None, chatty, ["loaded", "unloaded"]),
        ):
            assert ask(name) == answer
            assert statuses() == states
        assert served.get("/v1/models/thinker").json["meta"]["n_ctx"] is None
        effort = {"messages": [{"role": "user", "content": "Hi?"}], "reasoning_effort": "low"}
        for name, status in (("thinker", 200), ("chatty", 400)):  # each by its own template
            assert served.post("/v1/chat/completions", effort | {"model": name}).status == status
        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(ask, ["chatty", "thinker"] * 3))
        assert answers == [chatty, thinker] * 3
