"""Repair actions, and the commands they run."""

import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from localspec import paths
from localspec.chat.history import ChatHistory
from localspec.doctor import checks, llama_build, repairs
from localspec.doctor.findings import CommandLine, Finding, RepairAction
from localspec.doctor.repairs import RepairRunner
from localspec.machine import llama_cpp_builds
from localspec.machine.llama_cpp_builds import RunCommand, SystemHardware
from tests.chat.saved_chats import put
from tests.support.downloads import wait_for

NVIDIA = SystemHardware("Linux", "x86_64", "570.86.15", 8.9)
TIMEOUT_SECONDS = 20.0


def found(area: str, name: str) -> Finding:
    return {one.id: one for one in checks.check_area(area)}[name]


def damage_turns_table() -> None:
    """Overwrite the start and the end of the first page of the table."""
    with closing(sqlite3.connect(paths.chats_file())) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (root_page,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'turns'"
        ).fetchone()
        (page_size,) = database.execute("PRAGMA page_size").fetchone()
    start = (root_page - 1) * page_size
    with paths.chats_file().open("r+b") as file:
        file.seek(start + page_size - 40)
        file.write(b"\xff" * 40)
        file.seek(start)
        file.write(b"\xff" * 12)


def test_chats_are_recovered_from_a_damaged_database() -> None:
    assert [one.what for one in checks.check_chats()] == ["no saved chats"]
    with closing(ChatHistory.open()) as history:
        for n in range(3):
            put(history, (f"question {n} " * 400, "well"))
    assert "3 saved chats, " in found("chats", "chats").what
    damage_turns_table()
    damaged = paths.chats_file().read_bytes()
    assert found("chats", "chats-damaged").level == "error"
    action = found("chats", "chats-damaged").action
    assert action is not None and action.run is not None
    assert "3 chats recovered" in action.run()
    assert "chats-damaged" not in {one.id for one in checks.check_area("chats")}
    assert "1 damaged chat database kept" in found("chats", "chats-aside").what
    (aside,) = paths.chats_file().parent.glob("*.corrupt-*")
    assert aside.read_bytes() == damaged


def test_chats_of_a_newer_version_have_no_repair() -> None:
    with closing(ChatHistory.open()) as history:
        put(history, ("hello", "well"))
    with closing(sqlite3.connect(paths.chats_file())) as database:
        database.execute("PRAGMA user_version = 99")
    assert found("chats", "chats-newer").action is None


@pytest.fixture
def nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    def detect(run: RunCommand | None = None) -> SystemHardware:
        return NVIDIA

    monkeypatch.setattr(llama_cpp_builds, "detect_hardware", detect)
    monkeypatch.setattr(llama_build, "_is_source_checkout", lambda: False)


def action(name: str) -> RepairAction | None:
    return repairs.find_repair(name)


@pytest.mark.usefixtures("nvidia")
def test_advice_question_and_commands_agree() -> None:
    made = action("cpu-only-build")
    assert made is not None
    advised = llama_build.format_install_line(llama_cpp_builds.choose_build(NVIDIA))
    assert " && ".join(map(str, made.commands)) == advised
    assert all(str(command) in made.question for command in made.commands)
    assert "cu125" in advised and "nvidia-cublas-cu12" in advised


def test_a_build_for_this_cpu_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    made = action("slow-build")
    assert made is not None
    assert "--no-binary" in made.commands[0].argv
    assert "minutes" in made.question
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert action("slow-build") is None


def test_an_engine_that_is_missing_is_installed_in_its_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    missing = action("engine-missing")
    assert missing is not None
    assert "==" in missing.commands[0].argv[-1]


@pytest.mark.usefixtures("nvidia")
@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "LLAMA_CPP_LIB_PATH"])
def test_nothing_is_installed_over_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    assert action("cpu-only-build") is None


def python(code: str, **environ: str) -> CommandLine:
    return CommandLine((sys.executable, "-c", code), tuple(environ.items()))


def runner(said: list[str], *commands: CommandLine) -> RepairRunner:
    return RepairRunner(
        RepairAction("run", "Run this?", commands=commands), said.append
    )


def test_commands_run_in_sequence_and_their_output_is_sanitized() -> None:
    said: list[str] = []
    first = python("import os; print('\\x1b[31m' + os.environ['WHAT'])", WHAT="hello")
    second = python(
        "import sys; print('\\x07bell', file=sys.stderr); print('x' * 9000)"
    )
    assert runner(said, first, second).run() == (True, "Done.")
    assert said[0].startswith("$ WHAT=hello ")
    assert said[1] == "hello"
    assert said[3] == "bell"
    assert len(said[4]) == 2000
    assert "\x1b" not in "".join(said)


def test_a_failing_command_ends_the_sequence() -> None:
    said: list[str] = []
    failing = runner(said, python("raise SystemExit(3)"), python("print('no')"))
    assert failing.run() == (False, "Failed with exit code 3.")
    assert "no" not in said


def test_a_command_that_is_not_there_fails_as_in_a_shell() -> None:
    said: list[str] = []
    missing = runner(said, CommandLine(("/nowhere/at/all",)))
    assert missing.run() == (False, "Failed with exit code 127.")
    assert said[-1].startswith("Cannot start the command: ")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_stop_ends_the_commands_children_too(tmp_path: Path) -> None:
    said: list[str] = []
    child = f"{sys.executable} -c 'import time; time.sleep(600)'"
    code = f"import subprocess; print('on'); subprocess.call({child!r}, shell=True)"
    running = runner(said, python(code), python("print('no')"))
    ends: list[tuple[bool, str]] = []
    thread = threading.Thread(target=lambda: ends.append(running.run()))
    others = set(psutil.Process().children(recursive=True))  # of other tests

    def started() -> set[psutil.Process]:
        return set(psutil.Process().children(recursive=True)) - others

    thread.start()
    wait_for(lambda: "on" in said and len(started()) > 1)
    ended = started()
    running.stop()
    thread.join(TIMEOUT_SECONDS)
    assert ends == [(False, "Stopped.")]
    assert "no" not in said
    _, alive = psutil.wait_procs(ended, timeout=TIMEOUT_SECONDS)
    assert not alive
    assert running.run() == (False, "Stopped."), "a stopped runner never starts again"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_stop_does_not_wait_for_a_child_that_ignores_the_interrupt() -> None:
    """A compiler that was just started may outlive the parent that was interrupted."""
    said: list[str] = []
    child = "trap '' INT; echo on; sleep 600"
    begun = f"import subprocess, time; subprocess.Popen({child!r}, shell=True); time.sleep(600)"
    running = runner(said, python(begun))
    ends: list[tuple[bool, str]] = []
    thread = threading.Thread(target=lambda: ends.append(running.run()))
    thread.start()
    wait_for(lambda: "on" in said)
    running.stop()
    thread.join(TIMEOUT_SECONDS)
    assert ends == [(False, "Stopped.")]
