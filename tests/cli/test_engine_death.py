"""The engine's process dies in the middle of an answer: the text stays, the end is explained."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.command import command, environment, localspec
from tests.support.zoo import Zoo

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

ENDS = {
    signal.SIGKILL: (11, "most likely because memory ran out"),
    signal.SIGSEGV: (9, "it crashed with SIGSEGV"),
    signal.SIGABRT: (9, "it crashed with SIGABRT"),
}


@pytest.mark.parametrize("how", ENDS)
def test_an_engine_killed_while_it_answers(how: signal.Signals, zoo: Zoo, tmp_path: Path) -> None:
    errors = tmp_path / "stderr"
    asked = command("run", zoo["chatter"], "-p", "a", "--max-tokens", "60000", "--temperature", "0")
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=stderr, env=environment()) as run,
    ):
        assert run.stdout is not None
        first = run.stdout.read(32)
        (engine,) = psutil.Process(run.pid).children()
        engine.send_signal(how)
        rest = run.stdout.read()
        code = run.wait(timeout=60)
    expected, words = ENDS[how]
    told = errors.read_text(encoding="utf-8")
    assert (code, words in told, "Traceback" in told) == (expected, True, False), told
    assert first.startswith(b" one two")
    assert (first + rest).endswith(b"\n"), "the error begins on a line of its own"
    assert not psutil.pid_exists(engine.pid)


def test_json_keeps_what_was_said(zoo: Zoo, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.touch()
    asked = command("run", zoo["chatter"], "-p", "a", "--max-tokens", "60000", "--json")
    asked += ["--events", str(events)]
    with subprocess.Popen(
        asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as run:
        until = time.monotonic() + 60
        while events.read_text().count('"ev":"round"') < 20:
            assert time.monotonic() < until
            time.sleep(0.05)
        psutil.Process(run.pid).children()[0].kill()
        document = json.loads(run.communicate(timeout=60)[0])
    assert document["error"]["code"] == "out-of-memory"
    assert document["text"].startswith(" one two")


def test_an_abort_of_llama_cpp_is_named_and_logged(zoo: Zoo, tmp_path: Path) -> None:
    env = {"LOCALSPEC_DATA_DIR": str(tmp_path)}
    model = Path(shutil.copy(zoo["no-bytes"], tmp_path / "model.gguf"))  # llama.cpp aborts
    ask = ("run", model, "-p", "жж", "--max-tokens", "3", "--draft", "none")
    ends = [localspec(*ask, env=env) for _ in range(2)]
    assert [end.code for end in ends] == [9, 9]
    assert all("The engine stopped: llama.cpp aborted." in end.err for end in ends)
    told = localspec(*ask, "-v", env=env).err
    assert f"Engine log: {tmp_path / 'engine.log'}" in told
    assert "this engine ended: assert" in (tmp_path / "engine.log").read_text(encoding="utf-8")
