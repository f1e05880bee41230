"""Terminal output: tables and a progress line; and Ctrl+C, which stops a command."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from localspec.cli import global_options
from localspec.errors import UsageError
from localspec.sanitize import sanitize


def format_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align rows into columns.  Cells are sanitized, as they may come from files or the hub."""
    cleaned = [[sanitize(cell, multiline=False) for cell in row] for row in rows]
    count = max((len(row) for row in cleaned), default=0)
    widths = [
        max((len(row[i]) for row in cleaned if i < len(row)), default=0) for i in range(count)
    ]
    for row in cleaned:
        line = "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False))
        yield line.rstrip()


_LINE_WIDTH = 79


class ProgressLine:
    def __init__(self, *, quiet: bool, interval: float) -> None:
        """`interval`: seconds between two lines if stderr is not a terminal."""
        self._quiet, self._interval = quiet, interval
        self._redraws = global_options.can_redraw()
        self._shown = False
        self._last_write = time.monotonic()

    def show(self, text: str, *, is_step: bool = False) -> None:
        """A step is always shown, other text only on a terminal or after the interval."""
        now = time.monotonic()
        is_due = self._redraws or is_step or now - self._last_write > self._interval
        if self._quiet or not is_due:
            return
        self._last_write, self._shown = now, True
        if self._redraws:
            click.echo(f"\r{text[:_LINE_WIDTH]:<{_LINE_WIDTH}}", nl=False, err=True)
        else:
            click.echo(f"localspec: {text}", err=True)

    def clear(self) -> None:
        if self._shown and self._redraws:
            click.echo("\r" + " " * _LINE_WIDTH + "\r", nl=False, err=True)
            self._shown = False


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Calls `stop` on the first Ctrl+C; yields whether that has happened."""
    is_stopped = False

    def handle(*_: int | FrameType | None) -> None:
        nonlocal is_stopped
        is_stopped = True
        stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: is_stopped
    finally:
        signal.signal(signal.SIGINT, before)


def can_prompt_user() -> bool:
    """Whether stdin and stderr are a terminal."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def confirm(
    question: str, lines: Iterable[str], hint: str, *, as_json: bool, default: bool = False
) -> bool:
    """Ask on the terminal, below `lines`. Raises UsageError with `hint` where nobody can answer."""
    if as_json or not can_prompt_user():
        raise UsageError("Cannot ask: not a terminal.", hint)
    for line in lines:
        click.echo(f"  {line}", err=True)
    return click.confirm(question, default=default, err=True)
