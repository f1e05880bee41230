"""A shell in tmux: sends keys and reads the screen."""

from __future__ import annotations

import math
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.support.run_command import been_here, environment

LIMIT = 60.0
"""Seconds to wait for a condition; long, because the machine may be busy."""

PROMPT = "shell> "
ENTER = "Enter"
ESCAPE = "Escape"


class Tmux:
    """A separate tmux server with one window of a fixed size."""

    def __init__(
        self, size: tuple[int, int], data: Path, *, first: bool = False
    ) -> None:
        """`first`: the first start of the app."""
        if not first:
            been_here(data)
        self._name = f"localspec-test-{uuid.uuid4().hex[:12]}"
        env = environment(
            {"LOCALSPEC_DATA_DIR": str(data), "PS1": PROMPT, "TERM": "xterm-256color"}
        )
        columns, rows = map(str, size)
        words = [
            "start-server",
            ";",
            "set",
            "-g",
            "status",
            "off",
            ";",
            "set",
            "-s",
            "escape-time",
        ]
        words += ["0", ";", "set", "-g", "default-terminal", "tmux-256color", ";"]
        words += ["new-session", "-d", "-x", columns, "-y", rows]
        env.pop("TMUX", None)
        self._env = env
        # several words: by no other shell
        self._tmux(*words, "bash", "--norc", "--noprofile")
        self.wait_for(PROMPT.strip())

    def __enter__(self) -> Tmux:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, "-f", "/dev/null", *words],
            env=self._env,
            capture_output=True,
            timeout=LIMIT,
            check=True,
        )
        return done.stdout.decode()

    def run(self, *arguments: str) -> None:
        words = [sys.executable, "-P", "-m", "localspec", *arguments]
        self.type(" ".join(map(shlex.quote, words)))
        self.press(ENTER)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Presses keys, by tmux's names: F2, C-n, Up."""
        self._tmux("send-keys", *keys)

    def leave_chat(self, home: str = "Ready to run") -> str:
        """Presses escape until Home is shown.

        Within a second of an answer the key does nothing.

        One at a time: the app would read an escape and the test's next key as one, with
        alt.
        """
        pressed_at = -math.inf

        def is_home(seen: str) -> bool:
            nonlocal pressed_at
            if home not in seen and time.monotonic() > pressed_at + 1.2:
                self.press(ESCAPE)
                pressed_at = time.monotonic()
            return home in seen

        return self.wait_for(is_home)

    @property
    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    @property
    def buffer(self) -> str:
        return self._tmux("show-buffer")

    @property
    def coloured(self) -> str:
        """The screen with its escape sequences."""
        return self._tmux("capture-pane", "-p", "-e")

    def wait_for(self, *wanted: str | Callable[[str], object]) -> str:
        """Waits for texts and conditions, all on one screen; returns it."""
        until = time.monotonic() + LIMIT
        while True:
            seen = self.screen
            if all(one(seen) if callable(one) else one in seen for one in wanted):
                return seen
            assert time.monotonic() < until, f"not seen: {wanted}; the screen:\n{seen}"
            time.sleep(0.02)  # between two looks

    def asks(self, format: str) -> str:  # noqa: A002  as tmux calls it
        """A tmux format, such as `#{alternate_on}`."""
        return self._tmux("display-message", "-p", format).strip()
