"""The engine process may die in any way at any moment: the parent says which and lives on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from localspec import errors
from localspec.protocol.events import Dead, Event, Finished, Round
from localspec.protocol.wire import Generate, Load
from localspec.worker import ending
from localspec.worker.client import Patience, Worker

FAKE = Path(__file__).with_name("fake.py")
QUICK = Patience(hello=20, load=20, answer=20, stop=2)
IMPATIENT = Patience(hello=2, load=2, answer=2, stop=1)

ENDS = {
    "kill": "oom-system",
    "segv": "signal SIGSEGV",
    "abort": "assert",
    "cuda": "oom-gpu",
    "garbage": "protocol",
    "endless": "protocol",
    "exit": "exit 3",
    "silent": "exit 0",
    "hang": "hang",
}


def worker(phase: str, fault: str) -> Worker:
    patience = IMPATIENT if fault == "hang" else QUICK
    return Worker(lambda: [sys.executable, str(FAKE), phase, fault], patience)


@pytest.fixture
def start() -> Iterator[Callable[[str, str], Worker]]:
    made: list[Worker] = []

    def make(phase: str, fault: str) -> Worker:
        made.append(worker(phase, fault))
        return made[-1]

    yield make
    for each in made:
        each.close()
        assert gone(each.pid)


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether no such process is left, a zombie neither, within that time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def ended(pid: int, seconds: float) -> bool:
    """As `gone`, but an orphan may still wait for the system's init to bury it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def said(events: list[Event]) -> str:
    return "".join(t.text for e in events if isinstance(e, Round) for t in e.tokens)


def test_an_answer_without_a_fault(start: Callable[[str, str], Worker]) -> None:
    engine = start("never", "none")
    assert engine.load(Load("a.gguf")).model == "a.gguf"
    events = list(engine.generate(Generate("hi")))
    assert said(events) == "one two three four"
    assert isinstance(events[-1], Finished)
    assert said(list(engine.generate(Generate("again")))) == "one two three four"


@pytest.mark.parametrize("fault", ENDS)
def test_death_at_the_handshake(fault: str) -> None:
    with pytest.raises(errors.LocalspecError) as raised:
        worker("hello", fault)
    assert raised.value.hint


@pytest.mark.parametrize("fault", ENDS)
def test_death_while_loading(fault: str, start: Callable[[str, str], Worker]) -> None:
    with pytest.raises(errors.LocalspecError) as raised:
        start("load", fault).load(Load("a.gguf"))
    assert raised.value.hint
    expected = 11 if fault in ("kill", "cuda") else 9
    assert errors.exit_code(raised.value) == expected


@pytest.mark.parametrize("fault", ENDS)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_death_while_answering(phase: str, fault: str, start: Callable[[str, str], Worker]) -> None:
    engine = start(phase, fault)
    engine.load(Load("a.gguf"))
    events = list(engine.generate(Generate("hi")))
    assert said(events) == ("" if phase == "prefill" else "one two ")
    last = events[-1]
    assert isinstance(last, Dead)
    assert last.how == ENDS[fault]
    assert last.hint
    assert ending.error(last).message.startswith("The engine stopped")
    assert list(engine.generate(Generate("more"))) == [last], "it stays dead, and says so"


@pytest.mark.parametrize("phase", ["load", "prefill", "decode"])
def test_a_flood_on_stderr_blocks_nothing(phase: str, start: Callable[[str, str], Worker]) -> None:
    engine = start(phase, "flood")
    engine.load(Load("a.gguf"))
    assert said(list(engine.generate(Generate("hi")))) == "one two three four"


def test_an_answer_that_is_closed_leaves_the_engine_usable(
    start: Callable[[str, str], Worker],
) -> None:
    engine = start("never", "none")
    engine.load(Load("a.gguf"))
    answer = engine.generate(Generate("hi"))
    next(answer)
    answer.close()  # type: ignore[attr-defined]
    assert said(list(engine.generate(Generate("hi")))) == "one two three four"


def test_an_answer_closed_at_the_death_of_its_engine_waits_for_nothing(
    start: Callable[[str, str], Worker],
) -> None:
    engine = start("decode", "abort")
    engine.load(Load("a.gguf"))
    answer = engine.generate(Generate("hi"))
    last = next(event for event in answer if isinstance(event, Dead))
    answer.close()  # type: ignore[attr-defined]
    assert list(engine.generate(Generate("more"))) == [last], "the cause is not replaced by a hang"


def test_an_engine_that_cannot_be_started() -> None:
    with pytest.raises(errors.EngineError, match="cannot be started"):
        Worker(lambda: ["/no/such/program"], QUICK)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_a_parent_that_dies_takes_its_engine_along(how: str) -> None:
    program = (
        "import os, signal, sys\n"
        "from localspec.worker.client import Worker\n"
        "print(Worker().pid, flush=True)\n"
        f"os.kill(os.getpid(), signal.{how})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=60, check=False
    )
    assert ended(int(done.stdout), seconds=2.0)


def test_an_engine_without_a_stdin_ends() -> None:
    engine = Worker(patience=QUICK)
    assert engine._process.stdin is not None
    engine._process.stdin.close()
    assert engine._process.wait(timeout=5) == 0
    engine.close()


def test_the_last_words_of_llama_cpp_survive_its_abort() -> None:
    """ggml logs the cause through our callback, then aborts: the parent must hear it."""
    program = (
        "import os, sys\n"
        "from localspec.engine.llama.library import LOG\n"
        "LOG._take(4, b'CUDA error: out of memory\\n', None)\n"
        "os.abort()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert ending.classify(done.returncode, done.stderr.decode().splitlines()).how == "oom-gpu"


def test_a_stop_while_a_command_is_on_its_way_follows_it(
    start: Callable[[str, str], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a signal handler, in the middle of a long prompt's write."""
    engine = start("never", "none")
    engine.load(Load("a.gguf"))
    real = Worker._write
    lines: list[bytes] = []

    def write(self: Worker, line: bytes) -> None:
        lines.append(line)
        if b"generate" in line:
            engine.stop()
        real(self, line)

    monkeypatch.setattr(Worker, "_write", write)
    assert said(list(engine.generate(Generate("x" * 300_000)))) == "one two three four"
    assert [b"generate" in lines[0], b"stop" in lines[1]] == [True, True]
