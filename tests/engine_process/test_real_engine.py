"""The real engine process: a chat, idle measurements, exits in the middle of real work."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from localspec import errors
from localspec.engine_process.client import EngineProcess, EngineTimeouts
from localspec.protocol import wire
from localspec.protocol.events import (
    EngineExit,
    Event,
    GenerationFinished,
    Notice,
    Round,
)
from tests.engine_process.ends import ended, start_failing, text_of
from tests.support.downloads import wait_for
from tests.support.zoo import CHAT_TEXT, Zoo, _chat

CHAT = (wire.ChatMessage("system", "Be kind."), wire.ChatMessage("user", "Hi?"))
GREEDY = wire.SamplingParams(temperature=0)
SMALL = wire.ContextSettings(n_ctx=2048, n_threads=1)
ASK = wire.GenerateCommand("a" * 1200, GREEDY, max_tokens=400)
"""Long enough to be read in several batches."""
PATIENT = EngineTimeouts(handshake=60, load=60, answer=60, stop=10)
IMPATIENT = EngineTimeouts(handshake=60, load=60, answer=6, stop=1)

Start = Callable[..., EngineProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[EngineProcess] = []

    def make(
        timeouts: EngineTimeouts = PATIENT, fault: tuple[str, str] | None = None
    ) -> EngineProcess:
        if fault is None:
            made.append(EngineProcess(timeouts=timeouts))
        else:
            made.append(start_failing(*fault, timeouts, "real"))
        return made[-1]

    yield make
    for each in made:
        each.close()
        assert ended(each.pid, is_orphan=False)


def use(engine: EngineProcess, model: Path) -> Iterator[Event]:
    """Everything an engine does, one after the other."""
    yield engine.load(wire.LoadCommand(str(model), None, SMALL))
    yield from engine.probe(wire.ProbeCommand(seconds=0.1))
    yield from engine.generate(ASK)


def test_a_chat_over_the_pipe(zoo: Zoo, start: Start) -> None:
    engine = start()
    engine.load(wire.LoadCommand(str(zoo["no-system"]), None, SMALL))
    n = engine.count(wire.CountCommand(messages=CHAT)).tokens
    text = "<|im_start|>user\nBe kind.\n\nHi?<|im_end|>\n<|im_start|>assistant\n"
    assert n == engine.count(wire.CountCommand(text)).tokens > 0
    with pytest.raises(errors.UsageError, match="Unknown chat template"):
        engine.count(wire.CountCommand(messages=CHAT, template="nonsense"))
    events = list(engine.generate(wire.GenerateCommand(messages=CHAT, sampling=GREEDY)))
    assert text_of(events) == CHAT_TEXT
    assert [event.code for event in events if isinstance(event, Notice)] == [
        "template-roles"
    ]
    assert (
        isinstance(events[-1], GenerationFinished)
        and events[-1].totals["prompt_tokens"] == n
    )


def test_a_template_that_hangs_costs_a_reload(tmp_path: Path, start: Start) -> None:
    """Sorting is one step, however long it takes."""
    slow = "{% for i in range(99999) %}{{ range(99999) | sort | last }}{% endfor %}"
    hanging = wire.LoadCommand(
        str(_chat(CHAT_TEXT, slow).write(tmp_path / "made.gguf")), None, SMALL
    )
    engine = start(EngineTimeouts(answer=1))
    engine.load(hanging)
    with pytest.raises(errors.EngineError, match=r"hung|respond|progress"):
        engine.count(wire.CountCommand(messages=CHAT))
    assert not engine.alive


def test_it_measures_while_nobody_waits(zoo: Zoo, start: Start) -> None:
    engine = start(PATIENT, ("never", "none"))
    engine.load(
        wire.LoadCommand(str(zoo["target"]), None, SMALL, measure_when_idle=True)
    )
    ask = wire.GenerateCommand("Hello", GREEDY, max_tokens=12, spec="off")
    texts = {text_of(engine.generate(ask))}
    assert engine.measured is None, "an answer waited for it"
    # seconds: a question ends what is measured, so none comes
    for quiet in (
        1,
        2,
        4,
        8,
        16,
    ):
        asked_at = monotonic()
        wait_for(lambda: monotonic() > asked_at + quiet, 2 * quiet)  # noqa: B023
        texts.add(text_of(engine.generate(ask)))
        if engine.measured is not None:
            break
    assert engine.measured is not None and texts == {text_of(engine.generate(ask))} != {
        ""
    }


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        ("disk", errors.StorageError, "No space left"),
        ("bug", errors.EngineError, "ZeroDivision"),
    ],
)
def test_an_unexpected_error_fails_one_command(
    fault: str, kind: type[errors.LocalspecError], reason: str, zoo: Zoo, start: Start
) -> None:
    engine = start(PATIENT, ("decode", fault))
    engine.load(wire.LoadCommand(str(zoo["chatter"]), None, SMALL))
    events: list[Event] = []
    with pytest.raises(kind, match=reason) as raised:
        events += engine.generate(ASK)
    assert raised.value.hint
    short = wire.GenerateCommand("a", GREEDY, max_tokens=2)
    assert text_of(engine.generate(short)) == " one two", "the engine goes on"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits")
def test_an_engine_needs_no_disk_and_exits_when_its_stdin_closes(
    zoo: Zoo, start: Start
) -> None:
    engine = start()
    resource.prlimit(engine.pid, resource.RLIMIT_FSIZE, (0, 0))
    events = list(use(engine, zoo["chatter"]))
    assert isinstance(events[-1], GenerationFinished)
    assert (
        text_of(events).startswith(" one two three")
        and engine._process.stdin is not None
    )
    engine._process.stdin.close()
    assert engine._process.wait(timeout=30) == 0


def test_a_model_file_cut_while_it_is_used_is_named(
    zoo: Zoo, tmp_path: Path, start: Start
) -> None:
    model = Path(shutil.copy(zoo["chatter"], tmp_path / "cut.gguf"))
    for event in use(start(), model):
        if isinstance(event, Round) and event.n == 2:
            os.truncate(model, 0)
    assert isinstance(event, EngineExit) and event.how == "signal SIGBUS"
    assert "changed or its disk went away" in event.hint
    assert f"{model}; it has 0 bytes now" in event.hint


PARENT = """\
import os, signal, sys
from localspec.engine_process.client import EngineProcess
from localspec.protocol.events import Round
from localspec.protocol.wire import ContextSettings, GenerateCommand, LoadCommand

phase, model = sys.argv[1:]
engine = EngineProcess()
print(engine.pid, flush=True)
load = LoadCommand(model, None, ContextSettings(n_ctx=2048, n_threads=1))
if phase == "load":
    engine._send(1, load)
if phase == "decode":
    engine.load(load)
    events = engine.generate(GenerateCommand("a" * 1200, max_tokens=800))
    next(event for event in events if isinstance(event, Round))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("phase", ["idle", "load", "decode"])
def test_an_engine_exits_with_its_parent(phase: str, zoo: Zoo) -> None:
    command = [sys.executable, "-c", PARENT, phase, str(zoo["chatter"])]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=False)
    assert ended(int(done.stdout))
