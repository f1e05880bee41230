"""A person at a terminal: types lines to the real command, and reads what it shows."""

import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.support.pty_terminal import Terminal
from tests.support.run_command import TIMEOUT, command, find_engines

_PASTE = re.compile(rb"\x1b\[\?2004[hl]\r?")
"""Readline asks the terminal to mark what is pasted."""


class Dialogue(Terminal):
    """One command on a wide terminal, read line by line."""

    def __init__(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        words: list[str] | None = None,
    ) -> None:
        """`words`: another program, instead of `localspec` with arguments."""
        given = {"INPUTRC": os.devnull} | dict(env or {})
        if words is None:
            words = command(*arguments)
        super().__init__(words, size=(400, 24), env=given, first=True)
        self._read = 0

    @property
    def said(self) -> str:
        """All that was shown so far, without readline's own request."""
        return (
            _PASTE.sub(b"", self.seen).replace(b"\r\n", b"\n").decode(errors="replace")
        )

    def until(self, words: str) -> str:
        """Waits until these words are shown; returns all that came since the last time."""
        deadline = time.monotonic() + TIMEOUT
        with self._came:
            while (at := self.said.find(words, self._read)) < 0:
                new = self.said[self._read :]
                assert time.monotonic() < deadline, (
                    f"{words!r} never came; since then: {new!r}"
                )
                if self.process.poll() is not None:  # what it wrote last is read soon
                    deadline = min(deadline, time.monotonic() + 10)
                self._came.wait(0.05)
        new = self.said[self._read : at + len(words)]
        self._read = at + len(words)
        return new

    def press(self, key: str) -> None:
        """Types a key once the program waits for one.

        Python's readline misses a signal that comes after it has shown the prompt and before
        it waits for a key, until the next key.
        """
        self._at_rest()
        self.type(key)

    def _at_rest(self) -> None:
        deadline = time.monotonic() + TIMEOUT
        while psutil.Process(self.process.pid).status() != psutil.STATUS_SLEEPING:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def line(self, text: str, then: str = "\n> ") -> str:
        self.type(f"{text}\r")
        self.until("\n")
        return self.until(then)

    def paste(self, text: str) -> None:
        """As a terminal does that marks what is pasted."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def engine(self) -> psutil.Process:
        return find_engines(psutil.Process(self.process.pid))[-1]

    def signal(self, number: signal.Signals) -> None:
        self._at_rest()
        self.process.send_signal(number)

    def end(self) -> int:
        code = self.process.wait(TIMEOUT)
        self.read_rest()
        return code
