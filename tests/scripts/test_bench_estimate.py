"""scripts/bench/estimate.py: random settings, and the accuracy claimed in docs/fit.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "scripts/bench/bench.py"


def rows(*arguments: str) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, str(BENCH), "estimate", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr  # all within their error bars
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells[2:]}


def test_a_few() -> None:
    assert set(rows("--n", "4", "--family", "llama", "--family", "gemma3")) == {
        "llama",
        "gemma3",
        "all",
    }


@pytest.mark.long
@pytest.mark.parametrize("arguments", [("--n", "380"), ("--heads", "--n", "160")])
def test_the_promise(arguments: tuple[str, ...]) -> None:
    found = rows(*arguments)
    assert len(found) >= 9
    for lowest, highest in ((row[1], row[4]) for row in found.values()):
        assert -2 <= float(lowest.removesuffix(" %")) <= float(highest.removesuffix(" %")) <= 6
