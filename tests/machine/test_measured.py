"""What the machine has shown: kept, found again, and never a reason to fail."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.machine.measurements import (
    SCHEMA_VERSION,
    MeasurementStore,
    MemoryMeasurement,
    ModelReads,
    PairReads,
    make_key,
)
from localspec.protocol.wire import ContextSettings, LoadCommand, MeasuredCosts

SHOWN = MeasuredCosts(
    t1_ms=20.5,
    curve={"1": 1.0, "4": 1.3},
    c=0.1,
    threads=4,
    difference=None,
    survival={"greedy": {"model": {"b3": [2.0, 5.0]}}},
)


def test_what_was_kept_is_found_again(tmp_path: Path) -> None:
    store = MeasurementStore(tmp_path / "deep" / "measured.sqlite")
    assert store.read_costs("a pair") is None
    assert store.write_costs("a pair", SHOWN)
    assert store.write_costs("another", replace(SHOWN, t1_ms=3.0))
    assert store.read_costs("a pair") == SHOWN
    assert store.write_costs("a pair", replace(SHOWN, c=None))
    assert MeasurementStore(tmp_path / "deep" / "measured.sqlite").read_costs("a pair") == replace(
        SHOWN, c=None
    )


def test_a_damaged_file_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "measured.sqlite"
    path.write_bytes(b"this is no database, and longer than a header of one " * 40)
    store = MeasurementStore(path)
    assert store.write_costs("a pair", SHOWN)
    assert store.read_costs("a pair") == SHOWN
    assert path.with_suffix(".damaged").exists()


def test_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "measured.sqlite"
    base = sqlite3.connect(path)
    base.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    base.commit()
    base.close()
    before = path.read_bytes()
    assert not MeasurementStore(path).write_costs("a pair", SHOWN)
    assert MeasurementStore(path).read_costs("a pair") is None
    assert path.read_bytes() == before


def test_nonsense_in_a_row_is_nothing_known(tmp_path: Path) -> None:
    path = tmp_path / "measured.sqlite"
    MeasurementStore(path).write_costs("a pair", SHOWN)
    for said in ("[]", "{", '{"t1_ms": 1, "unheard": 2}', "null"):
        base = sqlite3.connect(path)
        base.execute("UPDATE measured SET said = ?", (said,))
        base.commit()
        base.close()
        assert MeasurementStore(path).read_costs("a pair") is None


@pytest.mark.skipif(os.name == "nt", reason="no such permissions")
def test_a_place_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = MeasurementStore(blocked / "measured.sqlite")  # below a file
    assert not store.write_costs("a pair", SHOWN)
    assert store.read_costs("a pair") is None


def test_another_process_that_writes_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.machine.measurements._BUSY_TIMEOUT", 0.05)
    path = tmp_path / "measured.sqlite"
    MeasurementStore(path).write_costs("a pair", SHOWN)
    other = sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    try:
        assert not MeasurementStore(path).write_costs("a pair", replace(SHOWN, c=0.5))
    finally:
        other.rollback()
        other.close()
    assert MeasurementStore(path).read_costs("a pair") == SHOWN


def test_a_key_names_all_that_measurements_depend_on(tmp_path: Path) -> None:
    target, draft = tmp_path / "t.gguf", tmp_path / "d.gguf"
    target.write_bytes(b"GGUF target")
    draft.write_bytes(b"GGUF draft")
    load = LoadCommand(str(target), str(draft))
    names = {
        make_key(load),
        make_key(replace(load, draft=None)),
        make_key(replace(load, draft_max=4)),
        make_key(replace(load, target_settings=ContextSettings(n_threads=3))),
        make_key(replace(load, draft_settings=ContextSettings(n_gpu_layers=0))),
    }
    assert len(names) == 5
    assert make_key(replace(load, measured=SHOWN)) == make_key(load)
    target.write_bytes(b"GGUF another target")
    assert make_key(load) not in names


ABOUT = PairReads(
    ModelReads(4 << 30, ("CUDA0",), "Q4_K"), ModelReads(1 << 30, ("CPU",), "Q8_0", moe=True)
)
MEMORY = MemoryMeasurement({"CUDA0": 6018, "CPU": 300}, {"CUDA0": 6021})


def made(folder: Path, name: str) -> str:
    path = folder / name
    path.write_bytes(b"GGUF")
    return make_key(LoadCommand(str(path)))


def test_all_that_was_shown_here_comes_with_what_it_depends_on(tmp_path: Path) -> None:
    store = MeasurementStore(tmp_path / "measured.sqlite")
    first, second = made(tmp_path, "a.gguf"), made(tmp_path, "b.gguf")
    assert store.read_all() == ()
    assert store.write_costs(first, SHOWN, ABOUT)
    assert store.write_costs(first, replace(SHOWN, c=0.2)), "what it is about stays"
    assert store.write_memory(first, MEMORY)
    assert store.write_memory(second, MEMORY), "a load comes before its first measurement"
    assert store.write_costs("not a key", SHOWN)
    assert store.write_costs(first.replace('"engine"', '"engines"'), SHOWN)
    one, other = store.read_all()
    assert (one.key, one.measured, one.reads) == (first, replace(SHOWN, c=0.2), ABOUT)
    assert one.memory is not None
    assert (one.memory.predicted, one.memory.used) == (MEMORY.predicted, MEMORY.used)
    assert one.memory.measured_at > 0
    assert (other.key, other.measured, other.reads) == (second, None, None)
    assert store.read_memory(second) == other.memory
    assert store.read_memory("nothing") is None
    assert store.read_costs(second) is None


def test_another_machines_measurements_are_not_this_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, name = MeasurementStore(tmp_path / "measured.sqlite"), made(tmp_path, "a.gguf")
    store.write_costs(name, SHOWN, ABOUT)
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert store.read_all() == ()


def test_a_file_of_the_first_version_is_taken_over(tmp_path: Path) -> None:
    path, name = tmp_path / "measured.sqlite", made(tmp_path, "a.gguf")
    MeasurementStore(path).write_costs(name, SHOWN)
    base = sqlite3.connect(path)
    base.executescript("DROP TABLE about; DROP TABLE memory; PRAGMA user_version = 1")
    base.close()
    store = MeasurementStore(path)
    assert store.read_costs(name) == SHOWN
    (one,) = store.read_all()
    assert (one.measured, one.reads, one.memory) == (SHOWN, None, None)
    assert store.write_costs(name, SHOWN, ABOUT)
    assert store.write_memory(name, MEMORY)
    assert store.read_all()[0].reads == ABOUT


def test_nonsense_beside_a_row_is_nothing_known(tmp_path: Path) -> None:
    path, name = tmp_path / "measured.sqlite", made(tmp_path, "a.gguf")
    store = MeasurementStore(path)
    store.write_costs(name, SHOWN, ABOUT)
    store.write_memory(name, MEMORY)
    for said in ("[]", "{", "null", '{"target": 1, "draft": 2}', '{"predicted": [], "used": 1}'):
        base = sqlite3.connect(path)
        base.execute("UPDATE about SET said = ?", (said,))
        base.execute("UPDATE memory SET said = ?", (said,))
        base.commit()
        base.close()
        (one,) = store.read_all()
        assert (one.measured, one.reads, one.memory) == (SHOWN, None, None)
        assert store.read_memory(name) is None


def test_a_damaged_or_blocked_file_shows_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert MeasurementStore(tmp_path / "file" / "measured.sqlite").read_all() == ()
    assert not MeasurementStore(tmp_path / "file" / "measured.sqlite").write_memory("key", MEMORY)
