"""Snapshots are compared only with the Python and Textual versions they were made with."""

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import pytest
from textual._styles_cache import StylesCache
from textual.widgets import Input

from localspec.chat import copying
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens import chat
from localspec.tui.widgets import transcript

MADE_WITH = ((3, 11), "8.2.8")
"""Python and Textual (exact in pyproject.toml)."""
HERE = (sys.version_info[:2], version("textual"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    pictures = [item for item in items if item.get_closest_marker("pictures")]
    if HERE == MADE_WITH or not pictures:
        return
    made_with = "Python {}.{} and Textual {}".format(*MADE_WITH[0], MADE_WITH[1])
    if config.getoption("--snapshot-update"):
        raise pytest.UsageError(f"Pictures are accepted with {made_with} only.")
    for item in pictures:
        item.add_marker(pytest.mark.skip(reason=f"pictures are compared with {made_with}"))


@pytest.fixture(autouse=True)
def nothing_kept_of_closed_apps() -> Iterator[None]:
    """Textual 8.2.8 caches the last rendering of 1,000 widgets, also of closed apps."""
    yield
    StylesCache.get_inner_outer.cache_clear()


class ImmediateWorker:
    def __init__(self, name: str) -> None:
        pass

    def submit(self, job: Callable[[], None]) -> None:
        job()


@pytest.fixture(autouse=True)
def code_is_coloured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "LatestOnlyWorker", ImmediateWorker)


@pytest.fixture(autouse=True)
def escape_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person waits a second after an answer; the chat has a test of it."""
    monkeypatch.setattr(chat, "LATE_ESCAPE_SECONDS", 0.0)
    monkeypatch.setattr(chat, "TYPING_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def no_cursor_blinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of Textual's own palette does: on a busy machine its screen never stays the same."""
    monkeypatch.setattr(Input.cursor_blink, "_default", False)


@pytest.fixture(autouse=True)
def engines_end_with_their_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads of an open engine would keep Textual's pilot from becoming idle."""
    runners: list[EngineRunner] = []
    begin = EngineRunner.__init__

    def begun(runner: EngineRunner, *opener: Any) -> None:
        begin(runner, *opener)
        runners.append(runner)

    monkeypatch.setattr(EngineRunner, "__init__", begun)
    yield
    for runner in runners:
        runner.close()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []

    def copy(text: str, write: object) -> str:
        texts.append(text)
        return "Copied."

    monkeypatch.setattr(copying, "copy", copy)
    return texts
