"""A pair that keeps dying is remembered until it answers well."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import errors
from localspec.protocol.wire import ContextSettings, GenerateCommand, LoadCommand, MeasuredCosts
from localspec.worker import crashes
from localspec.worker.engine_process import EngineProcess, EngineTimeouts

FAKE = Path(__file__).with_name("fake.py")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def test_deaths_in_a_row_are_counted_for_each_pair() -> None:
    assert len(crashes.recent_causes("a")) == 0
    crashes.record("a", "hang")
    crashes.record("a", "signal SIGSEGV")
    crashes.record("b", "assert")
    assert crashes.recent_causes("a") == ("hang", "signal SIGSEGV")
    assert len(crashes.recent_causes("b")) == 1
    crashes.forget("a")
    assert (len(crashes.recent_causes("a")), len(crashes.recent_causes("b"))) == (0, 1)


def test_memory_is_small() -> None:
    for n in range(60):
        crashes.record(f"pair {n}", "hang")
    for _ in range(9):
        crashes.record("pair 59", "hang")
    assert (len(crashes.recent_causes("pair 0")), len(crashes.recent_causes("pair 10"))) == (0, 1)
    assert len(crashes.recent_causes("pair 59")) == 5


@pytest.mark.parametrize(
    "nonsense", [b"", b"\xff", b"[]", b'{"a": 3}', b'{"a": [1, {}]}', b"[" * 100_000]
)
def test_nonsense_in_the_file_is_nothing_known(nonsense: bytes, folder: Path) -> None:
    folder.mkdir()
    (folder / "crashes.json").write_bytes(nonsense)
    assert len(crashes.recent_causes("a")) == 0
    crashes.record("a", "hang")
    assert crashes.recent_causes("a") == ("hang",)
    assert [file.name for file in folder.iterdir()] == ["crashes.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX path")
def test_where_nothing_can_be_written_nothing_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", "/dev/null")
    crashes.record("a", "hang")
    crashes.forget("a")
    assert len(crashes.recent_causes("a")) == 0


def test_other_settings_or_another_file_are_another_pair(tmp_path: Path) -> None:
    model = tmp_path / "a.gguf"
    model.write_bytes(b"one")
    load = LoadCommand(str(model), draft="no such file")
    known = crashes.pair_key(load)
    assert crashes.pair_key(replace(load, measured=MeasuredCosts(1.0, {"1": 1.0}))) == known
    assert crashes.pair_key(replace(load, draft=None)) != known
    assert crashes.pair_key(replace(load, target_settings=ContextSettings(n_ctx=512))) != known
    model.write_bytes(b"other")
    assert crashes.pair_key(load) != known


def test_two_deaths_in_a_row_are_told_before_the_next_start() -> None:
    load = LoadCommand("a.gguf")
    crashes.record(crashes.pair_key(load), "signal SIGSEGV")
    assert crashes.crash_loop_notice(load) is None
    crashes.record(crashes.pair_key(load), "oom-gpu")
    told = crashes.crash_loop_notice(load)
    assert told is not None
    assert told.message == (
        "This pair crashed the last 2 times: it crashed with SIGSEGV; the GPU ran out of memory."
    )
    assert "--draft none" in told.hint


@pytest.fixture
def engine() -> Callable[[str, str], EngineProcess]:
    def make(phase: str, fault: str) -> EngineProcess:
        words = [sys.executable, str(FAKE), str(os.getpid()), phase, fault]
        return EngineProcess(
            lambda: words, EngineTimeouts(handshake=20, load=20, answer=20, stop=2)
        )

    return make


def test_workers_count_and_a_clean_answer_forgets(
    engine: Callable[[str, str], EngineProcess],
) -> None:
    load = LoadCommand("a.gguf")
    key = crashes.pair_key(load)
    worker = engine("load", "segv")
    with pytest.raises(errors.EngineError):
        worker.load(load)
    worker.close()
    worker = engine("decode", "abort")
    worker.load(load)
    list(worker.generate(GenerateCommand("hi")))
    list(worker.generate(GenerateCommand("it stays dead, and died once")))
    worker.close()
    assert crashes.recent_causes(key) == ("signal SIGSEGV", "assert")
    worker = engine("never", "none")
    worker.load(load)
    assert len(crashes.recent_causes(key)) == 2, "a load alone proves nothing"
    list(worker.generate(GenerateCommand("hi")))
    worker.close()
    assert len(crashes.recent_causes(key)) == 0


def test_an_engine_that_we_end_did_not_crash(engine: Callable[[str, str], EngineProcess]) -> None:
    load = LoadCommand("a.gguf")
    worker = engine("never", "none")
    worker.load(load)
    worker.close()
    assert len(crashes.recent_causes(crashes.pair_key(load))) == 0
