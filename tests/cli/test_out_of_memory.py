"""Memory that runs out although it was foretold to suffice: told with what was expected."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import command, environment
from tests.support.zoo import Zoo

if sys.platform != "linux":
    pytest.skip("limits on the address space", allow_module_level=True)

_OUT_OF_MEMORY = 11


def limited(kib: int, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """With so much address space for the command and its engine."""
    words = ["sh", "-c", f'ulimit -v {kib}; exec "$@"', "sh", *command(*arguments)]
    return subprocess.run(words, env=environment(), capture_output=True, timeout=120, check=False)


@pytest.mark.long
def test_a_context_that_finds_no_room_is_explained(zoo: Zoo) -> None:
    """Fewer and fewer bytes, until the engine starts but its context finds none."""
    ask = ("run", zoo["vast"], "-p", "x", "--ctx", "1048576", "--max-tokens", "1")
    codes = []
    for kib in range(3_200_000, 400_000, -400_000):
        done = limited(kib, *ask)
        codes.append(done.returncode)
        if done.returncode == _OUT_OF_MEMORY:
            said = done.stderr.decode()
            assert "Not enough memory" in said
            assert "Estimated " in said
            return
    raise AssertionError(codes)


@pytest.mark.long
def test_a_draft_that_finds_no_room_is_named(zoo: Zoo, tmp_path: Path) -> None:
    """Where the target still fits; without the draft it answers."""
    draft = Path(shutil.copy(zoo["vast"], tmp_path / "small.gguf"))
    ask = ("run", zoo["vast"], "-p", "x", "--ctx", "1048576", "--max-tokens", "1")
    told = []
    for kib in range(4_000_000, 400_000, -150_000):
        done = limited(kib, *ask, "--draft", draft)
        told.append(done.stderr.decode())
        if done.returncode == _OUT_OF_MEMORY and "small.gguf" in told[-1]:
            assert "--draft none" in told[-1]
            assert limited(kib, *ask, "--draft", "none").returncode == 0
            return
    raise AssertionError(told)
