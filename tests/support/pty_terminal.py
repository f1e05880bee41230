"""The app in a pseudo-terminal: sends keys and records all bytes."""

from __future__ import annotations

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
from types import TracebackType
from typing import Any, Self

from tests.support.run_command import environment
from tests.support.welcomed import been_here

TIMEOUT = 30
"""Seconds."""

SEQUENCE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\]22;[a-z-]*\x07|\x1b[@-_]")
"""Textual's only OSC is 22, the shape of the mouse pointer."""
FRAME_END = b"\x1b[?2026l"
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        self.close()

    # --- output -------------------------------------------------------------------------------

    def _drain(self) -> None:
        while True:
            try:  # a blocking read would keep the terminal open when it is closed
                if self._woken in select.select([self._ours, self._woken], [], [])[0]:
                    return
                part = os.read(self._ours, 65536)
            except OSError:
                part = b""
            if not part:
                return
            self._reads.wait()
            with self._came:
                self.seen += part
                self._came.notify_all()
            if self._answers and b"\x1b[?2026$p" in part:
                self.type(b"\x1b[?2026;2$y")

    def stop_reading(self) -> None:
        """Until what is written waits for somebody who reads it."""
        self._reads.clear()
        until, last, same = time.monotonic() + TIMEOUT, -1, 0
        while same < 20 and time.monotonic() < until:
            waiting = struct.unpack("i", fcntl.ioctl(self._ours, termios.FIONREAD, bytes(4)))[0]
            same, last = (same + 1 if waiting == last and waiting else 0), waiting
            time.sleep(0.02)

    def wait_for(self, found: str | Callable[[], object], since: int = 0) -> int:
        """Waits for a text or a condition; returns the number of bytes written by then."""
        until = time.monotonic() + TIMEOUT
        with self._came:
            while True:
                end = self._whole()
                if found() if callable(found) else found in text(self.seen[since:end]):
                    return end
                self._came.wait(0.05)
                if time.monotonic() > until:
                    raise AssertionError(f"no {found}: {text(self.seen[since:])[-4000:]}")

    def _whole(self) -> int:
        """The end of the last whole frame; without synchronized output, of everything."""
        return self.seen.rfind(FRAME_END) + len(FRAME_END) if self._answers else len(self.seen)

    # --- input --------------------------------------------------------------------------------

    def type(self, keys: bytes | str) -> None:
        os.write(self._ours, keys.encode() if isinstance(keys, str) else keys)

    def resize(self, columns: int, rows: int) -> None:
        """The kernel sends SIGWINCH."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        """The window is closed: the kernel sends SIGHUP."""
        self._reads.set()
        if not self._closed:
            self._closed = True
            os.write(self._wake, b"x")
            self._thread.join()  # else it would read the next terminal, which gets these numbers
            for end in (self._theirs, self._ours, self._woken, self._wake):
                os.close(end)

    # --- exit ---------------------------------------------------------------------------------

    def ends_with(self, code: int, limit: float = TIMEOUT) -> None:
        """Waits for the process to exit with `code`, and reads all remaining output."""
        found = self.process.wait(timeout=limit)
        self.read_rest()
        found = found if found >= 0 else 128 - found
        assert found == code, text(self.seen)[-1000:]

    def read_rest(self) -> None:
        """Waits until the thread has read what the process wrote last."""
        quiet, size = 0, -1
        while quiet < 2:
            quiet = quiet + 1 if len(self.seen) == size else 0
            size = len(self.seen)
            time.sleep(0.02)

    def settings(self) -> list[Any]:
        """Terminal settings, as `stty` shows them."""
        return termios.tcgetattr(self._theirs)

    @property
    def left_alternate_screen(self) -> bool:
        return _last(self.seen, b"\x1b[?1049l") > _last(self.seen, b"\x1b[?1049h")

    @property
    def cursor_is_shown(self) -> bool:
        return _last(self.seen, b"\x1b[?25h") > _last(self.seen, b"\x1b[?25l")

    def assert_whole(self) -> None:
        """The terminal is restored: screen, cursor, modes and settings."""
        assert self.left_alternate_screen
        assert self.cursor_is_shown
        for mode in (b"1000", b"1003", b"1006", b"1004", b"2004"):  # mouse, focus, paste
            on, off = b"\x1b[?" + mode + b"h", b"\x1b[?" + mode + b"l"
            assert _last(self.seen, off) >= _last(self.seen, on), mode
        assert self.settings()[:4] == self.cooked[:4]


def text(seen: bytes) -> str:
    """The output without escape sequences: cells in the order of painting."""
    return SEQUENCE.sub(b"", seen).decode("utf-8", "replace")


def _last(seen: bytes, part: bytes) -> int:
    return seen.rfind(part)


def module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", name, *arguments]
