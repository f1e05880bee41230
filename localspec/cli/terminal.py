"""Terminal output: what commands print passes here; also questions, and Ctrl+C.

Lines of a report pass `report_printer.py` first, which renders their roles.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

import click

from localspec.cli import global_options, word_wrap
from localspec.errors import UsageError
from localspec.sanitize import sanitize

try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment,unused-ignore]

if TYPE_CHECKING:
    from localspec.protocol.events import Notice


def echo(line: str = "", *, err: bool = False) -> None:
    """Print one line, sanitized: it may come from a file or another computer."""
    echo_styled(sanitize(line, multiline=False), err=err)


def echo_wrapped(line: str, *, err: bool = False, indent: str = "") -> None:
    """Like `echo`, but a terminal gets lines that are broken between words.

    `indent` begins each line but the first.
    """
    text = sanitize(line, multiline=False)
    parts = [word_wrap.StyledText(text)]
    for wrapped in wrap_for_stream(parts, err=err, indent=indent):
        echo_styled(word_wrap.render_line(wrapped), err=err)


def wrap_for_stream(
    parts: Sequence[word_wrap.StyledText], *, err: bool, indent: str = ""
) -> Sequence[word_wrap.StyledLine]:
    """One line if the stream is no terminal, or is read aloud."""
    stream = sys.stderr if err else sys.stdout
    if global_options.is_plain() or not stream.isatty():
        return [tuple(parts)]
    first = (word_wrap.StyledText(indent),) if indent else ()
    return word_wrap.wrap(parts, terminal_width(), indent=first) or [()]


def terminal_width() -> int:
    return max(1, shutil.get_terminal_size().columns)


def notify(message: str, hint: str = "") -> None:
    """Print a notice on standard error, and its hint below."""
    echo_wrapped(f"localspec: {message}", err=True)
    if hint:
        echo_wrapped(f"  {hint}", err=True, indent="  ")


def notify_of(notice: Notice) -> None:
    """Print a notice of the engine, and its hint behind it."""
    notify(f"{notice.message} {notice.hint}".rstrip())


def echo_text(text: str, *, err: bool = False, newline: bool = True) -> None:
    echo_styled(sanitize(text), err=err, newline=newline)


def echo_styled(
    text: str, *, err: bool = False, newline: bool = True, colour: bool | None = None
) -> None:
    """Print sanitized text with our own colours and cursor movements."""
    # named: click would print UTF-8 instead of ASCII
    file = sys.stderr if err else sys.stdout
    click.echo(text, file, newline, color=colour)


def echo_json(document: dict[str, Any]) -> None:
    echo_styled(json.dumps({"schema": 1} | document))


class ProgressLine:
    """Progress on stderr: a redrawn line on a terminal, else a line now and then."""

    def __init__(
        self, *, quiet: bool, interval: float, prefix: str = "localspec: "
    ) -> None:
        """`interval`, `prefix`: of the lines where stderr is not a terminal."""
        self._quiet = quiet
        self._interval = interval
        self._prefix = prefix
        self._redraws = global_options.can_redraw()
        self._is_shown = False
        self._last_write = time.monotonic()

    def show(self, text: str, *, is_step: bool = False) -> None:
        """A step is always shown; other text on a terminal or after the interval."""
        now = time.monotonic()
        is_due = self._redraws or is_step or now - self._last_write > self._interval
        if self._quiet or not is_due:
            return
        self._last_write = now
        self._is_shown = True
        if not self._redraws:
            echo(f"{self._prefix}{text}", err=True)
            return
        line = sanitize(text, multiline=False)
        width = shutil.get_terminal_size().columns - 1
        if len(line) > width:  # a wrapped line cannot be redrawn
            line = f"…{line[-(width - 1) :]}"
        echo_styled(f"\r\x1b[K{line}", err=True, newline=False)

    def clear(self) -> None:
        if self._is_shown and self._redraws:
            echo_styled("\r\x1b[K", err=True, newline=False)
            self._is_shown = False


class Interrupt:
    pressed_at: float | None = None

    @property
    def elapsed_ms(self) -> float | None:
        """Milliseconds since Ctrl+C; None if it was not pressed."""
        if self.pressed_at is None:
            return None
        return (time.monotonic() - self.pressed_at) * 1e3


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[Interrupt]:
    """The first Ctrl+C calls `stop`, the second raises KeyboardInterrupt."""
    interrupt = Interrupt()

    def handle(*_: int | FrameType | None) -> None:
        interrupt.pressed_at = time.monotonic()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


def can_prompt_user() -> bool:
    """Whether stdin and stderr are a terminal."""
    return _is_terminal(sys.stdin) and _is_terminal(sys.stderr)


def discard_typed() -> None:
    """Drop what was typed and not read yet, so that it does not answer a question.

    Does nothing if stdin is no terminal.
    """
    if termios is None:
        return
    with suppress(termios.error, OSError, ValueError, AttributeError):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def can_open_app() -> bool:
    """Whether stdin and stdout are a terminal, and the user can see a full screen."""
    if global_options.is_plain():
        return False
    return _is_terminal(sys.stdin) and _is_terminal(sys.stdout)


def _is_terminal(stream: TextIO | None) -> bool:
    """`stream` is None if it was closed when Python started."""
    return stream is not None and stream.isatty()


def confirm(
    question: str,
    lines: Iterable[str],
    hint: str,
    *,
    as_json: bool,
    default: bool = False,
) -> bool:
    """Ask on the terminal, below `lines`.

    Raises UsageError with `hint` where nobody can answer.
    """
    if as_json or not can_prompt_user():
        raise UsageError("Cannot ask: not a terminal.", hint)
    for line in lines:
        echo(f"  {line}", err=True)
    return click.confirm(question, default=default, err=True)
