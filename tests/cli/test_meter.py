"""How far a download is, on one line that changes, or in lines for whoever listens."""

from __future__ import annotations

import io
import sys
from contextlib import closing

import pytest

from localspec.cli.pull import DownloadProgressLine
from localspec.models.hub.cached_file import DownloadJob
from localspec.models.hub.download import DownloadPhase, DownloadState
from localspec.models.reference import RepoFile
from tests.support.fake_hub import COMMIT


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
    job = DownloadJob("some/repo", COMMIT, RepoFile("model.gguf", 100))
    with closing(DownloadProgressLine("model.gguf", (1, 1))) as meter:
        for phase, done in (
            (DownloadPhase.LOADING, 25),
            (DownloadPhase.LOADING, 50),
            (DownloadPhase.DONE, 100),
        ):
            meter.update(DownloadState(job, phase, done))
    return terminal.getvalue()
