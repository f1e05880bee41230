"""Copying to the clipboard from the app, with a file as the last resort."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from textual.app import App

from localspec.chat import copying
from localspec.sanitize import sanitize


def copy(app: App[Any], text: str) -> str:
    """Copies sanitized text and returns a message for the user."""
    text = sanitize(text)
    driver = app._driver
    message = copying.copy(text, driver.write if driver is not None else None)
    return message or f"No clipboard found. The text was saved to {_write_temporary_file(text)}"


def _write_temporary_file(text: str) -> Path:
    handle, name = tempfile.mkstemp(prefix="localspec-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)
