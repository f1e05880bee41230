"""A model's own chat template, rendered in a process that is killed when it takes too long."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from localspec import children
from localspec.protocol.events import Notice
from localspec.protocol.wire import Message, Rendered

LONGEST_SOURCE = 1024 * 1024
"""Characters; the largest known template has 17,000."""
READY = b"ready\n"
"""What the process says once, when everything is imported."""
_LONGEST_ANSWER = 128 * 1024 * 1024
"""Bytes of a line: what a template may make at most, with every character escaped."""
_TRIES = 2
"""A process may be killed by others too; a template that ends two is given up."""


def _command() -> list[str]:
    parent = str(children.parent_of_child())
    return [sys.executable, "-P", "-m", "localspec.models.chat.template_child", parent]


class _Late(Exception):  # noqa: N818  not an error
    """The process was killed because it took too long; says for what."""


class Renderer:
    """Renders one template, in a process that lives from one answer to the next.

    What fails once is given up: a fallback is used from then on, with a notice.  Calls must not
    overlap.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str],
        seconds: float = 2.0,
        patience: float = 30.0,
    ) -> None:
        self._source, self._tokens = source, dict(tokens)
        self._seconds = seconds
        """That one prompt may take."""
        self._patience = patience
        """Seconds that the process may take to start."""
        self._given_up = ""
        """Why, once it has been."""
        self._process: subprocess.Popen[bytes] | None = None
        self._said: io.BufferedReader | None = None
        self._ready = False
        self._start()

    def render(self, messages: Sequence[Message], think: bool | None = None) -> Rendered:
        """The prompt; by a fallback, with a notice that says why, where the template fails."""
        tries = _TRIES
        while not self._given_up:
            try:
                return self._ask(messages, think)
            except _Late as late:
                self._given_up = str(late)
            except (OSError, ValueError, KeyError, TypeError):
                tries -= 1
                if not tries:
                    self._given_up = "ended its process: it may need too much memory"
                self._end()
                self._start()
        self._end()
        return self._fallen_back(messages)

    def close(self) -> None:
        """End the process."""
        self._given_up = self._given_up or "is not in use any more"
        self._end()

    # --- one prompt ----------------------------------------------------------------------

    def _ask(self, messages: Sequence[Message], think: bool | None) -> Rendered:
        """Raises _Late, or OSError or ValueError where the process is gone or says nonsense."""
        if not self._ready:
            with self._killing_after(self._patience, "cannot be run: no process for it starts"):
                self._ready = self._line(len(READY)) == READY
        asked = {
            "source": self._source,
            "tokens": self._tokens,
            "messages": [{"role": one.role, "content": one.content} for one in messages],
            "think": think,
        }
        if not self._ready:
            raise ValueError("it said something else")
        with self._killing_after(self._seconds, f"took longer than {self._seconds:g} s"):
            self._write(json.dumps(asked, separators=(",", ":")).encode() + b"\n")
            line = self._line(_LONGEST_ANSWER)
        told = json.loads(line)
        notices = tuple(Notice(**notice) for notice in told["notices"])
        return Rendered(str(told["text"]), notices, str(told["template"]))

    @contextmanager
    def _killing_after(self, seconds: float, why: str) -> Iterator[None]:
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
                raise _Late(why) from None
            raise
        finally:
            timer.cancel()

    def _line(self, longest: int) -> bytes:
        assert self._said is not None
        line = self._said.readline(longest)
        if not line.endswith(b"\n"):
            raise ValueError("the process ended, or said too much")
        return line

    def _write(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        rest = memoryview(data)
        while rest:
            rest = rest[self._process.stdin.write(rest) or 0 :]

    def _fallen_back(self, messages: Sequence[Message]) -> Rendered:
        # Late: jinja2 is needed in this process only here.
        from localspec.models.template import fallback  # noqa: PLC0415

        why = f"The model's chat template {self._given_up}"
        return fallback(messages, self._tokens, because=why)

    # --- the process ---------------------------------------------------------------------

    def _start(self) -> None:
        self._ready = False
        with suppress(OSError):
            self._process = children.start(_command())
            assert self._process.stdout is not None
            self._said = io.BufferedReader(self._process.stdout)  # type: ignore[arg-type]

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, self._said, process.stderr):
            if pipe is not None:
                pipe.close()
