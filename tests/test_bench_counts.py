"""scripts/bench_counts.py: comparing the rounds of both programs."""

import importlib
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("bench_counts")


@pytest.mark.parametrize(("tokens", "n"), [(0, 1), (3, 1), (4, 2), (5, 3), (99, 3)])
def test_rounds_are_compared_up_to_the_shortened_drafts(counts: Any, tokens: int, n: int) -> None:
    assert counts.compared([(3, 3), (0, 3), (1, 3)], tokens) == n


def test_the_report_counts_equal_rounds(counts: Any) -> None:
    same = counts.Counts("eagle3", 3, "a.py", [(1, 3), (3, 3)], [(1, 3), (3, 3)], same_text=True)
    ended = counts.Counts("eagle3", 3, "b.py", [(1, 3), (0, 3)], [(1, 2), (0, 3)], same_text=False)
    said = counts.report([same, ended], markdown=True)
    assert "| 4/6 " in said and "| 1/5 " in said
    assert said.endswith("3 of 4 rounds are the same.")
