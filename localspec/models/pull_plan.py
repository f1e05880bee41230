"""Plans a pull before any weights are downloaded.

A plan has the files, their sizes and licences, the disk space, and the compatibility of
pairs by their headers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import (
    AccessDeniedError,
    ChecksumError,
    LocalspecError,
    OfflineError,
)
from localspec.models import draft_heads, pair_compatibility, projectors, reference
from localspec.models.catalog import CatalogModel
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header, merge_splits
from localspec.models.hub.cached_file import CachedFile, DownloadJob
from localspec.models.hub.cancellation import CancelToken
from localspec.models.hub.client import HubClient, RepoInfo
from localspec.models.local_files import hub_cache, inventory
from localspec.models.local_files.local_model import LocalModel
from localspec.models.model_lookup import ModelRequest, ResolvedModel
from localspec.models.pair_compatibility import CompatibilityResult
from localspec.models.projectors import Senses
from localspec.models.reference import HubReference, RepoFile
from localspec.units import gb


class PlannedFile(Struct, frozen=True):
    """One file of a model, and how much of it is already downloaded."""

    job: DownloadJob
    present_bytes: int
    path: Path | None = None  # The complete file; None if it must be downloaded.
    origin: str = ""  # The application whose folder holds `path`.


class PlannedProjector(Struct, frozen=True):
    """The projector that comes with a model, so that it sees or hears."""

    name: str  # Of its file.
    size: int
    path: Path | None = None  # The complete file; None if it must be downloaded.
    repo: str | None = None
    file: PlannedFile | None = None
    """What is downloaded or verified; None for a file that is no download of ours."""
    header: Header | None = None

    @property
    def missing_bytes(self) -> int:
        if self.path is not None:
            return 0
        present = self.file.present_bytes if self.file is not None else 0
        return self.size - present

    @property
    def senses(self) -> Senses:
        if self.header is None:
            return Senses()
        return projectors.read_senses(self.header)


class PlannedModel(Struct, frozen=True):
    """One model: its files and metadata.

    Without `files` the model is already downloaded.
    """

    resolved: ResolvedModel
    file: str
    size: int | None
    repo: str | None = None
    revision: str | None = None  # The commit.
    files: tuple[PlannedFile, ...] = ()
    path: Path | None = None
    repo_licence: str | None = None
    gated: bool = False
    header: Header | None = None  # None if it could not be read.
    notes: tuple[str, ...] = ()
    sidecar_heads: tuple[RepoFile, ...] = ()  # Draft heads in the same repository.
    projector: PlannedProjector | None = None  # Of a target only.

    @property
    def licence(self) -> str | None:
        if self.repo_licence:
            return self.repo_licence
        entry = self.resolved.catalog_model
        return entry.licence if entry else None

    @property
    def own_missing_bytes(self) -> int:
        """Without the projector's."""
        return sum(file.job.file.size - file.present_bytes for file in self.files)

    @property
    def missing_bytes(self) -> int:
        if self.projector is None:
            return self.own_missing_bytes
        return self.own_missing_bytes + self.projector.missing_bytes

    @property
    def all_files(self) -> tuple[PlannedFile, ...]:
        """Those of the model, then that of its projector."""
        if self.projector is None or self.projector.file is None:
            return self.files
        return (*self.files, self.projector.file)


class PlannedPair(Struct, frozen=True):
    target: PlannedModel
    draft: PlannedModel
    compatibility: CompatibilityResult
    warnings: tuple[str, ...]


class PullPlan(Struct, frozen=True):
    """All requested models, each once, and the requested pairs."""

    models: tuple[PlannedModel, ...]
    pairs: tuple[PlannedPair, ...]
    cache_dir: Path
    free_bytes: int  # On the disk of `cache_dir`.

    @property
    def size(self) -> int:
        total = 0
        for model in self.models:
            total += model.size or 0
            if model.projector is not None:
                total += model.projector.size
        return total

    @property
    def missing_bytes(self) -> int:
        return sum(model.missing_bytes for model in self.models)

    @property
    def has_missing_projector(self) -> bool:
        """Whether a projector would be downloaded."""
        planned = [model.projector for model in self.models if model.projector]
        return any(projector.missing_bytes for projector in planned)

    def without_projectors(self) -> PullPlan:
        models = tuple(replace(model, projector=None) for model in self.models)
        return replace(self, models=models)

    def check(self) -> None:
        """Raise IncompatiblePairError, or StorageError if the disk is too small."""
        for pair in self.pairs:
            if not pair.compatibility.is_compatible:
                raise pair_compatibility.incompatible_pair_error(
                    pair.compatibility, pair.target.file, pair.draft.file
                )
        hub_cache.check_free_space(
            "The download",
            needed=self.missing_bytes,
            free=self.free_bytes,
            cache=self.cache_dir,
        )


def build(
    hub: HubClient,
    requests: Iterable[ModelRequest],
    cancel: CancelToken | None = None,
    *,
    with_projectors: bool = True,
) -> PullPlan:
    """List the repositories' files and read the headers of pairs.

    A target that sees or hears gets its projector, unless `with_projectors` is false.
    Raises the hub's errors, and OperationCancelledError.
    """
    planner = PullPlanner(hub, cancel)
    pairs = []
    for request in requests:
        target = planner.plan_model(request.target)
        if with_projectors:
            target = planner.add_projector(request.target)
        if request.draft is not None:
            pair = check_pair(target, planner.plan_model(request.draft))
            if pair is not None:
                pairs.append(pair)
    cache = hub_cache.cache_root()
    return PullPlan(
        models=planner.models,
        pairs=tuple(pairs),
        cache_dir=cache,
        free_bytes=hub_cache.free_bytes(cache),
    )


def check_pair(target: PlannedModel, draft: PlannedModel) -> PlannedPair | None:
    """None if a header could not be read."""
    if target.header is None or draft.header is None:
        return None
    compatibility = pair_compatibility.check_compatibility(
        target.header, draft.header, draft.path
    )
    warnings: tuple[str, ...] = ()
    kind = draft_heads.draft_kind_for_target(target.header, draft.header)
    if kind == "model":  # The warnings apply to draft models only.
        warnings = pair_compatibility.list_warnings(target.header, draft.header)
    return PlannedPair(target, draft, compatibility=compatibility, warnings=warnings)


class PullPlanner:
    """Plans models, each once.

    With `refresh`, the newest revision is requested from the hub even for downloaded
    models.
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

    def add_projector(self, resolved: ResolvedModel) -> PlannedModel:
        """The plan of a target with its projector, if it has one.

        A projector that cannot be had keeps nobody from the model: a note says why.
        """
        model = self.plan_model(resolved)
        if model.projector is not None:
            return model
        try:
            projector = self._plan_projector(model)
        except LocalspecError as error:
            note = f"without its projector, so it does not see: {error.message}"
            model = replace(model, notes=(*model.notes, note))
        else:
            model = replace(model, projector=projector)
        self._models[resolved] = model
        return model

    def _plan_projector(self, model: PlannedModel) -> PlannedProjector | None:
        """The projector here, else the catalogue's, else that of the model's repository.

        None if there is none that fits the model.
        """
        if model.path is not None:
            path = projectors.find_projector(model.path)
            if path is not None:
                return _describe_projector(path)
        if model.path is not None and not self._refresh:
            return None  # What is here is described without the hub.
        job = self._find_projector(model)
        if job is None:
            return None
        file = _plan_file(job)
        if file.path is not None:
            header = reader.read(file.path)
        else:
            header = self._hub.read_header(
                job.repo, job.commit, job.file.path, self._cancel
            )
        if model.header is not None and not projectors.fits_model(header, model.header):
            return None
        return PlannedProjector(
            job.file.path,
            job.file.size,
            path=file.path,
            repo=job.repo,
            file=file,
            header=header,
        )

    def _find_projector(self, model: PlannedModel) -> DownloadJob | None:
        """On the hub. Raises the hub's errors, and ChecksumError.

        Of a model that the catalogue does not know, only a listing counts that was
        requested for the model itself.
        """
        entry = model.resolved.catalog_model
        listed = entry.projector if entry is not None else None
        if listed is not None:
            info = self.repo_info(listed.repo, None)
            (file,) = reference.choose_files(info.files, file=listed.file)
            if listed.sha256 and file.sha256 and listed.sha256 != file.sha256:
                raise ChecksumError(
                    f"{file.path} on the hub differs from the catalogue's file.",
                    f"Check {listed.repo}.",
                )
            return DownloadJob(info.repo, info.revision, file=file, ref="main")
        source = model.resolved.source
        if not isinstance(source, HubReference):
            return None
        known = self._repo_infos.get((source.repo, source.revision))
        if known is None:
            return None
        chosen = projectors.choose_on_hub(known.files, model.file)
        if chosen is None:
            return None
        ref = None if _is_pinned(source) else source.revision or "main"
        return DownloadJob(known.repo, known.revision, file=chosen, ref=ref)

    def full_header(self, model: PlannedModel) -> Header:
        """The header of a planned model, with the tensors of all splits."""
        assert model.header is not None
        if model.header.split is None or model.repo is None or model.revision is None:
            return model.header
        headers = [model.header]
        for file in model.files[1:]:
            headers.append(
                self._hub.read_header(
                    model.repo, model.revision, file.job.file.path, self._cancel
                )
            )
        return merge_splits(headers)

    def repo_info(self, repo: str, revision: str | None) -> RepoInfo:
        """Cached: one request per repository and revision."""
        key = repo, revision
        if key not in self._repo_infos:
            self._repo_infos[key] = self._hub.list_files(repo, revision, self._cancel)
        return self._repo_infos[key]

    def _plan_new(self, resolved: ResolvedModel) -> PlannedModel:
        source = resolved.source
        if not isinstance(source, HubReference):
            return _plan_file_by_path(resolved)
        if _is_pinned(source) or not self._refresh:
            local = resolved.find_local()
            if local is not None:
                return _plan_local(resolved, local)
        try:
            repo_info = self.repo_info(source.repo, source.revision)
        except (OfflineError, AccessDeniedError) as error:
            local = resolved.find_local()
            if local is None:
                raise
            notes = (error.message,) if isinstance(error, AccessDeniedError) else ()
            return _plan_local(resolved, local, notes)
        return self._plan_hub_model(resolved, source, repo_info)

    def _plan_hub_model(
        self, resolved: ResolvedModel, source: HubReference, repo_info: RepoInfo
    ) -> PlannedModel:
        chosen = reference.choose_files(
            repo_info.files,
            source.tag,
            source.file,
            refused_names=repo_info.refused_names,
        )
        notes = _check_catalog_entry(resolved.catalog_model, chosen)

        repo = repo_info.repo
        commit = repo_info.revision
        ref = None if _is_pinned(source) else source.revision or "main"
        files = []
        for file in chosen:
            files.append(_plan_file(DownloadJob(repo, commit, file=file, ref=ref)))

        if any(file.path is None for file in files):
            notes += _note_older_copy(resolved.find_local(), commit)
        first_name = chosen[0].path
        first_path = files[0].path
        if first_path is not None:
            header = reader.read(first_path)
        else:
            header = self._hub.read_header(repo, commit, first_name, self._cancel)
        return PlannedModel(
            resolved,
            first_name,
            size=sum(file.size for file in chosen),
            repo=repo,
            revision=commit,
            files=tuple(files),
            path=first_path,
            repo_licence=repo_info.licence,
            gated=repo_info.gated,
            header=header,
            notes=notes,
            sidecar_heads=reference.find_heads(repo_info.files, first_name),
        )


def _describe_projector(path: Path) -> PlannedProjector:
    """One that is here."""
    return PlannedProjector(
        path.name,
        path.stat().st_size,
        path=path,
        header=reader.read(path),
    )


def _plan_file_by_path(resolved: ResolvedModel) -> PlannedModel:
    path = resolved.require_path()
    reader.check_magic(path)
    return PlannedModel(
        resolved,
        path.name,
        size=path.stat().st_size,
        path=path,
        header=reader.read(path),
    )


def _plan_local(
    resolved: ResolvedModel, local: LocalModel, notes: tuple[str, ...] = ()
) -> PlannedModel:
    """A model that is downloaded, and whose repository is not read."""
    return PlannedModel(
        resolved,
        local.file,
        size=local.size,
        repo=local.repo,
        revision=local.revision,
        path=local.path,
        header=reader.read(local.path),
        notes=notes,
    )


def _check_catalog_entry(
    model: CatalogModel | None, chosen: Sequence[RepoFile]
) -> tuple[str, ...]:
    """Notes on a hub's file whose size differs from the catalogue's.

    Raises ChecksumError if its checksum does.
    """
    if model is None or len(chosen) > 1:
        return ()
    file = chosen[0]
    if model.sha256 and file.sha256 and model.sha256 != file.sha256:
        raise ChecksumError(
            f"{file.path} on the hub differs from the catalogue's file.",
            f"It may have been replaced. Check {model.repo}; to download it anyway: "
            f"localspec pull hf://{model.repo}/{file.path}",
        )
    if model.bytes and model.bytes != file.size:
        return (
            f"replaced since the catalogue was written: it lists {gb(model.bytes)}",
        )
    return ()


def _note_older_copy(local: LocalModel | None, commit: str) -> tuple[str, ...]:
    """A download beside the copy of another commit needs its space a second time."""
    if local is None or not local.revision or local.revision == commit:
        return ()
    return (
        f"an older copy is here ({gb(local.size)}, commit {local.revision[:7]}); "
        "it stays, and runs without this download",
    )


def _is_pinned(source: HubReference) -> bool:
    """Whether it names a commit, whose files never change."""
    return bool(source.revision and reference.COMMIT_HASH.fullmatch(source.revision))


def _plan_file(job: DownloadJob) -> PlannedFile:
    file = job.file
    cached = CachedFile(hub_cache.cache_root(), job)
    # The blob may be here with another commit's name.
    for path in (cached.pointer_path, cached.blob_path):
        if hub_cache.has_file(cached.cache, job.repo, path=path, size=file.size):
            return PlannedFile(job, file.size, path=path, origin="hub")
    if os.path.isfile(cached.partial_path):
        present = cached.partial_path.stat().st_size
        return PlannedFile(job, min(present, file.size))
    for local in inventory.iter_files():
        is_same_name = local.repo == job.repo and local.file == file.path
        if is_same_name and local.size == file.size and local.origin != "hub":
            return PlannedFile(job, file.size, path=local.path, origin=local.origin)
    return PlannedFile(job, present_bytes=0)
