"""What the engine's threads tell the screens."""

from __future__ import annotations

import threading

from textual.message import Message

from localspec.chat.context import Full
from localspec.chat.fields import Overflow
from localspec.errors import LocalspecError
from localspec.launch import Engine
from localspec.protocol.events import Event, Place


class EngineOpened(Message):
    """A pair is loaded."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine


class EngineRefused(Message):
    """A pair could not be loaded, or died while it was."""

    def __init__(self, error: LocalspecError) -> None:
        super().__init__()
        self.error = error


class EngineTold(Message):
    """Something happened while a pair was being loaded or measured."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self.event = event


class EngineSpoke(Message, bubble=False):
    """There are events of the answer to fetch.  Sent once until they are fetched."""


class RoomWanted(Message):
    """The context is full; a thread waits until `answer` is called."""

    def __init__(self, full: Full) -> None:
        super().__init__()
        self.full = full
        self._told = threading.Event()
        self._wish: Overflow = "stop"

    def answer(self, wish: Overflow) -> None:
        self._wish = wish
        self._told.set()

    def wait(self) -> Overflow:
        """On the thread that writes the answer."""
        self._told.wait()
        return self._wish


class AnswerEnded(Message):
    """No more events will come; `error` is why there was no proper answer.

    `dead`: the engine is gone.
    """

    def __init__(self, error: LocalspecError | None, *, dead: bool = False) -> None:
        super().__init__()
        self.error, self.dead = error, dead


class AnswerInspected(Message):
    """What the model gives to the tokens of the last answer; the first of them, if stopped."""

    def __init__(self, places: tuple[Place, ...], error: LocalspecError | None = None) -> None:
        super().__init__()
        self.places, self.error = places, error
