"""The downloads of the app: a queue that goes on whatever screen is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from textual.content import Content

from localspec.clean import clean
from localspec.tui.glyphs import Glyphs
from localspec.tui.keys import keys_of, name
from localspec.tui.text.wrapping import fitted
from localspec.units import bytes_per_second, duration, gb

if TYPE_CHECKING:
    from localspec.models.download import Job, State
    from localspec.models.hub.queue import Queue
    from localspec.models.remote import Hub


def _hub() -> Hub:
    from localspec.models.remote import Hub  # noqa: PLC0415  200 ms, not before it is needed

    return Hub()


class Downloads:
    """Begun when something is first downloaded; what has come is kept at the end."""

    def __init__(self, hub: Callable[[], Hub] = _hub, limit: float | None = None) -> None:
        """`limit`: bytes a second of all together."""
        self._limit = limit
        self._make = hub
        self._hub: Hub | None = None
        self._queue: Queue | None = None

    @property
    def hub(self) -> Hub:
        """Made when first asked for: on a thread, if that matters."""
        if self._hub is None:
            self._hub = self._make()
        return self._hub

    def change(self, limit: float | None, offline: bool) -> None:
        """From now on, whatever is under way; what must not go on can be resumed later."""
        self._limit = limit
        if self._queue is not None:
            self._queue.limit(limit)
        if self._hub is not None:
            self._hub.offline = offline
        for state in self.states() if offline else ():
            if self._queue is not None and state.phase.value in ("loading", "waiting"):
                self._queue.pause(state.job)

    def add(self, jobs: Iterable[Job]) -> None:
        if self._queue is None:
            from localspec.models.hub.queue import Queue  # noqa: PLC0415  as above

            self._queue = Queue(self.hub, limit_bytes_s=self._limit)
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


def told(state: State, glyphs: Glyphs, wide: int) -> Content:
    """A download in so many cells: name, bar, share, bytes, speed, time to go; or what is wrong."""
    names, bars = (32, 16) if wide >= 100 else (26, 12) if wide >= 70 else (20, 8)
    if wide < 50:
        names, bars = max(6, wide - 24), 6 if wide >= 30 else 0
    file = state.job.path.rpartition("/")[2].removesuffix(".gguf")
    start = f"{fitted(clean(file, multiline=False), names, glyphs.more)}  "
    phase = state.phase.value
    if phase == "done":
        size = f"  {gb(state.total)}" if state.total else ""
        return Content.assemble(start, (f"{glyphs.good} verified", "$success"), (size, "$muted"))
    if phase == "failed" and state.error is not None:
        said = f"{glyphs.bad} {clean(state.error.message, multiline=False)}"
        return Content.assemble(start, (fitted(said, wide - names - 2, glyphs.more), "$error"))
    share = state.done / state.total if state.total else 0.0
    bar = glyphs.bar(share, bars)
    rest = glyphs.dot * (bars - len(bar))
    shown = f"  {100 * share:3.0f} %  {_progress(state, wide)}"
    return Content.assemble(start, (bar, "$accent"), (rest, "$muted"), shown)


def _progress(state: State, wide: int) -> str:
    """What is known beside the share, as far as there is room."""
    parts = []
    if wide >= 100 and state.total:
        size = gb(state.total)
        parts.append(f"{gb(state.done)} of {size}".rjust(18) if state.done else size.rjust(18))
    if state.phase.value != "loading":
        return "  ".join([*parts, state.phase.value])
    if state.rate and wide >= 70:
        parts.append(bytes_per_second(state.rate))
    if state.eta is not None:
        parts.append(duration(state.eta))
    return "  ".join(parts)


def doing(state: State, own: Mapping[str, str]) -> str:
    """The keys that do something with a download as it is."""
    phase = state.phase.value
    if phase == "done":
        return ""
    pause, cancel = name(keys_of("home.pause", own)[0]), name(keys_of("home.cancel", own)[0])
    again = {"paused": "resume", "cancelled": "resume", "failed": "try again"}
    words = f"{pause} {again.get(phase, 'pause')}"
    return words if phase in ("failed", "cancelled") else f"{words}  {cancel} cancel"


def trouble(state: State) -> str:
    """All that there is to say of a download that failed."""
    error = state.error
    return clean(f"{error.message} {error.hint}", multiline=False) if error is not None else ""
