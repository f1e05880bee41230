"""Pairs that were opened by their paths, the latest first: one small file."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from localspec import paths
from localspec.launch import Choice

_MOST = 12


def read() -> list[Choice]:
    """Those whose files are still there; none where the file is missing or damaged."""
    try:
        entries = json.loads(_file().read_text(encoding="utf-8"))
        found = [_choice(entry) for entry in entries]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    return [c for c in found if c.target.is_file() and (c.draft is None or c.draft.is_file())]


def add(choice: Choice) -> None:
    """Remember a pair; where nothing can be written, nothing is remembered."""
    pairs = [choice, *(known for known in read() if known != choice)][:_MOST]
    body = [{"target": str(c.target), "draft": str(c.draft) if c.draft else None} for c in pairs]
    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=_file().parent, prefix=".recent-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(body, file)
        Path(name).replace(_file())


def _choice(entry: dict[str, str | None]) -> Choice:
    target, draft = entry["target"], entry["draft"]
    return Choice(Path(str(target)), Path(draft) if draft else None)


def _file() -> Path:
    return paths.state() / "recent.json"
