"""The probe's child process from outside: its pipes, its patience, its end."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from localspec import children
from localspec.clean import clean


class ProbeError(Exception):
    """llama.cpp cannot be asked, or does not take the model; the text says why."""


class ProbeProcess:
    """The process, its pipes, and the two threads that empty them."""

    def __init__(self, command: Sequence[str], seconds: float) -> None:
        self.dead = False
        self._number = 0
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._words = b""
        """The last it said on stderr."""
        try:
            self._process = children.start(command)
        except OSError as error:
            raise ProbeError(f"no child process: {error.strerror}") from error
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._hear, self._drain)
        ]
        for thread in self._threads:
            thread.start()
        self._next(seconds)

    def ask(self, body: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Raises ProbeError where it dies or takes longer; it is gone then."""
        self._number += 1
        line = json.dumps({"id": self._number, **body}, separators=(",", ":"))
        assert self._process.stdin is not None
        with suppress(OSError):  # a process that is gone says so on its other pipe
            rest = memoryview(line.encode() + b"\n")
            while rest:
                rest = rest[self._process.stdin.write(rest) or 0 :]
        return self._next(seconds)

    def end(self) -> None:
        self.dead = True
        children.kill(self._process, grace=1)
        for thread in self._threads:
            thread.join(timeout=1)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _next(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            self._process.kill()
            self.end()
            raise ProbeError(f"llama.cpp gave no answer within {seconds:g} s") from None
        if not line.endswith(b"\n"):
            self.end()
            raise ProbeError(f"llama.cpp died of it: {self._last_words()}")
        told: Any = None
        with suppress(ValueError):
            told = json.loads(line)
        if not isinstance(told, dict) or told.get("re") != self._number:
            self._process.kill()
            self.end()
            raise ProbeError("its answer is none")
        return told

    def _last_words(self) -> str:
        lines = self._words.decode("utf-8", "replace").strip().splitlines()
        said = [line for line in lines if "GGML_ASSERT" in line or "Error" in line] or lines[-1:]
        return clean(said[-1] if said else f"exit code {self._process.returncode}", multiline=False)

    def _hear(self) -> None:
        """A line without its end is the last: the process is gone."""
        assert self._process.stdout is not None
        with suppress(OSError, ValueError):
            pieces = b""
            while part := self._process.stdout.read(65536):
                *lines, pieces = (pieces + part).split(b"\n")
                for line in lines:
                    self._answers.put(line + b"\n")
        self._answers.put(b"")

    def _drain(self) -> None:
        assert self._process.stderr is not None
        with suppress(OSError, ValueError):
            while part := self._process.stderr.read(65536):
                self._words = (self._words + part)[-8192:]
