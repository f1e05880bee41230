"""A line of progress on stderr: redrawn on a terminal, else printed now and then."""

from __future__ import annotations

import time

import click

from localspec.cli import global_options

_WIDTH = 79


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
            click.echo(f"\r{text[:_WIDTH]:<{_WIDTH}}", nl=False, err=True)
        else:
            click.echo(f"localspec: {text}", err=True)

    def clear(self) -> None:
        if self._shown and self._redraws:
            click.echo("\r" + " " * _WIDTH + "\r", nl=False, err=True)
            self._shown = False
