"""The downloads of the app: a queue that goes on whatever screen is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from localspec.clean import clean
from localspec.tui.glyphs import Glyphs
from localspec.units import bytes_per_second, duration, gb

if TYPE_CHECKING:
    from localspec.models.download import Job, State
    from localspec.models.queue import Queue
    from localspec.models.remote import Hub


def _hub() -> Hub:
    from localspec.models.remote import Hub  # noqa: PLC0415  200 ms, not before it is needed

    return Hub()


class Downloads:
    """Begun when something is first downloaded; what has come is kept at the end."""

    def __init__(self, hub: Callable[[], Hub] = _hub) -> None:
        self._make = hub
        self._hub: Hub | None = None
        self._queue: Queue | None = None

    @property
    def hub(self) -> Hub:
        """Made when first asked for: on a thread, if that matters."""
        if self._hub is None:
            self._hub = self._make()
        return self._hub

    def add(self, jobs: Iterable[Job]) -> None:
        if self._queue is None:
            from localspec.models.queue import Queue  # noqa: PLC0415  as above

            self._queue = Queue(self.hub)
        for job in jobs:
            self._queue.add(job)

    def states(self) -> tuple[State, ...]:
        return self._queue.states() if self._queue is not None else ()

    def pause_or_resume(self, job: Job) -> None:
        """The other of the two; one that failed is tried again."""
        if self._queue is None:
            return
        phase = next((s.phase.value for s in self.states() if s.job == job), "")
        if phase in ("paused", "failed", "cancelled"):
            self._queue.retry(job)
        else:
            self._queue.pause(job)

    def cancel(self, job: Job) -> None:
        if self._queue is not None:
            self._queue.cancel(job)

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()


def told(state: State, glyphs: Glyphs, wide: int) -> str:
    """A download in one line: name, bar, share, bytes, speed, time to go; or what is wrong."""
    name = clean(state.job.path.rpartition("/")[2], multiline=False)
    phase = state.phase.value
    if phase == "done":
        return f"{name}  {glyphs.good} verified"
    if phase == "failed" and state.error is not None:
        said = clean(f"{state.error.message} {state.error.hint}", multiline=False)
        return f"{name}  {glyphs.bad} {said}"
    share = state.done / state.total if state.total else 0.0
    bar = glyphs.bar(share, 16).ljust(16, glyphs.dot)
    parts = [f"{name:<26.26}", bar, f"{100 * share:3.0f} %"]
    if wide >= 100 and state.total:
        parts.append(f"{gb(state.done)} of {gb(state.total)}")
    if phase == "loading" and state.rate:
        parts.append(bytes_per_second(state.rate))
        if state.eta is not None:
            parts.append(duration(state.eta))
    elif phase != "loading":
        parts.append(phase)
    return "  ".join(parts)
