"""Work that is done while a loaded pair waits for a question."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

from localspec import extras
from localspec.errors import LocalspecError
from localspec.machine import type_speeds
from localspec.machine.background_process import OnProcessStart

IDLE_SECONDS = 8.0
"""Time without a question before idle tasks begin.

The engine measures a new pair before that.
"""

IdleTask = Callable[[OnProcessStart], None]
"""Work that nobody waits for, in a process that it hands to its argument."""


def work_while_idle(target: Path) -> AbstractContextManager[None]:
    """Run the extras' tasks for `target` and time weight types while the block waits.

    The block ends at once when the question comes.
    """
    extra_tasks: list[Callable[[Path, OnProcessStart], None]]
    extra_tasks = extras.load("IDLE_TASKS")
    tasks: list[IdleTask] = [partial(task, target) for task in extra_tasks]
    tasks.append(type_speeds.time_missing_types)
    return run_while_idle(tasks, after=IDLE_SECONDS)


@contextmanager
def run_while_idle(tasks: Sequence[IdleTask], *, after: float) -> Iterator[None]:
    """Run `tasks` in a thread, one after the other, while the block lasts.

    They begin after `after` seconds. When the block ends, somebody waits for an answer.
    So it waits for no task: it kills the process of the one that runs. What was
    finished by then is kept. A task that fails ends only itself: who needs its result
    asks for it again and gets the error.
    """
    processes: list[subprocess.Popen[bytes]] = []
    is_over = threading.Event()

    def on_start(process: subprocess.Popen[bytes]) -> None:
        processes.append(process)
        if is_over.is_set():
            process.kill()

    def run_tasks() -> None:
        is_over.wait(after)
        for task in tasks:
            if is_over.is_set():
                return
            with suppress(LocalspecError, OSError):
                task(on_start)

    threading.Thread(target=run_tasks, name="idle-tasks", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
        for process in processes:
            process.kill()
