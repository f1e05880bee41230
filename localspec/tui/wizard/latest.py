"""A thread that does the latest of what it is asked; what was overtaken is never begun."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Latest:
    """One piece of work at a time; the thread lives while there is any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._next: Callable[[], None] | None = None
        self._busy = False

    def ask(self, work: Callable[[], None]) -> None:
        """Returns at once."""
        with self._lock:
            self._next = work
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, daemon=True, name=self._name).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                work, self._next = self._next, None
                if work is None:
                    self._busy = False
                    return
            try:
                work()
            except BaseException:
                with self._lock:
                    self._busy = False
                raise
