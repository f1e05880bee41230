"""The routes of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec.launch import Engine
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import TokenizeCommand
from localspec.serve import api_error, messages, request_options, responses
from localspec.serve.access_rules import AccessMiddleware, AccessRules, client_name
from localspec.serve.api_error import ApiError, ClientLeftError
from localspec.serve.completion import Completion, count_prompt
from localspec.serve.completion_formats import (
    ChatCompletion,
    InfillCompletion,
    TextCompletion,
)
from localspec.serve.engine_queue import EngineQueue
from localspec.serve.json_bodies import (
    JsonResponse,
    convert_request,
    error_response,
    parse_body,
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
from localspec.serve.request_metrics import ServerActivity
from localspec.serve.requests import InfillRequest, TextRequest, TokenizeRequest
from localspec.serve.responses import ResponseCompletion
from localspec.serve.served_model import NOT_LOADED, ServedModel

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]
MakeCompletion = Callable[[ServedModel, EngineQueue, ServerActivity], Completion]
ParsedRequest = tuple[MakeCompletion, list[PromptInput]]
ParseRequest = Callable[[ServedModel, dict[str, Any]], ParsedRequest]
_SEND_TIMEOUT = 60.0  # Seconds for a client to take some bytes of its answer.
MAX_BODY_BYTES = 32 * 1024 * 1024
_MAX_BYTES_IN_FLIGHT = 4 * MAX_BODY_BYTES  # Of all bodies that are being read.
_PART_TIMEOUT = 10.0  # Seconds without a byte of a body.
_BODY_TIMEOUT = 120.0  # Seconds for a whole body.
_LARGE_BODY = 64 * 1024  # Bytes from which a body is parsed in a thread.
_CLOSE = {"Connection": "close"}
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class ApiServer:
    """The HTTP API of one model or several; the first is loaded at the start."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        queue: EngineQueue,
        activity: ServerActivity,
        rules: AccessRules,
    ) -> None:
        self._models = {model.name: model for model in models}
        self._first = models[0].name
        self._queue = queue
        self._activity = activity
        self._bodies = BodyReader()
        self.app: ASGIApp = AccessMiddleware(self._make_app(), rules)

    def _make_app(self) -> ASGIApp:
        endpoints: list[tuple[str, str, Endpoint]] = [
            ("GET", "/v1/models", self._list_models),
            ("GET", "/v1/models/{name:path}", self._show_model),
            ("POST", "/v1/messages/count_tokens", self._count_tokens),
            ("GET", "/v1/health", self._show_health),
            ("GET", "/", self._greet),
            ("GET", "/metrics", self._show_metrics),
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
        """The model that a request names, loaded; of an unknown name, the first."""
        self._loaded()
        name = body.get("model")
        if not isinstance(name, str) or name not in self._models:
            name = self._first
        if not self._queue.host.is_loaded(name):
            ready = await self._queue.run(lambda engine: engine.ready, name)
            self.set_ready(ready, name)
        return self._models[name]

    async def _greet(self, _: Request) -> Response:
        name = self.model.name if self.model else "a model, which is loading"
        return PlainTextResponse(f"localspec serves {name}. OpenAI's API: /v1\n")

    async def _list_models(self, _: Request) -> Response:
        models = [self._describe(name) for name in self._models]
        names = [{"name": name, "model": name} for name in self._models]
        body = {
            "object": "list",
            "data": models,
            "models": names,  # As Ollama has it.
            # Clients of Anthropic read these.
            "has_more": False,
            "first_id": self._first,
            "last_id": models[-1]["id"],
        }
        return JsonResponse(body)

    async def _show_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._models:
            raise ApiError(
                404, "There is no model of this name here.", name="model_not_found"
            )
        return JsonResponse(self._describe(name))

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
            model, (make, given) = await self._parse(request, parse)
            completion = make(model, self._queue, self._activity)
            completion.client = client_name(request.headers, request.client)
            try:
                completion.submit(given, route)
                if not completion.options.stream:
                    whole = await _until_disconnect(request.receive, completion.run())
                    return JsonResponse(whole)
                await completion.wait_accepted()
                return EventStream(completion)
            except BaseException as error:
                completion.close(error)
                raise

        return complete

    async def _parse(
        self, request: Request, parse: Callable[[ServedModel, dict[str, Any]], T]
    ) -> tuple[ServedModel, T]:
        """The request for a model.

        A large one is parsed in a thread, so that others are served meanwhile.
        """
        self._loaded()
        data = await self._bodies.read(request)
        if len(data) > _LARGE_BODY:
            body = await asyncio.to_thread(parse_body, data)
            model = await self._find_model(body)
            return model, await asyncio.to_thread(parse, model, body)
        body = parse_body(data)
        model = await self._find_model(body)
        return model, parse(model, body)

    async def _count_tokens(self, request: Request) -> Response:
        """The tokens of the prompt that `/v1/messages` would read."""
        model, (make, (prompt,)) = await self._parse(request, _parse_counted)
        options = make(model, self._queue, self._activity).options
        model.check_prompt(prompt, options)

        def count(engine: Engine) -> int:
            command = model.build_command(engine, prompt, options, index=0)
            return count_prompt(engine, command)

        work = self._queue.run(count, model.name)
        n_tokens = await _until_disconnect(request.receive, work)
        return JsonResponse({"input_tokens": n_tokens})

    async def _tokenize(self, request: Request) -> Response:
        model, command = await self._parse(request, _parse_tokenize)
        work = self._queue.run(lambda engine: engine.tokenize(command), model.name)
        result = await _until_disconnect(request.receive, work)
        tokens: list[Any] = list(result.tokens)
        if command.pieces:
            tokens = []
            for id_, piece in zip(result.tokens, result.pieces, strict=True):
                tokens.append({"id": id_, "piece": _piece_to_json(piece)})
        return JsonResponse({"tokens": tokens})


# --- requests


def _parse_chat(
    parse: Callable[[dict[str, Any]], ChatFields],
    form: Callable[..., Completion],
    model: ServedModel,
    body: dict[str, Any],
) -> ParsedRequest:
    """The request of a chat.

    `parse` knows the form of the request, and the class `form` that of the answer.
    """
    chat = parse(body)
    options = request_options.parse_chat_options(
        chat,
        model.settings,
        default_seed=model.seed,
        tool_format=model.tool_format,
        thinking_controls=model.loaded().thinking_controls,
    )
    prompt = PromptInput(
        chat.messages, param=chat.param, message_fields=chat.message_fields
    )
    return partial(form, options), [prompt]


def _parse_text(model: ServedModel, body: dict[str, Any]) -> ParsedRequest:
    request = convert_request(TextRequest, body)
    options = request_options.parse_text_options(
        request, body, model.settings, default_seed=model.seed
    )
    given = parse_texts(request)
    echoes: list[str] = []
    if request.echo:
        if options.n_logprobs is not None:
            raise api_error.unsupported("echo", "with it, logprobs are not available")
        for prompt in given:
            echoes += [prompt.text] * options.n
    return partial(TextCompletion, echoes, options), given


def _parse_infill(model: ServedModel, body: dict[str, Any]) -> ParsedRequest:
    request = convert_request(InfillRequest, body)
    options = request_options.parse_infill_options(
        request, body, model.settings, default_seed=model.seed
    )
    given = [PromptInput(infill=parse_infill(request))]
    return partial(InfillCompletion, options), given


_parse_messages = partial(_parse_chat, messages.parse_chat, MessageCompletion)
_parse_counted = partial(
    _parse_chat, partial(messages.parse_chat, is_counted=True), MessageCompletion
)
_APIS: dict[str, ParseRequest] = {
    "/v1/chat/completions": partial(_parse_chat, parse_chat, ChatCompletion),
    "/v1/completions": _parse_text,
    "/v1/responses": partial(_parse_chat, responses.parse_chat, ResponseCompletion),
    "/v1/messages": _parse_messages,
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


def _piece_to_json(piece: str) -> str | list[int]:
    """As llama-server: the text, or the bytes of a token that is no whole text."""
    data = piece.encode("latin-1")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


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

    A client may leave, or take no bytes, before the first event is made. A generator
    that was not started has no `finally` to run, so what a completion holds is released
    here.
    """

    def __init__(self, completion: Completion) -> None:
        headers = _STREAM_HEADERS | {"X-Queue-Position": str(completion.position)}
        super().__init__(status_code=200, headers=headers)
        del self.headers["content-length"]
        self._completion = completion
        self._lines = completion.stream()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientLeftError, TimeoutError):  # or it takes no bytes
                await _until_disconnect(receive, self._pump(send))
        finally:
            self._completion.close(ClientLeftError())
            await self._lines.aclose()

    async def _pump(self, send: Send) -> None:
        async def send_in_time(kind: str, **fields: Any) -> None:
            async with asyncio.timeout(_SEND_TIMEOUT):
                await send({"type": f"http.response.{kind}"} | fields)

        await send_in_time("start", status=self.status_code, headers=self.raw_headers)
        async for line in self._lines:
            await send_in_time("body", body=line, more_body=True)
        await send_in_time("body", body=b"")


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
    message = f"The body is larger than {MAX_BODY_BYTES >> 20} MiB."
    return ApiError(413, message, headers=_CLOSE)
