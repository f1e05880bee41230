"""A person at a terminal: types to the real command, and reads what it shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.cli.command import TIMEOUT, command, environment

_PASTE = re.compile(rb"\x1b\[\?2004[hl]\r?")
"""Readline asks the terminal to mark what is pasted."""

_OWNER = (
    "import fcntl, os, sys, termios;"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Signals of the terminal's keys go to whom it belongs."""


class Dialogue:
    """One command on a pseudo-terminal of its own, which it controls."""

    def __init__(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 400, 0, 0))
        settings = {"TERM": "xterm-256color", "INPUTRC": os.devnull} | dict(env or {})
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, *command(*arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(settings),
            start_new_session=True,
        )
        os.close(theirs)
        self.raw = b""
        self._read = 0

    @property
    def seen(self) -> str:
        """All that was shown so far, without readline's own request."""
        return _PASTE.sub(b"", self.raw).replace(b"\r\n", b"\n").decode(errors="replace")

    def until(self, words: str) -> str:
        """Wait until these words are shown; all that came since the last time."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            at = self.seen.find(words, self._read)
            if at >= 0:
                new = self.seen[self._read : at + len(words)]
                self._read = at + len(words)
                return new
            if not self._more(deadline):
                raise AssertionError(
                    f"{words!r} never came; since then: {self.seen[self._read :]!r}"
                )

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def press(self, key: str) -> None:
        """Type a key when the prompt really waits: Python's readline misses a signal that comes
        between what it shows and when it waits, until the next key."""
        self._at_rest()
        self.type(key)

    def _at_rest(self) -> None:
        deadline = time.monotonic() + TIMEOUT
        while psutil.Process(self._process.pid).status() != psutil.STATUS_SLEEPING:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def line(self, text: str, then: str = "\n> ") -> str:
        """Type a line, and wait for the next prompt; what came between."""
        self.type(f"{text}\r")
        self.until("\n")
        return self.until(then)

    def paste(self, text: str) -> None:
        """As a terminal does that marks what is pasted."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def engine(self) -> psutil.Process:
        """The process that has the weights."""
        (found,) = psutil.Process(self._process.pid).children()
        return found

    def signal(self, number: signal.Signals) -> None:
        self._at_rest()
        self._process.send_signal(number)

    def kill(self) -> None:
        """As a power cut does."""
        self._process.kill()

    def hang_up(self) -> None:
        """The terminal closes."""
        os.close(self._ours)
        self._ours = -1

    def end(self) -> int:
        """Wait until it ends; its exit code."""
        deadline = time.monotonic() + TIMEOUT
        while self._ours >= 0 and self._more(deadline):
            pass
        return self._process.wait(TIMEOUT)

    def echoes(self) -> bool:
        """Whether the terminal is as a shell wants it."""
        return bool(termios.tcgetattr(self._ours)[3] & termios.ECHO)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._ours >= 0:
            os.close(self._ours)

    def __enter__(self) -> Dialogue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _more(self, deadline: float) -> bool:
        """Read what comes next; False where nothing will."""
        while time.monotonic() < deadline:
            if select.select([self._ours], [], [], 0.2)[0]:
                try:
                    part = os.read(self._ours, 65536)
                except OSError:  # Linux says so when the other side is closed
                    return False
                self.raw += part
                return bool(part)
        return False
