"""A model's own chat template, rendered in a process that is killed when it takes too long."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from localspec import child_process
from localspec.protocol.events import Notice
from localspec.protocol.wire import ChatMessage, RenderResult

MAX_SOURCE_CHARS = 1024 * 1024
"""Characters; the largest known template has 17,000."""
READY_LINE = b"ready\n"
"""What the process says once, when everything is imported."""
_MAX_ANSWER_BYTES = 128 * 1024 * 1024
"""Bytes of a line: what a template may make at most, with every character escaped."""
_MAX_ATTEMPTS = 2
"""A process may be killed by others too; a template that ends two is given up."""


def _command() -> list[str]:
    parent = str(child_process.parent_pid_for_child())
    return [sys.executable, "-P", "-m", "localspec.models.chat_template.render_child", parent]


class _RenderTimeoutError(Exception):
    """The process was killed because it took too long; says for what."""


class TemplateRenderer:
    """Renders one template, in a process that lives from one answer to the next.

    What fails once is given up: a fallback is used from then on, with a notice.  Calls must not
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
        """That one prompt may take."""
        self._start_timeout = start_timeout
        """Seconds that the process may take to start."""
        self._failure = ""
        """Why, once it has been."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stdout: io.BufferedReader | None = None
        self._ready = False
        self._start()

    def render(
        self, messages: Sequence[ChatMessage], enable_thinking: bool | None = None
    ) -> RenderResult:
        """The prompt; by a fallback, with a notice that says why, where the template fails."""
        tries = _MAX_ATTEMPTS
        while not self._failure:
            try:
                return self._request(messages, enable_thinking)
            except _RenderTimeoutError as late:
                self._failure = str(late)
            except (OSError, ValueError, KeyError, TypeError):
                tries -= 1
                if not tries:
                    self._failure = "ended its process: it may need too much memory"
                self._stop()
                self._start()
        self._stop()
        return self._render_builtin(messages)

    def close(self) -> None:
        """End the process."""
        self._failure = self._failure or "is not in use any more"
        self._stop()

    # --- one prompt ----------------------------------------------------------------------

    def _request(
        self, messages: Sequence[ChatMessage], enable_thinking: bool | None
    ) -> RenderResult:
        """Raises _Late, or OSError or ValueError where the process is gone or says nonsense."""
        if not self._ready:
            with self._kill_after(self._start_timeout, "cannot be run: no process for it starts"):
                self._ready = self._read_line(len(READY_LINE)) == READY_LINE
        asked = {
            "source": self._source,
            "tokens": self._special_tokens,
            "messages": [{"role": one.role, "content": one.content} for one in messages],
            "think": enable_thinking,
        }
        if not self._ready:
            raise ValueError("it said something else")
        with self._kill_after(self._timeout, f"took longer than {self._timeout:g} s"):
            self._write(json.dumps(asked, separators=(",", ":")).encode() + b"\n")
            line = self._read_line(_MAX_ANSWER_BYTES)
        told = json.loads(line)
        notices = tuple(Notice(**notice) for notice in told["notices"])
        return RenderResult(str(told["text"]), notices, str(told["template"]))

    @contextmanager
    def _kill_after(self, seconds: float, reason: str) -> Iterator[None]:
        """Reading from a process that was killed ends, on every system."""
        process, late = self._process, threading.Event()
        if process is None:
            raise OSError("no process")

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, ValueError):
            if late.is_set():
                raise _RenderTimeoutError(reason) from None
            raise
        finally:
            timer.cancel()

    def _read_line(self, max_bytes: int) -> bytes:
        assert self._stdout is not None
        line = self._stdout.readline(max_bytes)
        if not line.endswith(b"\n"):
            raise ValueError("the process ended, or said too much")
        return line

    def _write(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        rest = memoryview(data)
        while rest:
            rest = rest[self._process.stdin.write(rest) or 0 :]

    def _render_builtin(self, messages: Sequence[ChatMessage]) -> RenderResult:
        # Late: jinja2 is needed in this process only here.
        from localspec.models.chat_template.jinja_render import render_builtin  # noqa: PLC0415

        why = f"The model's chat template {self._failure}"
        return render_builtin(messages, self._special_tokens, reason=why)

    # --- the process ---------------------------------------------------------------------

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
