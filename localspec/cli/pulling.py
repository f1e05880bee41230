"""A pull at a terminal or in a script: the plan, the question, the downloads."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click

from localspec.clean import clean
from localspec.cli.meter import Meter
from localspec.errors import UsageError
from localspec.models import heads, plan, wanted
from localspec.models.download import Job, State, fetch
from localspec.models.hub.errand import Stop, Stopped
from localspec.models.hub.hubcache import root
from localspec.models.hub.transfer import Throttle
from localspec.models.plan import Item, Plan
from localspec.models.remote import Hub
from localspec.units import gb

_T = TypeVar("_T")
_ELSEWHERE = {"lmstudio": "LM Studio", "ollama": "Ollama", "llama.cpp": "llama.cpp"}


@dataclass(frozen=True, slots=True)
class Way:
    """How to go about it."""

    yes: bool = False
    dry_run: bool = False
    quiet: bool = False
    as_json: bool = False
    limit: float | None = None
    """MB a second; None is as fast as it comes."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """What came of it."""

    plan: Plan
    paths: dict[str, Path]
    """Of each model's first file, by the model's name."""
    agreed: bool = True
    """Whether the person said yes."""


def pull(texts: Sequence[str], hub: Hub, way: Way) -> Pulled:
    """Plan, ask, and fetch.  Raises KeyboardInterrupt, after saying how to go on.

    Refuses an incompatible pair and a disk that is too small before a byte of weights.
    """
    again = shlex.join(["localspec", "pull", *texts])
    asked = [wanted.read(text) for text in texts]
    found = stoppable(lambda stop: plan.make(hub, asked, stop))
    asks = not (way.yes or way.dry_run)
    if not way.as_json and (asks or not way.quiet):
        for line in lines(found):
            click.echo(line, err=not way.dry_run)
    found.check()
    here = {item.wanted.name: item.path for item in found.items if item.path}
    if way.dry_run:
        return Pulled(found, here)
    if found.missing and not way.yes and not _agreed(way):
        return Pulled(found, here, agreed=False)
    try:
        paths = stoppable(lambda stop: dict(_fetched(hub, found, way, stop)))
    except KeyboardInterrupt:
        words = _plain(again)
        click.echo(f"localspec: stopped; what came is kept. Go on: {words}", err=True)
        raise
    return Pulled(found, paths)


def stoppable(call: Callable[[Stop], _T]) -> _T:
    """What `call` gives; Ctrl+C calls it off, within moments even where the network stands still.

    Raises KeyboardInterrupt then.
    """
    stop = Stop()

    def pressed(*_: int | FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second one ends at once

    with _on_interrupt(pressed):
        try:
            return call(stop)
        except Stopped:
            raise KeyboardInterrupt from None


@contextmanager
def _on_interrupt(handler: Callable[..., None]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def can_ask() -> bool:
    """Whether somebody reads the question and can answer it."""
    ends = (sys.stdin, sys.stderr)
    return all(end is not None and end.isatty() for end in ends)


def _agreed(way: Way) -> bool:
    if way.as_json or not can_ask():
        raise UsageError("Nobody can be asked here.", "Say it beforehand: -y, or --dry-run.")
    return click.confirm("Download?", default=True, err=True)


def _fetched(hub: Hub, found: Plan, way: Way, stop: Stop) -> Iterator[tuple[str, Path]]:
    """Each model's name and first file; one that is here is looked at all the same."""
    jobs = sum(len(item.pieces) for item in found.items)
    throttle = Throttle(way.limit * 1e6 if way.limit else None)
    number = 0
    for item in found.items:
        paths = [item.path] if item.path else []
        for at, piece in enumerate(item.pieces):
            number += 1
            if piece.where and piece.where != "hub":
                continue
            name = piece.job.path.rpartition("/")[2]
            with Meter(name, (number, jobs), quiet=way.quiet) as meter:
                path = _fetch(hub, piece.job, meter.take, stop, throttle)
            paths = [path] if at == 0 else paths
        yield item.wanted.name, paths[0]


def _fetch(
    hub: Hub, job: Job, say: Callable[[State], None], stop: Stop, throttle: Throttle
) -> Path:
    return fetch(hub, job, say, stop=stop, throttle=throttle)


def lines(found: Plan) -> Iterator[str]:
    """The plan, for a person."""
    rows = [_row(item) for item in found.items]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for name, file, size, rest in rows:
        yield f"{name:{widths[0]}}  {file:{widths[1]}}  {size:>{widths[2]}}  {rest}".rstrip()
    for item in found.items:
        for note in _notes(item):
            yield f"  {_plain(item.wanted.name)}: {note}"
    for match in found.matches:
        yield from verdict(match)
    if found.missing:
        where = _plain(str(found.cache))
        yield f"To download: {gb(found.missing)}. Free: {gb(found.free)} in {where}"
    else:
        yield "All of it is here."


def beside(item: Item) -> Iterator[str]:
    """The heads that lie beside a model on the hub: how much, and how to get each."""
    for file in item.beside:
        kind = heads.named(file.path)
        words = f"{heads.NAMES[kind]} head, {gb(file.size)}"
        if kind in heads.RUN:
            yield f"{words}: localspec pull {_plain(shlex.quote(f'hf://{item.repo}/{file.path}'))}"
        else:
            yield f"{words}: {_plain(file.path)}, which cannot be run here yet"


def verdict(match: plan.Match) -> Iterator[str]:
    """Whether a pair goes together, and what to mind."""
    words = {
        "compatible": "They go together",
        "compatible-padding": "They go together",
        "incompatible": "They do not go together",
    }
    yield f"{words[match.verdict.verdict]}: {_plain(match.verdict.detail)}."
    for warning in match.warnings:
        yield f"  {warning}"


def document(found: Plan) -> dict[str, Any]:
    """The plan as `--json` has it."""
    return {
        "models": [
            {
                "name": item.wanted.name,
                "repo": item.repo,
                "revision": item.revision,
                "file": item.file,
                "bytes": item.size,
                "missing": item.missing,
                "licence": item.licence,
                "gated": item.gated,
                "path": str(item.path) if item.path else None,
                "files": [
                    {
                        "file": piece.job.path,
                        "bytes": piece.size,
                        "missing": piece.size - piece.have,
                        "sha256": piece.job.sha256,
                    }
                    for piece in item.pieces
                ],
            }
            for item in found.items
        ],
        "pairs": [judged(match) for match in found.matches],
        "bytes": found.size,
        "missing": found.missing,
        "free": found.free,
        "cache": str(root()),
    }


def judged(match: plan.Match) -> dict[str, Any]:
    """A verdict as `--json` has it."""
    said = match.verdict
    return {
        "target": match.target.wanted.name,
        "draft": match.draft.wanted.name,
        "verdict": said.verdict,
        "rule": said.rule,
        "detail": said.detail,
        "token": said.token,
        "warnings": list(match.warnings),
    }


def _row(item: Item) -> tuple[str, str, str, str]:
    parts = len(item.pieces)
    file = f"{item.file} and {parts - 1} more" if parts > 1 else item.file
    where = next((_ELSEWHERE[p.where] for p in item.pieces if p.where in _ELSEWHERE), "")
    have = (item.size or 0) - item.missing
    state = f"here ({where})" if where else "here" if not item.missing else ""
    if item.missing and have:
        state = f"{gb(have)} of it here"
    licence = f"licence: {item.licence or 'see its page'}" if item.repo else ""
    rest = ", ".join(filter(None, (licence, "gated" if item.gated else "", state)))
    name = f"{item.repo}/{file}" if item.repo else file
    return _plain(item.wanted.name), _plain(name), gb(item.size or 0), rest


def _notes(item: Item) -> Iterator[str]:
    yield from item.notes
    if item.header is not None and item.header.unsupported:
        yield f"it cannot be run here: {item.header.unsupported}"
    if item.header is not None and (kind := heads.kind(item.header)) != "model":
        yet = "" if heads.runs(item.header) else ", and not yet here"
        yield f"a head ({heads.NAMES[kind]}): it drafts for its target only{yet}"


def _plain(text: str) -> str:
    return clean(text, multiline=False)
