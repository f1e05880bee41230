"""What the machine has shown: kept, found again, and never a reason to fail."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.machine.measured import VERSION, About, Memory, Part, Store, key
from localspec.protocol.wire import ContextSettings, Load, Measured

SHOWN = Measured(
    t1_ms=20.5,
    curve={"1": 1.0, "4": 1.3},
    c=0.1,
    threads=4,
    difference=None,
    survival={"greedy": {"model": {"b3": [2.0, 5.0]}}},
)


def test_what_was_kept_is_found_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "measured.sqlite")
    assert store.read("a pair") is None
    assert store.write("a pair", SHOWN)
    assert store.write("another", replace(SHOWN, t1_ms=3.0))
    assert store.read("a pair") == SHOWN
    assert store.write("a pair", replace(SHOWN, c=None))
    assert Store(tmp_path / "deep" / "measured.sqlite").read("a pair") == replace(SHOWN, c=None)


def test_a_damaged_file_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "measured.sqlite"
    path.write_bytes(b"this is no database, and longer than a header of one " * 40)
    store = Store(path)
    assert store.write("a pair", SHOWN)
    assert store.read("a pair") == SHOWN
    assert path.with_suffix(".damaged").exists()


def test_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "measured.sqlite"
    base = sqlite3.connect(path)
    base.execute(f"PRAGMA user_version = {VERSION + 1}")
    base.commit()
    base.close()
    before = path.read_bytes()
    assert not Store(path).write("a pair", SHOWN)
    assert Store(path).read("a pair") is None
    assert path.read_bytes() == before


def test_nonsense_in_a_row_is_nothing_known(tmp_path: Path) -> None:
    path = tmp_path / "measured.sqlite"
    Store(path).write("a pair", SHOWN)
    for said in ("[]", "{", '{"t1_ms": 1, "unheard": 2}', "null"):
        base = sqlite3.connect(path)
        base.execute("UPDATE measured SET said = ?", (said,))
        base.commit()
        base.close()
        assert Store(path).read("a pair") is None


@pytest.mark.skipif(os.name == "nt", reason="no such permissions")
def test_a_place_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = Store(blocked / "measured.sqlite")  # below a file
    assert not store.write("a pair", SHOWN)
    assert store.read("a pair") is None


def test_another_process_that_writes_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.machine.measured._PATIENCE", 0.05)
    path = tmp_path / "measured.sqlite"
    Store(path).write("a pair", SHOWN)
    other = sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    try:
        assert not Store(path).write("a pair", replace(SHOWN, c=0.5))
    finally:
        other.rollback()
        other.close()
    assert Store(path).read("a pair") == SHOWN


def test_a_key_names_all_that_measurements_depend_on(tmp_path: Path) -> None:
    target, draft = tmp_path / "t.gguf", tmp_path / "d.gguf"
    target.write_bytes(b"GGUF target")
    draft.write_bytes(b"GGUF draft")
    load = Load(str(target), str(draft))
    names = {
        key(load),
        key(replace(load, draft=None)),
        key(replace(load, draft_max=4)),
        key(replace(load, target_settings=ContextSettings(n_threads=3))),
        key(replace(load, draft_settings=ContextSettings(n_gpu_layers=0))),
    }
    assert len(names) == 5
    assert key(replace(load, measured=SHOWN)) == key(load)
    target.write_bytes(b"GGUF another target")
    assert key(load) not in names


ABOUT = About(Part(4 << 30, ("CUDA0",), "Q4_K"), Part(1 << 30, ("CPU",), "Q8_0", moe=True))
MEMORY = Memory({"CUDA0": 6018, "CPU": 300}, {"CUDA0": 6021})


def made(folder: Path, name: str) -> str:
    path = folder / name
    path.write_bytes(b"GGUF")
    return key(Load(str(path)))


def test_all_that_was_shown_here_comes_with_what_it_depends_on(tmp_path: Path) -> None:
    store = Store(tmp_path / "measured.sqlite")
    first, second = made(tmp_path, "a.gguf"), made(tmp_path, "b.gguf")
    assert store.all() == ()
    assert store.write(first, SHOWN, ABOUT)
    assert store.write(first, replace(SHOWN, c=0.2)), "what it is about stays"
    assert store.write_memory(first, MEMORY)
    assert store.write_memory(second, MEMORY), "a load comes before its first measurement"
    assert store.write("not a key", SHOWN)
    assert store.write(first.replace('"engine"', '"engines"'), SHOWN)
    one, other = store.all()
    assert (one.key, one.measured, one.about) == (first, replace(SHOWN, c=0.2), ABOUT)
    assert one.memory is not None
    assert (one.memory.predicted, one.memory.used) == (MEMORY.predicted, MEMORY.used)
    assert one.memory.at > 0
    assert (other.key, other.measured, other.about) == (second, None, None)
    assert store.memory(second) == other.memory
    assert store.memory("nothing") is None
    assert store.read(second) is None


def test_another_machines_measurements_are_not_this_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, name = Store(tmp_path / "measured.sqlite"), made(tmp_path, "a.gguf")
    store.write(name, SHOWN, ABOUT)
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert store.all() == ()


def test_a_file_of_the_first_version_is_taken_over(tmp_path: Path) -> None:
    path, name = tmp_path / "measured.sqlite", made(tmp_path, "a.gguf")
    Store(path).write(name, SHOWN)
    base = sqlite3.connect(path)
    base.executescript("DROP TABLE about; DROP TABLE memory; PRAGMA user_version = 1")
    base.close()
    store = Store(path)
    assert store.read(name) == SHOWN
    (one,) = store.all()
    assert (one.measured, one.about, one.memory) == (SHOWN, None, None)
    assert store.write(name, SHOWN, ABOUT)
    assert store.write_memory(name, MEMORY)
    assert store.all()[0].about == ABOUT


def test_nonsense_beside_a_row_is_nothing_known(tmp_path: Path) -> None:
    path, name = tmp_path / "measured.sqlite", made(tmp_path, "a.gguf")
    store = Store(path)
    store.write(name, SHOWN, ABOUT)
    store.write_memory(name, MEMORY)
    for said in ("[]", "{", "null", '{"target": 1, "draft": 2}', '{"predicted": [], "used": 1}'):
        base = sqlite3.connect(path)
        base.execute("UPDATE about SET said = ?", (said,))
        base.execute("UPDATE memory SET said = ?", (said,))
        base.commit()
        base.close()
        (one,) = store.all()
        assert (one.measured, one.about, one.memory) == (SHOWN, None, None)
        assert store.memory(name) is None


def test_a_damaged_or_blocked_file_shows_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert Store(tmp_path / "file" / "measured.sqlite").all() == ()
    assert not Store(tmp_path / "file" / "measured.sqlite").write_memory("key", MEMORY)
