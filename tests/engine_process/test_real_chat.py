"""A chat with the real engine process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from localspec import errors
from localspec.engine_process.client import EngineProcess, EngineTimeouts
from localspec.protocol.events import Event, GenerationFinished, Notice, Round
from localspec.protocol.wire import (
    ChatMessage,
    ContextSettings,
    CountCommand,
    GenerateCommand,
    LoadCommand,
    SamplingParams,
)
from tests.engine_process.ends import gone
from tests.support.downloads import wait_for
from tests.support.zoo import CHAT_TEXT, Zoo, _chat

CHAT = (ChatMessage("system", "Be kind."), ChatMessage("user", "Hi?"))
SMALL = ContextSettings(n_ctx=1024, n_threads=1)


@pytest.fixture
def engine(zoo: Zoo) -> Iterator[EngineProcess]:
    worker = EngineProcess()
    worker.load(LoadCommand(str(zoo["no-system"]), None, SMALL))
    yield worker
    worker.close()


def test_a_chat_over_the_pipe(engine: EngineProcess) -> None:
    n = engine.count(CountCommand(messages=CHAT))
    text = "<|im_start|>user\nBe kind.\n\nHi?<|im_end|>\n<|im_start|>assistant\n"
    assert n == engine.count(CountCommand(text)) > 0
    events = list(
        engine.generate(GenerateCommand(messages=CHAT, sampling=SamplingParams(temperature=0)))
    )
    assert "".join(t.text for e in events if isinstance(e, Round) for t in e.tokens) == CHAT_TEXT
    assert [event.code for event in events if isinstance(event, Notice)] == ["template-roles"]
    assert isinstance(events[-1], GenerationFinished)
    assert events[-1].totals["prompt_tokens"] == n


def test_what_cannot_be_rendered_leaves_the_engine_usable(engine: EngineProcess) -> None:
    with pytest.raises(errors.UsageError, match="Unknown chat template"):
        engine.count(CountCommand(messages=CHAT, template="nonsense"))
    assert engine.count(CountCommand("Hi?")) > 0


def test_a_template_that_hangs_costs_a_reload(tmp_path: Path) -> None:
    """Sorting is one step, however long it takes."""
    slow = "{% for i in range(99999) %}{{ range(99999) | sort | last }}{% endfor %}"
    hanging = LoadCommand(str(_chat(CHAT_TEXT, slow).write(tmp_path / "made.gguf")), None, SMALL)
    for _ in range(2):
        worker = EngineProcess(timeouts=EngineTimeouts(answer=2))
        worker.load(hanging)
        with pytest.raises(errors.EngineError, match=r"hung|respond|progress"):
            worker.count(CountCommand(messages=CHAT))
        assert gone(worker.pid)
        worker.close()


def test_it_measures_while_nobody_waits(zoo: Zoo) -> None:
    worker = EngineProcess()
    worker.load(LoadCommand(str(zoo["target"]), None, SMALL, measure_when_idle=True))
    ask = GenerateCommand("Hello", SamplingParams(temperature=0), max_tokens=12, spec="off")
    texts = {text_of(worker.generate(ask))}
    assert worker.measured is None, "an answer waited for it"
    for quiet in (1, 2, 4, 8, 16):  # seconds: a question ends what is measured, so none comes
        asked_at = monotonic()
        wait_for(lambda: monotonic() > asked_at + quiet, 2 * quiet)  # noqa: B023
        texts.add(text_of(worker.generate(ask)))
        if worker.measured is not None:
            break
    assert worker.measured is not None
    assert texts == {text_of(worker.generate(ask))} != {""}
    worker.close()


def text_of(events: Iterator[Event]) -> str:
    return "".join(t.text for e in events if isinstance(e, Round) for t in e.tokens)
