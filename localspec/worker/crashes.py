"""Which pairs died lately and of what, kept until one answers well again."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.protocol.events import Notice
from localspec.protocol.wire import Load
from localspec.worker import ending

LOOP = 2
"""So many deaths in a row are no accident: nobody restarts the pair unasked."""

_PAIRS = 50
_DEATHS = 5
"""The most that are remembered."""


def key(load: Load) -> str:
    """Stands for the files, as they are now, and the settings."""
    told: list[Any] = [asdict(replace(load, measured=None))]
    for name in filter(None, (load.target, load.draft)):
        with suppress(OSError, ValueError):
            found = os.stat(name)
            told.append([found.st_size, found.st_mtime_ns])
    return sha256(json.dumps(told).encode()).hexdigest()[:16]


def record(key: str, how: str) -> None:
    """The pair died, of `how` as in `Dead`."""
    known = _read()
    known[key] = [*known.pop(key, []), how][-_DEATHS:]  # the newest last
    _write(dict(list(known.items())[-_PAIRS:]))


def forget(key: str) -> None:
    """The pair answered well."""
    known = _read()
    if known.pop(key, None):
        _write(known)


def deaths(key: str) -> tuple[str, ...]:
    """What the pair died of since it last answered well, the newest last."""
    return tuple(_read().get(key, ()))


def count(key: str) -> int:
    return len(deaths(key))


def loops() -> list[tuple[str, ...]]:
    """What each pair died of that is not restarted unasked."""
    return [tuple(hows) for hows in _read().values() if len(hows) >= LOOP]


def forget_all() -> None:
    """Whatever pairs died of, they may begin anew.  Raises OSError where that cannot be kept."""
    _file().unlink(missing_ok=True)


def warning(load: Load) -> Notice | None:
    """What to say before the pair is started once more; None where it may be, even unasked."""
    hows = deaths(key(load))
    if len(hows) < LOOP:
        return None
    what = f"This pair crashed the last {len(hows)} times: {'; '.join(map(ending.say, hows))}."
    return Notice("warning", "crash-loop", what, "Try a smaller --ctx, or --draft none.")


def _file() -> Path:
    return paths.state() / "crashes.json"


def _read() -> dict[str, list[str]]:
    """A file that cannot be read, or that somebody wrote nonsense into, is none."""
    try:
        known = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(known, dict):
        return {}
    lists = {name: hows for name, hows in known.items() if isinstance(hows, list)}
    return {name: [how for how in hows if isinstance(how, str)] for name, hows in lists.items()}


def _write(known: dict[str, list[str]]) -> None:
    """Whole or not at all; where it cannot be written, nothing is remembered."""
    path = _file()
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            new.write_text(json.dumps(known), encoding="utf-8")
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
