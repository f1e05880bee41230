"""A background thread that runs only the latest job."""

from __future__ import annotations

import threading
from collections.abc import Callable


class LatestOnlyWorker:
    """Runs one job at a time; a newer job replaces a waiting one. The thread ends when idle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._next_job: Callable[[], None] | None = None
        self._busy = False

    def submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._next_job = job
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, daemon=True, name=self._name).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                job, self._next_job = self._next_job, None
                if job is None:
                    self._busy = False
                    return
            try:
                job()
            except BaseException:
                with self._lock:
                    self._busy = False
                raise
