"""The examples of docs/api.md and docs/usage.md run as printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.run_command import ROOT, finish

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> list[str]:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("docs/api.md", "docs/usage.md")]
    return [block for text in texts for block in BLOCK.findall(text)]


def test_the_first_has_five_lines() -> None:
    assert len([line for line in examples()[0].splitlines() if line]) <= 5


@pytest.mark.parametrize("number", range(len(examples())))
def test_an_example_runs_as_printed(number: int, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(examples()[number], encoding="utf-8")
    done = finish([sys.executable, "-W", "error", "-P", script], cwd=tmp_path)
    assert (done.code, done.err) == (0, "") and done.out.strip()
