"""The way of an event from the engine's pipe to its view: through at most four generators."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from queue import Queue
from types import FrameType
from typing import Any

import pytest
from textual.message import Message

from localspec import LLM
from localspec.chat.session import ChatSession
from localspec.engine_process.client import EngineProcess
from localspec.launch import LoadOptions, ResolvedPair
from localspec.protocol.events import Round
from localspec.tui.engine_runner import EngineLoaded, EngineRunner
from tests.serve.conftest import serving
from tests.support.zoo import Zoo

MOST = 4
LIMIT = 60


def generators(frame: FrameType | None) -> list[str]:
    """Those that are suspended or run in the callers of a frame, innermost first."""
    names = []
    while frame is not None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Of each `Round` that was read from a pipe: the generators that it passes."""
    seen: list[list[str]] = []
    read: Callable[..., Any] = EngineProcess._next_output

    def next_output(*args: Any, **kwargs: Any) -> Any:
        output = read(*args, **kwargs)
        if isinstance(output, Round):
            seen.append(generators(sys._getframe(1)))
        return output

    monkeypatch.setattr(EngineProcess, "_next_output", next_output)
    return seen


def test_in_a_chat_of_the_app(zoo: Zoo, paths: list[list[str]]) -> None:
    pair = ResolvedPair(zoo["chatty"], None)
    session, runner = ChatSession(pair, seed=1), EngineRunner()
    messages: Queue[Message] = Queue()
    runner.load(LoadOptions(ctx=512, threads=1).to_request(pair), messages.put)
    while not isinstance(loaded := messages.get(timeout=LIMIT), EngineLoaded):
        pass
    session.attach_engine(loaded.engine)
    session.ask("Hi?")
    runner.start_answer(session, messages.put)
    ended = None
    while ended is None:
        messages.get(timeout=LIMIT)
        _, ended = runner.take_deltas()
    runner.close(wait=LIMIT)
    assert ended.error is None and session.answer.rounds
    check(paths)


def test_in_python_and_on_the_server(zoo: Zoo, paths: list[list[str]]) -> None:
    with LLM(zoo["parrot"], ctx=512, threads=1) as llm:
        assert list(llm.stream("a", temperature=0))
    with serving(zoo["chatty"]) as served:
        messages = [{"role": "user", "content": "Hi?"}]
        assert served.post("/v1/chat/completions", {"messages": messages}).status == 200
    check(paths)


def check(paths: list[list[str]]) -> None:
    assert paths and paths[0][0].endswith("EngineProcess._run_command")
    longest = max(paths, key=len)
    assert len(longest) <= MOST, longest
