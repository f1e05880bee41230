"""Lists, finds and removes the model files on this computer.

They are in the hub's cache, the models folder and, read-only, in Python packages, in
the folders of LM Studio, Ollama and llama.cpp, and where a file was opened by its path.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from localspec import config, data_files, paths
from localspec.errors import ChecksumError, NotFoundError, StorageError
from localspec.models import catalog, reference
from localspec.models.local_files import hub_cache
from localspec.models.local_files.hub_cache import LeftoverFile
from localspec.models.local_files.local_model import (
    ORIGIN_TITLES,
    ChecksumRecord,
    LocalModel,
    ModelOrigin,
    describe_file,
    discard_checksum,
    load_checksums,
    verify_checksum,
    walk_files,
)
from localspec.models.reference import RepoFile, choose_files, parse_file_name
from localspec.protocol.json_values import JsonError, from_json
from localspec.sanitize import sanitize

_MAX_OPENED = 50
_MAX_JSON_BYTES = 1_000_000
"""The files of other applications that are read here have about 1,000."""

_StructT = TypeVar("_StructT", bound=Struct)
OpenedPair = tuple[Path, Path | None]
"""A target and its draft."""


def models_folder() -> Path | None:
    """Set by --models-dir, LOCALSPEC_MODELS_DIR or config.toml."""
    folder = config.resolve().get("models.folder")
    return Path(folder) if folder else None


def converted_folder() -> Path:
    """Where `localspec convert` puts copies, named `NAME-TYPE.gguf`."""
    return paths.DataFile.CONVERTED.path


def iter_files() -> Iterator[LocalModel]:
    """Every model file once; the hub's cache and the models folder first."""
    seen: set[str] = set()
    for model in _iter_all_places(load_checksums()):
        path = str(model.path)
        real_path = os.path.realpath(path)
        is_listed = path in seen
        if model.origin == "opened":
            is_listed = is_listed or real_path in seen
        if not is_listed:
            seen.add(path)
            seen.add(real_path)
            yield model


def _iter_all_places(record: ChecksumRecord) -> Iterator[LocalModel]:
    """A file occurs as often as it is reached."""
    yield from hub_cache.iter_files(hub_cache.cache_root(), record)
    folder = models_folder()
    if folder is not None:
        yield from iter_folder(folder, depth=5, record=record, origin="folder")
    yield from iter_folder(
        converted_folder(), depth=1, record=record, origin="converted"
    )
    yield from list_packaged()
    yield from _iter_other_apps(record)
    yield from _iter_opened(record)


def _iter_models() -> Iterator[LocalModel]:
    """The complete models of all commits, with their splits joined."""
    for splits in _group_splits(iter_files()):
        model = _join_splits(splits)
        if model is not None:
            yield model


def list_models() -> tuple[LocalModel, ...]:
    """The complete models; the splits of one model are joined to one entry.

    A file that several commits of a repository share is listed once, with the first of
    them.
    """
    models: dict[tuple[object, ...], LocalModel] = {}
    for model in _iter_models():
        blobs = tuple(os.path.realpath(path) for path in model.parts or (model.path,))
        models.setdefault((model.origin, model.repo, model.file, blobs), model)
    return tuple(models.values())


def find_ollama(name: str) -> LocalModel | None:
    """By Ollama's name; a file may have several, of which `list_models` has one."""
    for model in _iter_other_apps(load_checksums()):
        if model.origin == "ollama" and model.file == name:
            return model
    return None


def _group_splits(files: Iterable[LocalModel]) -> list[list[LocalModel]]:
    """The files by the model they belong to, in order; most models have one."""
    splits_by_model: dict[tuple[Path, str, int], list[LocalModel]] = {}
    for file in files:
        name = parse_file_name(file.path.name)
        key = (file.path.parent, name.stem, name.count)
        splits_by_model.setdefault(key, []).append(file)
    return [sorted(splits, key=_split_index) for splits in splits_by_model.values()]


def _split_index(split: LocalModel) -> int:
    """1 for the first one, and for a model of one file."""
    return parse_file_name(split.path.name).index


def _join_splits(splits: list[LocalModel]) -> LocalModel | None:
    """None if a split is missing."""
    count = parse_file_name(splits[0].path.name).count
    if [_split_index(split) for split in splits] != list(range(1, count + 1)):
        return None
    if len(splits) == 1:
        return splits[0]
    return replace(
        splits[0],
        size=sum(split.size for split in splits),
        verified=all(split.verified for split in splits),
        removable=all(split.removable for split in splits),
        parts=tuple(split.path for split in splits),
    )


def find(
    repo: str,
    tag: str | None = None,
    file: str | None = None,
    revision: str | None = None,
) -> LocalModel | None:
    """The complete model that a reference selects, without the hub.

    `revision` restricts it to a commit, or to the commit of a branch or tag.
    """
    return find_among(_iter_models(), repo, tag, file=file, revision=revision)


def find_among(
    local_models: Iterable[LocalModel],
    repo: str,
    tag: str | None = None,
    *,
    file: str | None = None,
    revision: str | None = None,
) -> LocalModel | None:
    """As `find`, of these models; of several the first."""
    commit = revision
    if revision and not reference.COMMIT_HASH.fullmatch(revision):
        commit = _find_commit(repo, revision)
        if commit is None:
            return None
    models: dict[str, LocalModel] = {}
    for model in local_models:
        if not _is_same_repo(model.repo or "", repo):
            continue
        if commit is None or commit == model.revision:
            folder, slash, _ = model.file.rpartition("/")
            for path in model.parts or (Path(model.file),):
                models.setdefault(f"{folder}{slash}{path.name}", model)
    try:
        first = choose_files([RepoFile(path, 0) for path in models], tag, file)[0]
    except NotFoundError:
        return None
    return models[first.path]


def _find_commit(repo: str, ref: str) -> str | None:
    """The commit of a branch or tag in the hub's cache."""
    for cached_repo, folder in hub_cache.iter_repos(hub_cache.cache_root()):
        if _is_same_repo(cached_repo, repo):
            return hub_cache.read_ref(folder, ref)
    return None


def _is_same_repo(repo: str, other: str) -> bool:
    """The hub ignores case."""
    return repo.lower() == other.lower()


def remove(model: LocalModel) -> int:
    """Delete all files of a model; returns the freed bytes.  Raises StorageError."""
    if model.origin == "opened":
        raise StorageError(
            f"{model.file} was opened by its path.", f"Delete {model.path}"
        )
    if not model.removable:
        owner = ORIGIN_TITLES[model.origin]
        if model.origin in ("hub", "folder"):
            owner = "another user"
        elif model.origin == "package":
            owner = "an installed Python package"
        raise StorageError(f"{model.file} belongs to {owner}.", "Remove it there.")
    freed = 0
    try:
        if model.origin == "hub":
            return hub_cache.remove(hub_cache.cache_root(), model)
        for path in model.parts or (model.path,):
            if not path.is_symlink():
                freed += path.stat().st_size
            path.unlink()
            discard_checksum(path)
    except OSError as error:
        message = f"{model.file} cannot be removed: {error.strerror}."
        raise StorageError(message, "Check its permissions.") from error
    return freed


def find_leftovers() -> tuple[LeftoverFile, ...]:
    """Unused files of earlier downloads in the hub's cache.

    Finished splits count too while others of their model are missing: such a model
    cannot run.
    """
    cache = hub_cache.cache_root()
    lonely_splits: list[LocalModel] = []
    for splits in _group_splits(hub_cache.iter_files(cache, load_checksums())):
        if _join_splits(splits) is None:
            lonely_splits += [split for split in splits if split.removable]
    return (
        *hub_cache.find_leftovers(cache),
        *hub_cache.find_idle_splits(cache, lonely_splits),
    )


def delete_leftovers(leftovers: Sequence[LeftoverFile]) -> int:
    """Returns the freed bytes; files that cannot be deleted are skipped."""
    freed = 0
    for leftover in leftovers:
        with suppress(OSError):
            freed += hub_cache.delete_leftover(hub_cache.cache_root(), leftover)
    return freed


# --- installed Python packages: their code is never imported


def list_packaged() -> tuple[LocalModel, ...]:
    """The files expected in packages; none if LOCALSPEC_STARTER is 0."""
    if os.environ.get("LOCALSPEC_STARTER") == "0":
        return ()
    packaged = []
    record = load_checksums()
    shipped_or_own, _ = catalog.load_valid()  # others report an invalid file
    for model in shipped_or_own.models.values():
        if model.package is None:
            continue
        path = _find_in_package(model.package, model.file)
        found = describe_file(path, record, "package") if path else None
        if found is None or found.size != model.bytes:
            continue
        packaged.append(
            replace(
                found,
                repo=model.repo,
                file=model.file,
                revision=model.revision,
                sha256=model.sha256,
                verified=found.verified and found.sha256 == model.sha256,
            )
        )
    return tuple(packaged)


def find_packaged(path: Path) -> LocalModel | None:
    """The model of a package that this file is.

    The catalogue, which takes 50 ms to read, is asked only about files below a folder
    of packages.
    """
    if path.is_relative_to(paths.PACKAGE):
        return None
    if not any(path.is_relative_to(os.path.abspath(folder)) for folder in sys.path):
        return None
    return next((model for model in list_packaged() if model.path == path), None)


def verify_packaged(path: Path) -> None:
    """Hash a package's file unless its checksum is recorded.

    Does nothing for other files. Raises ChecksumError if the file is damaged.
    """
    model = find_packaged(path)
    if model is None or model.verified or model.sha256 is None:
        return
    if not verify_checksum(path, model.sha256, lambda _: None):
        name = sanitize(path.name, multiline=False)
        raise ChecksumError(
            f"{name} is damaged: its checksum differs from the catalogue's.",
            f"Install its package again. It is in {path.parent}",
        )


def _find_in_package(package: str, file: str) -> Path | None:
    from importlib import metadata  # noqa: PLC0415  it takes 20 ms

    name, _, version = package.partition("==")
    try:
        distribution = metadata.distribution(name)
        if distribution.version != version:
            return None
        files = distribution.files or ()
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return None
    found = next((entry for entry in files if entry.name == file), None)
    return Path(os.path.abspath(str(found.locate()))) if found else None


# --- files that were opened by their paths, latest first


class _OpenedEntry(Struct, frozen=True):
    target: str
    draft: str | None


def load_opened() -> list[OpenedPair]:
    """The pairs whose files still exist."""
    pairs: list[OpenedPair] = []
    for entry in data_files.read_list(paths.DataFile.OPENED_PAIRS, _OpenedEntry):
        draft = Path(entry.draft) if entry.draft else None
        if os.path.isfile(entry.target) and (draft is None or draft.is_file()):
            pairs.append((Path(entry.target), draft))
    return pairs


def add_opened(pair: OpenedPair) -> None:
    """Put a pair first. Does nothing if the list cannot be written."""
    earlier = [old for old in load_opened() if old != pair]
    body = []
    for target, draft in (pair, *earlier):
        draft_name = str(draft) if draft else None
        body.append({"target": str(target), "draft": draft_name})
    data_files.write_json(paths.DataFile.OPENED_PAIRS, body[:_MAX_OPENED])


def _iter_opened(record: ChecksumRecord) -> Iterator[LocalModel]:
    for target, draft in load_opened():
        for path in (target, draft):
            model = describe_file(path, record, "opened") if path else None
            if model is not None:
                yield model


# --- other applications: LM Studio, Ollama and llama.cpp


_OLLAMA_MODEL_TYPE = "application/vnd.ollama.image.model"
_OLLAMA_DIGEST = re.compile("sha256:([0-9a-f]{64})")


class _LmStudioSettings(Struct, frozen=True, rename="camel"):
    """LM Studio's settings.json."""

    downloads_folder: str = ""


class _OllamaManifest(Struct, frozen=True):
    layers: list[Any]  # Each is converted by itself: other layers may have any form.


class _OllamaLayer(Struct, frozen=True, rename="camel"):
    media_type: str
    digest: str
    size: int


def _iter_other_apps(record: ChecksumRecord) -> Iterator[LocalModel]:
    for folder in lmstudio_folders():
        yield from iter_folder(folder, depth=4, record=record, origin="lmstudio")
    for folder in ollama_folders():
        yield from _ollama_models(folder, record)
    for folder in llama_cpp_folders():
        yield from hub_cache.iter_files(folder, record, "llama.cpp")
        yield from iter_folder(folder, depth=0, record=record, origin="llama.cpp")


def iter_folder(
    folder: Path, depth: int, record: ChecksumRecord, origin: ModelOrigin
) -> Iterator[LocalModel]:
    """The model files of a folder.

    The repository comes from a path of the form publisher/repository/file.
    """
    for path in walk_files(folder, depth):
        if path.suffix != ".gguf":
            continue
        model = describe_file(path, record, origin)
        if model is None:
            continue
        repo = None
        pieces = path.relative_to(folder).parts
        publisher_and_repo = "/".join(pieces[:2])
        if len(pieces) >= 3 and reference.is_repo_id(publisher_and_repo):
            repo = publisher_and_repo
            pieces = pieces[2:]
        file = sanitize("/".join(pieces), multiline=False)
        yield replace(model, repo=repo, file=file)


def lmstudio_folders() -> list[Path]:
    """The folder in its settings, and the default ones."""
    home = Path.home()
    folders = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    file = home / ".lmstudio" / "settings.json"
    settings = _read_app_file(file, _LmStudioSettings)
    if settings is not None and os.path.isabs(settings.downloads_folder):
        folders.insert(0, Path(settings.downloads_folder))
    return _existing_folders(folders)


def ollama_folders() -> list[Path]:
    """The user's folders, and that of the system service."""
    folders = [
        Path.home() / ".ollama" / "models",
        Path("/usr/share/ollama/.ollama/models"),
    ]
    override = os.environ.get("OLLAMA_MODELS")
    if override:
        folders.insert(0, Path(override))
    return _existing_folders(folders)


def llama_cpp_folders() -> list[Path]:
    """Its cache folders, except the hub's cache."""
    home = Path.home()
    if sys.platform == "darwin":
        caches = home / "Library" / "Caches"
    elif sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    folders = [caches / "llama.cpp"]
    override = os.environ.get("LLAMA_CACHE")
    if override:
        folders.insert(0, Path(override))
    hub = os.path.realpath(hub_cache.cache_root())
    return [
        folder
        for folder in _existing_folders(folders)
        if os.path.realpath(folder) != hub
    ]


def _ollama_models(folder: Path, record: ChecksumRecord) -> Iterator[LocalModel]:
    """The models of one of Ollama's folders, by its manifests."""
    for name in ("manifests", "manifests-v2"):
        top = folder / name
        for manifest in walk_files(top, depth=6):
            content = _read_app_file(manifest, _OllamaManifest, within=folder)
            if content is None:
                continue
            pieces = manifest.relative_to(top).parts
            for layer in content.layers:
                model = _describe_ollama_layer(folder, layer, record)
                if model is not None:
                    yield replace(
                        model, repo=_ollama_repo(pieces), file=_ollama_name(pieces)
                    )


def _describe_ollama_layer(
    folder: Path, content: Any, record: ChecksumRecord
) -> LocalModel | None:
    """The blob of a manifest's layer; None if it is no model, or not whole.

    The blob's path is made from the digest only: no other file can be reached.
    """
    try:
        layer = from_json(_OllamaLayer, content)
    except JsonError:
        return None
    digest = _OLLAMA_DIGEST.fullmatch(layer.digest)
    if layer.media_type != _OLLAMA_MODEL_TYPE or digest is None:
        return None
    blobs = folder / "blobs"
    blob = blobs / f"sha256-{digest[1]}"
    model = describe_file(blob, record, "ollama", folder, blobs)
    if model is None or model.size != layer.size:
        return None
    return model


def _ollama_repo(pieces: tuple[str, ...]) -> str | None:
    """The hub's repository of `hf.co/org/repo/Q4_K_M`."""
    if len(pieces) != 4 or pieces[0] not in ("hf.co", "huggingface.co"):
        return None
    repo = "/".join(pieces[1:3])
    return repo if reference.is_repo_id(repo) else None


def _ollama_name(pieces: tuple[str, ...]) -> str:
    """`registry.ollama.ai/library/llama3.2/3b` is llama3.2:3b in Ollama."""
    *folders, tag = pieces
    name = f"{'/'.join(folders)}:{tag}"
    for default_prefix in ("registry.ollama.ai/library/", "registry.ollama.ai/"):
        name = name.removeprefix(default_prefix)
    return sanitize(name, multiline=False)


def _read_app_file(
    path: Path, kind: type[_StructT], within: Path | None = None
) -> _StructT | None:
    """A small JSON file of another application; None if it is not as expected.

    Also None for a file outside `within`, to which a link may lead.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
        if within and not real.is_relative_to(os.path.realpath(within)):
            return None
        if not real.is_file() or real.stat().st_size > _MAX_JSON_BYTES:
            return None
        return from_json(kind, json.loads(real.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None


def _existing_folders(folders: list[Path]) -> list[Path]:
    """Without duplicates, and without those that the user may not enter."""
    real: dict[str, Path] = {}
    for folder in filter(os.path.isdir, folders):
        real.setdefault(os.path.realpath(folder), folder)
    return list(real.values())
