"""Loading a pair while another is loaded, and cancelling a load."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Queue

from textual.message import Message

from localspec.fit.advisor import SettingsRequest
from localspec.launch import Engine
from localspec.protocol.events import Event
from localspec.protocol.wire import LoadCommand
from localspec.tui.engine_runner import (
    EngineLoaded,
    EngineRunner,
)
from tests.support.scripted_engine import LIMIT, ScriptedEngine, answer

ONE, OTHER = (
    SettingsRequest(LoadCommand("one.gguf", None)),
    SettingsRequest(LoadCommand("other.gguf", None)),
)


class Leaving(ScriptedEngine):
    """An engine whose close blocks until the test allows it."""

    def __init__(self, name: str, loader: Loader) -> None:
        super().__init__(lambda: answer(["hello"]))
        self._name, self._loader = name, loader

    def close(self) -> None:
        self._loader.told.append(f"{self._name} leaves")
        self._loader.leaving.set()
        self._loader.let_go.wait(LIMIT)
        self._loader.told.append(f"{self._name} is gone")


@dataclass
class Loader:
    """A loader that records what it does, and blocks until `finish` is set."""

    told: list[str] = field(default_factory=list)
    leaving: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    finish: threading.Event = field(default_factory=threading.Event)

    def __call__(
        self,
        request: SettingsRequest,
        *,
        probe: bool,
        notify: Callable[[Event], None],
        on_worker: Callable[[Engine], None] = lambda _: None,
    ) -> Engine:
        name = request.load.target.removesuffix(".gguf")
        engine = Leaving(name, self)
        self.told.append(f"{name} loads")
        on_worker(engine)
        self.begun.set()
        assert self.finish.wait(LIMIT)
        return engine


def test_a_pair_is_gone_before_another_is_measured_and_loaded() -> None:
    """Else the first pair's memory would count as used, and both may not fit."""
    loader = Loader()
    loader.finish.set()
    runner = EngineRunner(loader)
    opened: Queue[Message] = Queue()
    runner.load(ONE, opened.put)
    assert isinstance(opened.get(timeout=LIMIT), EngineLoaded)
    runner.load(OTHER, opened.put)
    assert loader.leaving.wait(LIMIT)
    assert "other loads" not in loader.told
    loader.let_go.set()
    assert isinstance(opened.get(timeout=LIMIT), EngineLoaded)
    assert loader.told == ["one loads", "one leaves", "one is gone", "other loads"]


def test_a_load_is_stopped_while_it_loads() -> None:
    loader = Loader()
    loader.let_go.set()
    runner = EngineRunner(loader)
    heard: list[Message] = []
    runner.load(ONE, heard.append)
    assert loader.begun.wait(LIMIT)
    runner.close(wait=LIMIT)
    assert loader.told[:3] == ["one loads", "one leaves", "one is gone"]
    loader.finish.set()
    for thread in threading.enumerate():
        if thread.name == "localspec":
            thread.join(LIMIT)
    assert heard == [], "a cancelled load posts nothing"
    assert runner.engine is None
