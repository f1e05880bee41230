"""scripts/measure_estimate.py: random settings, and the accuracy claimed in docs/fit.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "measure_estimate.py"
DENSE = {"llama", "llama-tied", "mistral", "qwen2", "qwen3", "phi3", "granite", "gemma2", "gemma3"}


def rows(*arguments: str) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr  # all within their error bars
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells[1:]}


def test_a_few() -> None:
    assert set(rows("--n", "4", "--family", "llama", "--family", "gemma3")) == {
        "llama",
        "gemma3",
        "all",
    }


@pytest.mark.long
def test_the_promise() -> None:
    found = rows("--n", "570", "--seed", "1")
    assert len(found) >= 13
    for family, (_, p50, p90, _, under, _) in found.items():
        assert float(p50.removesuffix(" %")) <= 0.1
        assert float(p90.removesuffix(" %")) <= (1 if family in DENSE else 3)
        assert float(under.removesuffix(" MiB")) <= 64
