"""The real command in a process of its own, through pipes or a pseudo-terminal."""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support import prefork
from tests.support.zoo import Zoo

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 60
"""Seconds; for a machine that does much else besides."""

_DROPPED_VARIABLES = {
    "NO_COLOR",
    "FORCE_COLOR",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
    "LOCALSPEC_DEBUG",
    # Test runners set these two, and a terminal's own size would not count.
    "COLUMNS",
    "LINES",
}
_SGR = re.compile(rb"\x1b\[[0-9;]*m")
_LOAD_PROGRESS = re.compile(rb"\r?\x1b\[K(?:Loading: [^\r\n]*)?")
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that change the direction of text."""


@dataclass(frozen=True)
class Done:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-P", "-m", "localspec", *map(str, arguments)]


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    variables = dict(os.environ)
    for name in _DROPPED_VARIABLES:
        variables.pop(name, None)
    variables["PYTHONPATH"] = str(ROOT)
    variables["GGML_NO_BACKTRACE"] = "1"
    variables.update(changes or {})
    return variables


def been_here(data: Path) -> None:
    """Marks the welcome screen as shown; ignores a folder that cannot be written."""
    with suppress(OSError):
        data.mkdir(parents=True, exist_ok=True)
        (data / "welcomed").touch()


def localspec(
    *arguments: str | Path,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Done:
    if prefork.can_fork(env or {}):
        words = [str(argument) for argument in arguments]
        code, out, err = _prefork().run(words, stdin, environment(env), cwd, TIMEOUT)
        return Done(code, out, err.decode())
    return finish(command(*arguments), env=env, cwd=cwd, stdin=stdin)


def finish(
    words: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
) -> Done:
    """Runs any program to its end."""
    done = subprocess.run(
        words,
        cwd=cwd,
        env=environment(env),
        input=stdin,
        timeout=2 * TIMEOUT,
        capture_output=True,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr.decode())


@functools.cache
def _prefork() -> prefork.Prefork:
    """One for each process that runs tests; it ends with it."""
    return prefork.Prefork(environment())


def hello(zoo: Zoo, *more: str, env: Mapping[str, str] | None = None) -> Done:
    """The parrot drafts for itself and says its words."""
    model = zoo["parrot"]
    greedy = ("--temperature", "0")
    return localspec("run", model, "--draft", model, "-p", "a", *greedy, *more, env=env)


def on_a_terminal(
    *arguments: str | Path, env: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """The exit code, and every byte of standard output and error on a terminal."""
    from tests.support.pty_terminal import Terminal  # noqa: PLC0415  there is none on Windows

    with Terminal(command(*arguments), env=env, first=True, controls=False) as terminal:
        code = terminal.process.wait(timeout=TIMEOUT)
        terminal.read_rest()
        return code, terminal.seen


def find_engines(parent: psutil.Process) -> list[psutil.Process]:
    """The engine processes among its children, the oldest first."""
    found = []
    for child in parent.children():
        with suppress(psutil.Error):
            if "localspec.engine" in child.cmdline():
                found.append((child.create_time(), child))
    return [child for _, child in sorted(found, key=lambda one: one[0])]


def without_load_progress(seen: bytes) -> bytes:
    """A load that takes long draws a line again and again, and then erases it."""
    return _LOAD_PROGRESS.sub(b"", seen)


def harmful(seen: bytes, *, colour: bool = False) -> list[str]:
    """The control characters and direction overrides in an output.

    Line ends and tabs are allowed, and with `colour` our colours.
    """
    if colour:
        seen = _SGR.sub(b"", seen)
    text = seen.replace(b"\r\n", b"\n").decode()
    return [repr(character) for character in _HARMFUL.findall(text)]
