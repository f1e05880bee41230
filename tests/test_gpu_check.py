"""scripts/gpu_check.py: its report, with a fake pair and GPU."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
import gpu_check

TARGET = gpu_check.HERE.parent / "localspec/data/demo/demo-target.gguf"
MIB, GIB = 1 << 20, 1 << 30
PARTS = {"weights": GIB, "kv": MIB, "compute": 0}
CARD = {
    "description": "A GPU",
    "total_memory": 12 * GIB,
    "total": GIB,
    "target": PARTS,
    "draft": PARTS,
}
SAME = {"prompts": 2, "equal": 2, "divergences": []}

HELD = """
import os, sys, time
taken, asked = sys.argv[1:]
with open(taken + ".new", "w") as file:
    file.write("1524")
os.replace(taken + ".new", taken)
before = os.path.getsize(asked)
while os.path.getsize(asked) < before + 2:  # one may have been on its way
    time.sleep(0.01)
"""


class FakePair(gpu_check.Pair):
    """Answers like a machine with one GPU; the fake nvidia-smi reads the file `taken`."""

    def __init__(self, taken: Path, cards: int = 1) -> None:
        super().__init__("t.gguf", "d.gguf")
        self.asked: list[tuple[str, ...]] = []
        self._taken, self._cards = taken, cards

    def words(self, verb: str, *more: str) -> list[str]:
        """A GiB more is taken until nvidia-smi was asked."""
        return [sys.executable, "-c", HELD, str(self._taken), str(self._taken.with_name("asked"))]

    def call(self, verb: str, *more: str, wanted: Sequence[int] = (0,)) -> dict[str, Any]:
        self.asked.append((verb, *more))
        if verb == "fit":
            return {"devices": [CARD] * self._cards}
        if verb == "verify":
            sampled = {"p": 0.5}
            found = {"verdict": "lossless", "guesses": 9, "greedy": SAME, "seeded": SAME}
            return found | {"difference": 0.0, "sampled": sampled}
        if verb == "run":
            return {"error": {"message": "Too much.", "hint": f"exit {wanted[0]}"}}
        raise gpu_check.UnavailableError("nothing to measure with")


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "taken"
    file.write_text("500")
    (tmp_path / "asked").touch()
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat '{file}'\necho >> '{tmp_path}/asked'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return file


def report(pair: gpu_check.Pair, target: Path) -> str:
    args = argparse.Namespace(target=target, draft="d.gguf", quick=True)
    args.speculative_simple = args.llama_bench = None
    said: list[str] = []
    gpu_check.report(pair, args, said.append)
    return "\n".join(said)


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
def test_parts_are_reported_or_marked_as_not_available(taken: Path) -> None:
    pair = FakePair(taken)
    text = report(pair, TARGET)
    assert text.count("verdict: **lossless**, 9 draft tokens checked") == 2
    assert "- not available: nothing to measure with" in text
    assert "- not available: llama.cpp's programs are not given" in text
    assert "A GPU: estimated 1.00 GiB, measured 1.00 GiB (+0.0 %)" in text
    assert "refused before the load: Too much. exit 4" in text
    assert "--anyway: runs out while the context is created: Too much. exit 11" in text
    half = next(asked for asked in pair.asked[1:] if asked[0] == "verify")
    assert half[1:5] == ("--gpu-layers", "3", "--draft-gpu-layers", "0")


def test_without_a_gpu_its_parts_are_not_available(taken: Path) -> None:
    text = report(FakePair(taken, cards=0), TARGET)
    assert text.count("- not available: no GPU") == 2
