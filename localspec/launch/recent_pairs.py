"""What was opened before: pairs by their paths, the latest first; and the pair of the last run."""

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
    """Those whose files are still there; none where the file is missing or damaged."""
    try:
        entries = json.loads(_recent_path().read_text(encoding="utf-8"))
        found = [_parse_entry(entry) for entry in entries]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    return [c for c in found if c.target.is_file() and (c.draft is None or c.draft.is_file())]


def add(pair: ResolvedPair) -> None:
    """Remember a pair; where nothing can be written, nothing is remembered."""
    pairs = [pair, *(known for known in load() if known != pair)][:_MAX_PAIRS]
    body = [{"target": str(c.target), "draft": str(c.draft) if c.draft else None} for c in pairs]
    _write_json(_recent_path(), body)


def save_last(model: str, draft: str) -> None:
    """Remember how the last pair was asked for: a reference, and another, `auto` or `none`."""
    if load_last() != (model, draft):
        _write_json(_last_path(), {"model": model, "draft": draft})


def load_last() -> tuple[str, str] | None:
    """How the last pair was asked for; None where there was none, or a file of it is gone."""
    try:
        entry = json.loads(_last_path().read_text(encoding="utf-8"))
        model, draft = str(entry["model"]), str(entry["draft"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    gone = [one for one in (model, draft) if os.path.isabs(one) and not os.path.isfile(one)]
    return None if gone else (model, draft)


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
