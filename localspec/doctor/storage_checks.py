"""Checks of files: disk space, the model cache, settings, chats and downloaded models."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from localspec import config, paths
from localspec.chat.history import schema
from localspec.doctor.findings import Finding, ok, problem
from localspec.errors import LocalspecError
from localspec.models import catalog
from localspec.models.gguf import reader
from localspec.models.local_files import hub_cache, inventory
from localspec.units import count, gb

_MIN_FREE_DISK = 10 * 10**9  # Bytes; an 8B model with its draft model takes about 6 GB.

_MAX_CHECKED_BYTES = 256 << 20
"""Larger chat databases skip the integrity check; this size takes about a second."""

_TIME_BUDGET_SECONDS = 5.0  # For reading model headers.


def check_disk() -> Iterator[Finding]:
    cache = hub_cache.cache_root()
    yield _check_folder("cache", "models", cache)
    free = hub_cache.free_bytes(cache)
    if free < _MIN_FREE_DISK:
        fix = "Free some space, or set HF_HUB_CACHE to a folder on another disk"
        yield problem("disk", "little-room", f"only {gb(free)} free for models", fix)
    else:
        yield ok("disk", "room", f"{gb(free)} free for models")
    if os.path.isdir(cache) and os.access(cache, os.W_OK):
        yield from _check_symlinks(cache)
    if leftovers := inventory.find_leftovers():
        size = gb(sum(file.size for file in leftovers))
        what = f"{size} in {count(len(leftovers), 'incomplete download')}"
        fix = "localspec pull resumes them; localspec rm --leftovers deletes them"
        yield problem("disk", "leftovers", what, fix)
    yield _check_folder("data", "chats, measurements and logs", paths.data_dir())
    if (folder := inventory.models_folder()) is not None and not os.path.isdir(folder):
        fix = "Create it, or choose another: localspec config set models.folder FOLDER"
        yield problem("disk", "models-folder", f"{folder} is not a folder", fix)
    view = config.resolve()
    for fault in view.errors:
        if config.is_in_file(fault):
            yield problem("disk", "config-damaged", fault, config.EDIT_HINT)
        else:
            yield problem("disk", "environment-wrong", fault, config.UNSET_HINT)
    for warning in view.warnings:
        yield problem("disk", "config-unknown", warning, config.EDIT_HINT)
    if (error := catalog.load_valid()[1]) is not None:
        yield problem("disk", "catalogue-damaged", error.message, error.hint)


def _check_folder(name: str, contents: str, folder: Path) -> Finding:
    existing = folder
    while not os.path.exists(existing) and existing != existing.parent:
        existing = existing.parent
    if os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK):
        note = "" if existing == folder else " (created when needed)"
        return ok("disk", name, f"{contents} in {folder}{note}")
    variable = "HF_HUB_CACHE" if name == "cache" else "LOCALSPEC_DATA_DIR"
    fix = f"Make it writable, or set {variable} to another folder"
    return problem("disk", f"{name}-refused", f"{existing} is not writable", fix)


def _check_symlinks(cache: Path) -> Iterator[Finding]:
    """Without symbolic links the cache stores one copy of a file per revision."""
    try:
        with tempfile.TemporaryDirectory(prefix=".localspec-", dir=cache) as folder:
            (Path(folder) / "link").symlink_to("nowhere")
    except (OSError, NotImplementedError):
        what = "no symbolic links in the model cache: each revision of a file takes its full size"
        fix = "Windows: turn on Developer Mode; otherwise use a disk that supports links"
        yield problem("disk", "no-links", what, fix)


def check_chats() -> Iterator[Finding]:
    """Opens the chats read-only."""
    path = paths.chats_file()
    if not os.path.exists(path):
        yield ok("chats", "chats", "no saved chats")
        return
    try:
        yield from _check_database(path)
    except schema.DATABASE_ERRORS as error:
        if not schema.is_corrupt(error):
            raise
        what = f"the chat database is damaged: {path}"
        fix = "localspec doctor --fix recovers what it can read and keeps the damaged file"
        yield problem("chats", "chats-damaged", what, fix)
    if copies := sorted(path.parent.glob(f"{path.name}.corrupt-*")):  # kept by a repair
        size = gb(sum(copy.stat().st_size for copy in copies))
        what = f"{count(len(copies), 'damaged chat database')} kept, {size}: {path.parent}"
        yield ok("chats", "chats-aside", what)


def _check_database(path: Path) -> Iterator[Finding]:
    size = path.stat().st_size
    with closing(schema.open_read_only(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == schema.SCHEMA_VERSION and size <= _MAX_CHECKED_BYTES:
            schema.check_integrity(connection)
        (n,) = connection.execute("SELECT count(*) FROM chats").fetchone()
    what = f"{count(n, 'saved chat')}, {gb(size)}" if n else "no saved chats"
    yield ok("chats", "chats", what)
    if version > schema.SCHEMA_VERSION:
        what = "a newer localspec wrote the chats: they are read-only here"
        yield problem("chats", "chats-newer", what, "Update localspec")


def check_models() -> Iterator[Finding]:
    models = inventory.list_models()
    if not models:
        yield Finding("models", "models", "ok", "none installed", "localspec pair suggest")
        return
    total = gb(sum(model.size for model in models))
    yield ok("models", "models", f"{len(models)} installed, {total}")
    started = time.monotonic()
    for number, model in enumerate(models):
        if time.monotonic() - started > _TIME_BUDGET_SECONDS:
            what = f"{len(models) - number} of them were not checked: that would take too long"
            yield problem("models", "not-looked-at", what)
            return
        name = model.path.name
        try:
            reader.check_loadable(model.path)
            reason = reader.read(model.path).unsupported_reason
        except LocalspecError as error:
            yield problem("models", "unreadable", f"{name}: {error.message}", error.hint)
            continue
        if reason:
            fix = "Run another model, or a newer localspec"
            yield problem("models", "unsupported", f"{name} cannot run: {reason}", fix)
