"""Where models and what was learnt are kept: room, links, leftovers, and damaged settings."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from localspec import config, paths
from localspec.doctor.finding import Finding
from localspec.errors import UsageError
from localspec.models import catalog, store
from localspec.models.hub import hubcache
from localspec.units import gb

_LITTLE = 10 * 10**9
"""Bytes: a model of 8 billion parameters with its draft needs about 6 GB."""


def findings() -> Iterator[Finding]:
    cache = hubcache.root()
    yield _folder("cache", "models", cache)
    yield from _room(cache)
    yield from _links(cache)
    yield from _leftovers()
    yield _folder("data", "what was learnt, and logs", paths.state())
    if (folder := store.models_folder()) is not None and not folder.is_dir():
        fix = "Make it, or name another: localspec config set models.folder FOLDER"
        yield Finding("models-folder", "disk", "warning", f"{folder} is no folder", fix)
    yield from _settings()


def _folder(name: str, holds: str, folder: Path) -> Finding:
    there = _nearest(folder)
    made = "" if there == folder else ", to be made when needed"
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Finding(name, "disk", "ok", f"{folder} keeps {holds}{made}")
    variable = "HF_HUB_CACHE" if name == "cache" else "LOCALSPEC_DATA_DIR"
    fix = f"Make it writable, or set {variable} to a folder of yours"
    return Finding(f"{name}-refused", "disk", "warning", f"{there} cannot be written to", fix)


def _nearest(folder: Path) -> Path:
    """The folder, or what is there of the way to it."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _room(cache: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(_nearest(cache)).free
    if free >= _LITTLE:
        yield Finding("room", "disk", "ok", f"{gb(free)} free for models")
        return
    fix = "Free some space, or set HF_HUB_CACHE to a folder on another disk"
    yield Finding("little-room", "disk", "warning", f"only {gb(free)} free for models", fix)


def _links(cache: Path) -> Iterator[Finding]:
    """Without symbolic links the cache keeps a file once for each revision."""
    if not cache.is_dir() or not os.access(cache, os.W_OK):
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".localspec-", dir=cache) as folder:
            (Path(folder) / "link").symlink_to("nowhere")
    except (OSError, NotImplementedError):
        what = "the cache's disk has no symbolic links: each revision of a file is kept whole"
        fix = "Windows: switch on Developer Mode; else use a disk that has links"
        yield Finding("no-links", "disk", "notice", what, fix)


def _leftovers() -> Iterator[Finding]:
    left = store.orphans()
    if left:
        size = gb(sum(one.size for one in left))
        what = f"{size} in {len(left)} files of downloads that ended early"
        fix = "localspec pull goes on with them; localspec rm --leftovers takes them away"
        yield Finding("leftovers", "disk", "notice", what, fix)


def _settings() -> Iterator[Finding]:
    view = config.look()
    for fault in view.faults:
        yield Finding("config-damaged", "disk", "error", fault, config.MEND)
    for warning in view.warnings:
        yield Finding("config-unknown", "disk", "warning", warning, config.MEND)
    try:
        catalog.load()
    except UsageError as error:
        yield Finding("catalogue-damaged", "disk", "error", error.message, error.hint)
