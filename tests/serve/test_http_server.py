"""The server as such: its end, its connections, and its limits."""

import socket
import time
from contextlib import closing
from http.client import HTTPConnection

import pytest

from localspec.serve import connection, http_app, http_server
from localspec.serve.access_rules import AccessRules
from localspec.serve.http_app import MAX_BODY_BYTES
from tests.serve.conftest import Served, read_events, serving, streaming
from tests.support.downloads import wait_for
from tests.support.zoo import Zoo


def test_the_end_of_the_server_ends_every_stream(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_END_TIMEOUT", 20.0)  # the machine may be busy
    with serving(zoo["chatter"], ctx=16384) as served, streaming(served) as first:
        first.readline()
        with streaming(served) as queued:
            began = time.monotonic()
            served.server.stop()
            for response in (first, queued):
                assert read_events(response)[-1]["error"]["code"] == "shutting_down"
            assert time.monotonic() - began < 30
            with pytest.raises(OSError):
                wait_for(lambda: served.get("/health").status == 0)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_all_addresses_of_both_kinds(zoo: Zoo) -> None:
    """`--host ::` prints an address that answers, and 127.0.0.1 answers, too."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6")
    with serving(zoo["parrot"], rules=AccessRules("::", keys=("k",))) as served:
        assert served.url == f"http://[::1]:{served.server.port}"
        hosts = ["::1"]
        if socket.has_dualstack_ipv6():
            hosts.append("127.0.0.1")
        for host in hosts:
            with closing(
                HTTPConnection(host, served.server.port, timeout=30)
            ) as connection:
                connection.request("GET", "/health")
                assert connection.getresponse().status == 200, host


def test_half_open_connections_are_closed(
    chatter: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_app, "_PART_TIMEOUT", 0.05)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    body = b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    for sent, reply in ((b"", b""), (head, b""), (head + body, b"HTTP/1.1 408 ")):
        header_timeout = 20 if reply else 0.05
        monkeypatch.setattr(connection, "HEADER_SECONDS", header_timeout)
        with socket.create_connection(("127.0.0.1", chatter.server.port)) as client:
            client.settimeout(30)
            client.sendall(sent)
            received = client.recv(4096)
            assert received.startswith(reply) and bool(received) == bool(reply)


def test_large_bodies(chatter: Served) -> None:
    fits = b'{"prompt": "' + b"a" * (MAX_BODY_BYTES - 100) + b'"}'
    response = chatter.post("/v1/completions", fits)
    assert response.error["code"] == "context_length_exceeded"
    with closing(chatter.connect()) as connection:
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(MAX_BODY_BYTES + 1))
        connection.endheaders()
        assert connection.getresponse().status == 413
