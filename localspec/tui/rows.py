"""What Home lists: pairs that are here, pairs that could be, and what is on its way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from localspec import paths
from localspec.chat import recent
from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.fit import places
from localspec.fit.report import Place
from localspec.launch import Choice
from localspec.models import catalog, heads
from localspec.models.catalog import Catalogue, Model, Pair
from localspec.tui import downloads
from localspec.tui.keys import keys_of, name
from localspec.tui.wizard import words
from localspec.tui.wizard.shortlist import Candidate, suggested
from localspec.tui.wizard.whatif import WhatIf
from localspec.units import gb, gib

if TYPE_CHECKING:
    from localspec.models.disk.stored import Stored
    from localspec.models.download import State
    from localspec.models.remote import Found

_SUGGESTED = 5
_USE = "chat"
"""What speeds are said for where nobody was asked."""
_MATCHING = 20
_RUN = ("model", "lookup", *heads.RUN)


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a pair to open, something to download, or a download."""

    name: str
    about: str = ""
    size: str = ""
    note: str = ""
    choice: Choice | None = None
    reference: str | None = None
    """What to pull."""
    state: State | None = None
    chat: int | None = None
    """One that was kept."""
    found: bool = False
    """Whether `about` is what was found in it."""


@dataclass(frozen=True, slots=True)
class Section:
    """Rows with a heading."""

    heading: str
    rows: tuple[Row, ...]
    hint: str = ""
    """A key that has to do with them."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What takes a while to find out of this computer: done after the first picture."""

    machine: str = ""
    free: int = 0
    """Bytes of memory."""
    listing: tuple[Stored, ...] = ()
    place: Place | None = None
    """Its devices."""
    suggested: tuple[Candidate, ...] = ()
    """What suits them, the best first."""
    missed: str = ""
    """A card that this build of llama.cpp cannot use, and what to type."""


def survey() -> Survey:
    """Look at memory, cores and the models on the disk."""
    import psutil  # noqa: PLC0415  not before the first picture

    from localspec.models import store  # noqa: PLC0415

    memory = psutil.virtual_memory()
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    words = f"{cores} cores · {gib(memory.total)}, {gib(memory.available)} free"
    return Survey(words, memory.available, store.listing())


def closer(seen: Survey) -> Survey:
    """With the devices and what suits them: llama.cpp is asked, and the catalogue priced."""
    place = places.here()
    found = suggested(place, _USE, WhatIf(), known()[0])
    machine = _machine(place) or seen.machine
    return replace(seen, machine=machine, place=place, suggested=found, missed=_missed())


def _missed() -> str:
    from localspec import doctor  # noqa: PLC0415  as above

    found = doctor.cpu_only_beside_gpu()
    again = f"Not again: localspec doctor --dismiss {found.id}" if found else ""
    return f"{found.what}. {found.fix} {again}" if found else ""


def _machine(place: Place) -> str:
    """The best card; empty where there is none."""
    if not place.devices:
        return ""
    card = place.devices[0]
    memory = ""
    if card.total is not None and card.free is not None:
        memory = f"{gib(card.total)}, {gib(card.free)} free"
    others = f"and {len(place.devices) - 1} more" if place.devices[1:] else ""
    said = (card.description or card.name, memory, others, card.backend)
    return clean(" · ".join(filter(None, said)), multiline=False)


def known() -> tuple[Catalogue, LocalspecError | None]:
    """The catalogue; where the person's own part is damaged, ours and what is wrong."""
    try:
        return catalog.load(), None
    except LocalspecError as error:
        return catalog.load(paths.catalogue()), error


def sections(
    shelf: Catalogue,
    seen: Survey,
    wanted: str = "",
    states: Sequence[State] = (),
    found: Sequence[Found] = (),
    own: Mapping[str, str] = MappingProxyType({}),
) -> list[Section]:
    """Everything that `wanted` is a part of; without it, the few that suit this computer.

    `own`: a person's own keys.
    """
    here = _ready(shelf, seen)
    lately = [row for row in _lately() if row.choice not in [one.choice for one in here]]
    away = _matching(shelf, seen, wanted) if wanted else _suggested(seen)
    ids = {row.name for row in here}
    sections_ = [
        Section("Ready to run", _holding(here, wanted)),
        Section("Opened lately", _holding(lately, wanted)),
        Section(
            "In the catalogue" if wanted else "Would fit here, not downloaded",
            tuple(row for row in away if row.name not in ids),
            f"{name(keys_of('home.wizard', own)[0])} wizard",
        ),
        Section("On the hub", tuple(map(_found, found))),
        Section("Downloads", tuple(Row(state.job.path, state=state) for state in states)),
    ]
    return [section for section in sections_ if section.rows]


def doing(row: Row | None, own: Mapping[str, str]) -> str:
    """The keys that do something with a row."""
    if row is None:
        return ""
    if row.state is not None:
        return downloads.doing(row.state, own)
    if row.chat is not None:
        return f"enter go on  {name(keys_of('home.remove', own)[0])} delete"
    if row.choice is not None:
        return f"enter open  {name(keys_of('home.bench', own)[0])} bench"
    return "enter download"


def _holding(rows: Iterable[Row], wanted: str) -> tuple[Row, ...]:
    words = wanted.lower().split()
    return tuple(r for r in rows if all(w in f"{r.name} {r.about}".lower() for w in words))


def ready(shelf: Catalogue, seen: Survey) -> dict[str, Choice]:
    """Pairs of the catalogue that may be opened, by their ids."""
    return {row.name: row.choice for row in _ready(shelf, seen) if row.choice is not None}


def _ready(shelf: Catalogue, seen: Survey) -> list[Row]:
    """The catalogue's pairs of which every file is here; the bundled one first."""
    files = {(one.repo, one.file): one.path for one in seen.listing}
    speeds = {one.pair.id: _speed(one) for one in seen.suggested}
    rows: list[Row] = []
    for pair in shelf.pairs.values():
        target, draft = _path(pair.target, files), _path(pair.draft, files)
        if target is None or (pair.draft is not None and draft is None):
            continue
        if pair.kind not in _RUN:
            continue
        choice = Choice(target, draft, pair.spec, pair.why, pair.settings, asked=(pair.id, "auto"))
        bundled = pair.target.repo is None
        if bundled and rows:  # its other drafts are for who asks for them
            continue
        about = f"{pair.title} · bundled" if bundled else _uses(pair)
        note = "try it now" if bundled else speeds.get(pair.id, "")
        rows.append(Row(pair.id, about, _size(choice), note, choice))
    return rows


def _path(model: Model | None, files: dict[tuple[str | None, str], Path]) -> Path | None:
    if model is None:
        return None
    return model.path or files.get((model.repo, model.file))


def _lately() -> list[Row]:
    rows = []
    for choice in recent.read():
        draft = _beside(choice)
        where = clean(str(choice.target.parent), multiline=False)
        rows.append(Row(_stem(choice.target), draft, _size(choice), where, choice))
    return rows


def _beside(choice: Choice) -> str:
    if choice.draft is None:
        return "no draft: copying"
    if choice.draft == choice.target:
        return "+ a layer of its own (MTP)"
    return f"+ {_stem(choice.draft)}"


def _suggested(seen: Survey) -> list[Row]:
    """The best for this computer: one for every target."""
    targets: set[str] = set()
    rows = []
    for one in seen.suggested:
        if one.pair.target.id not in targets and one.pair.target.repo is not None:
            targets.add(one.pair.target.id)
            rows.append(_away(one.pair, one.bytes, _speed(one)))
    return rows[:_SUGGESTED]


def _speed(one: Candidate) -> str:
    """With its draft, and what that gains; where nobody knows, whether it fits."""
    if one.fit is None:
        return ""
    speed = one.fit.speed
    if speed.speculative is None:
        return words.VERDICTS[one.fit.verdict]
    return f"{words.rate(speed.speculative):<14}  {words.times(words.gain(speed, _USE))}"


def _matching(shelf: Catalogue, seen: Survey, wanted: str) -> list[Row]:
    rows = [
        _away(pair, (pair.target.size or 0) + ((pair.draft.size or 0) if pair.draft else 0))
        for pair in shelf.pairs.values()
        if pair.target.repo is not None and pair.kind in _RUN
    ]
    return list(_holding(rows, wanted))[:_MATCHING]


def _away(pair: Pair, size: int, note: str = "") -> Row:
    about = f"{_uses(pair)} · {pair.status}" if _uses(pair) else pair.status
    shown = f"{gb(size)}" if size else "?"
    return Row(pair.id, about, shown, clean(note, multiline=False), reference=pair.id)


def _uses(pair: Pair) -> str:
    """What for, and which head drafts, if one does."""
    head = f"{heads.NAMES[pair.kind]} head" if pair.kind in heads.NAMES else ""
    return " · ".join(filter(None, (", ".join(pair.use), head)))


def _found(one: Found) -> Row:
    name = clean(one.repo, multiline=False)
    downloads = f"{one.downloads:,} downloads" if one.downloads else ""
    return Row(name, downloads, "gated" if one.gated else "", reference=one.repo)


def _stem(path: Path) -> str:
    return clean(path.name.removesuffix(".gguf"), multiline=False)


def _size(choice: Choice) -> str:
    files = {choice.target, choice.draft}
    try:
        return gib(sum(file.stat().st_size for file in files if file is not None))
    except OSError:
        return "gone"
