"""Hostile requests: each costs one answer, no process, and nobody else's time."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from localspec.serve import responses
from localspec.serve.prompts import PlacedMessage, check_chat
from tests.serve.conftest import Served, read_events, streaming
from tests.support.downloads import wait_for

TEXT = {"prompt": "a", "max_tokens": 2}
CHAT: Any = {"messages": [{"role": "user", "content": "Hi?"}], "max_tokens": 2}


def nested(n: int) -> Any:
    """References with siblings: each level twice as many as the one before."""
    part = {"$ref": "#/$defs/a0", "minProperties": 0}
    levels = [
        {
            "type": "object",
            "properties": dict.fromkeys("xy", part | {"$ref": f"#/$defs/a{i + 1}"}),
        }
        for i in range(n)
    ]
    definitions: dict[str, Any] = {f"a{i}": level for i, level in enumerate(levels)}
    return {"$defs": definitions | {f"a{n}": {"type": "integer"}}, "$ref": "#/$defs/a0"}


CONSTRAINTS: dict[str, dict[str, Any]] = {
    "a type of objects": {"json_schema": {"type": {}}},
    "a format of lists": {"json_schema": {"type": "string", "format": []}},
    "required objects": {"json_schema": {"required": [{}]}},
    "a number of 400 digits": {"json_schema": {"type": "integer", "minimum": 10**400}},
    "a pattern in 5,000 brackets": {
        "json_schema": {"type": "string", "pattern": "(" * 5000 + "a" + ")" * 5000}
    },
    "an index of 4,000 digits": {
        "json_schema": {"$defs": {"a": [True]}, "$ref": "#/$defs/a/" + "9" * 4000}
    },
    "references that double": {"json_schema": nested(24)},
    "an ambiguous grammar": {
        "grammar": 'root ::= r\nr ::= [^0-9] r "1" | [^0-9] r "2" | "0"',
        "max_tokens": 24,
    },
    "a nested grammar": {"grammar": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000},
}


@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS.keys())
def test_a_schema_or_grammar_ends_no_engine(
    target: Served, constraint: dict[str, Any]
) -> None:
    assert target.post("/v1/completions", TEXT).status == 200
    pid = target.engine_pid()
    response = target.post("/v1/completions", TEXT | constraint)
    assert response.status in (200, 400), response.body
    assert target.engine_pid() == pid, "the engine has ended"


def test_an_internal_error_is_one_answer(
    target: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localspec.serve.served_model import ServedModel  # noqa: PLC0415

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(ServedModel, "build_command", fail)
        assert target.post("/v1/completions", TEXT).error["code"] == "internal_error"
    with monkeypatch.context() as patched:
        patched.setattr("localspec.serve.completion.timings", fail)
        assert target.post("/v1/completions", TEXT).error["code"] == "internal_error"
        body = TEXT | {"stream": True, "timings_per_token": True}
        with streaming(target, body) as response:
            assert read_events(response)[-1]["error"]["code"] == "internal_error"
    wait_for(target.is_idle)
    assert (
        target.ended[-1].state == "failed"
        and target.post("/v1/completions", TEXT).status == 200
    )


CALLS = {
    "an empty name": r'{"name": "", "arguments": {}}',
    "a surrogate as name": r'{"name": "\ud800", "arguments": {}}',
    "a wrong escape": r'{"name": "f\q", "arguments": {}}',
    "a surrogate": r'{"arguments": {"x": "\ud83d"}, "name": "f"}',
    "a streamed surrogate": r'{"name": "f", "arguments": {"x": "\ud83d"}}',
    "deep lists": '{"arguments": {"x": ' + "[" * 60 + "]" * 60 + '}, "name": "f"}',
    "tags": "\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n",
}
PARAMETERS: list[Any] = [
    {},
    True,
    {"properties": None},
    {"properties": {"a": {"$ref": "#"}}},
]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_call_is_read_or_stays_text(caller: Served, call: str) -> None:
    text = f"<tool_call>{call}</tool_call>"
    for parameters in PARAMETERS:
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        body = CHAT | {"tools": [tool], "grammar": f"root ::= {json.dumps(text)}"}
        body["max_tokens"] = 400
        message = caller.post("/v1/chat/completions", body).json["choices"][0][
            "message"
        ]
        for each in message.get("tool_calls", []):
            json.loads(each["function"]["arguments"])
        assert (
            message["content"] == text
            or message["tool_calls"][0]["function"]["name"] == "f"
        )
        with streaming(
            caller, body | {"stream": True}, "/v1/chat/completions"
        ) as response:
            assert read_events(response)[-1] == "[DONE]"


def test_an_answer_has_no_line_end_but_those_of_the_stream(target: Served) -> None:
    """Some clients split lines at U+2028, U+2029 and U+0085."""
    grammar = {"grammar": 'root ::= "a\\x85\\u2028\\u2029b"', "max_tokens": 40}
    with streaming(target, TEXT | grammar | {"stream": True}) as response:
        data = response.read().decode()
    assert data.splitlines() == data.split("\n")[: len(data.splitlines())]
    chunks = [
        json.loads(line[6:])
        for line in data.split("\n\n")
        if line.startswith("data: {")
    ]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == "a\x85\u2028\u2029b"


def test_large_requests_hold_nobody_up(
    chatty: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def check_in_thread(messages: Sequence[PlacedMessage], param: str) -> None:
        threads.append(threading.current_thread())
        check_chat(messages, param)

    monkeypatch.setattr(responses, "check_chat", check_in_thread)
    small: list[Any] = [{"role": "user", "content": "x"}]
    system = {"role": "system", "content": "s" * 500}
    # It takes a minute if texts are joined one by one.
    large = [system] * 19_990 + small
    for items in (small, large):
        chatty.post("/v1/responses", {"input": items, "max_output_tokens": 1})
    assert threads[0] is not threads[1], "it is read in the event loop's thread"
    assert chatty.post("/tokenize", {"content": "a" * 3_000_000}).status == 400


def test_a_flood_of_special_tokens_is_refused(chatty: Served) -> None:
    pid = chatty.engine_pid()
    body = {"content": "<|im_end|>" * 50_000}
    refused = chatty.post("/tokenize", body)
    assert (
        refused.error["code"] == "context_length_exceeded"
        and chatty.engine_pid() == pid
    )
