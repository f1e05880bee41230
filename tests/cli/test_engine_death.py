"""The engine's process dies in the middle of an answer: the text stays, the end is explained."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cli.command import command, environment
from tests.zoo import Zoo

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

ENDS = {
    signal.SIGKILL: (11, "most likely because memory ran out"),
    signal.SIGSEGV: (9, "it died of SIGSEGV"),
    signal.SIGABRT: (9, "it died of SIGABRT"),
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
