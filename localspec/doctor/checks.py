"""All checks, which change nothing and open no socket: disk, chats, models, network, terminal."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

from localspec import config, paths
from localspec.chat.history import schema
from localspec.doctor import engine_checks
from localspec.doctor.findings import Finding, ok, problem, redact
from localspec.doctor.repairs import find_repair
from localspec.errors import LocalspecError
from localspec.models import catalog
from localspec.models.gguf import reader
from localspec.models.local_files import hub_cache, inventory
from localspec.units import count, gb

_MIN_FREE_DISK = 10 * 10**9  # Bytes; an 8B model with its draft model takes about 6 GB.
_MAX_CHECKED_BYTES = 256 << 20
"""Larger chat databases skip the integrity check; this size takes about a second."""
_TIME_BUDGET_SECONDS = 5.0  # For reading model headers.
_MIN_SIZE = (60, 15)


def check_disk() -> Iterator[Finding]:
    cache = hub_cache.cache_root()
    yield _check_folder("cache", "models", "HF_HUB_CACHE", cache)
    if (free := hub_cache.free_bytes(cache)) < _MIN_FREE_DISK:
        fix = "Free some space, or set HF_HUB_CACHE to a folder on another disk"
        yield problem("little-room", f"only {gb(free)} free for models", fix)
    else:
        yield ok("room", f"{gb(free)} free for models")
    if os.path.isdir(cache) and os.access(cache, os.W_OK):
        yield from _check_symlinks(cache)
    if leftovers := inventory.find_leftovers():
        size = gb(sum(file.size for file in leftovers))
        what = f"{size} in {count(len(leftovers), 'incomplete download')}"
        repos = dict.fromkeys(file.repo for file in leftovers if file.resumable)
        pulls = "".join(f"localspec pull {repo} resumes it; " for repo in list(repos)[:3])
        fix = f"{pulls}localspec rm --leftovers deletes {'it' if len(leftovers) == 1 else 'them'}"
        yield problem("leftovers", what, fix)
    data = paths.data_dir()
    yield _check_folder("data", "chats, measurements and logs", "LOCALSPEC_DATA_DIR", data)
    if (folder := inventory.models_folder()) is not None and not os.path.isdir(folder):
        fix = "Create it, or choose another: localspec config set models.folder FOLDER"
        yield problem("models-folder", f"{folder} is not a folder", fix)
    view = config.resolve()
    for fault in view.errors:
        in_file = config.is_in_file(fault)
        id_ = "config-damaged" if in_file else "environment-wrong"
        yield problem(id_, fault, config.EDIT_HINT if in_file else config.UNSET_HINT)
    for warning in view.warnings:
        yield problem("config-unknown", warning, config.EDIT_HINT)
    if (error := catalog.load_valid()[1]) is not None:
        yield problem("catalogue-damaged", error.message, error.hint)


def _check_folder(name: str, contents: str, variable: str, folder: Path) -> Finding:
    existing = folder
    while not os.path.exists(existing) and existing != existing.parent:
        existing = existing.parent
    if os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK):
        note = "" if existing == folder else " (created when needed)"
        return ok(name, f"{contents} in {folder}{note}")
    fix = f"Make it writable, or set {variable} to another folder"
    return problem(f"{name}-refused", f"{existing} is not writable", fix)


def _check_symlinks(cache: Path) -> Iterator[Finding]:
    """Without symbolic links the cache stores one copy of a file per revision."""
    try:
        with tempfile.TemporaryDirectory(prefix=".localspec-", dir=cache) as folder:
            (Path(folder) / "link").symlink_to("nowhere")
    except (OSError, NotImplementedError):
        what = "no symbolic links in the model cache: each revision of a file takes its full size"
        fix = "Windows: turn on Developer Mode; otherwise use a disk that supports links"
        yield problem("no-links", what, fix)


def check_chats() -> Iterator[Finding]:
    """Opens the chats read-only."""
    path = paths.chats_file()
    if not os.path.exists(path):
        yield ok("chats", "no saved chats")
        return
    try:
        yield from _check_database(path)
    except schema.DATABASE_ERRORS as error:
        if not schema.is_corrupt(error):
            raise
        fix = "localspec doctor --fix recovers what it can read and keeps the damaged file"
        yield problem("chats-damaged", f"the chat database is damaged: {path}", fix)
    if copies := sorted(path.parent.glob(f"{path.name}.corrupt-*")):  # kept by a repair
        size = gb(sum(copy.stat().st_size for copy in copies))
        what = f"{count(len(copies), 'damaged chat database')} kept, {size}: {path.parent}"
        yield ok("chats-aside", what)


def _check_database(path: Path) -> Iterator[Finding]:
    size = path.stat().st_size
    with closing(schema.open_read_only(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == schema.SCHEMA_VERSION and size <= _MAX_CHECKED_BYTES:
            schema.check_integrity(connection)
        (n,) = connection.execute("SELECT count(*) FROM chats").fetchone()
    yield ok("chats", f"{count(n, 'saved chat')}, {gb(size)}" if n else "no saved chats")
    if version > schema.SCHEMA_VERSION:
        what = "a newer localspec wrote the chats: they are read-only here"
        yield problem("chats-newer", what, "Update localspec")


def check_models() -> Iterator[Finding]:
    models = inventory.list_models()
    if not models:
        yield Finding("models", "models", "ok", "none installed", "localspec pair suggest")
        return
    yield ok("models", f"{len(models)} installed, {gb(sum(model.size for model in models))}")
    started = time.monotonic()
    for number, model in enumerate(models):
        if time.monotonic() - started > _TIME_BUDGET_SECONDS:
            what = f"{len(models) - number} of them were not checked: that would take too long"
            yield problem("not-looked-at", what)
            return
        name = model.path.name
        try:
            reader.check_loadable(model.path)
            if reason := reader.read(model.path).unsupported_reason:
                fix = "Run another model, or a newer localspec"
                yield problem("unsupported", f"{name} cannot run: {reason}", fix)
        except LocalspecError as error:
            yield problem("unreadable", f"{name}: {error.message}", error.hint)


def check_network(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    yield from _check_offline(environ)
    yield _check_endpoint(environ.get("HF_ENDPOINT", ""))
    yield _check_token(environ)
    names = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
    proxies = [name for name in names if environ.get(name) or environ.get(name.lower())]
    if proxies:  # their values may hold passwords
        yield ok("proxy", f"a proxy is set ({', '.join(proxies)})")


def _check_offline(environ: Mapping[str, str]) -> Iterator[Finding]:
    setting = config.resolve(environ).settings["network.offline"]
    if setting.origin == "command line":
        fix = "leave it out, to download models"
        yield problem("offline", f"offline: {setting.origin_text} was given", fix)
        return
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if environ.get(name, "").lower() in ("1", "on", "yes", "true"):
            yield problem("offline", f"offline: {name} is set", f"unset {name}, to download models")
    if setting.current and not setting.is_overridden:
        what = f"offline: network.offline is set in {setting.origin_text}"
        fix = "localspec config set network.offline false, to download models"
        yield problem("offline", what, fix)


def _check_endpoint(value: str) -> Finding:
    if not value:
        return ok("endpoint", "downloads from huggingface.co")
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        fix = "unset HF_ENDPOINT, or set it to an address like https://hub.example"
        return problem("endpoint-wrong", "HF_ENDPOINT is not a URL", fix)
    # Without user and password.
    address = f"{parts.scheme}://{host}:{port}" if port else f"{parts.scheme}://{host}"
    what = f"HF_ENDPOINT: downloads from {address} instead of huggingface.co"
    return problem("endpoint", what)


def _check_token(environ: Mapping[str, str]) -> Finding:
    """Whether there is a token, which is not read."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if environ.get(name):
            return ok("token", f"hub token set ({name})")
    caches = environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    file = os.path.expanduser(environ.get("HF_TOKEN_PATH") or os.path.join(home, "token"))
    if os.path.isfile(file):
        return ok("token", f"hub token in {file}")
    return ok("no-token", "no hub token: gated models cannot be downloaded")


def check_terminal(
    environ: Mapping[str, str] = os.environ, out: TextIO | None = None
) -> Iterator[Finding]:
    out = out or sys.__stdout__ or sys.stdout  # the app replaces sys.stdout
    parts = [
        environ.get("TERM_PROGRAM") or environ.get("TERM") or "unknown terminal",
        "" if out.isatty() else "output to a file or a pipe",
        _describe_colours(environ),
        "in tmux" if environ.get("TMUX") else "in screen" if environ.get("STY") else "",
        "over SSH" if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY") else "",
    ]
    yield ok("terminal", ", ".join(filter(None, parts)))
    size = shutil.get_terminal_size()
    what = f"{size.columns} columns, {size.lines} lines"
    if out.isatty() and (size.columns < _MIN_SIZE[0] or size.lines < _MIN_SIZE[1]):
        fix = f"Enlarge it to at least {_MIN_SIZE[0]} by {_MIN_SIZE[1]}"
        yield problem("small", f"{what}: small for the app", fix)
    elif out.isatty():
        yield ok("size", what)
    encoding = (getattr(out, "encoding", "") or "").lower().replace("-", "")
    if encoding != "utf8":
        what = f"the output encoding is {encoding or 'unknown'}: other characters become ?"
        fix = "Set PYTHONUTF8=1 and a UTF-8 locale such as LANG=C.UTF-8"
        yield problem("no-unicode", what, fix)
    else:
        yield ok("unicode", "Unicode")
    if environ.get("TERM") == "dumb":
        fix = "TERM=xterm-256color, if your terminal supports it"
        yield problem("dumb", "TERM=dumb: line-based chat only", fix)
    if sys.platform == "win32" and not environ.get("WT_SESSION"):
        what = "old console: some keys and colours may not work"
        yield problem("old-console", what, "Use Windows Terminal")


def _describe_colours(environ: Mapping[str, str]) -> str:
    if environ.get("NO_COLOR"):
        return "no colours (NO_COLOR)"
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or environ.get("WT_SESSION"):
        return "16 million colours"
    return "256 colours" if "256" in environ.get("TERM", "") else "16 colours or fewer"


AREAS: dict[str, Callable[[], Iterator[Finding]]] = {
    "engine": engine_checks.check_engine,
    "devices": engine_checks.check_devices,
    "disk": check_disk,
    "chats": check_chats,
    "network": check_network,
    "terminal": check_terminal,
    "models": check_models,
}
"""The checks of each area, in the order of the report."""


def run_checks() -> tuple[Finding, ...]:
    """All findings, safe to share: no home folder, no user name, no tokens."""
    return tuple(finding for area in AREAS for finding in check_area(area))


def check_area(area: str) -> Iterator[Finding]:
    """Runs one of AREAS, and adds the repair of each problem; an exception becomes a finding."""
    try:
        for finding in AREAS[area]():
            yield redact(replace(finding, area=area, action=find_repair(finding.id)))
    except Exception as error:  # one area that breaks must not hide the others
        what = f"this check failed: {type(error).__name__}: {error}"
        failed = problem("failed", what, "Report this, with the whole output.")
        yield redact(replace(failed, area=area))
