"""The queue: order, bounds, clients that leave, engines that are killed, the end of the server."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPResponse
from typing import Any

import openai
import pytest

from localspec.serve import http_server
from tests.serve.conftest import Served, serving, until
from tests.support.zoo import Zoo

ENDLESS = {"prompt": "a", "stream": True, "max_tokens": 100_000}


@contextmanager
def streaming(served: Served, body: Any = ENDLESS) -> Iterator[HTTPResponse]:
    """The response of a stream whose headers have arrived; leaves at the end of the block."""
    connection = served.connect()
    with closing(connection):
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        assert response.status == 200
        with closing(response):
            yield response


def read_events(response: HTTPResponse) -> list[Any]:
    """All events to the end of the stream."""
    lines = [line for line in response.read().decode().split("\n\n") if line]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [text if text == "[DONE]" else json.loads(text) for text in data]


def tokens_of(served: Served) -> int:
    return sum(request.totals.tokens for request in served.server.activity.running)


def test_a_client_that_leaves_while_its_answer_is_written(chatter: Served) -> None:
    with streaming(chatter) as response:
        response.readline()
        until(lambda: tokens_of(chatter) > 3, "an answer")
    until(chatter.is_idle, "the engine is free")
    assert chatter.ended[-1].state == "cancelled"
    assert chatter.ended[-1].totals.tokens < 15_000
    assert chatter.post("/v1/completions", {"prompt": "a", "max_tokens": 3}).status == 200


def test_the_official_client_cancels_a_stream(chatter: Served) -> None:
    with chatter.client() as client:
        stream = client.completions.create(model="any", prompt="a", stream=True, max_tokens=100_000)
        next(iter(stream))
        stream.close()
        until(chatter.is_idle, "the engine is free")
    assert chatter.ended[-1].state == "cancelled"


def test_a_client_that_leaves_without_a_stream(chatter: Served) -> None:
    connection = chatter.connect()
    with closing(connection):
        body = json.dumps(ENDLESS | {"stream": False})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        until(lambda: tokens_of(chatter) > 3, "an answer")
    until(chatter.is_idle, "the engine is free")


def test_a_client_that_leaves_in_the_queue_and_one_while_its_prompt_is_read(
    chatter: Served,
) -> None:
    with streaming(chatter) as first:
        first.readline()
        with streaming(chatter) as queued:  # its headers come although it waits
            assert queued.headers["X-Queue-Position"] == "1"
            assert len(chatter.server.activity.running) == 2
        until(lambda: len(chatter.server.activity.running) == 1, "it left the queue")
        assert not chatter.is_idle()
    until(chatter.is_idle)
    words = "one two three four five " * 400
    with streaming(chatter, ENDLESS | {"prompt": words}):
        pass
    until(chatter.is_idle, "the engine is free")


def test_answers_come_in_order_and_too_many_requests_are_refused(zoo: Zoo) -> None:
    settings = {"max_waiting": 2, "ctx": 16384}
    with serving(zoo["chatter"], **settings) as served, served.client() as client:  # type: ignore[arg-type]
        with streaming(served) as first:
            first.readline()
            done: list[int] = []

            def ask(number: int) -> None:
                client.completions.create(model="any", prompt="a", max_tokens=number)
                done.append(number)

            threads = []
            for number in (1, 2):
                threads.append(threading.Thread(target=ask, args=(number,)))
                threads[-1].start()
                until(lambda n=number: len(served.server.activity.running) == 1 + n)  # type: ignore[misc]
            with pytest.raises(openai.RateLimitError) as refused:
                client.completions.create(model="any", prompt="a")
            assert int(refused.value.response.headers["Retry-After"]) >= 1
            assert "llamacpp:requests_deferred 2" in served.get("/metrics").body.decode()
        for thread in threads:
            thread.join()
        assert sorted(done) == [1, 2]
        until(lambda: len(served.ended) >= 3)
        assert [request.totals.tokens for request in served.ended[-2:]] == [1, 2]
        retrying = served.client(max_retries=2)
        with retrying:
            assert retrying.completions.create(model="any", prompt="a", max_tokens=1)


def test_an_engine_that_is_killed_in_mid_stream(zoo: Zoo) -> None:
    with serving(zoo["chatter"], ctx=16384) as served:
        for _ in range(2):
            with streaming(served) as response:
                until(lambda: tokens_of(served) > 3, "an answer")
                os.kill(served.engine_pid(), signal.SIGKILL)
                events = read_events(response)
            assert events[0]["choices"][0]["text"]
            assert events[-1]["error"]["type"] == "server_error", "no [DONE] after an error"
            assert served.ended[-1].state == "failed"
            ok = served.post("/v1/completions", {"prompt": "a", "max_tokens": 3})
            assert ok.status == 200


def test_the_official_client_of_a_killed_engine(zoo: Zoo) -> None:
    with serving(zoo["chatter"], ctx=16384) as served, served.client() as client:

        def kill() -> None:
            until(lambda: tokens_of(served) > 3, "an answer")
            os.kill(served.engine_pid(), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(openai.InternalServerError) as failed:
            client.completions.create(model="any", prompt="a", max_tokens=100_000)
        killer.join()
        assert failed.value.response.headers["x-should-retry"] == "true"
        assert client.completions.create(model="any", prompt="a", max_tokens=3)


def test_an_engine_that_is_killed_while_nobody_asks(zoo: Zoo) -> None:
    with serving(zoo["parrot"]) as served:
        before = served.engine_pid()
        os.kill(before, signal.SIGKILL)
        until(lambda: not served.engine_alive(), "it ended")
        assert served.post("/v1/completions", {"prompt": "a"}).status == 200
        assert served.engine_pid() != before


def test_the_end_of_the_server_ends_every_stream(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_END_TIMEOUT", 20.0)  # the machine may be busy
    with serving(zoo["chatter"], ctx=16384) as served, streaming(served) as first:
        line = first.readline()
        assert line, (first.status, first.headers.items())
        with streaming(served) as queued:
            began = time.monotonic()
            served.server.stop()
            for response in (first, queued):
                assert read_events(response)[-1]["error"]["code"] == "shutting_down"
            assert time.monotonic() - began < 30
            with pytest.raises(OSError):
                until(lambda: served.get("/health").status == 0)


def test_half_open_connections_are_closed(chatter: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from localspec.serve import http_app, http_server  # noqa: PLC0415

    monkeypatch.setattr(http_server, "_HEADER_TIMEOUT", 0.05)
    monkeypatch.setattr(http_app, "_PART_TIMEOUT", 0.05)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    body = b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    for sent, reply in ((b"", b""), (head, b""), (head + body, b"HTTP/1.1 408 ")):
        with socket.create_connection(("127.0.0.1", chatter.server.port)) as connection:
            connection.settimeout(30)
            connection.sendall(sent)
            received = connection.recv(4096)
            assert received.startswith(reply) and bool(received) == bool(reply)


def test_large_bodies(chatter: Served) -> None:
    from localspec.serve.http_app import MAX_BODY_BYTES  # noqa: PLC0415

    fits = b'{"prompt": "' + b"a" * (MAX_BODY_BYTES - 100) + b'"}'
    response = chatter.post("/v1/completions", fits)
    assert response.error["code"] == "context_length_exceeded"
    with closing(chatter.connect()) as connection:
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(MAX_BODY_BYTES + 1))
        connection.endheaders()
        assert connection.getresponse().status == 413
