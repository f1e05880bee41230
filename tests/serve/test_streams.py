"""Streams that have nothing to say for long, and parsers of answers that take long."""

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from localspec.chat.answer import GeneratedAnswer
from localspec.models.chat_template.tool_calls import ToolCallParser
from localspec.protocol.events import Round, RoundTimes, Token
from localspec.serve import http_app
from localspec.serve.completion import Choice, timings
from tests.serve.conftest import (
    ENDLESS,
    Served,
    read_events,
    serving,
    streaming,
)
from tests.support.downloads import wait_for
from tests.support.zoo import Zoo

HI = {"messages": [{"role": "user", "content": "Hi?"}], "max_tokens": 50}
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": HI,
    "/v1/completions": {"prompt": "a", "max_tokens": 50},
    "/v1/responses": {"input": "Hi?", "max_output_tokens": 50},
    "/v1/messages": HI,
}
N_PINGS = 4
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {}}}


@pytest.fixture
def frequent_pings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(http_app, "PING_SECONDS", 0.05)
    yield


def count_pings(body: bytes) -> int:
    """Comments, and the events that stand for one where clients count no comments."""
    n_events = body.count(b'"type":"ping"') + body.count(b"event: response.in_progress")
    return body.count(b":\n\n") + n_events


@pytest.mark.usefixtures("frequent_pings")
@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_pings_while_its_text_is_held_back(
    chatty: Served, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Events come all the time, but nothing that the client may have yet."""
    may_end = threading.Event()
    add = Choice.add

    def hold(choice: Choice, event: Any) -> None:
        may_end.wait(30)
        add(choice, event)

    monkeypatch.setattr(Choice, "add", hold)
    with streaming(chatty, STREAMS[path] | {"stream": True}, path) as response:
        begun = b""
        while count_pings(begun) < N_PINGS:
            begun += response.readline()
        may_end.set()
        rest = response.read()

    assert b"internal_error" not in rest
    # Three APIs say why an answer ended, the fourth that it is incomplete.
    assert any(end in rest for end in (b'_reason":"', b"response.incomplete"))


@pytest.mark.usefixtures("frequent_pings")
def test_a_stream_that_waits_for_its_turn_pings(chatter: Served) -> None:
    with streaming(chatter) as first:
        first.readline()
        with streaming(chatter, ENDLESS) as waiting:
            assert [waiting.readline() for _ in range(4)] == [b":\n", b"\n"] * 2


@pytest.mark.usefixtures("frequent_pings")
def test_a_stream_pings_while_its_model_is_loaded(zoo: Zoo) -> None:
    with serving(zoo["chatty"], others=(zoo["thinker"],)) as served:
        for name in ("thinker", "chatty"):
            body = HI | {"model": name, "stream": True}
            with streaming(served, body, "/v1/chat/completions") as response:
                assert response.readline() == b":\n"
                assert response.read().endswith(b"data: [DONE]\n\n")


@pytest.mark.usefixtures("frequent_pings")
@pytest.mark.parametrize(
    ("path", "beginning"),
    [("/v1/messages", "event: error\ndata: {"), ("/v1/chat/completions", "data: {")],
)
def test_an_error_after_a_ping_is_an_event(zoo: Zoo, path: str, beginning: str) -> None:
    wrong = HI | {"stream": True, "model": "chatty", "temperature": "warm"}
    with (
        serving(zoo["thinker"], others=(zoo["chatty"],)) as served,
        streaming(served, wrong, path) as response,
    ):
        body = response.read().decode()

    assert body.startswith(":\n\n")
    assert beginning in body
    assert "temperature" in body


def test_a_parser_that_stands_still_holds_up_nobody(
    caller: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in the thread that reads the engine's events."""
    has_begun = threading.Event()
    may_end = threading.Event()
    threads: list[threading.Thread] = []

    def stand_still(*_: Any) -> list[Any]:
        threads.append(threading.current_thread())
        has_begun.set()
        may_end.wait(60)
        return []

    monkeypatch.setattr(ToolCallParser, "feed", stand_still)
    body = HI | {"tools": [TOOL], "stream": True}
    with streaming(caller, body, "/v1/chat/completions"):
        assert has_begun.wait(60)
        assert caller.get("/health").status == 200
        assert caller.get("/v1/models").status == 200
        may_end.set()
        wait_for(caller.is_idle)

    assert {thread.name for thread in threads} == {"localspec"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_stream_reports_all_of_its_progress(chatter: Served, path: str) -> None:
    """Also what was there before its headers were sent."""
    text = f"Of {path}: tell me more. " * 300
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": text}],
        "input": text,
        "max_tokens": 1,
        "max_output_tokens": 16,
        "stream": True,
        "return_progress": True,
    }
    with streaming(chatter, body, path) as response:
        events = read_events(response)

    shown = [event for event in events if "prompt_progress" in event]
    progress = [event["prompt_progress"] for event in shown]
    assert progress[0]["processed"] == progress[0]["cache"]
    assert progress[-1]["processed"] == progress[-1]["total"] == progress[0]["total"]
    processed = [each["processed"] for each in progress]
    assert processed == sorted(set(processed))
    assert len(processed) > 3


class _Unread(list[Any]):
    """Reading it for each of its items takes quadratic time."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("all rounds are read")


def test_timings_before_the_end_do_not_read_all_rounds() -> None:
    answer = GeneratedAnswer()
    answer.rounds = _Unread()
    for n in range(4):
        tokens = (Token(1, "a", "plain"),)
        answer.add(Round(n, None, "", 0, 0, tokens, RoundTimes(0.0, 2.5, 0.0)))

    before_the_end = timings(answer)

    assert before_the_end["predicted_n"] == 4
    assert before_the_end["predicted_ms"] == 7.5
    assert before_the_end["predicted_per_second"] == 400


def test_a_finished_request_leaves_figures_and_no_text(target: Served) -> None:
    body = {"prompt": "a", "max_tokens": 200, "logprobs": 20}
    answer = target.post("/v1/completions", body).json
    wait_for(target.is_idle)

    kept = msgspec.json.encode(target.server.activity.finished[-1])

    assert len(answer["choices"][0]["text"]) > 20
    assert answer["choices"][0]["text"][:20].encode() not in kept
    assert len(kept) < 4000
