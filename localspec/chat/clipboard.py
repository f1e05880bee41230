"""Copying text to the clipboard: with a system tool, or with the terminal's OSC 52 sequence."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from localspec import units

_TIMEOUT = 3.0
_MAX_OSC52_BYTES = 74_994
"""The most bytes that terminals accept in one OSC 52 sequence, before base64."""


def copy(
    text: str,
    write_to_terminal: Callable[[str], object] | None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Copy the text; return a sentence that claims no more than is known, or "" if it failed.

    A system tool reports success; tmux reports that it has the text; a terminal reports nothing.
    Over SSH no system tool is tried: it would fill the remote computer's clipboard.
    """
    size = units.count(len(text), "character")
    for command in _system_tools(environment):
        if _run(command, text):
            return f"Copied {size} with {command[0]}."
    if environment.get("TMUX"):
        # Wrapped sequences (DCS) are off by default since tmux 3.3.
        if _run(("tmux", "load-buffer", "-w", "-"), text):
            return f"Copied {size} to tmux (prefix ] pastes), which passes them to the terminal."
        if _run(("tmux", "load-buffer", "-"), text):  # before tmux 3.2
            return f"Copied {size} to tmux only: prefix ] pastes them."
    sequence = _build_osc52(text)
    if sequence is None or write_to_terminal is None or environment.get("TERM") == "linux":
        return ""
    write_to_terminal(sequence)
    return f"Sent {size} to the terminal; it does not say whether it copied them."


def _build_osc52(text: str) -> str | None:
    """The sequence that makes the terminal copy the text; None if the text is too long."""
    data = text.encode("utf-8", "replace")
    if len(data) > _MAX_OSC52_BYTES:
        return None
    return f"\x1b]52;c;{base64.b64encode(data).decode()}\x07"


def _run(command: Sequence[str], text: str) -> bool:
    """Whether the tool exists and took the text."""
    if shutil.which(command[0]) is None:
        return False
    try:
        subprocess.run(
            command,
            input=text.encode("utf-8", "replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _system_tools(environment: Mapping[str, str]) -> list[list[str]]:
    if environment.get("SSH_CONNECTION") or environment.get("SSH_TTY"):
        return []
    if sys.platform == "darwin":
        return [["pbcopy"]]
    if sys.platform == "win32":
        return [["clip.exe"]]
    tools = []
    if environment.get("WAYLAND_DISPLAY"):
        tools.append(["wl-copy"])
    if environment.get("DISPLAY"):
        tools += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    if environment.get("WSL_DISTRO_NAME"):
        tools.append(["clip.exe"])
    return tools
