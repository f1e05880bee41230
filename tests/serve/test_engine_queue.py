"""The queue: order, bounds, clients that leave, engines that are killed, the end of the server."""

import json
import os
import signal
import threading
from contextlib import closing

import openai
import pytest

from tests.serve.conftest import ENDLESS, Served, read_events, serving, streaming
from tests.support.downloads import wait_for
from tests.support.zoo import Zoo

SHORT = {"prompt": "a", "max_tokens": 3}


def tokens_of(served: Served) -> int:
    return sum(request.totals.tokens for request in served.server.activity.running)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_leaves_while_its_answer_is_written(chatter: Served, is_streamed: bool) -> None:
    before = chatter.server.activity.decode_seconds
    with closing(chatter.connect()) as connection:
        body = json.dumps(ENDLESS | {"stream": is_streamed})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        wait_for(lambda: tokens_of(chatter) > 3)
    wait_for(chatter.is_idle)
    ended, activity = chatter.ended[-1], chatter.server.activity
    assert ended.state == "cancelled" and ended.totals.tokens < 15_000
    assert ended.prompt_tokens == 2, "also counted where the answer was stopped"
    assert activity.decode_seconds > before, "so that rates are of tokens with their time"
    assert chatter.post("/v1/completions", SHORT).status == 200


def test_a_client_leaves_the_queue_and_one_while_its_prompt_is_read(chatter: Served) -> None:
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
            assert "llamacpp:requests_deferred 2" in served.get("/metrics").body.decode()
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
            *_, last = events = read_events(response)
        assert len(events) > 1 and error.items() <= last.get("response", last)["error"].items()
        assert last.get("type") in (None, "error", "response.failed")
        wait_for(chatter.is_idle)
        assert chatter.ended[-1].state == "failed"
        assert chatter.post("/v1/completions", SHORT).status == 200
    before = chatter.engine_pid()
    os.kill(before, signal.SIGKILL)  # while nobody asks
    wait_for(lambda: not chatter.engine_alive())
    assert chatter.post("/v1/completions", SHORT).status == 200 and chatter.engine_pid() != before

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
