"""A client's connection: clients that read nothing, end their requests, or do nothing."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from localspec.serve import connection
from tests.serve.conftest import ENDLESS, TIMEOUT, Served, serving
from tests.support.downloads import wait_for
from tests.support.zoo import Zoo

TEXT = {"prompt": "a", "max_tokens": 3}
STREAM = TEXT | {"stream": True}
LARGE = {"content": "ab " * 100_000, "with_pieces": True}
"""For `/tokenize`; its answer fills the buffers of both sides."""


@pytest.fixture(scope="module")
def small(zoo: Zoo) -> Iterator[Served]:
    """A server with two places."""
    with serving(zoo["chatter"], max_waiting=1, ctx=16384) as served:
        yield served


def encode(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    )
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def connect(served: Served) -> socket.socket:
    """A client that the system keeps little for."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.settimeout(TIMEOUT)
    client.connect(("127.0.0.1", served.server.port))
    return client


def receive_all(client: socket.socket) -> bytes:
    received = b""
    while part := client.recv(65536):
        received += part
    return received


def n_connections(served: Served) -> int:
    return len(served.server._uvicorn.server_state.connections)


def has_nothing_left(served: Served) -> bool:
    return served.server._queue._admitted == 0 and n_connections(served) == 0


UNREAD = {
    "whole answers": encode("/tokenize", LARGE) * 3,
    "a stream after an answer": encode("/tokenize", LARGE)
    + encode("/v1/completions", STREAM),
    "a stream": encode("/v1/completions", ENDLESS),
    "small answers": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000,
}


@pytest.mark.parametrize("sent", UNREAD.values(), ids=UNREAD.keys())
def test_clients_that_read_nothing_are_closed(
    small: Served, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection, "_STALL_SECONDS", 0.2)
    monkeypatch.setattr(connection, "_SEND_BUFFER_BYTES", 4096)
    monkeypatch.setattr(connection, "HEADER_SECONDS", 0.2)

    with ExitStack() as clients:
        for _ in range(3):  # One more than there are places.
            client = clients.enter_context(connect(small))
            client.setblocking(False)
            client.send(sent)
        wait_for(lambda: n_connections(small) > 0)
        wait_for(lambda: has_nothing_left(small))

    assert small.post("/v1/completions", TEXT).status == 200


@pytest.mark.parametrize("body", [TEXT, STREAM], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_client_that_ends_its_requests_gets_its_answers(
    chatty: Served, path: str, body: Any
) -> None:
    body = body | {"messages": [{"role": "user", "content": "Hi?"}], "max_tokens": 20}
    with closing(connect(chatty)) as client:
        client.sendall(encode(path, body) * 2)  # The second one is pipelined.
        client.shutdown(socket.SHUT_WR)
        received = receive_all(client)

    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.count(b"HTTP/1.1 200 ") == 2
    assert received.count(b'"finish_reason":"') == 2


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_ends_its_requests_and_leaves_is_noticed(
    chatter: Served, is_streamed: bool
) -> None:
    """Its system says first what it says of a client that only ends its requests."""
    words = "one two three four five " * 400  # It is read for a while.
    body = ENDLESS | {"prompt": words, "stream": is_streamed}
    wait_for(chatter.is_idle)
    with closing(connect(chatter)) as client:
        client.sendall(encode("/v1/completions", body))
        client.shutdown(socket.SHUT_WR)
        wait_for(lambda: len(chatter.server.activity.running) == 1)

    wait_for(chatter.is_idle)

    assert chatter.ended[-1].state == "cancelled"


def test_a_client_that_leaves_behind_a_later_request_is_noticed(
    chatter: Served,
) -> None:
    with closing(connect(chatter)) as client:
        client.sendall(encode("/v1/completions", ENDLESS | {"stream": False}))
        client.sendall(encode("/v1/completions", TEXT))
        wait_for(lambda: len(chatter.server.activity.running) == 1)

    wait_for(chatter.is_idle)

    assert chatter.ended[-1].state == "cancelled"


@pytest.mark.parametrize("sent", [b"", b"POST /v1/comp", encode("/x", TEXT)[:-3]])
def test_idle_connections_keep_nobody_out(
    chatty: Served, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection, "_MAX_CONNECTIONS", 20)

    with ExitStack() as clients:
        for _ in range(60):
            client = clients.enter_context(connect(chatty))
            client.send(sent)
        assert chatty.get("/health").status == 200
        assert n_connections(chatty) <= 20


def test_an_answer_is_not_ended_by_idle_connections(
    chatter: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_MAX_CONNECTIONS", 5)
    with ExitStack() as clients:
        asking = clients.enter_context(connect(chatter))
        body = TEXT | {"max_tokens": 500}
        asking.sendall(encode("/v1/completions", body))
        wait_for(lambda: len(chatter.server.activity.running) == 1)
        for _ in range(20):
            clients.enter_context(connect(chatter))
        assert asking.recv(17) == b"HTTP/1.1 200 OK\r\n"
