"""To the clipboard: by the system's own tool, or by asking the terminal (OSC 52)."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

_TIMEOUT = 3.0
_MAX_OSC52_BYTES = 74_994
"""Bytes that terminals accept in one OSC 52, before base64."""


def copy_with_system_tool(text: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The tool that took the text, or None.

    Not over SSH: the other computer's clipboard is not the person's.
    """
    for words in _system_tools(environment):
        if shutil.which(words[0]) is None:
            continue
        try:
            subprocess.run(
                words,
                input=text.encode("utf-8", "replace"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return words[0]
    return None


def build_osc52(text: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """What to write to the terminal so that it copies; None where the text is too long."""
    data = text.encode("utf-8", "replace")
    if len(data) > _MAX_OSC52_BYTES:
        return None
    sequence = f"\x1b]52;c;{base64.b64encode(data).decode()}\x07"
    if environment.get("TMUX"):  # tmux hands on what is wrapped
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
