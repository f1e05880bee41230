"""A process on a pseudo-terminal of 120x40, with the times of its frames."""

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
import time
from collections.abc import Callable

END = b"\x1b[?2026l"
"""The end of a frame (synchronized output)."""
SEQUENCE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")
PATIENCE = 120.0


class Terminal:
    """A process on a pseudo-terminal, drained as it writes."""

    def __init__(self, *words: str, folder: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.seen = bytearray()
        self.frames: list[float] = []
        """The time of each frame's end."""
        env = os.environ | {
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "LOCALSPEC_DATA_DIR": folder,
        }
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            start_new_session=True,
        )
        os.close(theirs)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self.drain(lambda: self._process.poll() is not None, 5)
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def type(self, keys: bytes | str) -> float:
        if isinstance(keys, str):
            keys = keys.encode()
        os.write(self._ours, keys)
        return time.perf_counter()

    def drain(self, until: Callable[[], object], limit: float = PATIENCE) -> float:
        """Reads until the condition holds; returns the time."""
        end = time.perf_counter() + limit
        while not until():
            if time.perf_counter() > end:
                raise SystemExit(f"Timed out. The screen:\n{plain(self.seen)[-3000:]}")
            readable, _, _ = select.select([self._ours], [], [], 0.05)
            if not readable:
                continue
            try:
                part = os.read(self._ours, 1 << 16)
            except OSError:  # it has ended
                self._process.wait()
                if until():
                    break
                raise SystemExit(
                    f"It ended. The screen:\n{plain(self.seen)[-3000:]}"
                ) from None
            if b"\x1b[?2026$p" in part:
                self.type(b"\x1b[?2026;2$y")
            self.frames += [time.perf_counter()] * part.count(END)
            self.seen += part
        return time.perf_counter()

    def wait_for(self, text: str, since: int = 0) -> float:
        """Waits for a text after the first `since` bytes; returns the time."""
        wanted = text.encode()
        searched = since  # Up to here the text does not end.

        def came() -> bool:
            nonlocal searched
            begin = max(since, searched - len(wanted))
            searched = len(self.seen)
            return self.seen.find(wanted, begin) >= 0

        return self.drain(came)

    def has_ended(self) -> None:
        """Waits until the process has exited by itself."""
        self.drain(lambda: self._process.poll() is not None)

    def quiet(self, seconds: float = 0.4) -> None:
        """Waits until nothing is painted for `seconds`."""
        while True:
            before = len(self.seen)
            still = time.perf_counter() + seconds
            self.drain(lambda: time.perf_counter() > still)  # noqa: B023
            if len(self.seen) == before:
                return

    def frame_after(self, key: bytes | str) -> float | None:
        """Milliseconds from a key to the end of the next frame.

        None if nothing is painted within a second.
        """
        n_before = len(self.frames)
        began = self.type(key)

        def is_painted_or_late() -> bool:
            return len(self.frames) > n_before or time.perf_counter() > began + 1

        self.drain(is_painted_or_late)
        if len(self.frames) == n_before:
            return None
        return (self.frames[-1] - began) * 1e3


def plain(seen: bytearray) -> str:
    return SEQUENCE.sub(b"", seen).decode("utf-8", "replace")
