"""One thread, one engine: the order of jobs, their stop, and the end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import DoesNotFitError, EngineError, UsageError
from localspec.fit.advisor import SettingsRequest
from localspec.launch import Engine, engine_host, idle_tasks
from localspec.launch.engine_host import EngineHost, EngineJob
from localspec.protocol.wire import LoadCommand
from tests.support.downloads import wait_for
from tests.support.fake_engine import BareEngine

REQUEST = SettingsRequest(LoadCommand("one.gguf", None))
LIMIT = 20


class CountedEngine(BareEngine):
    def __init__(self, name: str = "") -> None:
        self.name = name
        self.n_stops = 0
        self.closed = False

    def stop(self) -> None:
        self.n_stops += 1

    def close(self) -> None:
        self.alive = False
        self.closed = True


class Starter:
    """A `StartEngine` of a machine that holds `room` engines."""

    def __init__(self, room: int = 9) -> None:
        self.room = room
        self.engines = list[CountedEngine]()

    def __call__(self, request: SettingsRequest, **_: Any) -> Engine:
        if len(self.alive) >= self.room or request.load.target == "huge":
            raise DoesNotFitError("It does not fit.")
        self.engines.append(CountedEngine(request.load.target))
        return self.engines[-1]

    @property
    def alive(self) -> list[str]:
        return [engine.name for engine in self.engines if engine.alive]


@contextmanager
def hosting(*, reloads: bool = True) -> Iterator[tuple[EngineHost, Starter]]:
    start = Starter()
    host = EngineHost(REQUEST, probe=False, start=start, reloads=reloads)
    try:
        yield host, start
    finally:
        host.close()
    assert all(engine.closed for engine in start.engines)


class WaitingJob(EngineJob[None]):
    """Is in the engine until the test lets it go."""

    def __init__(self) -> None:
        super().__init__(self._wait)
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def _wait(self, _: Engine) -> None:
        self.begun.set()
        assert self.let_go.wait(LIMIT)


def begin(host: EngineHost) -> WaitingJob:
    job = WaitingJob()
    host.submit(job)
    assert job.begun.wait(LIMIT)
    return job


def test_jobs_run_in_order_and_put_out_what_they_have() -> None:
    with hosting() as (host, start):
        order: list[int] = []
        first = begin(host)
        jobs = [EngineJob(lambda _, n=n: order.append(n)) for n in range(5)]  # type: ignore[misc]
        updates: list[None] = []
        jobs[4].on_update = lambda: updates.append(None)
        for job in jobs:
            host.submit(job)
        assert host.is_busy and not order
        jobs[4].put("early")
        jobs[4].put("late")
        assert len(updates) == 1, "told once until it is taken"
        first.let_go.set()
        jobs[4].result()
        assert order == [0, 1, 2, 3, 4] and not jobs[4].has_ended
        assert (
            jobs[4].take() == ["early", "late"]
            and jobs[4].has_ended
            and len(start.engines) == 1
        )


def test_a_stop_ends_no_job_of_another() -> None:
    with hosting() as (host, start):
        first = begin(host)
        second = WaitingJob()
        host.submit(second)
        host.stop(second)
        assert second.stop_requested and start.engines[0].n_stops == 0
        host.stop(first)
        assert start.engines[0].n_stops == 1
        second.let_go.set()
        first.let_go.set()
        second.result()


def test_a_job_that_waits_can_be_withdrawn() -> None:
    with hosting() as (host, _):
        first = begin(host)
        second = WaitingJob()
        host.submit(second)
        assert host.withdraw(second) and not host.withdraw(first)
        first.let_go.set()
        last = EngineJob(lambda _: 3)
        host.submit(last)
        assert last.result() == 3
        assert not second.begun.is_set()


def test_others_run_while_a_job_waits_for_a_person() -> None:
    with hosting() as (host, _):
        is_answered = threading.Event()

        def ask(_: Engine) -> None:
            asked.set()
            host.run_others(is_answered.is_set)

        asked = threading.Event()
        asking = EngineJob(ask)
        other = EngineJob(lambda _: "ran")
        host.submit(asking)
        assert asked.wait(LIMIT)
        host.submit(other)
        assert other.result() == "ran" and not asking.is_done
        is_answered.set()
        asking.result()


def test_a_question_ends_with_its_host() -> None:
    with hosting() as (host, _):
        asked = threading.Event()

        def ask(_: Engine) -> None:
            asked.set()
            host.run_others(lambda: False)

        host.submit(EngineJob(ask))
        assert asked.wait(LIMIT)
        host.end()
    with pytest.raises(UsageError):
        host.submit(WaitingJob())


@pytest.mark.parametrize("reloads", [True, False])
def test_an_engine_that_has_exited(reloads: bool) -> None:
    with hosting(reloads=reloads) as (host, start):
        before = EngineJob(lambda engine: engine)
        host.submit(before)
        first_engine = before.result()

        start.engines[0].alive = False
        assert host.is_lost == (not reloads)
        after = EngineJob(lambda engine: engine)
        host.submit(after)

        assert (after.result() is not first_engine) == reloads
        codes = [notice.code for notice in after.notices]
        assert codes == (["loaded-again"] if reloads else [])
        start.engines[0].closed = True


def test_a_load_without_a_process_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds up neither who closes it nor the next pair.

    The process that it creates later is closed.
    """
    monkeypatch.setattr(engine_host, "_STOP_TIMEOUT", None)
    monkeypatch.setattr(engine_host, "_JOIN_TIMEOUT", None)
    checking = threading.Event()
    let_go = threading.Event()
    late = CountedEngine()

    def check_slowly(
        *_: Any, on_worker: Callable[[Engine], None] = lambda _: None, **__: Any
    ) -> Engine:
        checking.set()
        assert let_go.wait(LIMIT)
        on_worker(late)
        raise EngineError("The engine was closed.", "")

    before = EngineHost(REQUEST, probe=False, start=check_slowly)
    loading = EngineJob(lambda engine: engine)
    before.submit(loading)
    assert checking.wait(LIMIT)
    before.end()
    closing = threading.Thread(target=before.close, daemon=True)
    closing.start()
    after = EngineHost(REQUEST, probe=False, start=Starter(), after=before)
    loaded = threading.Event()
    job = EngineJob(lambda engine: engine)
    job.on_update = loaded.set
    after.submit(job)
    assert loaded.wait(LIMIT), "the next pair waits for a check of the closed one"
    closing.join(LIMIT)
    assert not closing.is_alive(), "closing waits for a check"
    let_go.set()
    with pytest.raises(UsageError):
        loading.result()
    assert late.closed
    after.close()


def test_a_pair_waits_for_all_before_it_that_hold_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one in the middle has no engine, but waits for one that has."""
    with hosting() as (first, _):
        answering = begin(first)
        middle = EngineHost(REQUEST, probe=False, start=Starter(), after=first)
        joined = threading.Event()
        join = middle._thread.join

        def note_and_join() -> None:
            joined.set()
            join()

        monkeypatch.setattr(middle._thread, "join", note_and_join)
        last = EngineHost(REQUEST, probe=False, start=Starter(), after=middle)
        assert joined.wait(LIMIT)
        job = EngineJob(lambda engine: engine)
        last.submit(job)
        first.end()
        middle.end()
        answering.let_go.set()
        job.result()
        assert not first._thread.is_alive()
        monkeypatch.undo()
        last.close()


@pytest.mark.parametrize("idle_seconds", [None, 600.0])
def test_idle_work_is_done_while_there_is_no_job(
    idle_seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not the pair is unloaded when it was not used for long."""
    began = threading.Event()
    ended = threading.Event()
    start = Starter()

    @contextmanager
    def work_while_idle(target: Path) -> Iterator[None]:
        assert target == Path(REQUEST.load.target)
        began.set()
        yield
        ended.set()

    monkeypatch.setattr(engine_host, "EngineClient", CountedEngine)
    monkeypatch.setattr(idle_tasks, "work_while_idle", work_while_idle)
    host = EngineHost(REQUEST, probe=True, start=start)
    host.add_pairs({"one": REQUEST}, 1, idle_seconds)
    try:
        begin(host).let_go.set()
        assert began.wait(LIMIT) and not ended.is_set()
        job = begin(host)
        assert job.begun.wait(LIMIT)
        assert ended.is_set(), "before the job runs"
        job.let_go.set()
        job.result()
    finally:
        host.close()


NAMES = ("a", "b", "c")


@contextmanager
def pooling(
    machine: Starter, *names: str, keep: int = 1, idle_seconds: float | None = None
) -> Iterator[EngineHost]:
    requests = {
        name: SettingsRequest(LoadCommand(name, None)) for name in names or NAMES
    }
    pool = EngineHost(next(iter(requests.values())), probe=False, start=machine)
    pool.add_pairs(requests, keep, idle_seconds)
    try:
        yield pool
    finally:
        pool.close()
    assert machine.alive == []


def use(pool: EngineHost, name: str) -> Engine:
    job: EngineJob[Engine] = EngineJob(lambda engine: engine)
    job.model = name
    pool.submit(job)
    assert job._done.wait(LIMIT)
    return job.result()


def test_those_used_last_stay_as_far_as_they_fit() -> None:
    machine = Starter()
    with pooling(machine, keep=2) as pool:
        engines = {name: use(pool, name) for name in ("a", "b")}
        assert [use(pool, name) for name in ("a", "b", "a")] == [
            engines[n] for n in "aba"
        ]
        use(pool, "c")
        assert machine.alive == ["a", "c"], "b was used before a"
    machine = Starter(room=1)
    with pooling(machine, "a", "b", "huge", keep=3) as pool:
        for name in ("a", "b", "a"):
            use(pool, name)
            assert machine.alive == [name], "another made room"
        with pytest.raises(DoesNotFitError):
            use(pool, "huge")
        assert use(pool, "b").alive


def test_unused_ones_are_unloaded() -> None:
    machine = Starter()
    with pooling(machine, keep=2, idle_seconds=0.05) as pool:
        use(pool, "a")
        use(pool, "b")
        wait_for(lambda: not machine.alive)
        assert not any(map(pool.is_loaded, NAMES))
        use(pool, "a")
        assert [engine.name for engine in machine.engines] == ["a", "b", "a"]
