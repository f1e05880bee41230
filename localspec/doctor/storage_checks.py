"""Checks of files: disk space, the model cache, settings, chats and downloaded models."""

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
from localspec.models.local_files import hub_cache
from localspec.models.local_files.local_model import LocalModel
from localspec.units import count, gb

_MIN_FREE_DISK = 10 * 10**9
"""Bytes; an 8B model with its draft model takes about 6 GB."""

_MAX_CHECKED_BYTES = 256 << 20
"""Larger chat databases skip the integrity check; this size takes about a second."""

_TIME_BUDGET_SECONDS = 5.0
"""For reading model headers."""


def check_disk() -> Iterator[Finding]:
    cache = hub_cache.cache_root()
    yield _check_folder("cache", "models", cache)
    yield from _check_free_space(cache)
    yield from _check_symlinks(cache)
    yield from _check_leftovers()
    yield _check_folder("data", "chats, measurements and logs", paths.data_dir())
    if (folder := local_files.models_folder()) is not None and not os.path.isdir(folder):
        fix = "Create it, or choose another: localspec config set models.folder FOLDER"
        yield Finding("models-folder", "disk", "warning", f"{folder} is not a folder", fix)
    yield from _check_settings()


def _check_folder(name: str, contents: str, folder: Path) -> Finding:
    existing = _nearest_existing_folder(folder)
    note = "" if existing == folder else " (created when needed)"
    if os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK):
        return Finding(name, "disk", "ok", f"{contents} in {folder}{note}")
    variable = "HF_HUB_CACHE" if name == "cache" else "LOCALSPEC_DATA_DIR"
    fix = f"Make it writable, or set {variable} to another folder"
    return Finding(f"{name}-refused", "disk", "warning", f"{existing} is not writable", fix)


def _nearest_existing_folder(folder: Path) -> Path:
    """The folder itself, or its nearest parent that exists."""
    while not os.path.exists(folder) and folder != folder.parent:
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
    """Without symbolic links the cache stores one copy of a file per revision."""
    if not os.path.isdir(cache) or not os.access(cache, os.W_OK):
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".localspec-", dir=cache) as folder:
            (Path(folder) / "link").symlink_to("nowhere")
    except (OSError, NotImplementedError):
        what = "no symbolic links in the model cache: each revision of a file takes its full size"
        fix = "Windows: turn on Developer Mode; otherwise use a disk that supports links"
        yield Finding("no-links", "disk", "notice", what, fix)


def _check_leftovers() -> Iterator[Finding]:
    leftovers = local_files.find_leftovers()
    if leftovers:
        size = gb(sum(file.size for file in leftovers))
        what = f"{size} in {count(len(leftovers), 'incomplete download')}"
        fix = "localspec pull resumes them; localspec rm --leftovers deletes them"
        yield Finding("leftovers", "disk", "notice", what, fix)


def _check_settings() -> Iterator[Finding]:
    view = config.resolve()
    for fault in view.errors:
        if config.is_in_file(fault):
            yield Finding("config-damaged", "disk", "error", fault, config.EDIT_HINT)
        else:
            yield Finding("environment-wrong", "disk", "error", fault, config.UNSET_HINT)
    for warning in view.warnings:
        yield Finding("config-unknown", "disk", "warning", warning, config.EDIT_HINT)
    try:
        catalog.load()
    except UsageError as error:
        yield Finding("catalogue-damaged", "disk", "error", error.message, error.hint)


# --- Chats; opened read-only.


def check_chats() -> Iterator[Finding]:
    path = paths.chats_file()
    if not os.path.exists(path):
        yield Finding("chats", "chats", "ok", "no saved chats")
        return
    try:
        yield from _check_database(path)
    except schema.DATABASE_ERRORS as error:
        if not schema.is_corrupt(error):
            raise
        what = f"the chat database is damaged: {path}"
        fix = "localspec doctor --fix recovers what it can read and keeps the damaged file"
        yield Finding("chats-damaged", "chats", "error", what, fix)
    yield from _check_damaged_copies(path)


def _check_database(path: Path) -> Iterator[Finding]:
    size = path.stat().st_size
    with closing(schema.open_read_only(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == schema.SCHEMA_VERSION and size <= _MAX_CHECKED_BYTES:
            schema.check_integrity(connection)
        (n,) = connection.execute("SELECT count(*) FROM chats").fetchone()
    what = f"{count(n, 'saved chat')}, {gb(size)}" if n else "no saved chats"
    yield Finding("chats", "chats", "ok", what)
    if version > schema.SCHEMA_VERSION:
        what = "a newer localspec wrote the chats: they are read-only here"
        yield Finding("chats-newer", "chats", "warning", what, "Update localspec")


def _check_damaged_copies(path: Path) -> Iterator[Finding]:
    """Reports the disk space of damaged databases that were repaired."""
    copies = sorted(path.parent.glob(f"{path.name}.corrupt-*"))
    if copies:
        size = gb(sum(copy.stat().st_size for copy in copies))
        what = f"{count(len(copies), 'damaged chat database')} kept, {size}: {path.parent}"
        yield Finding("chats-aside", "chats", "ok", what)


# --- Downloaded models.


def check_models() -> Iterator[Finding]:
    models = local_files.list_models()
    if not models:
        yield Finding("models", "models", "ok", "none installed", "localspec pair suggest")
        return
    total = gb(sum(model.size for model in models))
    yield Finding("models", "models", "ok", f"{len(models)} installed, {total}")
    started = time.monotonic()
    for number, model in enumerate(models):
        if time.monotonic() - started > _TIME_BUDGET_SECONDS:
            what = f"{len(models) - number} of them were not checked: that would take too long"
            yield Finding("not-looked-at", "models", "notice", what)
            return
        yield from _check_model(model)


def _check_model(model: LocalModel) -> Iterator[Finding]:
    name = model.path.name
    try:
        header.check_loadable(model.path)
        reason = header.read(model.path).unsupported_reason
    except LocalspecError as error:
        yield Finding("unreadable", "models", "warning", f"{name}: {error.message}", error.hint)
        return
    if reason:
        fix = "Run another model, or a newer localspec"
        yield Finding("unsupported", "models", "notice", f"{name} cannot run: {reason}", fix)
