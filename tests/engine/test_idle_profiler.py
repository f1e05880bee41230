"""Costs and threads are measured on request or when idle; other programs get threads."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.engine import idle_profiler, pass_timing
from localspec.engine import session as session_module
from localspec.engine.session import Session
from localspec.llama.context import LlamaContext
from localspec.machine.cpu_and_ram import read_cpu_cores
from localspec.protocol.wire import LoadCommand, MeasuredCosts, ProbeCommand
from tests.support.sessions import SETTINGS, loaded, say
from tests.support.zoo import Zoo


@pytest.mark.parametrize(("backend", "n"), [("Vulkan0", 0), ("CUDA0", 2), ("ROCm1", 2)])
def test_passes_settle_where_graphs_are_captured(
    backend: str, n: int, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[int] = []
    measure = pass_timing.measure_passes

    def record(*models: Any, **settings: Any) -> Iterator[pass_timing.PassTimes]:
        settled.append(settings["warm"])
        return measure(*models, **settings)

    monkeypatch.setattr(pass_timing, "measure_passes", record)
    with loaded(zoo["target"]) as session:
        monkeypatch.setattr(
            LlamaContext, "memory_by_device", lambda _: {"CPU": 1, backend: 1}
        )
        list(session.probe(ProbeCommand(0.1)))
    assert settled == [n]


UNTOLD = replace(SETTINGS, n_threads=None)


def test_threads_are_chosen_and_told_unless_they_were_asked_for(zoo: Zoo) -> None:
    known = read_cpu_cores().thread_counts()
    for settings, counts, batch_counts in (
        (UNTOLD, known, known),
        (SETTINGS, (1,), (None,)),
    ):
        with loaded(zoo["target"], settings=settings) as session:
            (*_, shown) = session.probe(ProbeCommand(0.1))
            assert isinstance(shown, MeasuredCosts)
            assert shown.threads in counts and shown.threads_batch in batch_counts


class QuietComputer:
    load = 0.0

    def start(self) -> None:
        pass

    def read(self) -> float:
        return self.load


def watch(monkeypatch: pytest.MonkeyPatch) -> QuietComputer:
    computer = QuietComputer()
    for module in (idle_profiler, session_module):
        monkeypatch.setattr(module, "OtherCpuLoad", lambda *pids, **_: computer)
    return computer


@pytest.fixture
def idle(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Session, QuietComputer]]:
    computer = watch(monkeypatch)
    # every width, however slow it is
    monkeypatch.setattr(idle_profiler, "_IDLE_SECONDS", 600.0)
    files = str(zoo["target"]), str(zoo["cousin"])
    with closing(
        Session(LoadCommand(*files, UNTOLD, UNTOLD, measure_when_idle=True))
    ) as session:
        yield session, computer


def test_an_answer_leaves_busy_cpus_to_other_programs(
    idle: tuple[Session, QuietComputer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spinning threads of two engines on the same CPUs took seconds for a token."""
    monkeypatch.setattr(idle_profiler, "_ADAPT_SECONDS", 0.0)
    session, computer = idle
    profiler = session._profiler
    n = session._profiler.threads
    texts = []
    counts = []
    for computer.load in (0.0, 0.99, 0.0):
        texts.append(say(session, "a b c", max_tokens=4).ids)
        counts.append(session._target.n_threads)
    assert counts == [n, 1, n]
    assert texts[0] == texts[1]
    # what runs between answers may wait for this one, as an agent's tools do
    counts = []
    for computer.load, between in (
        (0.99, True),
        (0.99, False),
        (0.99, True),
        (0.0, True),
    ):
        profiler.adapt_threads(between_answers=between)
        counts.append(session._target.n_threads)
    assert counts == [n, 1, 1, n]


def test_a_model_loaded_beside_busy_programs_begins_with_fewer_threads(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    computer = watch(monkeypatch)
    computer.load = 0.99
    with loaded(zoo["target"], settings=UNTOLD) as session:
        assert session._target.n_threads == 1
        computer.load = 0.0
        session._profiler.adapt_threads(between_answers=True)
        assert session._target.n_threads == session._profiler.threads


def test_a_draft_keeps_its_own_number_of_threads(zoo: Zoo) -> None:
    files = (str(zoo["target"]), str(zoo["cousin"]))
    three = replace(SETTINGS, n_threads=3)
    session = Session(LoadCommand(*files, SETTINGS, three))
    assert session._draft is not None
    session._profiler._limit_threads(2)
    assert (session._target.n_threads, session._draft.n_threads) == (1, 2)
    session._profiler._limit_threads(8)
    assert (session._target.n_threads, session._draft.n_threads) == (1, 3)
    session.close()


def costs(session: Session) -> MeasuredCosts | None:
    return next(session.measured_costs(), None)


def test_an_idle_engine_measures_once_and_keeps_the_chat(
    idle: tuple[Session, QuietComputer],
) -> None:
    session, _ = idle
    assert costs(session) is None
    before = say(session, "Hello", max_tokens=20).ids
    n_past = session._target.n_past
    assert list(session.measure_when_idle())
    measured = costs(session)
    assert measured is not None and measured.c is not None and len(measured.curve) > 3
    assert measured.threads_batch is not None
    assert not list(session.measure_when_idle())
    assert session._target.n_past == n_past, "the text in memory was lost"
    assert say(session, "Hello", max_tokens=20).ids == before


def test_an_interrupted_or_disturbed_measurement_is_made_again(
    idle: tuple[Session, QuietComputer],
) -> None:
    session, computer = idle
    measuring = session.measure_when_idle()
    next(measuring)
    measuring.close()
    assert costs(session) is None
    computer.load = 0.5
    assert list(session.measure_when_idle())
    assert costs(session) is None
    computer.load = 0.0
    assert list(session.measure_when_idle())
    assert costs(session) is not None


def test_a_computer_that_stays_busy_is_left_alone(
    idle: tuple[Session, QuietComputer],
) -> None:
    session, computer = idle
    computer.load = 0.5
    assert [bool(list(session.measure_when_idle())) for _ in range(4)] == [True] * 3 + [
        False
    ]
    assert costs(session) is None


def test_a_command_interrupts_a_measurement_within_a_pass(
    idle: tuple[Session, QuietComputer], capfd: pytest.CaptureFixture[str]
) -> None:
    """So does one that arrives before the first pass; the next answer is as ever."""
    session, _ = idle
    before = say(session, "Hello", max_tokens=20)
    threads = [
        (model.n_threads, model.n_threads_batch) for model in session._profiler._models
    ]
    for n_passes in (0, 3):
        measuring = session.measure_when_idle()
        for _ in range(n_passes):
            next(measuring)
        capfd.readouterr()
        session.stop()
        assert next(measuring, "ended") == "ended", "a pass was waited for"
        assert capfd.readouterr().err == "", "the engine log calls it a failure"
        found = [
            (model.n_threads, model.n_threads_batch)
            for model in session._profiler._models
        ]
        assert (session._profiler.threads_batch, found) == (None, threads)
        again = say(session, "Hello", max_tokens=20)
        assert (again.ids, again.reason) == (before.ids, before.reason)


def test_answers_that_stay_slower_are_measured_again(
    idle: tuple[Session, QuietComputer],
) -> None:
    session, _ = idle
    list(session.measure_when_idle())
    profiler = session._profiler
    measured = costs(session)
    assert measured is not None
    for slower in (1.0, 2.0, 2.0, 1.0, 2.0, 2.0):
        profiler.record_answer(slower * measured.t1_ms)
        assert not list(profiler.measure_when_idle())
    profiler.record_answer(2.0 * measured.t1_ms)
    assert list(profiler.measure_when_idle())


def test_measured_threads_are_used_again(zoo: Zoo) -> None:
    target = str(zoo["target"])
    known = MeasuredCosts(1.0, {"1": 1.0, "4": 1.2}, threads=1, threads_batch=2)
    for load in (
        LoadCommand(target, measured=known),
        LoadCommand(target, threads=(1, 2)),
    ):
        session = Session(replace(load, target_settings=UNTOLD))
        assert (session._target.n_threads, session._target.n_threads_batch) == (1, 2)
        session.close()
