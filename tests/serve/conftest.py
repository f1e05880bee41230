"""Servers over real engines, each in a thread of its own, and clients for them."""

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from openai import OpenAI

from localspec.chat.settings import ChatSettings
from localspec.launch import EngineClient, LoadOptions, ResolvedPair
from localspec.launch.engine_host import EngineHost
from localspec.protocol.wire import SamplingParams
from localspec.serve.access_rules import AccessRules
from localspec.serve.engine_queue import MAX_WAITING
from localspec.serve.http_server import HttpServer, ServerOptions
from localspec.serve.request_metrics import RequestActivity
from localspec.serve.served_model import ServedModel
from tests.support.downloads import wait_for
from tests.support.zoo import Zoo

TIMEOUT = 60
GREEDY = ChatSettings(SamplingParams(temperature=0), spec="lookup")


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


class Served:
    """A running server."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.ended: list[RequestActivity] = []
        """Requests that have ended, in order."""
        server.activity.on_end = self.ended.append

    @property
    def url(self) -> str:
        return self.server.url

    def client(self, **options: Any) -> OpenAI:
        given: dict[str, Any] = {"api_key": "any", "max_retries": 0} | options
        return OpenAI(base_url=f"{self.url}/v1", **given)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(
            "127.0.0.1", self.server.port, timeout=TIMEOUT
        )

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> Response:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        own = {"Content-Type": "application/json"} if data is not None else {}
        connection = self.connect()
        try:
            connection.request(method, path, data, own | (headers or {}))
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return Response(response.status, received, response.read())
        finally:
            connection.close()

    def post(
        self, path: str, body: Any, headers: dict[str, str] | None = None
    ) -> Response:
        return self.send("POST", path, body, headers)

    def get(self, path: str, headers: dict[str, str] | None = None) -> Response:
        return self.send("GET", path, None, headers)

    def engine_pid(self) -> int:
        engine = self.server._queue.host.engine
        assert isinstance(engine, EngineClient)
        return engine.pid

    def engine_alive(self) -> bool:
        engine = self.server._queue.host.engine
        return engine is not None and engine.alive

    def is_idle(self) -> bool:
        """Whether no request is left, not even its end, and the engine does nothing."""

        async def look() -> bool:  # in the event loop, where a request ends in one step
            host = self.server._queue.host
            return not self.server.activity.running and host._current_job is None

        assert self.server._loop is not None
        return asyncio.run_coroutine_threadsafe(look(), self.server._loop).result(
            TIMEOUT
        )


@contextmanager
def serving(
    model: Path,
    draft: Path | None = None,
    *,
    settings: ChatSettings = GREEDY,
    rules: AccessRules | None = None,
    max_waiting: int = MAX_WAITING,
    template: str | None = None,
    **load: Any,
) -> Iterator[Served]:
    """`load`'s `others` are loaded in place of `model` when a request names them."""
    others: Sequence[Path] = load.pop("others", ())
    pair = ResolvedPair(model, draft)
    probe = load.pop("probe", False)
    spec = settings.spec if draft is None else "auto"
    request = LoadOptions(**({"ctx": 1024, "threads": 1} | load)).to_request(pair, spec)
    models = [ServedModel(model.stem, pair, settings, template=template)]
    requests = {model.stem: request}
    for path in others:
        other = ResolvedPair(path, None)
        models.append(ServedModel(path.stem, other, settings))
        requests[path.stem] = LoadOptions(ctx=1024, threads=1).to_request(other, spec)
    options = ServerOptions(
        tuple(models), rules=rules or AccessRules(), port=0, max_waiting=max_waiting
    )
    host = EngineHost(request, probe=probe)
    host.add_pairs(requests, 1, None)
    server = HttpServer(options, host)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        served = Served(server)
        wait_for(lambda: server.api.model is not None or not thread.is_alive())
        assert thread.is_alive()
        yield served
    finally:
        server.stop()
        thread.join(TIMEOUT)
        server.close()
    assert not thread.is_alive()


def _served(name: str) -> Any:
    """A fixture: a server of this model of the zoo."""

    @pytest.fixture(scope="session")
    def fixture(zoo: Zoo) -> Iterator[Served]:
        with serving(zoo[name]) as served:
            yield served

    return fixture


# The last one calls the tool `weather`.
chatty, thinker, infiller, caller = map(
    _served, ("chatty", "thinker", "infiller", "caller")
)


@pytest.fixture(scope="session")
def target(zoo: Zoo) -> Iterator[Served]:
    """A text model with random weights, whose draft is its near relation."""
    settings = replace(GREEDY, spec="model", draft_length=4)
    with serving(zoo["target"], zoo["cousin"], settings=settings) as served:
        yield served


@pytest.fixture(scope="session")
def chatter(zoo: Zoo) -> Iterator[Served]:
    """A model that never ends an answer."""
    settings = replace(GREEDY, spec="off")
    with serving(
        zoo["chatter"], settings=settings, ctx=16384, template="chatml"
    ) as served:
        yield served


@pytest.fixture
def client(chatty: Served) -> Iterator[OpenAI]:
    with chatty.client() as client:
        yield client


ENDLESS = {"prompt": "a", "stream": True, "max_tokens": 100_000}


@contextmanager
def streaming(
    served: Served, body: Any = ENDLESS, path: str = "/v1/completions"
) -> Iterator[http.client.HTTPResponse]:
    """The response of a stream whose headers have arrived; leaves at the end of the
    block.
    """
    connection = served.connect()
    with closing(connection):
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        assert response.status == 200
        with closing(response):
            yield response


def read_events(response: http.client.HTTPResponse) -> list[Any]:
    """All events to the end of the stream."""
    lines = [line.strip() for line in response.read().decode().split("\n\n")]
    data = [line.partition("data: ")[2] for line in lines if "data: " in line]
    return [text if text == "[DONE]" else json.loads(text) for text in data]
