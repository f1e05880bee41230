"""Streams to an MCP server: a child process, or an address that speaks HTTP.

The package `mcp` has a transport for child processes too. This one differs in what a
hostile server can do: a message has a greatest length, messages that come too fast are
read slowly, and what the server writes to stderr is kept in a few lines of memory.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
import mcp_types
from anyio.abc import Process
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from localspec.errors import ToolServerError
from localspec.sanitize import sanitize
from localspec.tools.server_settings import ServerSettings

Streams = tuple[Any, Any]
"""What is received, and what is sent; `mcp` has its types."""

MAX_MESSAGE_BYTES = 16_000_000
_MAX_WRONG_LINES = 100
_MAX_MESSAGES_A_SECOND = 500
_READ_BYTES = 65_536
_STDERR_LINES = 20
_STDERR_LINE = 500
_EXIT_SECONDS = 1.0
"""A server may take this long after its stdin is closed, and again after SIGTERM."""
_MORE_VARIABLES = ("LANG", "LC_ALL", "TMPDIR")


class FilteredStream:
    """A stream of received messages, each of which `change` may change before `mcp`.

    It has what `mcp` uses of a stream.
    """

    def __init__(self, stream: Any, change: Callable[[Any], None]) -> None:
        self._stream = stream
        self._change = change

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        message = await self._stream.receive()
        self._change(message)
        return message

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> FilteredStream:
        return self

    async def __anext__(self) -> Any:
        message = await anext(self._stream)
        self._change(message)
        return message

    async def __aenter__(self) -> FilteredStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *reason: Any) -> bool | None:
        is_handled: bool | None = await self._stream.__aexit__(*reason)
        return is_handled


class StderrTail:
    """The last lines that a server wrote to stderr, for a person."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_STDERR_LINES)
        self._begun = b""

    def add(self, data: bytes) -> None:
        *whole, self._begun = (self._begun + data).split(b"\n")
        # A line without an end must not grow.
        self._begun = self._begun[:_STDERR_LINE]
        for line in whole:
            self._add_line(line)

    def _add_line(self, line: bytes) -> None:
        text = line[:_STDERR_LINE].decode("utf-8", "replace")
        shown = sanitize(text, multiline=False).strip()
        if shown:
            self._lines.append(shown)

    def lines(self) -> tuple[str, ...]:
        found = tuple(self._lines)
        rest = self._begun.decode("utf-8", "replace")
        last = sanitize(rest, multiline=False).strip()
        return (*found, last) if last else found


@asynccontextmanager
async def open_process_streams(
    settings: ServerSettings, stderr: StderrTail, on_end: Callable[[str], None]
) -> AsyncIterator[Streams]:
    """Start the server. `on_end` is called with the reason when it sends no more.

    Raises ToolServerError if it cannot be started.
    """
    process = await _start_process(settings)
    received_in, received = anyio.create_memory_object_stream[Any](0)
    to_send_in, to_send = anyio.create_memory_object_stream[Any](0)

    async def read_stdout() -> None:
        reason = "it ended"
        async with received_in:
            try:
                async for message in _read_messages(process):
                    await received_in.send(message)
            except _RefusedOutputError as error:
                reason = str(error)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
                pass  # one of the two sides closed its end
            # Calls that wait fail when the stream is closed; the reason comes first.
            on_end(reason)

    async def read_stderr() -> None:
        assert process.stderr is not None
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            async for data in process.stderr:
                stderr.add(data)

    async def write_stdin() -> None:
        assert process.stdin is not None
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            async with to_send:
                async for each in to_send:
                    line = each.message.model_dump_json(
                        by_alias=True, exclude_unset=True
                    )
                    await process.stdin.send(f"{line}\n".encode())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read_stdout)
        tasks.start_soon(read_stderr)
        tasks.start_soon(write_stdin)
        try:
            yield received, to_send_in
        finally:
            # Cancelling must not leave the process behind; each wait here is short.
            with anyio.CancelScope(shield=True):
                await _end_process(process)
            tasks.cancel_scope.cancel()
            for stream in (received, to_send_in):
                stream.close()


class _RefusedOutputError(Exception):
    """A server writes what is not read any further."""


async def _start_process(settings: ServerSettings) -> Process:
    environment = get_default_environment()
    for name in _MORE_VARIABLES:
        if name in os.environ:
            environment[name] = os.environ[name]
    environment |= settings.env
    command = shutil.which(settings.command, path=environment.get("PATH"))
    if command is None:
        message = f"There is no program {settings.command!r}."
        hint = "Install it, or correct `command`; its arguments belong to `args`."
        raise ToolServerError(message, hint)
    try:
        return await anyio.open_process(
            [command, *settings.args],
            env=environment,
            cwd=settings.cwd or None,
            start_new_session=os.name == "posix",
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"{settings.command} cannot be started: {reason}."
        raise ToolServerError(message, "Check `command`, `args` and `cwd`.") from error


async def _read_messages(process: Process) -> AsyncIterator[SessionMessage | Exception]:
    """The messages that the server writes, one a line.

    A line that is none is an exception; `mcp` passes it on and goes on. Raises
    _RefusedOutputError for a line without end, and for too many wrong ones.
    """
    assert process.stdout is not None
    chunks: list[bytes] = []
    n_bytes = 0
    n_wrong = 0
    pace = _MessagePace()
    async for data in process.stdout:
        *whole, rest = data.split(b"\n")
        for end in whole:
            line = b"".join([*chunks, end])
            chunks.clear()
            n_bytes = 0
            message = _parse_message(line)
            if message is None:
                n_wrong += 1
                if n_wrong > _MAX_WRONG_LINES:
                    raise _RefusedOutputError("it writes lines that are no messages")
                continue
            await pace.wait()
            yield message
        chunks.append(rest)
        n_bytes += len(rest)
        if n_bytes > MAX_MESSAGE_BYTES:
            megabytes = MAX_MESSAGE_BYTES // 1_000_000
            raise _RefusedOutputError(f"it sent more than {megabytes} MB at once")


def _parse_message(line: bytes) -> SessionMessage | None:
    try:
        parsed = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return None
    return SessionMessage(parsed)


class _MessagePace:
    """Delays messages that come faster than any server has reason to send them."""

    def __init__(self) -> None:
        self._second = 0.0
        self._n_messages = 0

    async def wait(self) -> None:
        now = anyio.current_time()
        if now - self._second >= 1.0:
            self._second = now
            self._n_messages = 0
        self._n_messages += 1
        if self._n_messages > _MAX_MESSAGES_A_SECOND:
            await anyio.sleep(self._second + 1.0 - now)


async def _end_process(process: Process) -> None:
    """Close its stdin, then end it and its children."""
    if process.stdin is not None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            await process.stdin.aclose()
    if not await _wait_for_exit(process):
        _signal_group(process, signal.SIGTERM)
        await _wait_for_exit(process)
    # Children that outlive the server belong to its group.
    _signal_group(process, getattr(signal, "SIGKILL", signal.SIGTERM))
    await _wait_for_exit(process)
    # anyio closes a pipe only when the server has; a survivor may hold it for ever.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with suppress(PermissionError):
            transport.close()


async def _wait_for_exit(process: Process) -> bool:
    """Whether it exits in time.

    `process.wait` would also wait for the pipes' ends, which its children may hold.
    """
    with anyio.move_on_after(_EXIT_SECONDS):
        while process.returncode is None:
            await anyio.sleep(0.01)
        return True
    return False


def _signal_group(process: Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(process.pid, number)
        elif process.returncode is None:
            process.kill()


@asynccontextmanager
async def open_http_streams(settings: ServerSettings) -> AsyncIterator[Streams]:
    """Reach a server that speaks streamable HTTP."""
    client = httpx2.AsyncClient(
        # A compressed body would be longer than the bytes that are counted.
        headers={**settings.headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(settings.timeout),
        event_hooks={"response": [_limit_body]},
    )
    async with client:
        streams = streamable_http_client(settings.url, http_client=client)
        async with streams as (received, to_send):
            yield received, to_send


async def _limit_body(response: Any) -> None:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise httpx2.DecodingError("the server compresses what it sends")
    response.stream = _LimitedBody(response.stream)


class _LimitedBody(httpx2.AsyncByteStream):
    """The body of a response, which ends with an error when it is too long.

    A stream of events is one body for hours; each event has its own limit in `mcp`.
    """

    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        n_bytes = 0
        async for data in self._body:
            # The bytes of an event count only until its end.
            is_event_end = b"\n\n" in data or b"\r\n\r\n" in data
            n_bytes = 0 if is_event_end else n_bytes + len(data)
            if n_bytes > MAX_MESSAGE_BYTES:
                raise httpx2.ReadError("the server sent too much at once")
            yield data

    async def aclose(self) -> None:
        await self._body.aclose()
