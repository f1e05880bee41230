"""The routes of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from itertools import chain, repeat
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec.documents.reading import ReadingProcesses
from localspec.launch import Engine
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import TokenizeCommand, TokenizeResult
from localspec.serve import api_error, messages, request_options, responses
from localspec.serve.access_rules import AccessMiddleware, AccessRules, client_name
from localspec.serve.api_error import ApiError, ClientLeftError
from localspec.serve.completion import PING, PING_SECONDS, Completion, count_prompt
from localspec.serve.completion_formats import (
    ChatCompletion,
    InfillCompletion,
    TextCompletion,
)
from localspec.serve.connection import HALF_CLOSED, PROBE_PAUSES
from localspec.serve.engine_queue import EngineQueue
from localspec.serve.json_bodies import (
    JsonResponse,
    convert_request,
    encode_json,
    error_event,
    error_response,
    parse_body,
    to_event,
    to_unicode,
)
from localspec.serve.messages import MessageCompletion
from localspec.serve.prompts import (
    ChatFields,
    PromptInput,
    parse_chat,
    parse_infill,
    parse_texts,
)
from localspec.serve.request_documents import count_documents, reading_by
from localspec.serve.request_metrics import ServerActivity
from localspec.serve.request_options import CompletionOptions
from localspec.serve.requests import InfillRequest, TextRequest, TokenizeRequest
from localspec.serve.responses import ResponseCompletion
from localspec.serve.served_model import (
    NOT_LOADED,
    ServedModel,
    model_status,
    read_sizes,
)
from localspec.units import size_limit

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]
MAX_BODY_BYTES = 32 * 1024 * 1024
_MAX_BYTES_IN_FLIGHT = 4 * MAX_BODY_BYTES  # Of all bodies that are being read.
_PART_TIMEOUT = 10.0  # Seconds without a byte of a body.
_BODY_TIMEOUT = 120.0  # Seconds for a whole body.
_LARGE_BODY = 64 * 1024  # Bytes from which a body is parsed in a thread.
_MAX_DOCUMENT_READERS = 2  # Requests whose documents are read at a time.
_WATCH_SECONDS = 1.0  # Between two looks at which models are loaded.
_CLOSE = {"Connection": "close"}
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class ParsedRequest(Struct, frozen=True):
    """What a client asks for, whatever API it has used."""

    form: type[Completion]  # It writes the answer.
    options: CompletionOptions
    prompts: list[PromptInput]


ParseRequest = Callable[[ServedModel, dict[str, Any]], ParsedRequest]


class ApiServer:
    """The HTTP API of one model or several; the first is loaded at the start."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        queue: EngineQueue,
        activity: ServerActivity,
        rules: AccessRules,
    ) -> None:
        self._models: dict[str, ServedModel] = {}
        for model in models:
            sizes = read_sizes(model.pair.target)
            self._models[model.name] = replace(model, sizes=sizes)
        self._first = models[0].name
        self._queue = queue
        self._activity = activity
        self._bodies = BodyReader()
        self.reading = ReadingProcesses()  # Of documents in requests.
        self._document_turns = asyncio.Semaphore(_MAX_DOCUMENT_READERS)
        self.app: ASGIApp = AccessMiddleware(self._make_app(), rules)

    def _make_app(self) -> ASGIApp:
        endpoints: list[tuple[str, str, Endpoint]] = [
            ("GET", "/v1/models", self._list_models),
            ("GET", "/v1/models/sse", self._watch_models),
            ("GET", "/v1/models/{name:path}", self._show_model),
            ("POST", "/v1/messages/count_tokens", self._count_tokens),
            ("GET", "/v1/health", self._show_health),
            ("GET", "/", self._greet),
            ("GET", "/metrics", self._show_metrics),
            ("GET", "/props", self._show_props),
            ("POST", "/v1/responses/input_tokens", self._count_input),
            ("POST", "/tokenize", self._tokenize),
        ]
        for route, parse in _APIS.items():
            endpoints.append(("POST", route, self._complete(route, parse)))
        routes = []
        for method, route, endpoint in endpoints:
            # Each is also there without `/v1`.
            for path in {route, route.removeprefix("/v1")}:
                routes.append(Route(path, endpoint, methods=[method]))
        handlers: Any = dict.fromkeys((ApiError, HTTPException, Exception), _on_error)
        return Starlette(routes=routes, exception_handlers=handlers)

    @property
    def model(self) -> ServedModel | None:
        """The first one; None while it is loading."""
        model = self._models[self._first]
        return None if model.ready is NOT_LOADED else model

    def set_ready(self, ready: EngineReady, name: str = "") -> None:
        """After a pair was loaded, perhaps again and with another context."""
        name = name or self._first
        self._models[name] = replace(self._models[name], ready=ready)

    def _loaded(self) -> ServedModel:
        if self.model is None:
            raise api_error.loading()
        return self.model

    async def _find_model(self, body: dict[str, Any]) -> ServedModel:
        """The model that a request names, loaded.

        Where one model is served, any name is its name: many clients have a name that
        they always send. Raises ApiError for an unknown name where several are served.
        """
        self._loaded()
        name = self._first
        if len(self._models) > 1:
            name = body.get("model") or self._first
        if not isinstance(name, str) or name not in self._models:
            names = ", ".join(self._models)
            message = f"There is no model of this name here. Models: {names}"
            raise ApiError(404, message, param="model", name="model_not_found")
        if not self._queue.host.is_loaded(name):
            ready = await self._queue.run(lambda engine: engine.ready, name)
            self.set_ready(ready, name)
            model = self._models[name]
            if model.sizes.size is None:
                sizes = await asyncio.to_thread(read_sizes, model.pair.target)
                self._models[name] = replace(model, sizes=sizes)
        return self._models[name]

    async def _greet(self, _: Request) -> Response:
        name = self.model.name if self.model else "a model, which is loading"
        return PlainTextResponse(f"localspec serves {name}. OpenAI's API: /v1\n")

    async def _list_models(self, _: Request) -> Response:
        models = [self._describe(name) for name in self._models]
        names = []  # As Ollama has it.
        for described in models:
            name = described["id"]
            capabilities = described["capabilities"]
            names.append({"name": name, "model": name, "capabilities": capabilities})
        body = {
            "object": "list",
            "data": models,
            "models": names,
            # Clients of Anthropic read these.
            "has_more": False,
            "first_id": self._first,
            "last_id": models[-1]["id"],
        }
        return JsonResponse(body)

    async def _show_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._models:
            raise _no_such_model()
        return JsonResponse(self._describe(name))

    async def _show_props(self, request: Request) -> Response:
        """Editors ask for each loaded model, and offer it tools by the answer."""
        self._loaded()
        name = request.query_params.get("model", self._first)
        if name not in self._models:
            raise _no_such_model()
        if not self._queue.host.is_loaded(name):
            raise ApiError(400, "This model is not loaded.", name="model_not_loaded")
        return JsonResponse(self._models[name].props())

    async def _watch_models(self, _: Request) -> Response:
        """A stream of the models that are loaded and unloaded, as llama-server's."""
        self._loaded()
        return StreamingResponse(self._model_events(), headers=_STREAM_HEADERS)

    async def _model_events(self) -> AsyncGenerator[bytes, None]:
        before = self._statuses()
        sent_at = time.monotonic()
        yield PING
        while not self._queue.is_closing:
            await asyncio.sleep(_WATCH_SECONDS)
            now = self._statuses()
            lines = b""
            for name, status in now.items():
                if status != before.get(name):
                    event = {"model": name, "event": "model_status"}
                    lines += to_event(event | {"data": {"status": status}})
            before = now
            if not lines and time.monotonic() - sent_at >= PING_SECONDS:
                lines = PING
            if lines:
                sent_at = time.monotonic()
                yield lines

    def _statuses(self) -> dict[str, str]:
        host = self._queue.host
        return {
            name: model_status(is_loaded=host.is_loaded(name)) for name in self._models
        }

    def _describe(self, name: str) -> dict[str, Any]:
        self._loaded()
        return self._models[name].describe(is_loaded=self._queue.host.is_loaded(name))

    async def _show_health(self, _: Request) -> Response:
        self._loaded()
        return JsonResponse({"status": "ok"})

    async def _show_metrics(self, _: Request) -> Response:
        response = PlainTextResponse(self._activity.metrics())
        began = str(round(self._activity.began)).encode()
        # Starlette would write the name in lower case.
        response.raw_headers.append((b"Process-Start-Time-Unix", began))
        return response

    def _complete(self, route: str, parse: ParseRequest) -> Endpoint:
        async def complete(request: Request) -> Response:
            body, is_large = await self._read_body(request)
            client = client_name(request.headers, request.client)

            @asynccontextmanager
            async def begin() -> AsyncGenerator[Completion, None]:
                """A queued completion, which is closed however its use ends."""
                model, given = await self._parse(body, parse, is_large=is_large)
                completion = given.form(
                    given.options, model, self._queue, self._activity, client=client
                )
                try:
                    completion.submit(given.prompts, route)
                    if given.options.stream:
                        await completion.wait_accepted()
                    yield completion
                except BaseException as error:
                    completion.close(error)
                    raise
                completion.close()

            async def answer() -> bytes:
                async with begin() as completion:
                    return await completion.run()

            if body.get("stream") is True:
                return EventStream(begin)
            whole = await _until_disconnect(request.receive, answer())
            return Response(whole, media_type=JsonResponse.media_type)

        return complete

    async def _read_body(self, request: Request) -> tuple[dict[str, Any], bool]:
        """The JSON of a request, and whether it is large.

        A large one is parsed in a thread, so that others are served meanwhile.
        """
        self._loaded()
        data = await self._bodies.read(request)
        if len(data) <= _LARGE_BODY:
            return parse_body(data), False
        return await asyncio.to_thread(parse_body, data), True

    async def _parse(
        self,
        body: dict[str, Any],
        parse: Callable[[ServedModel, dict[str, Any]], T],
        *,
        is_large: bool,
    ) -> tuple[ServedModel, T]:
        """The request for a model, which is loaded if need be."""
        model = await self._find_model(body)
        if count_documents(body):
            async with self._document_turns:
                with reading_by(self.reading):
                    return model, await asyncio.to_thread(parse, model, body)
        if is_large:
            return model, await asyncio.to_thread(parse, model, body)
        return model, parse(model, body)

    async def _count_tokens(self, request: Request) -> Response:
        """The tokens of the prompt that `/v1/messages` would read."""
        return await self._count(request, _COUNTED_MESSAGES.parse)

    async def _count_input(self, request: Request) -> Response:
        """The tokens of the prompt that `/v1/responses` would read."""
        return await self._count(
            request, _RESPONSES.parse, object="response.input_tokens"
        )

    async def _count(
        self, request: Request, parse: ParseRequest, **more: str
    ) -> Response:
        body, is_large = await self._read_body(request)

        client = client_name(request.headers, request.client)

        async def count_tokens() -> int:
            model, given = await self._parse(body, parse, is_large=is_large)
            (prompt,) = given.prompts
            model.check_prompt(prompt, given.options)

            def count(engine: Engine) -> int:
                command = model.build_command(
                    engine, prompt, given.options, index=0, client=client
                )
                return count_prompt(engine, command)

            return await self._queue.run(count, model.name)

        n_tokens = await _until_disconnect(request.receive, count_tokens())
        return JsonResponse({"input_tokens": n_tokens} | more)

    async def _tokenize(self, request: Request) -> Response:
        body, is_large = await self._read_body(request)

        async def tokenize() -> bytes:
            model, command = await self._parse(body, _parse_tokenize, is_large=is_large)
            result = await self._queue.run(
                lambda engine: engine.tokenize(command), model.name
            )
            return await asyncio.to_thread(
                _encode_tokens, result, pieces=command.pieces
            )

        data = await _until_disconnect(request.receive, tokenize())
        return Response(data, media_type=JsonResponse.media_type)


# --- requests


class ParseFields(Protocol):
    """Translates a request.

    `sees`, `hears`: whether the model takes pictures, and audio.
    """

    def __call__(
        self, body: dict[str, Any], *, sees: bool, hears: bool
    ) -> ChatFields: ...


class _ChatApi(Struct, frozen=True):
    """An API for chats: what its requests and its answers look like."""

    parse_fields: ParseFields
    form: type[Completion]

    def parse(self, model: ServedModel, body: dict[str, Any]) -> ParsedRequest:
        chat = self.parse_fields(body, sees=model.sees, hears=model.hears)
        options = request_options.parse_chat_options(
            chat,
            model.settings,
            default_seed=model.seed,
            tool_format=model.tool_format,
            exact_calls=model.has_exact_calls,
            thinking_controls=model.loaded().thinking_controls,
        )
        prompt = PromptInput(
            chat.messages, param=chat.param, message_fields=chat.message_fields
        )
        return ParsedRequest(self.form, options, [prompt])


def _parse_text(model: ServedModel, body: dict[str, Any]) -> ParsedRequest:
    request = convert_request(TextRequest, body)
    options = request_options.parse_text_options(
        request, body, model.settings, default_seed=model.seed
    )
    return ParsedRequest(TextCompletion, options, parse_texts(request))


def _parse_infill(model: ServedModel, body: dict[str, Any]) -> ParsedRequest:
    request = convert_request(InfillRequest, body)
    options = request_options.parse_infill_options(
        request, body, model.settings, default_seed=model.seed
    )
    prompt = PromptInput(infill=parse_infill(request))
    return ParsedRequest(InfillCompletion, options, [prompt])


_CHATS = _ChatApi(parse_chat, ChatCompletion)
_RESPONSES = _ChatApi(responses.parse_chat, ResponseCompletion)
_MESSAGES = _ChatApi(messages.parse_chat, MessageCompletion)
_COUNTED_MESSAGES = _ChatApi(messages.parse_counted_chat, MessageCompletion)
_APIS: dict[str, ParseRequest] = {
    "/v1/chat/completions": _CHATS.parse,
    "/v1/completions": _parse_text,
    "/v1/responses": _RESPONSES.parse,
    "/v1/messages": _MESSAGES.parse,
    "/infill": _parse_infill,
}


def _parse_tokenize(_: ServedModel, body: dict[str, Any]) -> TokenizeCommand:
    request = convert_request(TokenizeRequest, body)
    return TokenizeCommand(
        to_unicode(request.content or ""),
        add_special=bool(request.add_special),
        parse_special=request.parse_special is not False,
        pieces=bool(request.with_pieces),
    )


def _encode_tokens(result: TokenizeResult, *, pieces: bool) -> bytes:
    tokens: list[Any] = list(result.tokens)
    if pieces:
        tokens = []
        for id_, piece in zip(result.tokens, result.pieces, strict=True):
            tokens.append({"id": id_, "piece": _piece_to_json(piece)})
    return encode_json({"tokens": tokens}).encode()


def _piece_to_json(piece: str) -> str | list[int]:
    """As llama-server: the text, or the bytes of a token that is no whole text."""
    data = piece.encode("latin-1")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


def _no_such_model() -> ApiError:
    message = "There is no model of this name here."
    return ApiError(404, message, name="model_not_found")


async def _until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work.

    If the client leaves, the work is cancelled, and ClientLeftError raised.
    """

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeftError
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


class EventStream(Response):
    """Sends a completion as server-sent events, and closes it however that ends.

    Something is sent every PING_SECONDS, whatever the completion waits for: also while
    its model is loaded, and while its text is held back.
    """

    def __init__(
        self, begin: Callable[[], AbstractAsyncContextManager[Completion]]
    ) -> None:
        """`begin` is called once. Its error has a status if it comes soon."""
        super().__init__(status_code=200, headers=_STREAM_HEADERS)
        del self.headers["content-length"]
        self._begin = begin
        self._pauses: Iterator[float] = repeat(PING_SECONDS)
        self._is_probing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientLeftError):
            await _until_disconnect(receive, self._answer(scope, send))

    async def _answer(self, scope: Scope, send: Send) -> None:
        half_closed: asyncio.Event = scope.get("state", {}).get(HALF_CLOSED)
        end_of_input = asyncio.ensure_future((half_closed or asyncio.Event()).wait())
        async with AsyncExitStack() as used:
            begun = asyncio.ensure_future(used.enter_async_context(self._begin()))
            try:
                await self._answer_when(begun, end_of_input, scope, send)
            finally:
                end_of_input.cancel()
                begun.cancel()
                await asyncio.gather(begun, return_exceptions=True)

    async def _answer_when(
        self,
        begun: asyncio.Future[Completion],
        end_of_input: asyncio.Future[Any],
        scope: Scope,
        send: Send,
    ) -> None:
        await asyncio.wait({begun}, timeout=PING_SECONDS)
        if begun.done():
            position = begun.result().position
            self.headers["X-Queue-Position"] = str(position)
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start"} | start)

        async def send_lines(lines: bytes) -> None:
            part = {"body": lines, "more_body": True}
            await send({"type": "http.response.body"} | part)

        try:
            await self._ping_until(begun, end_of_input, lambda: send_lines(PING))
            completion = begun.result()
        except Exception as error:  # the client learns of it, whatever it is
            await send_lines(error_event(api_error.from_engine(error), scope))
        else:
            await self._send_all(completion, end_of_input, send_lines)
        await send({"type": "http.response.body", "body": b""})

    async def _send_all(
        self,
        completion: Completion,
        end_of_input: asyncio.Future[Any],
        send_lines: Callable[[bytes], Coroutine[Any, Any, None]],
    ) -> None:
        stream = completion.stream()
        line: asyncio.Future[bytes | None] | None = None
        try:
            while True:
                line = asyncio.ensure_future(anext(stream, None))
                await self._ping_until(
                    line, end_of_input, lambda: send_lines(completion.ping())
                )
                lines = line.result()
                if lines is None:
                    return
                await send_lines(lines)
        finally:
            if line is not None:
                line.cancel()
                await asyncio.gather(line, return_exceptions=True)
            await stream.aclose()

    async def _ping_until(
        self,
        done: asyncio.Future[Any],
        end_of_input: asyncio.Future[Any],
        ping: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Ping after each silence, and more often after the client's end of input.

        It has left, or only ended its requests: what is sent then shows which.
        """
        while not done.done():
            waiting = {done}
            if not self._is_probing:
                waiting.add(end_of_input)
            await asyncio.wait(
                waiting,
                timeout=next(self._pauses),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if end_of_input.done() and not self._is_probing:
                self._is_probing = True
                self._pauses = chain(PROBE_PAUSES, repeat(PING_SECONDS))
            if not done.done():
                await ping()


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status = 400
        if error.status_code in (404, 405):
            status = error.status_code
        error = ApiError(status, str(error.detail))
    return error_response(api_error.from_engine(error), request.scope)


class BodyReader:
    """Reads request bodies, within limits of size, time and memory."""

    def __init__(self) -> None:
        self._n_in_flight = 0

    async def read(self, request: Request) -> bytes:
        """Raises ApiError for a body that is too large or too slow."""
        length = request.headers.get("content-length", "0")
        is_number = length.isascii() and length.isdecimal()
        if is_number and int(length[:20]) > MAX_BODY_BYTES:
            raise _too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_BODY_TIMEOUT):
                stream = request.stream().__aiter__()
                while True:
                    async with asyncio.timeout(_PART_TIMEOUT):
                        part = await anext(stream, None)
                    if part is None:
                        break
                    size += len(part)
                    self._n_in_flight += len(part)
                    if size > MAX_BODY_BYTES:
                        raise _too_large()
                    if self._n_in_flight > _MAX_BYTES_IN_FLIGHT:
                        wait = {"Retry-After": "1"}
                        raise ApiError(429, "Too many large requests.", headers=wait)
                    parts.append(part)
            return b"".join(parts)
        except TimeoutError:
            raise ApiError(408, "The body came too slowly.", headers=_CLOSE) from None
        except ClientDisconnect:
            raise ClientLeftError from None
        finally:
            self._n_in_flight -= size


def _too_large() -> ApiError:
    message = f"The body is larger than {size_limit(MAX_BODY_BYTES)}."
    return ApiError(413, message, headers=_CLOSE)
