"""Copying to the clipboard, with fallbacks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from textual.app import App

from localspec.chat import clipboard
from localspec.sanitize import sanitize


def copy(app: App[Any], text: str) -> str:
    """Copies sanitized text and returns a message for the user.

    Uses the system's clipboard tool, else OSC 52 (the terminal does not confirm it), else a
    temporary file.
    """
    text = sanitize(text)
    if (tool := clipboard.copy_with_system_tool(text)) is not None:
        return f"Copied {len(text):,} characters with {tool}."
    sequence = clipboard.build_osc52(text)
    driver = app._driver
    if sequence is not None and driver is not None and os.environ.get("TERM") != "linux":
        driver.write(sequence)
        return f"Sent {len(text):,} characters to the terminal's clipboard."
    return f"No clipboard found. The text was saved to {_write_temporary_file(text)}"


def _write_temporary_file(text: str) -> Path:
    handle, name = tempfile.mkstemp(prefix="localspec-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)
