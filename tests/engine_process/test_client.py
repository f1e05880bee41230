"""The engine process may die in any way at any moment: the parent says which and lives on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localspec import errors
from localspec.engine_process import exit_causes
from localspec.engine_process.client import EngineProcess, EngineTimeouts
from localspec.protocol.events import EngineExit, Event, GenerationFinished, Round
from localspec.protocol.wire import GenerateCommand, LoadCommand, ProbeCommand, ReplayCommand
from tests.engine_process import fake
from tests.engine_process.ends import gone
from tests.engine_process.faults import ENDS

FAKE = Path(__file__).with_name("fake.py")
QUICK = EngineTimeouts(handshake=20, load=20, answer=20, stop=2)
IMPATIENT = EngineTimeouts(handshake=2, load=2, answer=2, stop=1)


def worker(phase: str, fault: str) -> EngineProcess:
    patience = IMPATIENT if fault == "hang" else QUICK
    parent = str(os.getpid())
    return EngineProcess(lambda: [sys.executable, str(FAKE), parent, phase, fault], patience)


REPLAY = ReplayCommand("hi", (1,), (1,), (1,))


@pytest.fixture
def start() -> Iterator[Callable[[str, str], EngineProcess]]:
    made: list[EngineProcess] = []

    def make(phase: str, fault: str) -> EngineProcess:
        made.append(worker(phase, fault))
        return made[-1]

    yield make
    for each in made:
        each.close()
        assert gone(each.pid)


def said(events: list[Event]) -> str:
    return "".join(t.text for e in events if isinstance(e, Round) for t in e.tokens)


def test_an_answer_without_a_fault(start: Callable[[str, str], EngineProcess]) -> None:
    engine = start("never", "none")
    assert engine.load(LoadCommand("a.gguf")).model == "a.gguf"
    events = list(engine.generate(GenerateCommand("hi")))
    assert said(events) == "one two three four"
    assert isinstance(events[-1], GenerationFinished)
    assert said(list(engine.generate(GenerateCommand("again")))) == "one two three four"


@pytest.mark.parametrize("fault", ENDS)
def test_death_at_the_handshake(fault: str) -> None:
    with pytest.raises(errors.LocalspecError) as raised:
        worker("hello", fault)
    assert raised.value.hint


@pytest.mark.parametrize("fault", ENDS)
@pytest.mark.parametrize("phase", ["load", "probe", "replay"])
def test_death_while_doing_what_ends_in_one_answer(
    phase: str, fault: str, start: Callable[[str, str], EngineProcess]
) -> None:
    engine = start(phase, fault)
    with pytest.raises(errors.LocalspecError) as raised:
        engine.load(LoadCommand("a.gguf"))
        if phase == "probe":
            list(engine.probe(ProbeCommand()))
        engine.replay(REPLAY)
    assert raised.value.hint
    assert raised.value.exit_code == ENDS[fault][1]
    with pytest.raises(type(raised.value), match="The engine stopped"):  # it stays dead
        engine.replay(REPLAY)


@pytest.mark.parametrize("fault", ENDS)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_death_while_answering(
    phase: str, fault: str, start: Callable[[str, str], EngineProcess]
) -> None:
    engine = start(phase, fault)
    engine.load(LoadCommand("a.gguf"))
    events = list(engine.generate(GenerateCommand("hi")))
    assert said(events) == ("" if phase == "prefill" else "one two ")
    last = events[-1]
    assert isinstance(last, EngineExit)
    assert last.how == ENDS[fault][0]
    assert last.hint
    error = exit_causes.exit_error(last)
    assert error.message.startswith("The engine stopped")
    assert error.exit_code == ENDS[fault][1]
    assert list(engine.generate(GenerateCommand("more"))) == [last], "it stays dead, and says so"


@pytest.mark.parametrize("phase", ["load", "probe", "replay", "prefill", "decode"])
def test_a_flood_on_stderr_blocks_nothing(
    phase: str, start: Callable[[str, str], EngineProcess]
) -> None:
    engine = start(phase, "flood")
    engine.load(LoadCommand("a.gguf"))
    assert len(list(engine.probe(ProbeCommand()))) == 1
    assert engine.measured == fake.MEASURED
    assert engine.replay(REPLAY) == fake.REPLAYED
    assert said(list(engine.generate(GenerateCommand("hi")))) == "one two three four"


def test_an_answer_that_is_closed_leaves_the_engine_usable(
    start: Callable[[str, str], EngineProcess],
) -> None:
    engine = start("never", "none")
    engine.load(LoadCommand("a.gguf"))
    answer = engine.generate(GenerateCommand("hi"))
    next(answer)
    answer.close()  # type: ignore[attr-defined]
    assert said(list(engine.generate(GenerateCommand("hi")))) == "one two three four"


def test_an_answer_closed_at_the_death_of_its_engine_waits_for_nothing(
    start: Callable[[str, str], EngineProcess],
) -> None:
    engine = start("decode", "abort")
    engine.load(LoadCommand("a.gguf"))
    answer = engine.generate(GenerateCommand("hi"))
    last = next(event for event in answer if isinstance(event, EngineExit))
    answer.close()  # type: ignore[attr-defined]
    assert list(engine.generate(GenerateCommand("more"))) == [last], (
        "the cause is not replaced by a hang"
    )


def test_an_engine_that_cannot_be_started() -> None:
    with pytest.raises(errors.EngineError, match="cannot be started"):
        EngineProcess(lambda: ["/no/such/program"], QUICK)


def test_an_engine_without_a_stdin_ends() -> None:
    engine = EngineProcess(timeouts=QUICK)
    assert engine._process.stdin is not None
    engine._process.stdin.close()
    assert engine._process.wait(timeout=5) == 0
    engine.close()


def test_the_last_words_of_llama_cpp_survive_its_abort() -> None:
    """ggml logs the cause through our callback, then aborts: the parent must hear it."""
    program = (
        "import os, sys\n"
        "from localspec.engine.llama.library import LOG\n"
        "LOG._on_log(4, b'CUDA error: out of memory\\n', None)\n"
        "os.abort()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (
        exit_causes.classify_exit(done.returncode, done.stderr.decode().splitlines()).how
        == "oom-gpu"
    )


def test_a_stop_while_a_command_is_on_its_way_follows_it(
    start: Callable[[str, str], EngineProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a signal handler, in the middle of a long prompt's write."""
    engine = start("never", "none")
    engine.load(LoadCommand("a.gguf"))
    real = EngineProcess._write
    lines: list[bytes] = []

    def write(self: EngineProcess, line: bytes) -> None:
        lines.append(line)
        if b"generate" in line:
            engine.stop()
        real(self, line)

    monkeypatch.setattr(EngineProcess, "_write", write)
    assert said(list(engine.generate(GenerateCommand("x" * 300_000)))) == "one two three four"
    assert [b"generate" in lines[0], b"stop" in lines[1]] == [True, True]


def test_an_engine_of_another_version_is_not_talked_to() -> None:
    """localspec was updated while it was running: the next engine is the new one's."""
    with pytest.raises(errors.EngineError, match="The engine stopped") as raised:
        worker("hello", "newer")
    assert (
        raised.value.hint == "localspec was updated while it was running: quit and start it again."
    )


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_an_answer_that_stands_still_is_said_to_go_on_before_it_is_given_up(phase: str) -> None:
    patience = EngineTimeouts(handshake=20, load=20, answer=2, stop=1, slow_notice=0.3)
    parent = str(os.getpid())
    engine = EngineProcess(lambda: [sys.executable, str(FAKE), parent, phase, "hang"], patience)
    try:
        engine.load(LoadCommand("a.gguf"))
        events = list(engine.generate(GenerateCommand("hi")))
    finally:
        engine.close()
    *_, told, last = events
    assert told == exit_causes.SLOW_NOTICE and "Esc stops the answer" in told.hint
    assert events.count(told) == 1
    assert isinstance(last, EngineExit) and last.how == "hang"


@pytest.mark.parametrize(
    ("fault", "file", "end"),
    [
        ("compiles", "gpu.gguf", ""),
        ("compiles", "cpu.gguf", "hang"),
        ("deadlock", "gpu.gguf", "hang"),
        ("compiles for ever", "gpu.gguf", "hang"),
    ],
)
def test_a_driver_that_compiles_at_first_use_is_waited_for(fault: str, file: str, end: str) -> None:
    """Only on a GPU, only while it computes, and not for ever."""
    parent = str(os.getpid())
    command = [sys.executable, str(FAKE), parent, "prefill", fault]
    engine = EngineProcess(lambda: command, EngineTimeouts(handshake=20, load=20, answer=120))
    load = LoadCommand(file)
    try:
        engine.load(load)
        events = list(engine.generate(GenerateCommand("hi")))
    finally:
        engine.close()
    notice = exit_causes.COMPILING_NOTICE if file == "gpu.gguf" else exit_causes.SLOW_NOTICE
    assert events.count(notice) == 1
    assert said(events) == ("" if end else "one two three four")
    assert [event.how for event in events if isinstance(event, EngineExit)] == (
        [end] if end else []
    )


def test_a_driver_that_compiles_may_be_stopped_() -> None:
    patience = EngineTimeouts(handshake=20, load=20, answer=120, stop=0.5, slow_notice=30)
    command = [sys.executable, str(FAKE), str(os.getpid()), "decode", "compiles until killed"]
    engine, load = EngineProcess(lambda: command, patience), LoadCommand("gpu.gguf")
    try:
        engine.load(load)
        events: list[Event] = []
        for event in engine.generate(GenerateCommand("hi")):
            events.append(event)
            if event == exit_causes.COMPILING_NOTICE:
                engine.stop()
    finally:
        engine.close()
    assert isinstance(events[-1], EngineExit) and events[-1].how == "hang"


@pytest.mark.parametrize("when", ["told", "at once"])
def test_a_hung_engine_that_is_to_stop_is_ended(when: str) -> None:
    """As Esc does, from another thread than the one that listens; two minutes are not waited."""
    patience = EngineTimeouts(handshake=20, load=20, answer=120, stop=0.5, slow_notice=0.5)
    parent = str(os.getpid())
    engine = EngineProcess(lambda: [sys.executable, str(FAKE), parent, "decode", "hang"], patience)
    try:
        engine.load(LoadCommand("a.gguf"))
        began = time.monotonic()
        events: list[Event] = []
        for event in engine.generate(GenerateCommand("hi")):
            events.append(event)
            if event == exit_causes.SLOW_NOTICE or (
                when == "at once" and said(events) == "one two "
            ):
                threading.Thread(target=engine.stop).start()
        assert time.monotonic() - began < 10
        assert said(events) == "one two "
        assert isinstance(events[-1], EngineExit) and events[-1].how == "hang"
    finally:
        engine.close()


def test_a_hung_engine_is_given_up_when_its_answer_is_not_wanted(
    start: Callable[[str, str], EngineProcess],
) -> None:
    """As Esc does: it has `stop` seconds."""
    engine = start("decode", "hang")
    engine.load(LoadCommand("a.gguf"))
    answer = engine.generate(GenerateCommand("hi"))
    while not isinstance(next(answer), Round):
        pass
    began = time.monotonic()
    answer.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < 2 * IMPATIENT.stop + 2
    assert not engine.alive
