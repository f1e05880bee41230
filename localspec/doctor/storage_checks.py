"""Where models and what was learnt are kept: room, links, leftovers, and damaged settings."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from localspec import config, paths
from localspec.chat.history import schema
from localspec.doctor.findings import Finding
from localspec.errors import LocalspecError, UsageError
from localspec.models import catalog, local_files
from localspec.models.gguf import header
from localspec.models.hub import hub_cache
from localspec.models.local_files.local_model import LocalModel
from localspec.units import gb

_MIN_FREE_DISK = 10 * 10**9
"""Bytes: a model of 8 billion parameters with its draft needs about 6 GB."""


def check_disk() -> Iterator[Finding]:
    cache = hub_cache.cache_root()
    yield _check_folder("cache", "models", cache)
    yield from _check_free_space(cache)
    yield from _check_symlinks(cache)
    yield from _check_leftovers()
    yield _check_folder("data", "what was learnt, and logs", paths.data_dir())
    if (folder := local_files.models_folder()) is not None and not folder.is_dir():
        fix = "Make it, or name another: localspec config set models.folder FOLDER"
        yield Finding("models-folder", "disk", "warning", f"{folder} is no folder", fix)
    yield from _check_settings()


def _check_folder(name: str, contents: str, folder: Path) -> Finding:
    there = _nearest_existing_folder(folder)
    made = "" if there == folder else ", to be made when needed"
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Finding(name, "disk", "ok", f"{folder} keeps {contents}{made}")
    variable = "HF_HUB_CACHE" if name == "cache" else "LOCALSPEC_DATA_DIR"
    fix = f"Make it writable, or set {variable} to a folder of yours"
    return Finding(f"{name}-refused", "disk", "warning", f"{there} cannot be written to", fix)


def _nearest_existing_folder(folder: Path) -> Path:
    """The folder, or what is there of the way to it."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _check_free_space(cache: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(_nearest_existing_folder(cache)).free
    if free >= _MIN_FREE_DISK:
        yield Finding("room", "disk", "ok", f"{gb(free)} free for models")
        return
    fix = "Free some space, or set HF_HUB_CACHE to a folder on another disk"
    yield Finding("little-room", "disk", "warning", f"only {gb(free)} free for models", fix)


def _check_symlinks(cache: Path) -> Iterator[Finding]:
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


def _check_leftovers() -> Iterator[Finding]:
    left = local_files.find_leftovers()
    if left:
        size = gb(sum(one.size for one in left))
        what = f"{size} in {len(left)} files of downloads that ended early"
        fix = "localspec pull goes on with them; localspec rm --leftovers takes them away"
        yield Finding("leftovers", "disk", "notice", what, fix)


def _check_settings() -> Iterator[Finding]:
    view = config.resolve()
    for fault in view.errors:
        yield Finding("config-damaged", "disk", "error", fault, config.EDIT_HINT)
    for warning in view.warnings:
        yield Finding("config-unknown", "disk", "warning", warning, config.EDIT_HINT)
    try:
        catalog.load()
    except UsageError as error:
        yield Finding("catalogue-damaged", "disk", "error", error.message, error.hint)


# --- Whether the chats that are kept can be read; they are not changed here.

_MAX_CHECKED_BYTES = 256 << 20
"""Bytes that are read through: about a second."""


def check_chats() -> Iterator[Finding]:
    path = paths.chats_file()
    if not path.exists():
        yield Finding("chats", "chats", "ok", "none are kept yet")
        return
    try:
        yield from _check_database(path)
    except schema.DATABASE_ERRORS as error:
        if not schema.is_corrupt(error):
            raise
        what = f"the file of chats is damaged: {path}"
        fix = "localspec doctor --fix saves what can be read; the old file is kept aside"
        yield Finding("chats-damaged", "chats", "error", what, fix)
    yield from _check_damaged_copies(path)


def _check_database(path: Path) -> Iterator[Finding]:
    size = path.stat().st_size
    with closing(schema.open_read_only(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == schema.SCHEMA_VERSION and size <= _MAX_CHECKED_BYTES:
            schema.check_integrity(connection)
        (n,) = connection.execute("SELECT count(*) FROM chats").fetchone()
    kept = f"{n} kept, {gb(size)}" if n else "none are kept yet"
    yield Finding("chats", "chats", "ok", kept)
    if version > schema.SCHEMA_VERSION:
        what = "a newer localspec wrote the chats: they can be read, and no more"
        yield Finding("chats-newer", "chats", "warning", what, "Update localspec")


def _check_damaged_copies(path: Path) -> Iterator[Finding]:
    """Damaged files that were mended: as large as they were."""
    kept = sorted(path.parent.glob(f"{path.name}.corrupt-*"))
    if kept:
        size = gb(sum(one.stat().st_size for one in kept))
        what = f"{len(kept)} damaged files of chats are kept aside, {size}: {path.parent}"
        yield Finding("chats-aside", "chats", "ok", what)


# --- Whether the models that are here can be read, and run by this llama.cpp.

_TIME_BUDGET_SECONDS = 5.0
"""Seconds of reading headers."""


def check_models() -> Iterator[Finding]:
    here = local_files.list_models()
    if not here:
        yield Finding("models", "models", "ok", "none here yet", "localspec pair suggest")
        return
    total = gb(sum(one.size for one in here))
    yield Finding("models", "models", "ok", f"{len(here)} here, {total}")
    started = time.monotonic()
    for number, one in enumerate(here):
        if time.monotonic() - started > _TIME_BUDGET_SECONDS:
            what = f"{len(here) - number} of them were not looked at: that takes too long"
            yield Finding("not-looked-at", "models", "notice", what)
            return
        yield from _check_model(one)


def _check_model(stored: LocalModel) -> Iterator[Finding]:
    name = stored.path.name
    try:
        header.check_loadable(stored.path)
        why = header.read(stored.path).unsupported_reason
    except LocalspecError as error:
        yield Finding("unreadable", "models", "warning", f"{name}: {error.message}", error.hint)
        return
    if why:
        fix = "Run another model, or a newer localspec"
        yield Finding("unsupported", "models", "notice", f"{name} cannot run: {why}", fix)
