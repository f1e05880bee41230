"""How far a download is, on one line that changes, or in lines for whoever listens."""

from __future__ import annotations

import io
import sys

import pytest

from localspec.cli.meter import Meter
from localspec.models.download import Job, Phase, State


class Terminal(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", ["LOCALSPEC_PLAIN", "TERM"])
def test_nothing_is_redrawn_for_a_screen_reader(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALSPEC_PLAIN", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\r" in told(monkeypatch)
    monkeypatch.setenv(name, "dumb")
    lines = told(monkeypatch)
    assert lines.replace("\n", "").isprintable()
    assert "25 %" in lines
    assert "verified" in lines


def told(monkeypatch: pytest.MonkeyPatch) -> str:
    """What a short download shows."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    job = Job("some/repo", "main", "model.gguf")
    with Meter("model.gguf", (1, 1)) as meter:
        for phase, done in ((Phase.LOADING, 25), (Phase.LOADING, 50), (Phase.DONE, 100)):
            meter.take(State(job, phase, done, 100))
    return terminal.getvalue()
