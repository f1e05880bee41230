"""Findings: safe to share, and their report."""

from __future__ import annotations

import getpass

import pytest

from localspec.doctor import findings
from localspec.doctor.findings import Finding, Level, redact


def test_home_and_name_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    what = "/home/ann/.cache and /home/ann, /media/ann/disk, /home/anna/x, \x1b[31mred"
    shown = redact(Finding("x", "disk", "ok", what, "'/home/ann/my venv/bin/python' -m pip"))
    assert shown.what == "~/.cache and ~, /media/<user>/disk, /home/anna/x, red"
    assert shown.fix == "'~/my venv/bin/python' -m pip"


def test_a_report_counts_the_worst_first() -> None:
    levels: tuple[Level, ...] = ("ok", "notice", "warning", "warning", "error")
    some = [Finding(f"f{n}", "disk", level, "what") for n, level in enumerate(levels)]
    assert findings.format_counts(some) == "1 error, 2 warnings, 1 notice"
    assert findings.format_report(some[:1]).endswith("No problems found.")
    assert findings.format_report(some).startswith("disk\n    what\n  - what\n  ! what")
