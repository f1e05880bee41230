"""Findings are safe to share."""

import getpass

import pytest

from localspec.doctor.findings import Finding, redact


def test_home_and_name_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    what = "/home/ann/.cache and /home/ann, /media/ann/disk, /home/anna/x, \x1b[31mred"
    fix = "'/home/ann/my venv/bin/python' -m pip"
    shown = redact(Finding("x", "disk", "ok", what, fix=fix))
    assert shown.what == "~/.cache and ~, /media/<user>/disk, /home/anna/x, red"
    assert shown.fix == "'~/my venv/bin/python' -m pip"
