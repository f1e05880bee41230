"""Recently opened pairs, and the pair of the last run."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.launch import ResolvedPair

_MAX_PAIRS = 12


def load() -> list[ResolvedPair]:
    """Load the pairs whose files still exist, latest first; empty if the list is damaged."""
    try:
        entries = json.loads(_recent_path().read_text(encoding="utf-8"))
        pairs = [_parse_entry(entry) for entry in entries]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    return [p for p in pairs if p.target.is_file() and (p.draft is None or p.draft.is_file())]


def add(pair: ResolvedPair) -> None:
    """Put a pair first. Does nothing if the list cannot be written."""
    pairs = [pair, *(old for old in load() if old != pair)][:_MAX_PAIRS]
    body = [{"target": str(p.target), "draft": str(p.draft) if p.draft else None} for p in pairs]
    _write_json(_recent_path(), body)


def save_last(model: str, draft: str) -> None:
    """Save the arguments of the last run. `draft` is a reference, `auto` or `none`."""
    if load_last() != (model, draft):
        _write_json(_last_path(), {"model": model, "draft": draft})


def load_last() -> tuple[str, str] | None:
    """Load the arguments of the last run; None if there was none or a file no longer exists."""
    try:
        entry = json.loads(_last_path().read_text(encoding="utf-8"))
        model, draft = str(entry["model"]), str(entry["draft"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    missing = [ref for ref in (model, draft) if os.path.isabs(ref) and not os.path.isfile(ref)]
    return None if missing else (model, draft)


def _write_json(path: Path, body: Any) -> None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".recent-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(body, file)
        Path(name).replace(path)


def _parse_entry(entry: dict[str, str | None]) -> ResolvedPair:
    target, draft = entry["target"], entry["draft"]
    return ResolvedPair(Path(str(target)), Path(draft) if draft else None)


def _recent_path() -> Path:
    return paths.data_dir() / "recent.json"


def _last_path() -> Path:
    return paths.data_dir() / "last.json"
