"""The real engine dies, hangs or babbles in the middle of real work; and its parent dies."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from localspec import child_process, errors
from localspec.engine_process.client import EngineProcess, EngineTimeouts
from localspec.protocol.events import EngineExit, Event, GenerationFinished, Round
from localspec.protocol.wire import (
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    ProbeCommand,
    SamplingParams,
)
from tests.engine_process.ends import ended, gone
from tests.engine_process.faults import ENDS
from tests.support.zoo import Zoo

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

FAULTY = Path(__file__).with_name("faulty.py")
ROOT = FAULTY.parents[2]
PHASES = ("load", "probe", "prefill", "decode")
LONG = pytest.mark.long
QUICK = ("kill", "disk")
PATIENT = EngineTimeouts(handshake=60, load=60, answer=60, stop=10)
IMPATIENT = EngineTimeouts(handshake=60, load=10, answer=3, stop=1)
SMALL = ContextSettings(n_ctx=2048, n_threads=1)
ASK = GenerateCommand("a" * 1200, SamplingParams(temperature=0), max_tokens=400)
"""Long enough to be read in several batches."""


def faulty(phase: str, fault: str) -> EngineProcess:
    patience = IMPATIENT if fault == "hang" else PATIENT
    return EngineProcess(
        lambda: [sys.executable, str(FAULTY), str(os.getpid()), phase, fault], patience
    )


def use(engine: EngineProcess, model: Path) -> Iterator[Event]:
    """Everything an engine does, one after the other."""
    yield engine.load(LoadCommand(str(model), None, SMALL))
    yield from engine.probe(ProbeCommand(seconds=0.1))
    yield from engine.generate(ASK)


def said(events: list[Event]) -> str:
    return "".join(t.text for e in events if isinstance(e, Round) for t in e.tokens)


def cases() -> list[Any]:
    """Every fault in every phase; without --long all while decoding, and two in each phase."""
    return [
        pytest.param(phase, fault, marks=() if phase == "decode" or fault in QUICK else LONG)
        for phase, fault in product(PHASES, ("kill", "segv", "abort", "hang", "garbage", "disk"))
    ]


@pytest.mark.parametrize(("phase", "fault"), cases())
def test_the_parent_survives_and_says_which(phase: str, fault: str, zoo: Zoo) -> None:
    how, code = ENDS[fault]
    engine = faulty(phase, fault)
    events: list[Event] = []
    try:
        if phase in ("load", "probe"):
            with pytest.raises(errors.LocalspecError, match="The engine stopped") as raised:
                events += use(engine, zoo["chatter"])
            assert (raised.value.exit_code, bool(raised.value.hint)) == (code, True)
        else:
            events += use(engine, zoo["chatter"])
            last = events[-1]
            assert isinstance(last, EngineExit)
            assert (last.how, bool(last.hint)) == (how, True), last.log
        assert said(events).startswith(" one two three") is (phase == "decode")
    finally:
        engine.close()
    assert gone(engine.pid)


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=() if phase == "decode" else LONG) for phase in PHASES]
)
def test_a_flood_on_stderr_delays_and_no_more(phase: str, zoo: Zoo) -> None:
    engine = faulty(phase, "flood")
    try:
        assert isinstance(list(use(engine, zoo["chatter"]))[-1], GenerationFinished)
    finally:
        engine.close()


def test_an_engine_that_may_not_write_a_byte_to_any_disk_works(zoo: Zoo) -> None:
    engine = EngineProcess(child_process.engine_command, PATIENT)
    try:
        resource.prlimit(engine.pid, resource.RLIMIT_FSIZE, (0, 0))
        events = list(use(engine, zoo["chatter"]))
        assert isinstance(events[-1], GenerationFinished)
        assert said(events).startswith(" one two three")
    finally:
        engine.close()


def test_a_model_file_cut_while_it_is_used_is_named(zoo: Zoo, tmp_path: Path) -> None:
    model = Path(shutil.copy(zoo["chatter"], tmp_path / "cut.gguf"))
    engine = EngineProcess(child_process.engine_command, PATIENT)
    events: list[Event] = []
    try:
        for event in use(engine, model):
            events.append(event)
            if isinstance(event, Round) and event.n == 2:
                os.truncate(model, 0)
    finally:
        engine.close()
    last = events[-1]
    assert isinstance(last, EngineExit)
    assert last.how == "signal SIGBUS"
    assert "changed or its disk went away" in last.hint
    assert f"{model}; it has 0 bytes now" in last.hint


@pytest.mark.parametrize("how", ["SIGKILL", pytest.param("SIGTERM", marks=LONG)])
@pytest.mark.parametrize("phase", ["idle", "load", "prefill", "decode", "hang"])
@pytest.mark.parametrize("engine", ["fake", "real"])
def test_a_parent_that_dies_takes_its_engine_along(
    engine: str, phase: str, how: str, zoo: Zoo
) -> None:
    done = subprocess.run(
        [sys.executable, str(FAULTY.with_name("parent.py")), engine, phase, how, zoo["chatter"]],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.Signals[how], "it died when it was to"
    assert ended(int(done.stdout), seconds=2.0)
