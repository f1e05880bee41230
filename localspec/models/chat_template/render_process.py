"""Renders a model's chat template in a child process with a time limit."""

from __future__ import annotations

import io
import json
import mmap
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from localspec import child_process
from localspec.protocol.events import Notice
from localspec.protocol.wire import ChatMessage, RenderResult

MAX_SOURCE_CHARS = 1024 * 1024
"""The largest known template has 17,000."""
READY_LINE = b"ready\n"
"""Sent once by the child, after its imports."""
_MAX_ANSWER_BYTES = 128 * 1024 * 1024
"""One line: a prompt of the maximum length with every character escaped."""
_MAX_METADATA_BYTES = 32 * 1024 * 1024
"""Of a GGUF; those of a vocabulary of 256,000 take 12 MiB."""
_MAX_ATTEMPTS = 2
"""The system may kill one child; after two, the template counts as failed."""


def _command() -> list[str]:
    parent = str(child_process.parent_pid_for_child())
    return [sys.executable, "-P", "-m", "localspec.models.chat_template.render_child", parent]


def start_early(model: Path) -> None:
    """If the model has a chat template, start its renderer's child, which takes 0.15 s."""
    with (
        suppress(OSError, ValueError),  # the loading says what is wrong
        model.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        if data.find(b"tokenizer.chat_template", 0, _MAX_METADATA_BYTES) >= 0:
            child_process.start_early(_command())


class _RenderTimeoutError(Exception):
    """The child was killed after a time limit; the message ends a sentence about the template."""


class TemplateRenderer:
    """Renders one template, in a child that is kept between calls.

    After a failure, a built-in template is used from then on, with a notice.  Calls must not
    overlap.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        timeout: float = 2.0,
        start_timeout: float = 30.0,
    ) -> None:
        self._source, self._special_tokens = source, dict(special_tokens)
        self._timeout = timeout
        """Seconds for one prompt."""
        self._start_timeout = start_timeout
        """Seconds for the child to start."""
        self._failure = ""
        """Why the template is not used any more; empty while it works."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stdout: io.BufferedReader | None = None
        self._ready = False
        self._start()

    def render(
        self, messages: Sequence[ChatMessage], enable_thinking: bool | None = None, tools: str = ""
    ) -> RenderResult:
        """The prompt; if the template fails, by a built-in one, with the reason in a notice."""
        attempts_left = _MAX_ATTEMPTS
        while not self._failure:
            try:
                return self._request(messages, enable_thinking, tools)
            except _RenderTimeoutError as timeout:
                self._failure = str(timeout)
            except (OSError, ValueError, KeyError, TypeError):
                attempts_left -= 1
                if not attempts_left:
                    self._failure = "crashed: it may need too much memory"
                self._stop()
                self._start()
        self._stop()
        return self._render_builtin(messages)

    def close(self) -> None:
        self._failure = self._failure or "is closed"
        self._stop()

    def _request(
        self, messages: Sequence[ChatMessage], enable_thinking: bool | None, tools: str
    ) -> RenderResult:
        """Raises _RenderTimeoutError; OSError or ValueError if the child exited or sent garbage."""
        if not self._ready:
            with self._kill_after(self._start_timeout, "cannot run: its process does not start"):
                self._ready = self._read_line(len(READY_LINE)) == READY_LINE
        if not self._ready:
            raise ValueError("unexpected first line")
        request = {
            "source": self._source,
            "tokens": self._special_tokens,
            "messages": [asdict(replace(message, tokens=())) for message in messages],
            "think": enable_thinking,
            "tools": tools,
        }
        with self._kill_after(self._timeout, f"took longer than {self._timeout:g} s"):
            self._write(json.dumps(request, separators=(",", ":")).encode() + b"\n")
            line = self._read_line(_MAX_ANSWER_BYTES)
        answer = json.loads(line)
        notices = tuple(Notice(**notice) for notice in answer["notices"])
        return RenderResult(str(answer["text"]), notices, str(answer["template"]))

    @contextmanager
    def _kill_after(self, seconds: float, reason: str) -> Iterator[None]:
        """Killing the child ends a blocked read, on every system."""
        process, timed_out = self._process, threading.Event()
        if process is None:
            raise OSError("no process")

        def kill() -> None:
            timed_out.set()
            process.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, ValueError):
            if timed_out.is_set():
                raise _RenderTimeoutError(reason) from None
            raise
        finally:
            timer.cancel()

    def _read_line(self, max_bytes: int) -> bytes:
        assert self._stdout is not None
        line = self._stdout.readline(max_bytes)
        if not line.endswith(b"\n"):
            raise ValueError("the process ended, or its answer is too long")
        return line

    def _write(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        rest = memoryview(data)
        while rest:
            rest = rest[self._process.stdin.write(rest) or 0 :]

    def _render_builtin(self, messages: Sequence[ChatMessage]) -> RenderResult:
        # In this process, jinja2 is needed only here.
        from localspec.models.chat_template.jinja_render import render_builtin  # noqa: PLC0415

        reason = f"The model's chat template {self._failure}"
        return render_builtin(messages, self._special_tokens, reason=reason)

    def _start(self) -> None:
        self._ready = False
        with suppress(OSError):
            self._process = child_process.start(_command())
            assert self._process.stdout is not None
            self._stdout = io.BufferedReader(self._process.stdout)  # type: ignore[arg-type]

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, self._stdout, process.stderr):
            if pipe is not None:
                pipe.close()
