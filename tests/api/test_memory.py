"""Memory growth after many short answers, in this process and in the engine."""

from __future__ import annotations

import gc
from collections.abc import Callable

import psutil
import pytest

from localspec import LLM
from localspec.launch import EngineClient
from tests.api.conftest import Load

AT_ONCE = 100
WAYS = ("generate", "stream", "chat", "left")
MOST = 1_000_000
"""Allowed growth in bytes."""


def grown(llm: LLM, answer: Callable[[int], object], rounds: int) -> dict[str, float]:
    """Bytes by which each process grows per AT_ONCE answers, after a warm-up of as many."""
    held = llm._engine_host.engine
    assert isinstance(held, EngineClient)
    processes = {"parent": psutil.Process(), "engine": psutil.Process(held.pid)}
    sizes: dict[str, list[int]] = {name: [] for name in processes}
    for turn in range(rounds + 2):
        for n in range(AT_ONCE):
            answer(turn * AT_ONCE + n)
        gc.collect()
        for name, process in processes.items():
            sizes[name].append(process.memory_info().rss)
    return {name: (seen[-1] - seen[1]) / rounds for name, seen in sizes.items()}


@pytest.mark.parametrize(
    ("how", "rounds"),
    [
        ("generate", 2),
        ("left", 2),
        *(pytest.param(how, 10, marks=pytest.mark.long) for how in WAYS),
    ],
)
def test_short_answers_leave_nothing_behind(load: Load, how: str, rounds: int) -> None:
    """Different prompts and seeds each time, so that no answer repeats."""
    chats = how == "chat"
    llm = load("chatty", ctx=1024) if chats else load("target", "cousin")
    ways: dict[str, Callable[[int], object]] = {
        "generate": lambda n: llm.generate(f"a{n}", seed=n, max_tokens=8),
        "stream": lambda n: list(llm.stream(f"a{n}", seed=n, max_tokens=8)),
        "chat": lambda n: llm.chat(f"Hi {n}?", seed=n, max_tokens=8),
        "left": lambda n: next(llm.stream(f"a{n}", seed=n, max_tokens=8)),
    }
    leaks = grown(llm, ways[how], rounds)
    assert max(leaks.values()) < MOST, leaks
