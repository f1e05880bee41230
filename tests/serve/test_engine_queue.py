"""The queue: order, bounds, clients that leave, engines that are killed, the end of the
server.
"""

import asyncio
import json
import os
import signal
import threading
from contextlib import closing
from typing import Any

import openai
import pytest

from localspec.errors import UsageError
from localspec.launch.engine_host import EngineHost
from tests.serve.conftest import (
    ENDLESS,
    TIMEOUT,
    Served,
    read_events,
    serving,
    streaming,
)
from tests.support.downloads import wait_for
from tests.support.zoo import Zoo

SHORT = {"prompt": "a", "max_tokens": 3}


STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi?"}]},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "Hi?"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi?"}], "max_tokens": 3},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
}
"""Every route that streams."""


def tokens_of(served: Served) -> int:
    return sum(request.totals.tokens for request in served.server.activity.running)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_leaves_while_its_answer_is_written(
    chatter: Served, is_streamed: bool
) -> None:
    before = chatter.server.activity.decode_seconds
    with closing(chatter.connect()) as connection:
        body = json.dumps(ENDLESS | {"stream": is_streamed})
        connection.request(
            "POST", "/v1/completions", body, {"Content-Type": "application/json"}
        )
        wait_for(lambda: tokens_of(chatter) > 3)
    wait_for(chatter.is_idle)
    ended = chatter.ended[-1]
    activity = chatter.server.activity
    assert ended.state == "cancelled" and ended.totals.tokens < 15_000
    assert ended.prompt_tokens == 2, "also counted where the answer was stopped"
    assert activity.decode_seconds > before, (
        "so that rates are of tokens with their time"
    )
    assert chatter.post("/v1/completions", SHORT).status == 200


def test_a_client_leaves_the_queue_and_one_while_its_prompt_is_read(
    chatter: Served,
) -> None:
    with streaming(chatter) as first:
        first.readline()
        with streaming(chatter) as queued:  # its headers come although it waits
            assert queued.headers["X-Queue-Position"] == "1"
            assert len(chatter.server.activity.running) == 2
        wait_for(lambda: len(chatter.server.activity.running) == 1)
        assert not chatter.is_idle()
    wait_for(chatter.is_idle)
    words = "one two three four five " * 400
    with streaming(chatter, ENDLESS | {"prompt": words}):
        pass
    wait_for(chatter.is_idle)


async def take_nothing(served: Served, path: str, body: Any) -> None:
    """Call the app as a client that takes no byte of its stream, not even a header, and
    leaves.
    """
    data = json.dumps(body | {"stream": True}).encode()
    headers = {"host": "localhost", "content-type": "application/json"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    received = [{"type": "http.request", "body": data, "more_body": False}]
    has_answer = asyncio.Event()

    async def receive() -> Any:
        if received:
            return received.pop()
        await has_answer.wait()
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        has_answer.set()
        await asyncio.Event().wait()

    await served.server.api.app(scope, receive, send)


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_that_was_not_begun_leaves_the_queue(
    path: str, request: pytest.FixtureRequest
) -> None:
    """Nothing of the generator that makes its events has run then, so nothing of it
    cleans up.
    """
    served: Served = request.getfixturevalue(
        "infiller" if path == "/infill" else "chatty"
    )
    assert served.server._loop is not None
    n_before = len(served.ended)
    asked = take_nothing(served, path, STREAMS[path])
    asyncio.run_coroutine_threadsafe(asked, served.server._loop).result(TIMEOUT)
    assert not served.server.activity.running
    assert served.server._queue._admitted == 0
    assert [each.state for each in served.ended[n_before:]] == ["cancelled"]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_request_that_cannot_be_queued_has_no_place(
    chatty: Served, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    """The engine was closed after the request got its place, as the app may do at any
    time.
    """

    def refuse(*_: object) -> None:
        raise UsageError("This LLM is closed.")

    with monkeypatch.context() as patch:
        patch.setattr(EngineHost, "submit", refuse)
        assert (
            chatty.post("/v1/completions", SHORT | {"stream": is_streamed}).status
            == 400
        )
    wait_for(chatty.is_idle)
    assert chatty.server._queue._admitted == 0
    assert chatty.ended[-1].state == "failed"


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
                wait_for(lambda n=number: len(served.server.activity.running) == 1 + n)  # type: ignore[misc]
            with pytest.raises(openai.RateLimitError) as refused:
                client.completions.create(model="any", prompt="a")
            assert int(refused.value.response.headers["Retry-After"]) >= 1
            assert (
                "llamacpp:requests_deferred 2" in served.get("/metrics").body.decode()
            )
        for thread in threads:
            thread.join()
        assert sorted(done) == [1, 2]
        wait_for(lambda: len(served.ended) >= 3)
        assert [request.totals.tokens for request in served.ended[-2:]] == [1, 2]


def test_an_engine_that_is_killed_fails_one_request(chatter: Served) -> None:
    hi = ENDLESS | {"messages": [{"role": "user", "content": "Hi?"}], "model": "any"}
    for path, body, error in (  # no [DONE] after an error
        ("/v1/completions", ENDLESS, {"type": "server_error"}),
        ("/v1/chat/completions", hi, {"type": "server_error"}),
        ("/v1/messages", hi, {"type": "api_error"}),
        ("/v1/responses", {"input": "Hi?", "stream": True}, {}),
    ):
        with streaming(chatter, body, path) as response:
            wait_for(lambda: tokens_of(chatter) > 3)
            os.kill(chatter.engine_pid(), signal.SIGKILL)
            events = read_events(response)
        last = events[-1]
        assert (
            len(events) > 1
            and error.items() <= last.get("response", last)["error"].items()
        )
        assert last.get("type") in (None, "error", "response.failed")
        wait_for(chatter.is_idle)
        assert chatter.ended[-1].state == "failed"
        assert chatter.post("/v1/completions", SHORT).status == 200
    before = chatter.engine_pid()
    os.kill(before, signal.SIGKILL)  # while nobody asks
    wait_for(lambda: not chatter.engine_alive())
    assert (
        chatter.post("/v1/completions", SHORT).status == 200
        and chatter.engine_pid() != before
    )

    def kill() -> None:
        wait_for(lambda: tokens_of(chatter) > 3)
        os.kill(chatter.engine_pid(), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with chatter.client() as client:
        with pytest.raises(openai.InternalServerError) as failed:
            client.completions.create(model="any", prompt="a", max_tokens=100_000)
        killer.join()
        assert failed.value.response.headers["x-should-retry"] == "true"
        assert client.completions.create(model="any", prompt="a", max_tokens=3)
