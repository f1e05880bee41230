"""One answer of a chat as it streams: text on stdout, talk about it on stderr."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click

from localspec.chat.thinking import Part, Splitter
from localspec.clean import clean
from localspec.cli import marks, places, rounds
from localspec.protocol.events import Event, Finished, Notice, Plan, Prefill, Round
from localspec.protocol.stats import Totals
from localspec.units import count

_LONG = 512
"""Tokens to read from which on it is worth saying how far it got."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a chat is shown."""

    plain: bool = False
    """Words alone: no signs, no colours, nothing that moves."""
    colour: bool = False
    quiet: bool = False


class Teller:
    """Folds the events of one answer, and tells them."""

    def __init__(
        self,
        look: Look,
        name: str,
        markers: tuple[str, str] | None,
        *,
        tokens: bool = False,
        show_thinking: bool = False,
    ) -> None:
        self._look, self._name, self._markers = look, name, markers
        self._tokens, self._show_thinking = tokens, show_thinking
        self._splitter = Splitter(markers)
        self._thought: list[str] = []
        self._folded = False
        """Whether an open line says that it thinks."""
        self._begun = self._spoken = False
        self._at_line_start = True
        self._progress = 0
        """Characters of the line that says how far reading got."""
        self._rounds: list[Round] = []
        self.totals = Totals()
        self.plan: Plan | None = None
        self.finished: Finished | None = None

    def take(self, event: Event) -> None:
        if isinstance(event, Round):
            self._wipe()
            self.totals.add(event)
            self._round(event)
        elif isinstance(event, Prefill):
            self._read(event)
        elif isinstance(event, Plan):
            self.plan = event
        elif isinstance(event, Notice):
            self.pause()
            self._talk(f"localspec: {clean(event.message, multiline=False)}\n")
        elif isinstance(event, Finished):
            self._wipe()
            self.finished = event
            self._text(event.tail)
        sys.stdout.flush()

    def pause(self) -> None:
        """What is said now about the answer begins on a line of its own."""
        self._wipe()
        self._unfold()
        if not self._at_line_start:
            self._talk("\n")

    def end(self) -> None:
        """Whatever happened, what follows begins on a line of its own."""
        self._wipe()
        for part in self._splitter.end():
            self._part(part)
        self._unfold()
        if not self._at_line_start:
            self._say("\n")
        sys.stdout.flush()
        if self._tokens and self._look.plain:
            for event in self._rounds:
                self._talk(rounds.told(event, plain=True) + "\n")

    # --- what was said ----------------------------------------------------------------------

    def _round(self, event: Round) -> None:
        if self._tokens and self._look.plain:
            self._rounds.append(event)
        if self._tokens and not self._look.plain:
            for token in event.tokens:
                self._say(marks.marked(token, self._look.colour))
        else:
            self._text("".join(token.text for token in event.tokens))

    def _text(self, text: str) -> None:
        if self._tokens and not self._look.plain:
            self._say(clean(text))
            return
        for part in self._splitter.feed(text):
            self._part(part)

    def _part(self, part: Part) -> None:
        if part.thought and not self._show_thinking:
            self._fold(part.text)
            return
        self._unfold()
        text = clean(part.text)
        if part.thought:
            self._think(text)
            return
        if self._thought and not self._spoken:  # the answer begins on a line of its own
            text = text.lstrip()
            if text and not self._at_line_start:
                self._write("\n")
        self._spoken = self._spoken or bool(text.strip())
        self._say(text)

    def _think(self, text: str) -> None:
        """Thinking as it comes."""
        if self._look.plain:
            self._write(text if self._thought else f"Thinking: {text}")
        else:
            self._begin()
            self._write(text, dim=True)
        self._thought.append(text)

    def _fold(self, text: str) -> None:
        self._thought.append(text)
        if not self._folded:
            self._folded = True
            if not self._look.plain:
                self._begin()
                self._talk(self._dim("thinking … "))

    def _unfold(self) -> None:
        if self._folded:
            self._folded = False
            n = len("".join(self._thought).split())
            words = f"Thinking, {n} words." if self._look.plain else f"({n} words)"
            self._talk(self._dim(words) + "\n")

    def _say(self, text: str) -> None:
        if text:
            self._begin()
            self._write(text)

    def _write(self, text: str, *, dim: bool = False) -> None:
        if text:
            sys.stdout.write(self._dim(text) if dim else text)
            self._at_line_start = text.endswith("\n")

    def _begin(self) -> None:
        """Who speaks, in words, where there are no signs."""
        if self._look.plain and not self._begun:
            sys.stdout.write(f"{self._name}: ")
        self._begun = True

    # --- talk about it ----------------------------------------------------------------------

    def _read(self, event: Prefill) -> None:
        if not self._begun:
            self._splitter = Splitter(self._markers, event.thinking)
        if self._look.plain or self._look.quiet or event.total - event.reused < _LONG:
            return
        if places.redraws():
            self._wipe()
            words = f"reading {count(event.done)} / {count(event.total)}"
            self._progress = len(words)
            self._talk(words)

    def _wipe(self) -> None:
        if self._progress:
            self._talk("\r" + " " * self._progress + "\r")
            self._progress = 0

    def _talk(self, text: str) -> None:
        if not self._look.quiet:
            sys.stdout.flush()
            click.echo(text, err=True, nl=False, color=self._look.colour)

    def _dim(self, text: str) -> str:
        return click.style(text, dim=True) if self._look.colour else text
