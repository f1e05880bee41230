"""A line on standard error that says what a load does, while it lasts."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from localspec.cli import global_options
from localspec.cli.terminal import ProgressLine, notify_of
from localspec.protocol.events import Notice
from localspec.protocol.wire import LoadEvent, LoadProgress
from localspec.report.load_progress import describe_load

_DRAW_SECONDS = 0.5
"""Also the time before the first line: a load that is quick shows none."""


class LoadDisplay:
    """Prints the notices of a load and, on a terminal, draws its progress.

    A thread draws, since a busy computer may give no news for many seconds, and the
    time must go on all the same.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._line = ProgressLine(quiet=quiet, interval=0)
        self._lock = threading.Lock()  # The thread must not draw over a notice.
        self._is_over = threading.Event()
        self._began = time.monotonic()
        self._progress: LoadProgress | None = None

    def __enter__(self) -> LoadDisplay:
        if global_options.can_redraw() and not self._quiet:
            threading.Thread(target=self._draw, daemon=True).start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._is_over.set()
            self._line.clear()

    def show(self, event: LoadEvent) -> None:
        if isinstance(event, LoadProgress):
            self._progress = event
        elif isinstance(event, Notice) and not self._quiet:
            with self._lock:
                self._line.clear()
                notify_of(event)

    def _draw(self) -> None:
        while not self._is_over.wait(_DRAW_SECONDS):
            seconds = time.monotonic() - self._began
            text = f"Loading: {describe_load(self._progress, seconds)}"
            with self._lock:
                if not self._is_over.is_set():
                    self._line.show(text)
