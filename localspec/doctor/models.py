"""Whether the models that are here can be read, and run by this llama.cpp."""

from __future__ import annotations

import time
from collections.abc import Iterator

from localspec.doctor.finding import Finding
from localspec.errors import LocalspecError
from localspec.models import header, store
from localspec.models.disk.stored import Stored
from localspec.units import gb

_PATIENCE = 5.0
"""Seconds of reading headers."""


def findings() -> Iterator[Finding]:
    here = store.listing()
    if not here:
        yield Finding("models", "models", "ok", "none here yet", "localspec pair suggest")
        return
    total = gb(sum(one.size for one in here))
    yield Finding("models", "models", "ok", f"{len(here)} here, {total}")
    started = time.monotonic()
    for number, one in enumerate(here):
        if time.monotonic() - started > _PATIENCE:
            what = f"{len(here) - number} of them were not looked at: that takes too long"
            yield Finding("not-looked-at", "models", "notice", what)
            return
        yield from _judged(one)


def _judged(one: Stored) -> Iterator[Finding]:
    name = one.path.name
    try:
        header.check(one.path)
        why = header.read(one.path).unsupported
    except LocalspecError as error:
        yield Finding("unreadable", "models", "warning", f"{name}: {error.message}", error.hint)
        return
    if why:
        fix = "Run another model, or a newer localspec"
        yield Finding("unsupported", "models", "notice", f"{name} cannot run: {why}", fix)
