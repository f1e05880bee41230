"""The progress of one download: a line that changes, or a line now and then."""

from __future__ import annotations

import shutil
import time
from types import TracebackType

import click

from localspec.clean import clean
from localspec.cli import places
from localspec.models.download import Phase, State
from localspec.units import bytes_per_second, duration, gb, percent

_SPARSE = 10.0
"""Seconds between two lines where there is no terminal."""
_WORDS = {
    Phase.WAITING: "waiting for another program that downloads it",
    Phase.CHECKING: "looking at what is here",
    Phase.VERIFYING: "verifying",
}


class Meter:
    """Says on standard error how far one file is."""

    def __init__(self, name: str, place: tuple[int, int], *, quiet: bool = False) -> None:
        number, of = place
        self._name = clean(name, multiline=False)
        self._place = f"{number}/{of} " if of > 1 else ""
        self._quiet = quiet
        self._live = places.redraws()
        self._said = ""
        self._at = time.monotonic()
        self._loaded = False

    def take(self, state: State) -> None:
        if self._quiet:
            return
        self._loaded = self._loaded or state.phase is Phase.LOADING
        if state.phase is Phase.DONE:
            self._finish(state)
        elif self._live:
            self._draw(self._line(state))
        elif self._is_due(state):
            click.echo(self._line(state), err=True)

    def _is_due(self, state: State) -> bool:
        """At the first byte, then seldom."""
        now = time.monotonic()
        first = state.phase is Phase.LOADING and not self._said
        if not first and now - self._at < _SPARSE:
            return False
        self._said, self._at = state.phase, now
        return True

    def _line(self, state: State) -> str:
        name = f"{self._place}{self._name}"
        if state.phase is not Phase.LOADING:
            share = f" {percent(state.done / state.total)}" if state.total and state.done else ""
            return f"{name}  {_WORDS.get(state.phase, state.phase)}{share} …"
        if state.total is None:
            return f"{name}  {gb(state.done)}"
        share = percent(state.done / state.total if state.total else None)
        speed = f"  {bytes_per_second(state.rate)}" if state.rate else ""
        left = f"  {duration(state.eta)} left" if state.eta is not None else ""
        return f"{name}  {share}  {gb(state.done)} of {gb(state.total)}{speed}{left}"

    def _draw(self, line: str) -> None:
        """Within one line of the terminal: a longer one could not be taken back."""
        width = shutil.get_terminal_size().columns - 1
        if len(line) > width:
            line = f"…{line[-(width - 1) :]}"
        click.echo(f"\r\x1b[K{line}", err=True, nl=False)
        self._said = line

    def _finish(self, state: State) -> None:
        self._clear()
        how = "verified" if self._loaded else "here already, verified"
        click.echo(f"{self._place}{self._name}  {gb(state.done)}, {how}", err=True)

    def _clear(self) -> None:
        if self._live and self._said:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._said = ""

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clear()
