"""Routes, and malformed requests, which get an error and are no fault of the server."""

import copy
import http.client
import json
import random
import shutil
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.serve.conftest import Served, serving
from tests.support.downloads import wait_for
from tests.support.long_cases import bulk
from tests.support.zoo import CHAT_TEXT, THOUGHT_TEXT, Zoo

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi?"}],
    "max_tokens": 2,
}
TEXT = {"prompt": "a", "max_tokens": 2}
SAMPLING: dict[str, Any] = json.loads("""
{"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "presence_penalty": 0.1,
"frequency_penalty": 0.1, "repeat_penalty": 1.1, "repeat_last_n": 9, "n": 1, "stop": ["x"],
"logit_bias": {"5": 1}, "user": "me", "model": "any", "stream": false, "localspec": {"spec":
"off", "draft_max": 2, "tokens": true}}
""")
BODIES: dict[str, Any] = json.loads("""
{"/v1/chat/completions": {"max_completion_tokens": 2, "messages": [ {"role": "system", "content":
[{"type": "text", "text": "Be kind."}]}, {"role": "user", "content": "Hi?"}, {"role": "assistant",
"reasoning": "hm", "tool_calls": [ {"id": "1", "type": "function", "function": {"name": "f",
"arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "b"}, {"role": "user",
"content": "Hi?"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
"tool_choice": "auto", "logprobs": true, "top_logprobs": 2, "response_format": {"type": "text"},
"reasoning_effort": "none", "chat_template_kwargs": {}, "prediction": {"type": "content",
"content": "a"}, "modalities": ["text"]}, "/v1/completions": {"prompt": "a", "max_tokens": 2,
"logprobs": 2, "echo": false, "best_of": 1}, "/v1/responses": {"instructions": "Be kind.",
"include": [], "max_output_tokens": 2, "metadata": {}, "text": {"format": {"type": "text"}},
"reasoning": {"effort": "none"}, "tools": [], "input": [ {"role": "user", "content": [{"type":
"input_text", "text": "Hi?"}]}, {"type": "reasoning", "content": []}, {"type": "function_call",
"call_id": "1", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "1",
"output": "b"}]}, "/infill": {"input_prefix": "a", "input_suffix": "b", "input_extra": [],
"n_predict": 2, "n_probs": 0}, "/tokenize": {"content": "a", "add_special": true, "with_pieces":
true}, "/v1/messages": {"system": [{"type": "text", "text": "Be kind."}], "max_tokens": 2,
"messages": [ {"role": "user", "content": "Hi?"}, {"role": "assistant", "content": [ {"type":
"thinking", "thinking": "hm", "signature": "x"}, {"type": "tool_use", "id": "1", "name": "f",
"input": {"a": 1}}]}, {"role": "user", "content": [ {"type": "tool_result", "tool_use_id": "1",
"content": [{"type": "text", "text": "b"}]}, {"type": "text", "text": "b"}]}], "stop_sequences":
["x"], "metadata": {"user_id": "me"}, "tools": [{"name": "f", "input_schema": {"type": "object",
"properties": {"a": {}}}}], "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
"thinking": {"type": "disabled"}, "output_config": {"format": null}}}
""")
for path in ("/v1/chat/completions", "/v1/completions"):
    BODIES[path] |= SAMPLING
BODIES["/v1/messages/count_tokens"] = BODIES["/v1/messages"]
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 10**400, 1.5, -0.5, 1e308, "", "x", "\x00",
    "é", "\ud800", "a\u2028b", "<|im_end|>", "a" * 5000, [], {}, [[]], [None], ["a", 1], {"a": {}},
    [{"type": "text"}], [-1], [1e9], [[1, 2], "a"], {"type": "json_schema"}, {"$ref": "#"},
    {"type": "content", "content": [1]}, CHAT["messages"] * 300, json.loads("[" * 400 + "]" * 400),
]  # fmt: skip
KEYS = (
    "stream", "temperature", "max_tokens", "tools", "json_schema", "grammar", "n", "suffix", "x",
)  # fmt: skip
SAFE_STATUSES = {200, 400, 401, 403, 404, 405, 408, 411, 413, 415, 429, 501}


def random_place(value: Any, dice: random.Random) -> tuple[Any, Any]:
    """A container in a tree of JSON, and a key of it."""
    while True:
        keys: list[Any] = list(range(len(value)))
        choices = keys
        if isinstance(value, dict):
            keys = list(value)
            choices = [*keys, dice.choice(KEYS)]
        key = dice.choice(choices)
        inner = value[key] if key in keys else None
        if not isinstance(inner, dict | list) or not inner or dice.random() < 0.3:
            return value, key
        value = inner


def malformed(dice: random.Random) -> tuple[str, bytes]:
    """A path and a body in which values or bytes are replaced, or whose end is missing."""
    path, body = copy.deepcopy(dice.choice(list(BODIES.items())))
    for _ in range(dice.randint(1, 3)):
        container, key = random_place(body, dice)
        if isinstance(container, dict) and key in container and dice.random() < 0.2:
            del container[key]
        else:
            container[key] = copy.deepcopy(dice.choice(VALUES))
    for name in (
        "max_tokens",
        "max_output_tokens",
        "max_completion_tokens",
        "n_predict",
    ):
        if name in body and type(body[name]) in (int, float, type(None)):
            body[name] = 2  # a short answer, where one is given
    data = bytearray(json.dumps(body).encode())
    if dice.random() < 0.1:
        at = dice.randrange(len(data))
        data[at : at + dice.randint(0, 3)] = dice.randbytes(dice.randint(0, 3))
    elif dice.random() < 0.1:
        del data[dice.randrange(len(data)) :]
    return path, bytes(data)


WRONG_JSON = [
    b"", b"null", b"[]", b'"a"', b"{", b"\xff\xfe", b'{"messages": NaN}', b'{"a":1e999}',
    b"[" * 100_000, b'{"a":' * 100_000, b'{"n":' + b"9" * 5000 + b"}", b'{"prompt": "\\ud800"}',
    b'{"prompt": "a", "prompt": 3}', b'{"response_format": ' + b'{"schema":' * 400 + b"1",
    b'{"prompt":"a","json_schema":' + b'{"items":' * 300 + b"{}" + b"}" * 300 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("model", ["chatty", "caller"])
def test_no_malformed_request_is_a_fault(
    model: str, request: pytest.FixtureRequest
) -> None:
    """Each costs one answer; that to another request is the same before and afterwards."""
    served: Served = request.getfixturevalue(model)
    ask = partial(served.post, "/v1/chat/completions", CHAT | {"temperature": 0})
    pid = served.engine_pid()
    before = ask().json["choices"]
    dice = random.Random(43)
    n = bulk(400, 10_000)
    if model == "caller":  # As they are, they are right.
        statuses = {
            path: served.post(path, body).status for path, body in BODIES.items()
        }
        assert statuses == dict.fromkeys(BODIES, 200) | {"/infill": 501}
    bodies = [("/v1/completions", body) for body in WRONG_JSON]
    bodies += (malformed(dice) for _ in range(n))
    found = Counter[int]()
    used = 0  # Bytes of memory after a third of the requests.
    with closing(served.connect()) as connection:
        for i, (path, body) in enumerate(bodies):
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            with closing(connection.getresponse()) as response:
                answer = response.read()
            found[response.status] += 1
            assert response.status in SAFE_STATUSES, (path, body[:2000], answer[:300])
            if response.status != 200:
                error = json.loads(answer)["error"]
                assert error["message"] and error["type"], body[:2000]
            elif not answer.startswith((b"data: ", b"event: ")):
                json.loads(answer)
            if not used and i > n // 3:
                used = psutil.Process().memory_info().rss
    assert served.engine_pid() == pid, "the engine has ended"
    assert ask().json["choices"] == before
    assert psutil.Process().memory_info().rss < used + 64 * 2**20, "memory grows"
    assert 0.05 * n < found[200] < 0.95 * n, found
    print(f"{len(bodies)} requests: {found}")


def test_routes(chatty: Served) -> None:
    tokens = chatty.post("/tokenize", {"content": "Hi?"}).json["tokens"]
    pieces = chatty.post("/tokenize", {"content": "Hi?", "with_pieces": True}).json[
        "tokens"
    ]
    assert [piece["id"] for piece in pieces] == tokens
    assert "".join(piece["piece"] for piece in pieces).strip() == "Hi?"
    (model,) = chatty.get("/v1/models").json["data"]
    assert (model["id"], model["owned_by"], model["meta"]["n_ctx"]) == (
        "chatty",
        "localspec",
        1024,
    )
    assert chatty.get("/v1/models/chatty").json == model
    assert chatty.get("/v1/models/other").error["code"] == "model_not_found"
    assert chatty.post("/completions", TEXT).status == 200, "also without /v1"
    assert chatty.get("/v1/completions").status == 405
    for path in (
        "/v1/models/",
        "/v1//models",
        f"http://localhost:{chatty.server.port}/v1/models",
    ):
        assert chatty.get(path).json["data"], path
    with_mark = b"\xef\xbb\xbf" + json.dumps(TEXT).encode()
    assert chatty.post("/v1/completions", with_mark).status == 200, "a byte order mark"
    for path in ("/slots", "/v1/nothing"):
        assert chatty.get(path).error["type"] == "not_found_error"


def test_props_say_what_an_editor_asks_for(caller: Served, target: Served) -> None:
    props = caller.get("/props?model=caller").json
    without_tools = target.get("/props").json

    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert props["chat_template_caps"]["supports_tools"] is True
    assert without_tools["chat_template_caps"]["supports_tools"] is False
    assert caller.get("/props?model=other").error["code"] == "model_not_found"


def test_the_tokens_of_an_input_are_counted(chatty: Served) -> None:
    body = {"input": "Hi?", "instructions": "Be kind."}
    counted = chatty.post("/v1/responses/input_tokens", body).json
    usage = chatty.post("/v1/responses", body | {"max_output_tokens": 1}).json["usage"]

    assert counted == {
        "input_tokens": usage["input_tokens"],
        "object": "response.input_tokens",
    }


def test_models_are_described_whatever_happens_to_their_files(
    zoo: Zoo, tmp_path: Path
) -> None:
    """They are served from memory."""
    model = tmp_path / "model.gguf"
    other = tmp_path / "other.gguf"
    for path in (model, other):
        shutil.copy(zoo["chatty"], path)
    with serving(model, others=(other,)) as served:
        assert served.post("/completions", TEXT).status == 200
        before = served.get("/v1/models").json["data"]
        assert before[0]["meta"]["n_params"] > 0
        assert before[0]["meta"]["n_ctx"] > 0
        assert before[0]["status"] == {"value": "loaded"}
        for change in (
            lambda: other.write_bytes(b"GGUF"),
            other.unlink,
            lambda: other.write_bytes(b"x" * 5000),
            model.unlink,  # It is loaded, and goes on.
            lambda: model.write_bytes(b"GGUF"),
            lambda: model.write_bytes(b"x" * 5000),
        ):
            change()
            assert served.get("/v1/models").json["data"] == before
            assert served.get("/v1/models/other").json == before[1]
            assert served.get("/health").status == 200
            assert served.get("/props").status == 200


def test_a_model_whose_file_is_missing_is_listed(zoo: Zoo, tmp_path: Path) -> None:
    with serving(zoo["chatty"], others=(tmp_path / "gone.gguf",)) as served:
        _, gone = served.get("/v1/models").json["data"]

    assert (gone["id"], gone["status"]) == ("gone", {"value": "unloaded"})
    assert set(gone["meta"].values()) == {None}


def test_malformed_http(chatty: Served, capfd: pytest.CaptureFixture[str]) -> None:
    """Answered or closed, and nothing is printed."""
    for data in [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.0\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n"
        + b"X: "
        + b"a" * 200_000
        + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,  # TLS
        b"GET /%ff%fe/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]:
        with socket.create_connection(
            ("127.0.0.1", chatty.server.port), timeout=30
        ) as connection:
            with suppress(OSError):  # it may have closed before all was sent
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            received = b""
            with suppress(OSError):
                while part := connection.recv(65536):
                    received += part
        assert not received.startswith(b"HTTP/1.1 5") and b"Traceback" not in received
        assert b"root:" not in received and chatty.get("/health").status == 200
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
    assert set(statuses) == {200, 429} and statuses.count(200) >= 17
    wait_for(chatty.is_idle)
    assert chatty.post("/v1/chat/completions", CHAT).status == 200


def test_one_model_answers_to_any_name(chatty: Served) -> None:
    for name in ("gpt-9", "", None, 9):
        answer = chatty.post("/v1/completions", TEXT | {"model": name})
        assert answer.json["model"] == "chatty"


def test_a_request_is_answered_by_the_model_that_it_names(zoo: Zoo) -> None:
    thought = THOUGHT_TEXT.partition("</think>")[2]
    with (
        serving(zoo["chatty"], others=(zoo["thinker"],)) as served,
        ExitStack() as clients,
    ):

        def ask(model: Any) -> tuple[Any, str]:
            body = {"messages": [{"role": "user", "content": "Hi?"}], "model": model}
            answer = served.post("/v1/chat/completions", body).json
            return answer["model"], answer["choices"][0]["message"]["content"]

        def statuses() -> list[str]:
            return [
                each["status"]["value"]
                for each in served.get("/v1/models").json["data"]
            ]

        chatty = ("chatty", CHAT_TEXT)
        thinker = ("thinker", thought)
        assert statuses() == ["loaded", "unloaded"]
        watching = clients.enter_context(closing(served.connect()))
        watching.request("GET", "/models/sse")
        events = watching.getresponse()
        assert events.readline() == b":\n"
        assert served.get("/props?model=thinker").status == 400
        effort = {
            "messages": [{"role": "user", "content": "Hi?"}],
            "reasoning_effort": "low",
        }
        assert ask("thinker") == thinker
        events.readline()
        changes = [events.readline(), events.readline(), events.readline()]
        assert b'"model_status"' in changes[0] + changes[2]
        for name, answer, states, status in (
            ("thinker", thinker, ["unloaded", "loaded"], 200),
            ("chatty", chatty, ["loaded", "unloaded"], 400),
            ("thinker", thinker, ["unloaded", "loaded"], 200),
            (None, chatty, ["loaded", "unloaded"], 400),
        ):
            assert ask(name) == answer and statuses() == states
            tried = served.post("/v1/chat/completions", effort | {"model": name})
            assert tried.status == status, "each by its own template"
        for unknown in ("gpt-9", 9):
            body = {"prompt": "a", "model": unknown}
            error = served.post("/v1/completions", body).error
            assert error["code"] == "model_not_found"
            assert error["param"] == "model"
            assert error["message"].endswith("Models: chatty, thinker")
            assert statuses() == ["loaded", "unloaded"]
        assert served.get("/v1/models/thinker").json["meta"]["n_ctx"] is None
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(ask, ["chatty", "thinker"] * 2))
        assert answers == [chatty, thinker] * 2
