"""Quiet lines of a chat: what a load does, and that the first model is a toy."""

from __future__ import annotations

import time

from msgspec.structs import replace
from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

from localspec.chat.session import ChatSession
from localspec.protocol.wire import LoadEvent, LoadProgress
from localspec.report.load_progress import describe_load
from localspec.report.pair_text import describe_toy
from localspec.tui.app_options import AppOptions
from localspec.tui.chat_phase import ChatPhase
from localspec.tui.key_bindings import key_label
from localspec.tui.text.wrapping import fit_to_width, one_line

_DRAW_SECONDS = 0.25
_LOADING = "Loading the model: "


class LoadingLine(Static):
    """Shown while a pair is loaded.

    A chat has two: one above everything, for an empty chat (class `-first`), and one
    below the last turn.
    """

    def __init__(self, *, classes: str) -> None:
        super().__init__(classes=classes, markup=False)
        self.display = False
        self._is_loading = False
        self._began = 0.0
        self._progress: LoadProgress | None = None

    def on_mount(self) -> None:
        # The seconds go on while a busy computer gives no news.
        self.set_interval(_DRAW_SECONDS, self._draw)

    def on_resize(self) -> None:
        self._draw()

    def show_phase(self, phase: ChatPhase, *, is_empty_chat: bool) -> None:
        """Shows the line if `phase` is that of a load, else hides it."""
        is_loading = phase == "loading"
        if is_loading and not self._is_loading:
            self._began = time.monotonic()
            self._progress = None
        self._is_loading = is_loading
        self.display = is_loading and self.has_class("-first") == is_empty_chat
        self._draw()

    def show_progress(self, event: LoadEvent) -> None:
        if isinstance(event, LoadProgress):
            self._progress = event
            self._draw()

    def _draw(self) -> None:
        if self.display:
            seconds = time.monotonic() - self._began
            width = self.content_size.width - len(_LOADING)
            line = _describe_in_a_line(self._progress, seconds, width)
            self.update(Content(f"{_LOADING}{line}"), layout=False)


def _describe_in_a_line(
    progress: LoadProgress | None, seconds: float, width: int
) -> str:
    """The name of a long file is cut, so that the bar and the share are seen."""
    if progress is None:
        return describe_load(None, seconds)
    others = describe_load(replace(progress, file=""), seconds)
    name = one_line(progress.file)
    room = max(0, width - cell_len(others))
    name = fit_to_width(name, min(room, cell_len(name)))
    return describe_load(replace(progress, file=name), seconds)


class ToyNote(Static):
    """Says that the model which came with localspec is a toy, and how to find another.

    It is shown in an empty chat and below the first answer.
    """

    def __init__(self, options: AppOptions) -> None:
        super().__init__(markup=False)
        self._options = options
        self.display = False

    def draw(self, session: ChatSession, phase: ChatPhase) -> None:
        has_few_turns = len(session.conversation.questions) <= 1
        self.display = phase == "ready" and has_few_turns and session.is_toy
        keymap = self._options.keymap
        leave = key_label("chat.stop", keymap)
        wizard = key_label("home.wizard", keymap)
        note = describe_toy(f"{leave}, then {wizard},")
        self.update(Content(note), layout=False)
