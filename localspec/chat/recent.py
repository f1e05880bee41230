"""What was opened before: pairs by their paths, the latest first; and the pair of the last run."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

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
    _write(_file(), body)


def used(model: str, draft: str) -> None:
    """Remember how the last pair was asked for: a reference, and another, `auto` or `none`."""
    if last() != (model, draft):
        _write(_last(), {"model": model, "draft": draft})


def last() -> tuple[str, str] | None:
    """How the last pair was asked for; None where there was none, or a file of it is gone."""
    try:
        entry = json.loads(_last().read_text(encoding="utf-8"))
        model, draft = str(entry["model"]), str(entry["draft"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    gone = [one for one in (model, draft) if os.path.isabs(one) and not os.path.isfile(one)]
    return None if gone else (model, draft)


def _write(path: Path, body: Any) -> None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".recent-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(body, file)
        Path(name).replace(path)


def _choice(entry: dict[str, str | None]) -> Choice:
    target, draft = entry["target"], entry["draft"]
    return Choice(Path(str(target)), Path(draft) if draft else None)


def _file() -> Path:
    return paths.state() / "recent.json"


def _last() -> Path:
    return paths.state() / "last.json"
