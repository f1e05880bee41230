"""When work runs: a reliable one-shot timer, the pace of frames, work on threads.

Textual 8 skips a tick that is late, also the only tick of a one-shot timer: if the
event loop is busy between two lines of `Timer._run`, the callback never runs, and a
streaming answer would stop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from textual.message_pump import MessagePump

from localspec.errors import LocalspecError, explain
from localspec.tui.crash_log import write_crash_log


def set_reliable_timer(
    pump: MessagePump, seconds: float, callback: Callable[[], Any]
) -> asyncio.TimerHandle:
    """Calls `callback` between two messages of `pump`, after `seconds` or soon after.

    To call in the app's event loop; the handle cancels it. Does nothing if the pump has
    closed.
    """

    def on_due() -> None:
        if pump.is_running and pump.is_attached:
            pump.call_next(run_if_attached)

    def run_if_attached() -> object:
        return callback() if pump.is_attached else None

    return asyncio.get_running_loop().call_later(seconds, on_due)


FRAME_SECONDS = 0.04  # Minimum time between two redraws: at most 25 per second.
MAX_FRAME_SECONDS = 0.25
MAX_DRAWING_SHARE = 0.1  # Of a CPU core, while an answer streams.


class FramePacer:
    """Spaces out the redraws of a streaming answer: the engine needs the cores.

    llama.cpp computes on all of them, and what one thread of it loses to a frame, the
    others wait for. So a frame may use a tenth of the time. For example, lines that
    scroll cost 8 ms of CPU a frame, and there are 12 frames a second, each 80 ms. In a
    paragraph that grows a frame costs 3 ms, which would allow one each 30 ms; there are
    25 a second, each 40 ms. On a slow computer a frame costs 40 ms: then there are four
    a second, the fewest.
    """

    def __init__(
        self, min_seconds: float = FRAME_SECONDS, max_seconds: float = MAX_FRAME_SECONDS
    ) -> None:
        self._min_seconds = min_seconds
        self._max_seconds = max_seconds
        self._last_frame = 0.0
        self._frame_seconds = min_seconds
        self._cpu_seconds = 0.0

    def call_at_next_frame(self, pump: MessagePump, draw: Callable[[], None]) -> None:
        wait = self._last_frame + self._frame_seconds - time.monotonic()
        if wait > 0:
            set_reliable_timer(pump, wait, lambda: self._run_frame(draw))
        else:
            self._run_frame(draw)

    def _run_frame(self, draw: Callable[[], None]) -> None:
        """The cost of the last redraw sets the delay of the next."""
        self._last_frame = time.monotonic()
        cpu_seconds = time.thread_time()
        drawing_seconds = cpu_seconds - self._cpu_seconds
        self._cpu_seconds = cpu_seconds
        frame_seconds = max(self._min_seconds, drawing_seconds / MAX_DRAWING_SHARE)
        self._frame_seconds = min(self._max_seconds, frame_seconds)
        draw()


Work = Callable[[], None]
ShowFailure = Callable[[LocalspecError], object]
"""Shows on the screen that work on a thread failed, so that nobody waits for it."""


def run_on_thread(
    pump: MessagePump, name: str, work: Work, *, failed: ShowFailure
) -> None:
    """Runs work for a screen or a widget on a thread; quitting does not wait for it.

    Whatever the work raises, `failed` receives it between two
    messages of `pump`, as an error to show. A bug is written to the crash log, too.
    """
    threading.Thread(
        target=_run_guarded, args=(pump, work, failed), daemon=True, name=name
    ).start()


def _run_guarded(pump: MessagePump, work: Work, failed: ShowFailure) -> None:
    try:
        work()
    except Exception as error:  # The screen would wait for ever.
        with suppress(RuntimeError):  # The app has ended, and its event loop with it.
            pump.call_later(failed, explain_failure(error))


def explain_failure(error: Exception) -> LocalspecError:
    """What a screen says of an exception; a bug is written to the crash log."""
    is_bug = not isinstance(error, LocalspecError | OSError | ImportError)
    where = write_crash_log(error) if is_bug else ""
    return explain(error, bug_hint=f"This is a bug. {where}")


class JobQueue:
    """Runs jobs on a thread, one after another, as `run_on_thread` does.

    The thread ends when idle. It is no daemon: a program that is left right after
    `/save chat.md` exits when the file is written.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[tuple[MessagePump, Work, ShowFailure]] = deque()
        self._is_running = False

    def submit(self, pump: MessagePump, work: Work, *, failed: ShowFailure) -> None:
        with self._lock:
            self._waiting.append((pump, work, failed))
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._run, daemon=False, name=self._name).start()

    @property
    def is_idle(self) -> bool:
        return not self._is_running

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                pump, work, failed = self._waiting.popleft()
            _run_guarded(pump, work, failed)


class LatestOnlyWorker:
    """Runs one job at a time for a screen; a newer job replaces a waiting one.

    The thread ends when idle. What a job raises is passed to its `failed`.
    """

    def __init__(self, pump: MessagePump, name: str) -> None:
        self._pump = pump
        self._name = name
        self._lock = threading.Lock()
        self._next_job: tuple[Work, ShowFailure] | None = None
        self._busy = False

    def submit(self, work: Work, *, failed: ShowFailure) -> None:
        with self._lock:
            self._next_job = (work, failed)
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, daemon=True, name=self._name).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                job = self._next_job
                self._next_job = None
                if job is None:
                    self._busy = False
                    return
            work, failed = job
            _run_guarded(self._pump, work, failed)
