"""The app in a pseudo-terminal: sends keys and records all bytes."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.run_command import TIMEOUT, been_here, environment

SEQUENCE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\]22;[a-z-]*\x07|\x1b[@-_]")
"""Textual's only OSC is 22, the shape of the mouse pointer."""
FRAME_END = b"\x1b[?2026l"
_MAX_PHRASE_BYTES = 4096
"""More than a phrase on the screen takes, with the sequences in it."""
_DIES_WITH_TERMINAL = 'exec "$@" <"$TTY" >"$TTY" 2>"$TTY"'
"""A session leader without a controlling terminal gets one by opening a terminal."""


class Terminal:
    """A minimal terminal emulator: reads output, types, resizes, closes."""

    def __init__(
        self,
        words: list[str],
        *,
        size: tuple[int, int] = (80, 24),
        env: Mapping[str, str] | None = None,
        answers: bool = False,
        first: bool = False,
        controls: bool = True,
    ) -> None:
        """`answers`: supports synchronized output, and tests see only whole frames.

        `first`: the first start of the app.  `controls`: the kernel signals that it is closed.
        """
        self._ours, theirs = pty.openpty()
        self._answers = answers
        self.resize(*size)
        self.cooked: list[Any] = termios.tcgetattr(theirs)
        self.seen = b""
        if not first:
            been_here(Path({**os.environ, **(env or {})}["LOCALSPEC_DATA_DIR"]))
        self._closed = False
        self._woken, self._wake = os.pipe()
        self._reads = threading.Event()
        self._reads.set()
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)
        controlled = ["sh", "-c", _DIES_WITH_TERMINAL, "sh", *words]
        output = None if controls else theirs
        self.process = subprocess.Popen(
            controlled if controls else words,
            stdin=subprocess.DEVNULL if controls else theirs,
            stdout=output,
            stderr=output,
            env=environment(
                {"TERM": "xterm-256color", "TTY": os.ttyname(theirs)} | dict(env or {})
            ),
            start_new_session=True,
        )
        self._theirs = theirs  # held open, so that its settings can be read at the end
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.close()

    def _drain(self) -> None:
        while True:
            # A blocking read would keep the terminal open when it is closed.
            if self._woken in select.select([self._ours, self._woken], [], [])[0]:
                return
            self._reads.wait()
            with self._came:  # what is read is seen at once: see `read_rest`
                try:
                    part = os.read(self._ours, 65536)
                except OSError:
                    return
                self.seen += part
                self._came.notify_all()
            if not part:
                return
            if self._answers and b"\x1b[?2026$p" in part:
                self.type(b"\x1b[?2026;2$y")

    def stop_reading(self) -> None:
        """Returns when the terminal's buffer is full, so that the process waits."""
        self._reads.clear()
        until = time.monotonic() + TIMEOUT
        last = -1
        n_same = 0
        while n_same < 20 and time.monotonic() < until:
            buffered = fcntl.ioctl(self._ours, termios.FIONREAD, bytes(4))
            (waiting,) = struct.unpack("i", buffered)
            n_same = n_same + 1 if waiting and waiting == last else 0
            last = waiting
            time.sleep(0.02)

    def wait_for(self, found: str | Callable[[], object], since: int = 0) -> int:
        """Waits for a text or a condition; returns the number of bytes written by then."""
        until = time.monotonic() + TIMEOUT
        searched = since
        with self._came:
            while True:
                end = self._whole()
                if callable(found):
                    is_found = bool(found())
                else:
                    is_found = found in self.new_text(searched, end, since=since)
                    searched = end
                if is_found:
                    return end
                self._came.wait(0.05)
                if time.monotonic() > until:
                    raise AssertionError(
                        f"no {found}: {text(self.seen[since:])[-4000:]}"
                    )

    def new_text(self, searched: int, end: int | None = None, *, since: int) -> str:
        """The text from `searched` on, where all from `since` to there is known.

        Searching everything again for each part that comes takes quadratic time.  The
        text begins a little earlier, at a sequence, because a phrase may be painted in
        two parts.
        """
        latest = max(since, searched - _MAX_PHRASE_BYTES)
        start = self.seen.rfind(b"\x1b", since, latest)
        return text(self.seen[max(since, start) : end])

    def _whole(self) -> int:
        """The end of the last whole frame; without synchronized output, of everything."""
        if not self._answers:
            return len(self.seen)
        return self.seen.rfind(FRAME_END) + len(FRAME_END)

    def type(self, keys: bytes | str) -> None:
        if isinstance(keys, str):
            keys = keys.encode()
        os.write(self._ours, keys)

    def resize(self, columns: int, rows: int) -> None:
        """The kernel sends SIGWINCH."""
        fcntl.ioctl(
            self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0)
        )

    def close(self) -> None:
        """The window is closed: the kernel sends SIGHUP."""
        self._reads.set()
        if not self._closed:
            self._closed = True
            os.write(self._wake, b"x")
            # else it would read the next terminal, which gets these numbers
            self._thread.join()
            for end in (self._theirs, self._ours, self._woken, self._wake):
                os.close(end)

    def ends_with(self, code: int, limit: float = TIMEOUT) -> None:
        found = self.process.wait(timeout=limit)
        self.read_rest()
        found = found if found >= 0 else 128 - found
        assert found == code, text(self.seen)[-1000:]

    def read_rest(self) -> None:
        """Waits until the thread has read what the ended process wrote last."""
        with self._came:
            while not self._closed and select.select([self._ours], [], [], 0)[0]:
                self._came.wait(0.05)

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._theirs)

    def assert_whole(self) -> None:
        """The terminal is restored: screen, cursor, modes and settings."""
        is_screen_left = self._last_mode(b"1049l") > self._last_mode(b"1049h")
        assert is_screen_left
        is_cursor_shown = self._last_mode(b"25h") > self._last_mode(b"25l")
        assert is_cursor_shown
        for mode in (
            b"1000",
            b"1003",
            b"1006",
            b"1004",
            b"2004",
        ):  # mouse, focus, paste
            # Both are -1 if the mode was never set.
            assert self._last_mode(mode + b"l") >= self._last_mode(mode + b"h"), mode
        assert self.settings()[:4] == self.cooked[:4]

    def _last_mode(self, mode: bytes) -> int:
        """Where the output last sets (h) or resets (l) a mode; -1 if nowhere."""
        return self.seen.rfind(b"\x1b[?" + mode)


def text(seen: bytes) -> str:
    """The output without escape sequences: cells in the order of painting."""
    return SEQUENCE.sub(b"", seen).decode("utf-8", "replace")


def module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", name, *arguments]
