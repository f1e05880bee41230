"""The engine process may end in any way at any moment, and the parent reports how."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from localspec import errors
from localspec.child_process import child_environment
from localspec.engine_process import exit_causes
from localspec.engine_process.client import EngineProcess, EngineTimeouts
from localspec.protocol import wire
from localspec.protocol.events import EngineExit, Event, GenerationFinished, Round
from tests.engine_process.ends import ended, start_failing, text_of
from tests.engine_process.failing_engine import EXITS, MEASURED, REPLAYED

QUICK = EngineTimeouts(handshake=20, load=20, answer=20, stop=2)
IMPATIENT = EngineTimeouts(handshake=20, load=20, answer=4, stop=0.5)
REPLAY = wire.ReplayCommand("hi", (1,), (1,), (1,))
ASK = wire.GenerateCommand("hi")
TEXT = "one two three four"

Start = Callable[..., EngineProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts engines, with a pair, and closes them at the end."""
    made: list[EngineProcess] = []

    def make(
        phase: str = "never",
        fault: str = "none",
        timeouts: EngineTimeouts | None = None,
        file: str = "a.gguf",
    ) -> EngineProcess:
        if timeouts is None:
            timeouts = IMPATIENT if fault == "hang" else QUICK
        made.append(start_failing(phase, fault, timeouts))
        if phase != "load":
            assert made[-1].load(wire.LoadCommand(file)).model == file
        return made[-1]

    yield make
    for each in made:
        each.close()
        assert ended(each.pid, is_orphan=False)


def test_an_engine_without_a_fault(start: Start) -> None:
    engine = start()
    for _ in range(2):
        events = list(engine.generate(ASK))
        assert text_of(events) == TEXT
        assert isinstance(events[-1], GenerationFinished)
    assert len(list(engine.probe(wire.ProbeCommand()))) == 1
    assert engine.measured == MEASURED
    assert engine.replay(REPLAY) == REPLAYED


@pytest.mark.parametrize("fault", ["flood", "late heartbeat"])
def test_a_flood_or_the_heartbeat_of_another_command(fault: str, start: Start) -> None:
    assert text_of(start("decode", fault).generate(ASK)) == TEXT


@pytest.mark.parametrize("fault", ["kill", "garbage", "silent", "hang"])
def test_an_exit_at_the_handshake(fault: str) -> None:
    timeouts = EngineTimeouts(handshake=0.5) if fault == "hang" else QUICK

    with pytest.raises(errors.LocalspecError) as raised:
        start_failing("hello", fault, timeouts)

    assert raised.value.hint


@pytest.mark.parametrize(
    ("phase", "fault"),
    [("load", "kill"), ("probe", "abort"), ("replay", "segv"), ("replay", "deep")],
)
def test_an_exit_during_a_command_with_one_reply(
    phase: str, fault: str, start: Start
) -> None:
    engine = start(phase, fault)
    with pytest.raises(errors.LocalspecError) as raised:
        if phase == "load":
            engine.load(wire.LoadCommand("a.gguf"))
        if phase == "probe":
            list(engine.probe(wire.ProbeCommand()))
        engine.replay(REPLAY)
    _, exit_code = EXITS[fault]
    assert raised.value.hint
    assert raised.value.exit_code == exit_code
    with pytest.raises(type(raised.value), match="The engine stopped"):  # for ever
        engine.replay(REPLAY)


@pytest.mark.parametrize(
    ("phase", "fault"), [("prefill", "kill"), *(("decode", fault) for fault in EXITS)]
)
def test_an_exit_during_an_answer(phase: str, fault: str, start: Start) -> None:
    how, exit_code = EXITS[fault]
    text_so_far = "" if phase == "prefill" else "one two "
    engine = start(phase, fault)

    events = list(engine.generate(ASK))

    assert text_of(events) == text_so_far
    last = events[-1]
    assert isinstance(last, EngineExit)
    assert last.how == how
    assert last.hint
    error = exit_causes.exit_error(last)
    assert error.message.startswith("The engine stopped")
    assert error.exit_code == exit_code
    assert list(engine.generate(ASK)) == [last], "for ever, with its cause"


def test_closing_an_answer_keeps_the_engine(start: Start) -> None:
    engine = start()
    answer = engine.generate(ASK)
    next(answer)

    answer.close()  # type: ignore[attr-defined]

    assert text_of(engine.generate(ASK)) == TEXT


def test_closing_an_answer_keeps_the_cause_of_an_exit(start: Start) -> None:
    engine = start("decode", "abort")
    answer = engine.generate(ASK)
    last = next(event for event in answer if isinstance(event, EngineExit))

    answer.close()  # type: ignore[attr-defined]

    assert list(engine.generate(ASK)) == [last]


def test_closing_an_answer_kills_an_engine_that_hangs(start: Start) -> None:
    engine = start("decode", "hang")
    answer = engine.generate(ASK)
    while not isinstance(next(answer), Round):
        pass
    began = time.monotonic()

    answer.close()  # type: ignore[attr-defined]

    assert time.monotonic() - began < QUICK.answer
    assert not engine.alive


def test_a_child_gets_no_secrets() -> None:
    given = {
        "HF_TOKEN": "a",
        "LOCALSPEC_API_KEY": "b",
        "LD_PRELOAD": "c",
        "HF_HOME": "d",
    }
    assert child_environment(given).keys() & given.keys() == {"HF_HOME"}


def test_an_engine_that_cannot_be_started_or_is_of_another_version() -> None:
    """localspec was updated while it was running."""
    with pytest.raises(errors.EngineError, match="cannot be started"):
        EngineProcess(lambda: ["/no/such/program"], QUICK)
    with pytest.raises(errors.EngineError, match="The engine stopped") as raised:
        start_failing("hello", "newer", QUICK)
    assert raised.value.hint.endswith("while it was running: quit and start it again.")


def test_a_stop_follows_a_long_command(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a signal handler, in the middle of a long prompt's write."""
    engine = start()
    real = EngineProcess._write
    lines = []

    def write(self: EngineProcess, line: bytes) -> None:
        lines.append(line)
        if b"generate" in line:
            engine.stop()
        real(self, line)

    monkeypatch.setattr(EngineProcess, "_write", write)
    assert text_of(engine.generate(wire.GenerateCommand("x" * 300_000))) == TEXT
    assert b"generate" in lines[0]
    assert b"stop" in lines[1]


def test_an_answer_without_progress_has_a_notice_before_it_is_given_up(
    start: Start,
) -> None:
    patience = EngineTimeouts(handshake=20, load=20, answer=3, stop=1, slow_notice=1)
    *events, last = start("decode", "hang", patience).generate(ASK)
    assert events.count(exit_causes.SLOW_NOTICE) == 1
    assert "Esc stops the answer" in exit_causes.SLOW_NOTICE.hint
    assert isinstance(last, EngineExit)
    assert last.how == "hang"
    assert last.log == ("about to hang",)


@pytest.mark.parametrize(
    ("fault", "file", "end"),
    [
        ("compiles", "gpu.gguf", []),
        ("compiles", "cpu.gguf", ["hang"]),
        ("deadlock", "gpu.gguf", ["hang"]),
        ("compiles for ever", "gpu.gguf", ["hang"]),
    ],
)
def test_a_driver_that_compiles(
    fault: str, file: str, end: list[str], start: Start
) -> None:
    patience = EngineTimeouts(handshake=20, load=20, answer=120)
    events = list(start("prefill", fault, patience, file).generate(ASK))
    notice = exit_causes.SLOW_NOTICE
    if file == "gpu.gguf":
        notice = exit_causes.COMPILING_NOTICE
    expected_text = "" if end else TEXT
    assert events.count(notice) == 1
    assert text_of(events) == expected_text
    assert [event.how for event in events if isinstance(event, EngineExit)] == end


@pytest.mark.parametrize(
    ("fault", "file"), [("compiles until killed", "gpu.gguf"), ("hang", "a.gguf")]
)
@pytest.mark.parametrize("is_at_once", [True, False])
def test_an_ignored_stop_kills(
    fault: str, file: str, is_at_once: bool, start: Start
) -> None:
    """Esc stops from another thread than the one that reads. It does not take minutes."""
    # The heartbeats of the other fault say that the engine is stuck for longer.
    slow = 3 if fault == "hang" else 30
    patience = EngineTimeouts(
        handshake=20, load=20, answer=120, stop=0.5, slow_notice=slow
    )
    engine = start("decode", fault, patience, file)
    events = list[Event]()
    notices = (exit_causes.SLOW_NOTICE, exit_causes.COMPILING_NOTICE)
    for event in engine.generate(ASK):
        events.append(event)
        if event in notices or (is_at_once and text_of(events) == "one two "):
            threading.Thread(target=engine.stop).start()
    assert text_of(events) == "one two "
    assert isinstance(events[-1], EngineExit)
    assert events[-1].how == "hang"


def test_an_engine_that_reads_nothing_can_be_closed(start: Start) -> None:
    """Its stdin is full, and another thread waits there to write the rest."""
    engine = start("prefill", "hang", EngineTimeouts(handshake=20, load=20, answer=120))
    asking = threading.Thread(target=lambda: list(engine.generate(ASK)), daemon=True)
    asking.start()
    while engine._write_lock.acquire(timeout=0.05):
        engine._write_lock.release()
        threading.Thread(
            target=engine._send, args=(9, wire.GenerateCommand("x" * 300_000))
        ).start()
    engine.close()
    assert ended(engine.pid, is_orphan=False)
