"""What a pull would do, before a byte of weights: files, sizes, licences, room, and whether the
pairs go together by their headers."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import ChecksumError, ModelFileError, OfflineError, StorageError
from localspec.models import (
    draft_heads,
    local_files,
    pair_compatibility,
    reference,
    safe_names,
    synthetic_header,
)
from localspec.models.catalog import CatalogModel
from localspec.models.gguf import header
from localspec.models.gguf.header import Header
from localspec.models.hub import hub_cache
from localspec.models.hub.cancellation import CancelToken
from localspec.models.hub.client import HubClient, RepoInfo
from localspec.models.hub.download import DownloadJob
from localspec.models.hub.hub_cache import CachedFile
from localspec.models.local_files.local_model import LocalModel
from localspec.models.pair_compatibility import CompatibilityResult
from localspec.models.reference import HubReference, RepoFile
from localspec.models.resolver import ModelRequest, ResolvedModel
from localspec.units import gb

_RESERVE_BYTES = 512 << 20
"""Bytes that a download leaves free, or a part of its size where that is less."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One file to have: its job, its size, and how much of it is here."""

    job: DownloadJob
    size: int
    present_bytes: int
    path: Path | None = None
    """Where it lies already."""
    origin: str = ""
    """In whose folder."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """One model: its files, and what is known of it.  Without pieces all of it is here."""

    resolved: ResolvedModel
    repo: str | None
    revision: str | None
    """The commit."""
    file: str
    files: tuple[PlannedFile, ...] = ()
    path: Path | None = None
    size: int | None = None
    licence: str | None = None
    gated: bool = False
    header: Header | None = None
    """None where nobody could be asked."""
    notes: tuple[str, ...] = ()
    sidecar_heads: tuple[RepoFile, ...] = ()
    """Heads of its repository, which may draft for it."""

    @property
    def missing_bytes(self) -> int:
        return sum(piece.size - piece.present_bytes for piece in self.files)


@dataclass(frozen=True, slots=True)
class PlannedPair:
    """What the headers say of a pair."""

    target: PlannedModel
    draft: PlannedModel
    compatibility: CompatibilityResult
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PullPlan:
    """Everything that was asked for, each model once."""

    models: tuple[PlannedModel, ...]
    pairs: tuple[PlannedPair, ...]
    cache_dir: Path
    free_bytes: int
    """Bytes on its disk."""

    @property
    def size(self) -> int:
        return sum(item.size or 0 for item in self.models)

    @property
    def missing_bytes(self) -> int:
        return sum(item.missing_bytes for item in self.models)

    def check(self) -> None:
        """Raise IncompatiblePairError or AccessError where it would be in vain."""
        for match in self.pairs:
            if not match.compatibility.is_compatible:
                raise pair_compatibility.incompatible_pair_error(
                    match.compatibility, match.target.file, match.draft.file
                )
        if self.missing_bytes and self.free_bytes < self.missing_bytes + min(
            _RESERVE_BYTES, self.missing_bytes // 16
        ):
            raise StorageError(
                (
                    f"That needs {gb(self.missing_bytes)}, and "
                    f"{self.cache_dir} has {gb(self.free_bytes)} free."
                ),
                "Free some space, or set HF_HUB_CACHE to a folder on another disk.",
            )


def build(
    hub: HubClient, requests: Iterable[ModelRequest], cancel: CancelToken | None = None
) -> PullPlan:
    """Ask the hub what there is, and read what headers are needed.

    Raises what the hub says, and Stopped.
    """
    planner = PullPlanner(hub, cancel)
    matches = []
    for one in requests:
        target = planner.plan_model(one.target)
        if one.draft is not None:
            draft = planner.plan_model(one.draft)
            if (found := check_pair(target, draft)) is not None:
                matches.append(found)
    cache = hub_cache.cache_root()
    return PullPlan(planner.models, tuple(matches), cache, free_bytes(cache))


def check_pair(target: PlannedModel, draft: PlannedModel) -> PlannedPair | None:
    """None where a header could not be had."""
    if target.header is None or draft.header is None:
        return None
    verdict = draft_heads.check_compatibility(target.header, draft.header, draft.path)
    warnings = pair_compatibility.list_warnings(target.header, draft.header)
    if draft_heads.draft_kind_for_target(target.header, draft.header) != "model":
        warnings = ()  # they are about models that draft
    return PlannedPair(target, draft, verdict, warnings)


def free_bytes(folder: Path) -> int:
    """Bytes on the disk where the cache is, or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


class PullPlanner:
    """Looks models up, each once.

    `fresh`: the hub is asked for the newest revision even of what is here.
    """

    def __init__(
        self, hub: HubClient, cancel: CancelToken | None = None, *, refresh: bool = True
    ) -> None:
        self._hub = hub
        self._cancel = cancel or CancelToken()
        self._refresh = refresh
        self._models: dict[ResolvedModel, PlannedModel] = {}
        self._repo_infos: dict[tuple[str, str | None], RepoInfo] = {}

    @property
    def models(self) -> tuple[PlannedModel, ...]:
        return tuple(self._models.values())

    def plan_model(self, resolved: ResolvedModel) -> PlannedModel:
        if resolved not in self._models:
            self._models[resolved] = self._plan_new(resolved)
        return self._models[resolved]

    def full_header(self, item: PlannedModel) -> Header:
        """Its header with the tensors of all its parts.  Raises ModelFileError."""
        if item.header is None:
            what = f"The header of {item.resolved.title} could not be read."
            raise ModelFileError(what, "Connect, or give a file that is here.")
        if item.header.split is None or item.repo is None or item.revision is None:
            return item.header
        where = item.repo, item.revision
        rest = [self._hub.read_header(*where, one.job.path, self._cancel) for one in item.files[1:]]
        return synthetic_header.merge_split_headers([item.header, *rest])

    def repo_info(self, repo: str, revision: str | None) -> RepoInfo:
        """A repository's files."""
        key = repo, revision
        if key not in self._repo_infos:
            self._repo_infos[key] = self._hub.list_files(repo, revision, self._cancel)
        return self._repo_infos[key]

    def _plan_new(self, resolved: ResolvedModel) -> PlannedModel:
        source = resolved.source
        if not isinstance(source, HubReference):
            return _plan_path(resolved, resolved.require_path())
        pinned = source.revision and safe_names.COMMIT_HASH.fullmatch(source.revision)
        if (pinned or not self._refresh) and (stored := resolved.find_local()):
            return _plan_local_model(resolved, stored)
        try:
            listing = self.repo_info(source.repo, source.revision)
        except OfflineError:
            stored = resolved.find_local()
            if stored is None:
                raise
            return _plan_local_model(resolved, stored)
        return self._plan_hub_model(resolved, source, listing)

    def _plan_hub_model(
        self, resolved: ResolvedModel, source: HubReference, repo_info: RepoInfo
    ) -> PlannedModel:
        chosen = reference.choose_files(repo_info.files, source.tag, source.file)
        notes = _check_catalog_entry(resolved.catalog_model, chosen)
        pieces = tuple(_plan_file(source, repo_info.revision, file) for file in chosen)
        first = pieces[0]
        if first.path is not None:
            head = header.read(first.path)
        else:
            where = (source.repo, repo_info.revision, first.job.path)
            head = self._hub.read_header(*where, self._cancel)
        return PlannedModel(
            resolved=resolved,
            repo=source.repo,
            revision=repo_info.revision,
            file=chosen[0].path,
            files=pieces,
            path=first.path,
            size=sum(piece.size for piece in pieces),
            licence=repo_info.licence
            or (resolved.catalog_model.licence if resolved.catalog_model else None),
            gated=repo_info.gated,
            header=head,
            notes=notes,
            sidecar_heads=reference.find_heads(repo_info.files, chosen[0].path),
        )


def _check_catalog_entry(model: CatalogModel | None, chosen: Sequence[RepoFile]) -> tuple[str, ...]:
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


def _plan_file(source: HubReference, commit: str, file: RepoFile) -> PlannedFile:
    job = DownloadJob(source.repo, source.revision or "main", file.path, file.size, file.sha256)
    cache = hub_cache.cache_root()
    kept = hub_cache.find_cached(cache, source.repo, commit, file.path)
    if kept is not None and kept.stat().st_size == file.size:
        return PlannedFile(job, file.size, file.size, kept, "hub")
    if file.sha256 is not None:
        place = CachedFile(cache, source.repo, commit, file.path, file.sha256, file.size)
        if _file_size(place.blob_path) == file.size:  # of another revision
            return PlannedFile(job, file.size, file.size, place.blob_path, "hub")
        if part := _file_size(place.partial_path):
            return PlannedFile(job, file.size, min(part, file.size))
    other = local_files.find(source.repo, file.path)
    if other is not None and other.origin != "hub" and other.size == file.size:
        return PlannedFile(job, file.size, file.size, other.path, other.origin)
    return PlannedFile(job, file.size, 0)


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _plan_path(resolved: ResolvedModel, path: Path) -> PlannedModel:
    header.check_magic(path)
    return PlannedModel(
        resolved=resolved,
        repo=None,
        revision=None,
        file=path.name,
        path=path,
        size=path.stat().st_size,
        licence=resolved.catalog_model.licence if resolved.catalog_model else None,
        header=header.read(path),
    )


def _plan_local_model(resolved: ResolvedModel, local_model: LocalModel) -> PlannedModel:
    return PlannedModel(
        resolved=resolved,
        repo=local_model.repo,
        revision=local_model.revision,
        file=local_model.file,
        path=local_model.path,
        size=local_model.size,
        licence=resolved.catalog_model.licence if resolved.catalog_model else None,
        header=header.read(local_model.path),
    )
