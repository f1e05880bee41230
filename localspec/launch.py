"""From what a person typed to a running engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from localspec.clean import clean
from localspec.errors import NotFoundError
from localspec.models import catalog, header
from localspec.protocol.events import Event, Ready
from localspec.protocol.wire import Generate, Load
from localspec.worker.client import Worker


class Engine(Protocol):
    """A loaded pair, wherever it runs."""

    ready: Ready

    def generate(self, request: Generate) -> Iterator[Event]: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The files to run, and how their pair wants to speculate."""

    target: Path
    draft: Path | None
    spec: str = "auto"
    why: str = ""


def choose(model: str | None, draft: str) -> Choice:
    """The files for a model argument and a --draft argument (a path, `auto` or `none`).

    Raises NotFoundError, AccessError or ModelFileError: every file is looked at before it is used.
    """
    pairs = catalog.load()
    name = model or "demo"
    pair = pairs.get(name)
    if pair is None and not _looks_like_path(name):
        raise NotFoundError(
            f"There is no pair called {clean(name, multiline=False)}.",
            f"Known: {', '.join(pairs)}. A file is given by its path: ./model.gguf",
        )
    target = pair.target if pair else _path(name)
    choice = Choice(target, pair.draft, pair.spec, pair.why) if pair else Choice(target, None)
    if draft == "none":
        choice = replace(choice, draft=None, spec="auto", why="")
    elif draft != "auto":
        choice = replace(choice, draft=_draft_file(draft, pairs), spec="auto", why="")
    header.check(choice.target)
    if choice.draft is not None:
        header.check(choice.draft)
    return choice


def _draft_file(name: str, pairs: dict[str, catalog.Pair]) -> Path:
    pair = pairs.get(name)
    return pair.draft if pair and pair.draft else _path(name)


def _path(name: str) -> Path:
    """Absolute: the engine's process has a folder of its own."""
    return Path(os.path.abspath(os.path.expanduser(name)))


def _looks_like_path(name: str) -> bool:
    return name.endswith(".gguf") or "/" in name or "\\" in name or Path(name).exists()


def start(load: Load) -> Engine:
    """Load the pair in a process of its own.  Raises what the engine raised, or died of."""
    worker = Worker()
    try:
        worker.load(load)
    except BaseException:
        worker.close()
        raise
    return worker
