"""What an engine is to do, and what came of it: made in one thread, done in another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from localspec.api.answer import Answer, Piece, Unfinished
from localspec.chat.settings import Loaded
from localspec.errors import LocalspecError
from localspec.launch import Remembering
from localspec.protocol.events import Dead, Notice, Ready
from localspec.protocol.wire import Generate
from localspec.worker import ending

T = TypeVar("T")

TICK = 0.5
"""Seconds after which a waiting thread looks up: Windows lets no Ctrl+C through before."""


class Job(Generic[T]):
    """Something to be done with an engine; whoever waits gets its value, or its error."""

    def __init__(self, work: Callable[[Remembering], T]) -> None:
        self._work = work
        self._ended = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        self.stopped = False
        """Whether nobody wants more of it."""
        self.told: list[Notice] = []
        self.wake: Callable[[], None] = lambda: None
        """Called whenever there is something new."""

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def result(self) -> T:
        """Waits for the end.  Raises what the work raised."""
        while not self._ended.wait(TICK):
            pass
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    # --- for the thread that does it ------------------------------------------------------

    def carry_out(self, engine: Remembering) -> None:
        self._value = self._work(engine)

    def end(self, error: BaseException | None = None) -> None:
        self._error = error
        self._ended.set()
        self.wake()


class Answering(Job[Answer]):
    """An answer, whose pieces can be had while it is written."""

    def __init__(self, ask: Callable[[Ready], tuple[Generate, Loaded]]) -> None:
        super().__init__(self._answer)
        self._ask = ask
        self.pieces: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        """The last is None."""

    def end(self, error: BaseException | None = None) -> None:
        super().end(error)
        self.pieces.put(None)
        self.wake()

    def _answer(self, engine: Remembering) -> Answer:
        request, loaded = self._ask(engine.ready)
        made = Unfinished(notices=self.told)
        try:
            self._hear(engine, request, made)
        except LocalspecError as error:
            error.said = made.text
            raise
        return made.answer(request, engine.ready, loaded)

    def _hear(self, engine: Remembering, request: Generate, made: Unfinished) -> None:
        if self.stopped:  # before it began
            return
        for event in engine.generate(request):
            for piece in made.hear(event):
                self.pieces.put(piece)
            self.wake()
            if isinstance(event, Dead):
                raise ending.error(event)
            if self.stopped:  # perhaps before the engine had anything to stop
                engine.stop()
