"""What a person asked for by a reference: which files, of which repositories, and what is here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.clean import clean
from localspec.errors import NotFoundError, UsageError
from localspec.models import catalog, reference, store
from localspec.models.catalog import Catalogue, Model, Pair
from localspec.models.disk.stored import Stored
from localspec.models.reference import HubReference, NameReference, PathReference, RemoteFile


class NotHere(NotFoundError):  # noqa: N818  a state, which a download ends
    """A model that could be downloaded; `asked` is what to pull."""

    def __init__(self, title: str, asked: str) -> None:
        shown = clean(title, multiline=False)
        words = clean(shlex.quote(asked), multiline=False)
        super().__init__(f"{shown} is not here.", f"Get it: localspec pull {words}")
        self.asked = asked


@dataclass(frozen=True, slots=True)
class Wanted:
    """One model, and where it is to be had."""

    name: str
    """What to type for it."""
    source: PathReference | HubReference
    model: Model | None = None
    """What the catalogue knows of it."""

    @property
    def title(self) -> str:
        return self.model.title if self.model else self.name

    @property
    def path(self) -> Path | None:
        """Of a file that was named by its path; absolute: the engine has a folder of its own."""
        if isinstance(self.source, HubReference):
            return None
        return Path(os.path.abspath(os.path.expanduser(self.source.path)))

    def stored(self) -> Stored | None:
        """A model of a repository that is on this computer, with all its parts."""
        source = self.source
        if isinstance(source, PathReference):
            return None
        if source.file is None:
            found = store.here(source.repo, source.tag)
            file = found.file if found else None
        else:
            file = source.file
        known = store.find(source.repo, file, source.revision) if file else None
        if known is None:
            return None
        wholes = (one for one in store.listing() if known.path in (one.path, *one.parts))
        return next(wholes, None)

    def located(self) -> Path:
        """The file to open, which may still be missing where a path was given.

        Raises NotHere where it must be downloaded first.
        """
        if (path := self.path) is not None:
            return path
        stored = self.stored()
        if stored is None:
            raise NotHere(self.title, self.name)
        return stored.path


@dataclass(frozen=True, slots=True)
class Asked:
    """What one reference means: a model, or a pair of the catalogue."""

    name: str
    target: Wanted
    draft: Wanted | None = None
    pair: Pair | None = None

    @property
    def models(self) -> tuple[Wanted, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)


def read(text: str) -> Asked:
    """The catalogue's entry, the repository's or the computer's file that `text` means.

    Raises UsageError where it can mean nothing, NotFoundError where it is unknown or could be
    several.  Asks nobody.
    """
    known = catalog.load()
    exact = known.pairs.get(text) or known.models.get(text)
    if exact is not None:
        return _entry(exact)
    if text and "\0" not in text and os.path.isfile(os.path.expanduser(text)):
        return Asked(text, Wanted(text, PathReference(text)))
    found = reference.parse(text)
    if not isinstance(found, NameReference):
        return Asked(text, Wanted(text, found))
    return _named(known, found, text)


def of(model: Model) -> Wanted:
    """A model of the catalogue."""
    if model.repo is None:
        return Wanted(model.id, PathReference(str(model.path)), model)
    source = HubReference(model.repo, file=model.file, revision=model.revision)
    return Wanted(model.id, source, model)


def lasting(text: str) -> str:
    """The same from any folder; the id of a file that comes along, wherever that is installed."""
    known = catalog.load()
    if text in known.pairs or text in known.models or not os.path.isfile(text):
        return text
    path = os.path.abspath(text)
    ours = (model.id for model in known.models.values() if str(model.path) == path)
    return next(ours, path)


def ready(listing: Sequence[Stored]) -> list[Pair]:
    """The catalogue's pairs of which both files are among these, or come with localspec."""
    here = {(one.repo, one.file) for one in listing}

    def has(model: Model | None) -> bool:
        return model is None or model.repo is None or (model.repo, model.file) in here

    pairs = catalog.load().pairs.values()
    return [pair for pair in pairs if has(pair.target) and has(pair.draft)]


def called(stored: Stored, listing: Sequence[Stored]) -> str:
    """The shortest reference that means a file: an id, `user/repo:QUANT`, or its address."""
    for model in catalog.load().models.values():
        if (model.repo, model.file) == (stored.repo, stored.file) and model.repo:
            return model.id
    if stored.repo is None:
        return str(stored.path)
    tag = reference.part(stored.file).tag
    own = [RemoteFile(one.file, one.size) for one in listing if one.repo == stored.repo]
    if tag and _first(own, tag) == stored.file:
        return f"{stored.repo}:{tag}"
    return f"hf://{stored.repo}/{stored.file}"


def _first(files: Sequence[RemoteFile], tag: str) -> str | None:
    single = [one for one in files if reference.part(one.path).count == 1]
    try:
        return reference.choose(single, tag)[0].path
    except NotFoundError:
        return None


def _entry(entry: Model | Pair) -> Asked:
    if isinstance(entry, Model):
        return Asked(entry.id, of(entry))
    return Asked(entry.id, of(entry.target), of(entry.draft) if entry.draft else None, entry)


def _named(known: Catalogue, asked: NameReference, text: str) -> Asked:
    """By a part of an id; else by a part of the name of a file that is here."""
    try:
        entry = catalog.find(known, asked.name)
    except NotFoundError as unknown:
        return _on_disk(asked.name, text, unknown)
    if asked.tag is None:
        return _entry(entry)
    if isinstance(entry, Pair) or entry.repo is None:
        raise UsageError(
            f"{entry.id} has no other quantisations.", "Name its model: localspec pair list"
        )
    return Asked(text, Wanted(text, HubReference(entry.repo, tag=asked.tag)))


def _on_disk(name: str, text: str, unknown: NotFoundError) -> Asked:
    """Raises `unknown` where no file's name holds it."""
    part = name.lower()
    listing = store.listing()
    found = [one for one in listing if part in f"{one.repo or ''}/{one.file}".lower()]
    if not found:
        raise unknown
    if len(found) > 1:
        names = [clean(called(one, listing), multiline=False) for one in found[:8]]
        what = f"{clean(name, multiline=False)} could be several files."
        raise NotFoundError(what, f"Say which: {', '.join(names)}.")
    return Asked(text, Wanted(text, PathReference(str(found[0].path))))
