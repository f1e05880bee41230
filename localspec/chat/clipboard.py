"""Copying text to the clipboard: with a system tool, or with the terminal's OSC 52 sequence."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

_TIMEOUT = 3.0
_MAX_OSC52_BYTES = 74_994
"""The most bytes that terminals accept in one OSC 52 sequence, before base64."""


def copy_with_system_tool(text: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Copy the text with the first tool that works. Returns its name, or None.

    Over SSH no tool is tried: it would fill the remote computer's clipboard.
    """
    for command in _system_tools(environment):
        if shutil.which(command[0]) is None:
            continue
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
            continue
        return command[0]
    return None


def build_osc52(text: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the sequence that makes the terminal copy the text; None if the text is too long."""
    data = text.encode("utf-8", "replace")
    if len(data) > _MAX_OSC52_BYTES:
        return None
    sequence = f"\x1b]52;c;{base64.b64encode(data).decode()}\x07"
    if environment.get("TMUX"):  # tmux forwards only wrapped sequences
        return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    return sequence


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
