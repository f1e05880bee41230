"""A connection to one MCP server, on a thread with an event loop of its own.

The rest of localspec is synchronous: it calls a tool and waits for a `ToolResult`. A
server can do what it likes; every wait has an end, and what goes wrong is an error
result, or the reason why the connection ended.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import math
import re
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import mcp_types
from mcp import Client, MCPError
from mcp.shared.message import SessionMessage
from mcp_types.methods import SERVER_RESULTS
from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError

from localspec import __version__
from localspec.errors import LocalspecError, ToolServerError
from localspec.extras.tools import transports
from localspec.extras.tools.transports import FilteredStream, StderrTail, Streams
from localspec.sanitize import sanitize
from localspec.tools.server_settings import ServerSettings
from localspec.tools.tool_types import (
    ResultPicture,
    StopSignal,
    ToolDefinition,
    ToolResult,
    make_error,
    make_result,
)
from localspec.units import count

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 2.0
"""The event loop may be busy with a long message when a call's time is over."""
_CLOSE_SECONDS = 5.0
_RELIST_SECONDS = 1.0
"""At least this long between two lists of a server that says they change."""
_MAX_TOOLS = 500
_MAX_LIST = 2 * _MAX_TOOLS
"""More tools of one page are not looked at."""
_MAX_PAGES = 50
_MAX_DESCRIPTION = 4_000
_MAX_SCHEMA = 100_000
_MAX_PICTURE_BYTES = 20_000_000
_MAX_REASON = 300
_TOOL_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_TOOL_LIST = mcp_types.ListToolsResult
_RESULT: TypeAdapter[Any] = TypeAdapter(
    mcp_types.CallToolResult | mcp_types.InputRequiredResult
)

# Without a handler, Python would print the package's messages over the screen.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False


class ServerConnection:
    """A `ToolProvider` of the tools of one MCP server.

    `start`, `wait_until_ready`, then `definitions` and `call`; `close` at the end.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.left_out: tuple[str, ...] = ()
        """Why tools of the server are not offered, one line each."""
        self._definitions: tuple[ToolDefinition, ...] = ()
        self._wrong_tools: list[str] = []
        """Those of the last list, as lines of `left_out`."""
        self._problem = ""
        self._stderr = StderrTail()
        self._loop = asyncio.new_event_loop()
        self._scope: anyio.CancelScope | None = None
        self._is_closing = False
        self._client: Client | None = None
        self._has_changed = asyncio.Event()
        self._is_ready = threading.Event()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"localspec-tools-{settings.name}", daemon=True
        )

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def problem(self) -> str:
        """Why the connection ended; empty while it holds."""
        return self._problem

    def stderr_lines(self) -> tuple[str, ...]:
        """The last lines of a server that is a process."""
        return self._stderr.lines()

    def definitions(self) -> Sequence[ToolDefinition]:
        return self._definitions

    def start(self) -> None:
        """Begin to connect, and return at once."""
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Wait until the tools are listed. Raises ToolServerError.

        It takes at most the timeout of the settings.
        """
        limit = time.monotonic() + self.settings.timeout + _CLOSE_SECONDS
        while not self._is_ready.wait(_POLL_SECONDS):
            if self._has_ended.is_set() or time.monotonic() > limit:
                break
        if self._has_ended.is_set() or not self._is_ready.is_set():
            raise self.make_error()

    def make_error(self) -> ToolServerError:
        """The error that explains the end of the connection, with its last lines."""
        reason = self._problem or "it does not answer"
        hint = f"Try it: localspec tools list {self.name}"
        if self.stderr_lines():
            hint = f"It wrote: {self.stderr_lines()[-1]}"
        error = ToolServerError(f"The server {self.name}: {reason}.", hint)
        error.detail = self.stderr_lines()
        return error

    def call(
        self, tool: str, arguments: Mapping[str, Any], stop: StopSignal
    ) -> ToolResult:
        if self._has_ended.is_set():
            return self._describe_end()
        coroutine = self._call(tool, dict(arguments))
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # the loop was closed just now
            coroutine.close()
            return self._describe_end()
        limit = time.monotonic() + self.settings.timeout + _GRACE_SECONDS
        while True:
            try:
                return future.result(timeout=_POLL_SECONDS)
            except TimeoutError:
                pass
            except CancelledError:
                return self._describe_end()
            if stop.is_set():
                # `mcp` sends the server a notice that the call is cancelled.
                future.cancel()
                return make_error("The call was stopped by the user.")
            if time.monotonic() > limit:
                future.cancel()
                return self._describe_timeout()
            if self._has_ended.is_set() and not future.done():
                future.cancel()
                return self._describe_end()

    def close(self) -> None:
        """End the connection and the process. It may be called more than once."""
        self._is_closing = True
        if self._thread.ident is None:
            self._loop.close()
            self._has_ended.set()
            return
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            return  # the loop has ended
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    def _describe_end(self) -> ToolResult:
        reason = self._problem or "it was closed"
        return _fail(f"The server {self.name} is not connected: {reason}.")

    def _describe_timeout(self) -> ToolResult:
        return _fail(f"{self.name} did not answer in {self._format_timeout()}.")

    def _format_timeout(self) -> str:
        return f"{self.settings.timeout:g} seconds"

    # --- on the thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # a hostile server can raise anything in `mcp`
            self._end(_explain(error))
        finally:
            self._end("it was closed")
            self._has_ended.set()
            self._is_ready.set()

    def _end(self, reason: str) -> None:
        """Keep the first reason, which is the cause of the others."""
        if not self._problem:
            self._problem = reason

    def _on_stream_end(self, reason: str) -> None:
        """The process sends no more: the connection has ended."""
        if not self._is_closing:
            self._end(reason)
        self._cancel()

    async def _serve(self) -> None:
        """Connect, list the tools, and list them again when they change."""
        limit = anyio.current_time() + self.settings.timeout
        with anyio.CancelScope(deadline=limit) as scope:
            self._scope = scope
            if self._is_closing:
                return
            async with self._make_client() as client:
                self._client = client
                try:
                    await self._list_tools(client)
                except Exception as error:  # as in `_run`
                    # The process is ended next, which would be taken for the reason.
                    self._end(_explain(error))
                    raise
                scope.deadline = math.inf
                self._is_ready.set()
                while True:
                    await self._has_changed.wait()
                    self._has_changed.clear()
                    await self._list_again(client)
                    await anyio.sleep(_RELIST_SECONDS)
        if not self._is_closing and not self._is_ready.is_set():
            self._end(f"it did not answer in {self._format_timeout()}")

    def _make_client(self) -> Client:
        streams: AbstractAsyncContextManager[Streams]
        if self.settings.url:
            streams = transports.open_http_streams(self.settings)
        else:
            streams = transports.open_process_streams(
                self.settings, self._stderr, self._on_stream_end
            )
        return Client(
            self._filter_streams(streams),
            client_info=mcp_types.Implementation(name="localspec", version=__version__),
            message_handler=self._receive_message,
            cache=None,
        )

    @asynccontextmanager
    async def _filter_streams(
        self, streams: AbstractAsyncContextManager[Streams]
    ) -> AsyncIterator[Streams]:
        async with streams as (received, to_send):
            yield FilteredStream(received, self._drop_wrong_tools), to_send

    def _drop_wrong_tools(self, received: SessionMessage | Exception) -> None:
        """Take the wrong tools out of a list, which `mcp` would refuse as a whole."""
        if self._client is None or not isinstance(received, SessionMessage):
            return
        if not isinstance(received.message, mcp_types.JSONRPCResponse):
            return
        result = received.message.result
        tools = result.get("tools")
        if not isinstance(tools, list):
            return
        del tools[_MAX_LIST:]
        faults = _find_wrong_tools(result, self._client.protocol_version)
        result["tools"] = [
            tool for number, tool in enumerate(tools) if number not in faults
        ]
        lines = [
            f"{_name_tool(tools[number], number)} is not as the protocol has it: {fault}"
            for number, fault in faults.items()
        ]
        self._wrong_tools = lines[:_MAX_TOOLS]

    async def _receive_message(self, message: object) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._has_changed.set()

    async def _list_again(self, client: Client) -> None:
        """Keep the list that is there if the server fails to give another."""
        try:
            with anyio.fail_after(self.settings.timeout):
                await self._list_tools(client)
        except (MCPError, TimeoutError, ValueError):
            return

    async def _list_tools(self, client: Client) -> None:
        found: dict[str, ToolDefinition] = {}
        left_out: list[str] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            self._wrong_tools = []
            page = await client.list_tools(cursor=cursor)
            left_out += self._wrong_tools
            for tool in page.tools:
                problem = self._find_problem(tool, found)
                if problem:
                    left_out.append(problem)
                else:
                    found[tool.name] = self._define(tool)
            cursor = page.next_cursor
            if not cursor or len(found) >= _MAX_TOOLS:
                break
        self.left_out = tuple(left_out[:_MAX_TOOLS])
        self._definitions = tuple(found.values())

    def _find_problem(self, tool: Any, found: Mapping[str, ToolDefinition]) -> str:
        """Why a tool is not offered; empty if it is."""
        shown = sanitize(tool.name, multiline=False)[:60]
        if _TOOL_NAME.fullmatch(tool.name) is None:
            return f"{shown!r} is no name of a tool"
        if tool.name in found:
            return f"{shown} is there twice"
        if len(found) >= _MAX_TOOLS:
            return f"{shown} is more than {_MAX_TOOLS} tools"
        try:
            n_characters = len(json.dumps(tool.input_schema))
        except (ValueError, RecursionError):
            n_characters = _MAX_SCHEMA + 1
        if n_characters > _MAX_SCHEMA:
            return f"{shown} has arguments of more than {_MAX_SCHEMA:,} characters"
        return ""

    def _define(self, tool: Any) -> ToolDefinition:
        return ToolDefinition(
            provider=self.name,
            name=tool.name,
            description=(tool.description or "")[:_MAX_DESCRIPTION],
            schema=tool.input_schema,
            claims=_read_claims(tool.annotations),
            origin=self.settings.address,
        )

    async def _call(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool.

        `Client.call_tool` would also check the result by the schema that the server has
        for it. A pattern of that schema can keep Python's regular expressions busy, and
        with them the whole program, for as long as the server likes.
        """
        assert self._client is not None
        params = mcp_types.CallToolRequestParams(name=tool, arguments=arguments)
        request = mcp_types.CallToolRequest(params=params)
        try:
            with anyio.fail_after(self.settings.timeout):
                result = await self._client.session.send_request(request, _RESULT)
            return convert_result(result)
        except TimeoutError:
            return self._describe_timeout()
        except Exception as error:  # as in `_run`
            if self._problem:
                return self._describe_end()
            return make_error(f"The call failed: {_explain(error)}.")


def _fail(text: str) -> ToolResult:
    """The result of a call when the server fails, which a person is told, too."""
    return replace(make_error(text), failure=text)


def _read_claims(annotations: Any) -> tuple[str, ...]:
    claims: list[str] = []
    if annotations is None:
        return ()
    if annotations.read_only_hint:
        claims.append("read-only")
    elif annotations.destructive_hint:
        claims.append("can destroy")
    if annotations.open_world_hint:
        claims.append("reaches other computers")
    return tuple(claims)


def _explain(error: BaseException) -> str:
    """The cause in a line, without a stop at its end."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, LocalspecError):
        text = error.message
    elif isinstance(error, MCPError):
        text = error.error.message
    elif isinstance(error, ValidationError):
        text = f"what it sent is not as the protocol has it: {_find_place(error)}"
    elif isinstance(error, ValueError):
        text = "what it sent is not as the protocol has it"
    else:
        text = str(error) or type(error).__name__
    line = sanitize(text, multiline=False).strip().rstrip(".")
    return line[:_MAX_REASON] or type(error).__name__


def _find_place(error: ValidationError) -> str:
    """The first fault, such as `capabilities.tools: Input should be an object`."""
    first = error.errors(include_url=False, include_input=False)[0]
    return _describe_fault(first["loc"], first["msg"])


def _describe_fault(place: Sequence[int | str], message: str) -> str:
    """A line such as `inputSchema.type: Input should be 'object'`."""
    path = ".".join(map(str, place))
    line = f"{path}: {message}" if path else message
    return sanitize(line, multiline=False)[:_MAX_REASON]


def _find_wrong_tools(result: Mapping[str, Any], version: str) -> dict[int, str]:
    """By its number in the list: the first fault of each tool that `mcp` refuses.

    `mcp` holds a list to the version of the protocol, and to its own types.
    """
    faults: dict[int, str] = {}
    for model in (SERVER_RESULTS.get(("tools/list", version)), _TOOL_LIST):
        if model is None:
            continue
        try:
            TypeAdapter(model).validate_python(result, by_name=False)
        except ValidationError as error:
            for found in error.errors(include_url=False, include_input=False):
                match found["loc"]:
                    case ("tools", int(number), *place):
                        fault = _describe_fault(place, found["msg"])
                        faults.setdefault(number, fault)
    return dict(sorted(faults.items()))


def _name_tool(tool: Any, number: int) -> str:
    """Its name, or its place in the list, which begins at 1."""
    name = tool.get("name") if isinstance(tool, dict) else None
    if isinstance(name, str) and name:
        return sanitize(name, multiline=False)[:60]
    return f"tool {number + 1}"


def convert_result(result: Any) -> ToolResult:
    """What the server returned, as text and pictures."""
    if not isinstance(result, mcp_types.CallToolResult):
        return make_error("The server asks for input, which localspec does not give.")
    texts: list[str] = []
    pictures: list[ResultPicture] = []
    for block in result.content:
        if isinstance(block, mcp_types.ImageContent):
            picture = _read_picture(block)
            if picture is not None:
                pictures.append(picture)
        texts.append(_describe_block(block))
    if not result.content and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n".join(texts)
    if result.is_error:
        return make_error(text or "The tool failed and did not say why.")
    return make_result(text, pictures)


def _read_picture(block: Any) -> ResultPicture | None:
    if len(block.data) > _MAX_PICTURE_BYTES * 4 // 3:
        return None
    try:
        data = base64.b64decode(block.data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return ResultPicture(block.mime_type, data)


def _describe_block(block: Any) -> str:
    if isinstance(block, mcp_types.TextContent):
        return str(block.text)
    if isinstance(block, mcp_types.ImageContent | mcp_types.AudioContent):
        size = count(len(block.data) * 3 // 4, "byte")
        return f"[{block.mime_type[:60]}, {size}]"
    if isinstance(block, mcp_types.ResourceLink):
        return f"[resource {str(block.uri)[:500]}]"
    if isinstance(block, mcp_types.EmbeddedResource):
        resource = block.resource
        if isinstance(resource, mcp_types.TextResourceContents):
            return str(resource.text)
        return f"[resource {str(resource.uri)[:500]}, not a text]"
    return "[something else]"
