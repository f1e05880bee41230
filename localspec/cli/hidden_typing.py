"""What is typed while an answer streams: hidden, and kept for the next prompt.

The terminal echoes keys at any time, so they would stand in the middle of the answer.
While typing is hidden, its echo is off and keys wait in the terminal's buffer, from
which the next prompt reads them. A Windows console echoes only while a program reads a
line, so there is nothing to do there.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from localspec.cli import terminal
from localspec.sanitize import sanitize

try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment,unused-ignore]

_MARK_PASTES = "\x1b[?2004h"
_DO_NOT_MARK_PASTES = "\x1b[?2004l"
_LOCAL_FLAGS = 3  # The index of the local flags in the list of `tcgetattr`.


class HiddenTyping:
    """Hides and shows what is typed; does nothing if stdin is no terminal."""

    def __init__(self, *, mark_pastes: bool) -> None:
        """`mark_pastes`: ask the terminal to mark pastes, as readline does."""
        self._mark_pastes = mark_pastes
        self._normal_settings: list[Any] | None = None
        self._is_hidden = False
        if termios is not None:
            with suppress(termios.error, OSError, ValueError, AttributeError):
                self._normal_settings = termios.tcgetattr(sys.stdin.fileno())

    def hide(self) -> None:
        if self._normal_settings is None:
            return
        settings = list(self._normal_settings)
        # Keys are not collected into lines: a prompt gets them as they were typed.
        # Ctrl+C stays a signal, but does not throw away what was typed before.
        settings[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON)
        settings[_LOCAL_FLAGS] |= termios.NOFLSH
        self._is_hidden = True
        self._apply(settings, _MARK_PASTES)

    def show(self) -> None:
        if self._is_hidden and self._normal_settings is not None:
            self._is_hidden = False
            self._apply(self._normal_settings, _DO_NOT_MARK_PASTES)

    def _apply(self, settings: list[Any], paste_mode: str) -> None:
        with suppress(
            termios.error, OSError, ValueError
        ):  # The terminal may be closed.
            if self._mark_pastes:
                terminal.echo_styled(paste_mode, newline=False)
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, settings)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """For a prompt."""
        was_hidden = self._is_hidden
        self.show()
        try:
            yield
        finally:
            if was_hidden:
                self.hide()

    def take_typed(self) -> str:
        """Remove what has been typed and return its text; for a question in between."""
        typed = b""
        if self._is_hidden:
            with suppress(OSError, ValueError):
                stdin = sys.stdin.fileno()
                while select.select([stdin], [], [], 0)[0]:
                    data = os.read(stdin, 4096)
                    if not data:
                        break
                    typed += data
        return sanitize(typed.decode("utf-8", "replace"), multiline=False).strip()

    def stop_process(self, number: int, _: FrameType | None) -> None:
        """The handler of Ctrl+Z: the shell gets the terminal as it was."""
        was_hidden = self._is_hidden
        self.show()
        handler_before = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # It returns when the process is continued.
        signal.signal(number, handler_before)
        if was_hidden:
            self.hide()


@contextmanager
def hide_typing(*, mark_pastes: bool) -> Iterator[HiddenTyping]:
    """Hide what is typed until the end of the block, whatever ends it."""
    typing = HiddenTyping(mark_pastes=mark_pastes)
    handler_before: Any = None
    has_job_control = hasattr(signal, "SIGTSTP")
    if has_job_control:
        handler_before = signal.signal(signal.SIGTSTP, typing.stop_process)
    try:
        typing.hide()
        yield typing
    finally:
        typing.show()
        if has_job_control:
            signal.signal(signal.SIGTSTP, handler_before)
