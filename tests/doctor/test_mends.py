"""doctor/: what localspec mends itself, and the commands that it runs."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from localspec import paths
from localspec.chat.history import ChatHistory
from localspec.doctor import checks, findings, llama_build, repairs, storage_checks
from localspec.doctor.command_runner import EXIT_STOPPED, CommandRunner
from localspec.doctor.findings import CommandLine, Finding, Level, RepairAction
from localspec.machine import llama_cpp_builds
from localspec.machine.llama_cpp_builds import RunCommand, SystemHardware
from localspec.worker import crashes
from tests.chat.talk import put

NVIDIA = SystemHardware("Linux", "x86_64", "570.86.15", 8.9)
LIMIT = 20.0
"""Seconds until what must come is there."""


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config" / "config.toml"))
    monkeypatch.delenv("LOCALSPEC_MODELS_DIR", raising=False)
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)


def found(area: str, name: str) -> Finding:
    return {one.id: one for one in checks.check_area(area)}[name]


def mended(area: str, name: str) -> str:
    """What doing it says; it is not found afterwards."""
    action = found(area, name).action
    assert action is not None and action.run is not None
    said = action.run()
    assert name not in {one.id for one in checks.check_area(area)}
    return said


# --- at once ------------------------------------------------------------------------------


def test_leftovers_are_removed(tmp_path: Path) -> None:
    blobs = tmp_path / "hf" / "hub" / "models--ann--m" / "blobs"
    blobs.mkdir(parents=True)
    part = blobs / ("a" * 64 + ".localspec.part")
    part.write_bytes(b"x" * 20_000_000)
    os.utime(part, (1, 1))
    action = found("disk", "leftovers").action
    assert action is not None and "1 unfinished downloads, 20 MB" in action.question
    assert mended("disk", "leftovers") == "20 MB are free now."
    assert not part.exists()


@pytest.mark.parametrize("name", ["config-damaged", "catalogue-damaged"])
def test_a_damaged_file_is_set_aside_as_it_is(tmp_path: Path, name: str) -> None:
    file = (
        tmp_path
        / "config"
        / {"c": "config.toml", "catalogue": "models.yaml"}[
            "c" if name.startswith("config") else "catalogue"
        ]
    )
    file.parent.mkdir()
    file.write_text("[screen: {")
    assert mended("disk", name).startswith("It is now")
    (aside,) = file.parent.glob(f"{file.name}.damaged-*")
    assert aside.read_text() == "[screen: {"


def test_a_folder_that_is_missing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(tmp_path / "my" / "models"))
    mended("disk", "models-folder")
    assert (tmp_path / "my" / "models").is_dir()
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", __file__)
    assert found("disk", "models-folder").action is None  # a file is in its place


def test_pairs_that_crash_again_and_again_may_begin_anew() -> None:
    for _ in range(crashes.LOOP_LENGTH):
        crashes.record("a pair", "signal 11")
    crashes.record("another", "signal 6")
    loop = found("engine", "crash-loops")
    assert "1 pair crashed" in loop.what and loop.level == "notice"
    mended("engine", "crash-loops")
    assert crashes.count("another") == 0


def test_chats_are_saved_from_a_damaged_file() -> None:
    assert [one.what for one in storage_checks.check_chats()] == ["none are kept yet"]
    with closing(ChatHistory.open()) as history:
        for n in range(3):
            put(history, (f"question {n} " * 400, "well"))
    assert "3 kept" in found("chats", "chats").what
    with closing(sqlite3.connect(paths.chats_file())) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'turns'")
        (page,) = database.execute("PRAGMA page_size").fetchone()
    with paths.chats_file().open("r+b") as file:
        file.seek((root[0] - 1) * page + page - 40)
        file.write(b"\xff" * 40)
        file.seek((root[0] - 1) * page)
        file.write(b"\xff" * 12)
    damaged = paths.chats_file().read_bytes()
    assert found("chats", "chats-damaged").level == "error"
    assert "3 chats were saved" in mended("chats", "chats-damaged")
    assert "1 damaged files" in found("chats", "chats-aside").what
    (aside,) = paths.chats_file().parent.glob("*.corrupt-*")
    assert aside.read_bytes() == damaged


def test_chats_of_a_newer_version_are_said_and_left_alone() -> None:
    with closing(ChatHistory.open()) as history:
        put(history, ("hello", "well"))
    with closing(sqlite3.connect(paths.chats_file())) as database:
        database.execute("PRAGMA user_version = 99")
    assert found("chats", "chats-newer").action is None


# --- installing ---------------------------------------------------------------------------


@pytest.fixture
def nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    def detect(run: RunCommand | None = None) -> SystemHardware:
        return NVIDIA

    monkeypatch.setattr(llama_cpp_builds, "detect_hardware", detect)
    monkeypatch.setattr(llama_build, "_is_source_checkout", lambda: False)


def action(name: str, what: str = "") -> RepairAction | None:
    return repairs.find_repair(Finding(name, "engine", "error", what))


@pytest.mark.usefixtures("nvidia")
def test_what_is_run_is_what_is_advised_and_what_is_asked() -> None:
    made = action("cpu-only-build")
    assert made is not None
    advised = llama_build.format_install_line(llama_cpp_builds.choose_build(NVIDIA))
    assert " && ".join(map(str, made.commands)) == advised
    assert all(str(command) in made.question for command in made.commands)
    assert "cu125" in advised and "nvidia-cublas-cu12" in advised


def test_in_a_checkout_its_own_installer_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_build, "_is_source_checkout", lambda: True)
    (command,) = llama_build.install_commands(llama_cpp_builds.choose_build(NVIDIA))
    assert command.environ == ((llama_cpp_builds.ENV_VARIABLE, "cuda"),)
    assert Path(command.argv[1]).is_file()
    assert str(command).startswith("LOCALSPEC_BACKEND=cuda ")


def test_a_build_for_this_processor_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    made = action("slow-build")
    assert made is not None and "--no-binary" in made.commands[0].argv
    assert "minutes" in made.question
    missing = action("engine-missing")
    assert missing is not None and "==" in missing.commands[0].argv[-1]
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert action("slow-build") is None


@pytest.mark.usefixtures("nvidia")
@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "LLAMA_CPP_LIB_PATH"])
def test_nothing_is_installed_offline_or_beside_a_build_of_ones_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    assert action("cpu-only-build") is None


@pytest.mark.parametrize(
    ("why", "package"),
    [
        ("libcudart.so.12: cannot open shared object file", "nvidia-cublas-cu12"),
        ("libcublas.so.11: cannot open shared object file", "nvidia-cublas-cu11"),
        ("Could not find module cublas64_13.dll", "nvidia-cublas>=13,<14"),
    ],
)
def test_libraries_of_the_generation_that_is_missing(why: str, package: str) -> None:
    made = action("library-missing", f"llama.cpp fails: {why}")
    assert made is not None and package in made.commands[0].argv
    assert action("library-missing", "llama.cpp fails: libvulkan.so.1 is not there") is None


# --- every finding ------------------------------------------------------------------------


def test_all_that_may_be_wrong_says_what_it_means() -> None:
    assert set(repairs._REPAIRS) <= set(checks.EXPLANATIONS)
    text = "".join(
        path.read_text(encoding="utf-8") for path in Path(checks.__file__).parent.glob("*.py")
    )
    for name in checks.EXPLANATIONS:
        assert f'"{name}"' in text.replace(f'"{name}":', "") or name.startswith(
            ("cache-", "data-", "config-", "catalogue-")
        ), f"{name} is never found"


def test_a_report_counts_the_worst_first() -> None:
    levels: tuple[Level, ...] = ("ok", "notice", "warning", "warning", "error")
    some = [Finding(f"f{n}", "disk", level, "what") for n, level in enumerate(levels)]
    assert findings.format_counts(some) == "1 error, 2 warnings, 1 notice"
    assert findings.format_verdict(some[:1]) == "Nothing is wrong."
    assert findings.format_report(some).startswith("disk\n    what\n  - what\n  ! what")


# --- commands -----------------------------------------------------------------------------


def python(code: str, **environ: str) -> CommandLine:
    return CommandLine((sys.executable, "-c", code), tuple(environ.items()))


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


def test_commands_run_one_after_another_and_their_words_are_harmless() -> None:
    said: list[str] = []
    first = python("import os; print('\\x1b[31m' + os.environ['WHAT'])", WHAT="hello")
    second = python("import sys; print('\\x07bell', file=sys.stderr); print('x' * 9000)")
    assert CommandRunner([first, second], said.append).run() == 0
    assert said[0].startswith("$ WHAT=hello ") and said[1] == "hello"
    assert said[3] == "bell" and len(said[4]) == 2000
    assert "\x1b" not in "".join(said)


def test_after_one_that_fails_no_other_is_run() -> None:
    said: list[str] = []
    assert (
        CommandRunner([python("raise SystemExit(3)"), python("print('no')")], said.append).run()
        == 3
    )
    assert "no" not in said
    assert CommandRunner([CommandLine(("/nowhere/at/all",))], said.append).run() == 127
    assert "cannot be started" in said[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_stop_reaches_what_the_command_started(tmp_path: Path) -> None:
    said: list[str] = []
    child = f"{sys.executable} -c 'import time; time.sleep(600)'"
    code = f"import subprocess; print('on'); subprocess.call({child!r}, shell=True)"
    errand = CommandRunner([python(code), python("print('no')")], said.append)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(errand.run()))
    thread.start()
    until(lambda: "on" in said and psutil.Process().children(recursive=True)[1:])
    started = psutil.Process().children(recursive=True)
    errand.stop()
    thread.join(LIMIT)
    assert codes == [EXIT_STOPPED] and "no" not in said
    assert not psutil.wait_procs(started, timeout=LIMIT)[1]
    assert errand.run() == EXIT_STOPPED  # it stays so


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_stop_does_not_wait_for_what_did_not_hear_it() -> None:
    """As where a compiler was begun at that very moment: its parent has ended, it has not."""
    said: list[str] = []
    child = "trap '' INT; echo on; sleep 600"
    begun = f"import subprocess, time; subprocess.Popen({child!r}, shell=True); time.sleep(600)"
    errand = CommandRunner([python(begun)], said.append)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(errand.run()))
    thread.start()
    until(lambda: "on" in said)
    errand.stop()
    thread.join(LIMIT)
    assert codes == [EXIT_STOPPED]
