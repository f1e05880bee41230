"""The model files that were opened by their paths, latest first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from localspec import data_files
from localspec.models.local_files import checksum_cache
from localspec.models.local_files.local_model import LocalModel, describe_file, stat_gguf

_RECENT_FILE = "recent.json"
_MAX_PAIRS = 50

OpenedPair = tuple[Path, Path | None]
"""A target and its draft."""


def load_pairs() -> list[OpenedPair]:
    """The pairs whose files still exist; empty if the list is damaged."""
    try:
        entries = [
            (Path(entry["target"]), Path(entry["draft"]) if entry["draft"] else None)
            for entry in data_files.read_json(_RECENT_FILE)
        ]
    except (TypeError, KeyError):
        return []
    return [
        (target, draft)
        for target, draft in entries
        if os.path.isfile(target) and (draft is None or os.path.isfile(draft))
    ]


def add_pair(pair: OpenedPair) -> None:
    """Put a pair first. Does nothing if the list cannot be written."""
    pairs = [pair, *(old for old in load_pairs() if old != pair)]
    body = [
        {"target": str(target), "draft": str(draft) if draft else None} for target, draft in pairs
    ]
    data_files.write_json(_RECENT_FILE, body[:_MAX_PAIRS])


def iter_files(record: checksum_cache.ChecksumRecord) -> Iterator[LocalModel]:
    for pair in load_pairs():
        for path in filter(None, pair):
            if file_stat := stat_gguf(path):
                actual = checksum_cache.lookup(record, file_stat)
                yield describe_file(path, file_stat, "opened", actual=actual)
