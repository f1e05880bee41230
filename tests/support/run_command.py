"""The real command in a process of its own, through pipes or a pseudo-terminal."""

from __future__ import annotations

import functools
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import prefork
from tests.support.zoo import Zoo

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 60
"""Seconds; for a machine that does much else besides."""

_QUIET = {"NO_COLOR", "FORCE_COLOR", "PYTHONIOENCODING", "PYTHONUTF8", "LOCALSPEC_DEBUG"} | {
    "COLUMNS",  # test runners set them, and a terminal's own size would not count
    "LINES",
}
_SGR = re.compile(rb"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Done:
    """How a command ended and what it wrote."""

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
    kept = {name: value for name, value in os.environ.items() if name not in _QUIET}
    return kept | {"PYTHONPATH": str(ROOT), "GGML_NO_BACKTRACE": "1"} | dict(changes or {})


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
    """Exit code and every byte that reached a terminal as its standard output and error."""
    import pty  # noqa: PLC0415  there is none on Windows

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(*arguments),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment({"TERM": "xterm-256color"} | dict(env or {})),
    )
    os.close(theirs)
    try:
        seen = _drained(ours)
        return process.wait(timeout=TIMEOUT), seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _drained(terminal: int) -> bytes:
    seen = b""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other side is closed
            break
        if not part:
            break
        seen += part
    return seen


def harmful(seen: bytes, *, colour: bool = False) -> list[str]:
    """Control characters but line ends and tabs, and direction overrides; our colours pass."""
    text = (_SGR.sub(b"", seen) if colour else seen).replace(b"\r\n", b"\n").decode()
    return [
        repr(character)
        for character in text
        if (character < " " and character not in "\n\t")
        or "\x7f" <= character <= "\x9f"
        or character in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    ]
