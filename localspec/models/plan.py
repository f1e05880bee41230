"""What a pull would do, before a byte of weights: files, sizes, licences, room, and whether the
pairs go together by their headers."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import AccessError, ChecksumError, ModelFileError, OfflineError
from localspec.models import blueprint, header, heads, names, pairing, reference, store
from localspec.models.catalog import Model
from localspec.models.disk.stored import Stored
from localspec.models.download import Job
from localspec.models.header import Header
from localspec.models.hub import hubcache
from localspec.models.hub.errand import Stop
from localspec.models.hub.hubcache import Place
from localspec.models.pairing import Verdict
from localspec.models.reference import HubReference, RemoteFile
from localspec.models.remote import Hub, Listing
from localspec.models.wanted import Asked, Wanted
from localspec.units import gb

_RESERVE = 512 << 20
"""Bytes that a download leaves free, or a part of its size where that is less."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One file to have: its job, its size, and how much of it is here."""

    job: Job
    size: int
    have: int
    path: Path | None = None
    """Where it lies already."""
    where: str = ""
    """In whose folder."""


@dataclass(frozen=True, slots=True)
class Item:
    """One model: its files, and what is known of it.  Without pieces all of it is here."""

    wanted: Wanted
    repo: str | None
    revision: str | None
    """The commit."""
    file: str
    pieces: tuple[Piece, ...] = ()
    path: Path | None = None
    size: int | None = None
    licence: str | None = None
    gated: bool = False
    header: Header | None = None
    """None where nobody could be asked."""
    notes: tuple[str, ...] = ()
    beside: tuple[RemoteFile, ...] = ()
    """Heads of its repository, which may draft for it."""

    @property
    def missing(self) -> int:
        return sum(piece.size - piece.have for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Match:
    """What the headers say of a pair."""

    target: Item
    draft: Item
    verdict: Verdict
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that was asked for, each model once."""

    items: tuple[Item, ...]
    matches: tuple[Match, ...]
    cache: Path
    free: int
    """Bytes on its disk."""

    @property
    def size(self) -> int:
        return sum(item.size or 0 for item in self.items)

    @property
    def missing(self) -> int:
        return sum(item.missing for item in self.items)

    def check(self) -> None:
        """Raise IncompatiblePairError or AccessError where it would be in vain."""
        for match in self.matches:
            if not match.verdict.compatible:
                raise pairing.refusal(match.verdict, match.target.file, match.draft.file)
        if self.missing and self.free < self.missing + min(_RESERVE, self.missing // 16):
            raise AccessError(
                f"That needs {gb(self.missing)}, and {self.cache} has {gb(self.free)} free.",
                "Free some space, or set HF_HUB_CACHE to a folder on another disk.",
            )


def make(hub: Hub, asked: Iterable[Asked], stop: Stop | None = None) -> Plan:
    """Ask the hub what there is, and read what headers are needed.

    Raises what the hub says, and Stopped.
    """
    planner = Planner(hub, stop)
    matches = []
    for one in asked:
        target = planner.item(one.target)
        if one.draft is not None:
            draft = planner.item(one.draft)
            if (found := match(target, draft)) is not None:
                matches.append(found)
    cache = hubcache.root()
    return Plan(planner.items, tuple(matches), cache, free(cache))


def match(target: Item, draft: Item) -> Match | None:
    """None where a header could not be had."""
    if target.header is None or draft.header is None:
        return None
    verdict = heads.judge(target.header, draft.header, draft.path)
    warnings = pairing.warnings(target.header, draft.header)
    if heads.drafting(target.header, draft.header) != "model":
        warnings = ()  # they are about models that draft
    return Match(target, draft, verdict, warnings)


def free(cache: Path) -> int:
    """Bytes on the disk where the cache is, or will be."""
    while not cache.exists() and cache != cache.parent:
        cache = cache.parent
    return shutil.disk_usage(cache).free


class Planner:
    """Looks models up, each once.

    `fresh`: the hub is asked for the newest revision even of what is here.
    """

    def __init__(self, hub: Hub, stop: Stop | None = None, *, fresh: bool = True) -> None:
        self._hub = hub
        self._stop = stop or Stop()
        self._fresh = fresh
        self._items: dict[Wanted, Item] = {}
        self._listings: dict[tuple[str, str | None], Listing] = {}

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(self._items.values())

    def item(self, wanted: Wanted) -> Item:
        if wanted not in self._items:
            self._items[wanted] = self._look(wanted)
        return self._items[wanted]

    def whole(self, item: Item) -> Header:
        """Its header with the tensors of all its parts.  Raises ModelFileError."""
        if item.header is None:
            what = f"The header of {item.wanted.title} could not be read."
            raise ModelFileError(what, "Connect, or give a file that is here.")
        if item.header.split is None or item.repo is None or item.revision is None:
            return item.header
        where = item.repo, item.revision
        rest = [self._hub.header(*where, one.job.path, self._stop) for one in item.pieces[1:]]
        return blueprint.joined([item.header, *rest])

    def listing(self, repo: str, revision: str | None) -> Listing:
        """A repository's files."""
        key = repo, revision
        if key not in self._listings:
            self._listings[key] = self._hub.files(repo, revision, self._stop)
        return self._listings[key]

    def _look(self, wanted: Wanted) -> Item:
        source = wanted.source
        if not isinstance(source, HubReference):
            return _local(wanted, wanted.located())
        pinned = source.revision and names.COMMIT.fullmatch(source.revision)
        if (pinned or not self._fresh) and (stored := wanted.stored()):
            return _kept(wanted, stored)
        try:
            listing = self.listing(source.repo, source.revision)
        except OfflineError:
            stored = wanted.stored()
            if stored is None:
                raise
            return _kept(wanted, stored)
        return self._remote(wanted, source, listing)

    def _remote(self, wanted: Wanted, source: HubReference, listing: Listing) -> Item:
        chosen = reference.choose(listing.files, source.tag, source.file)
        notes = _agree(wanted.model, chosen)
        pieces = tuple(_piece(source, listing.revision, file) for file in chosen)
        first = pieces[0]
        if first.path is not None:
            head = header.read(first.path)
        else:
            where = (source.repo, listing.revision, first.job.path)
            head = self._hub.header(*where, self._stop)
        return Item(
            wanted=wanted,
            repo=source.repo,
            revision=listing.revision,
            file=chosen[0].path,
            pieces=pieces,
            path=first.path,
            size=sum(piece.size for piece in pieces),
            licence=listing.licence or (wanted.model.licence if wanted.model else None),
            gated=listing.gated,
            header=head,
            notes=notes,
            beside=reference.heads(listing.files, chosen[0].path),
        )


def _agree(model: Model | None, chosen: Sequence[RemoteFile]) -> tuple[str, ...]:
    """Raise ChecksumError where the hub has another file than the one the catalogue is sure of."""
    if model is None or len(chosen) > 1:
        return ()
    (file,) = chosen
    if model.sha256 and file.sha256 and model.sha256 != file.sha256:
        raise ChecksumError(
            f"{file.path} on the hub is not the file that the catalogue means.",
            f"It may have been replaced.  Look at {model.repo}; to take it as it is: "
            f"localspec pull hf://{model.repo}/{file.path}",
        )
    if model.bytes and model.bytes != file.size:
        return (f"the catalogue knows it with {gb(model.bytes)}: it was replaced since",)
    return ()


def _piece(source: HubReference, commit: str, file: RemoteFile) -> Piece:
    job = Job(source.repo, source.revision or "main", file.path, file.size, file.sha256)
    cache = hubcache.root()
    kept = hubcache.kept(cache, source.repo, commit, file.path)
    if kept is not None and kept.stat().st_size == file.size:
        return Piece(job, file.size, file.size, kept, "hub")
    if file.sha256 is not None:
        place = Place(cache, source.repo, commit, file.path, file.sha256, file.size)
        if _bytes(place.blob) == file.size:  # of another revision
            return Piece(job, file.size, file.size, place.blob, "hub")
        if part := _bytes(place.part):
            return Piece(job, file.size, min(part, file.size))
    other = store.find(source.repo, file.path)
    if other is not None and other.where != "hub" and other.size == file.size:
        return Piece(job, file.size, file.size, other.path, other.where)
    return Piece(job, file.size, 0)


def _bytes(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _local(wanted: Wanted, path: Path) -> Item:
    header.glance(path)
    return Item(
        wanted=wanted,
        repo=None,
        revision=None,
        file=path.name,
        path=path,
        size=path.stat().st_size,
        licence=wanted.model.licence if wanted.model else None,
        header=header.read(path),
    )


def _kept(wanted: Wanted, stored: Stored) -> Item:
    return Item(
        wanted=wanted,
        repo=stored.repo,
        revision=stored.revision,
        file=stored.file,
        path=stored.path,
        size=stored.size,
        licence=wanted.model.licence if wanted.model else None,
        header=header.read(stored.path),
    )
