"""The model files on this computer: in the hub's cache, the models folder and,
read-only, Python packages, the folders of LM Studio, Ollama and llama.cpp, and what was
opened by its path.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

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
from localspec.sanitize import sanitize

_RECENT_FILE = "recent.json"

OpenedPair = tuple[Path, Path | None]  # A target and its draft.


def models_folder() -> Path | None:
    """Set by --models-dir, LOCALSPEC_MODELS_DIR or config.toml."""
    folder = config.resolve().get("models.folder")
    return Path(folder) if folder else None


def converted_folder() -> Path:
    """Where `localspec convert` puts copies, named `NAME-TYPE.gguf`."""
    return paths.data_dir() / "converted"


def iter_files() -> Iterator[LocalModel]:
    """Every model file once; the hub's cache and the models folder first."""
    record = load_checksums()
    folder = models_folder()
    seen: set[str] = set()
    for model in itertools.chain(
        hub_cache.iter_files(hub_cache.cache_root(), record),
        iter_folder(folder, 5, record, "folder") if folder else (),
        iter_folder(converted_folder(), 1, record, "converted"),
        list_packaged(),
        _iter_other_apps(record),
        _iter_opened(record),
    ):
        path = str(model.path)
        real_path = os.path.realpath(path) if model.origin == "opened" else path
        if path not in seen and real_path not in seen:
            seen |= {path, os.path.realpath(path)}
            yield model


def list_models() -> tuple[LocalModel, ...]:
    """The complete models; the splits of one model are joined to one entry.

    A file that several commits of a repository share is listed once, with the first of
    them.
    """
    models: dict[tuple[object, ...], LocalModel] = {}
    for model in filter(None, map(_join_splits, _group_splits(iter_files()))):
        blobs = map(os.path.realpath, model.parts or (model.path,))
        models.setdefault((model.origin, model.repo, model.file, *blobs), model)
    return tuple(models.values())


def find_ollama(name: str) -> LocalModel | None:
    """By Ollama's name; a file may have several, of which `list_models` has one."""
    models = _iter_other_apps(load_checksums())
    return next((m for m in models if m.origin == "ollama" and m.file == name), None)


def _group_splits(files: Iterable[LocalModel]) -> list[list[LocalModel]]:
    """The files by the model they belong to, in order; most models have one."""
    splits_by_model: dict[tuple[Path, str, int], list[LocalModel]] = {}
    for file in files:
        name = parse_file_name(file.path.name)
        splits_by_model.setdefault(
            (file.path.parent, name.stem, name.count), []
        ).append(file)
    return [
        sorted(splits, key=lambda split: parse_file_name(split.path.name).index)
        for splits in splits_by_model.values()
    ]


def _join_splits(splits: list[LocalModel]) -> LocalModel | None:
    """None if a split is missing."""
    names = [parse_file_name(split.path.name) for split in splits]
    if [name.index for name in names] != list(range(1, names[0].count + 1)):
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
    commit = revision
    if revision and not reference.COMMIT_HASH.fullmatch(revision):
        folders = hub_cache.iter_repos(hub_cache.cache_root())
        refs = (
            hub_cache.read_ref(f, revision)
            for r, f in folders
            if r.lower() == repo.lower()
        )
        if (commit := next(refs, None)) is None:
            return None
    models: dict[str, LocalModel] = {}
    for model in filter(None, map(_join_splits, _group_splits(iter_files()))):
        is_repo = (model.repo or "").lower() == repo.lower()  # the hub ignores case
        if is_repo and commit in (None, model.revision):
            folder, slash, _ = model.file.rpartition("/")
            for path in model.parts or (Path(model.file),):
                models.setdefault(f"{folder}{slash}{path.name}", model)
    try:
        first = choose_files([RepoFile(path, 0) for path in models], tag, file)[0]
    except NotFoundError:
        return None
    return models[first.path]


def remove(model: LocalModel) -> int:
    """Delete all files of a model; returns the freed bytes.  Raises StorageError."""
    if model.origin == "opened":
        raise StorageError(
            f"{model.file} was opened by its path.", f"Delete {model.path}"
        )
    if not model.removable:
        owners = dict.fromkeys(("hub", "folder"), "another user")
        owners["package"] = "an installed Python package"
        owner = owners.get(model.origin, ORIGIN_TITLES[model.origin])
        raise StorageError(f"{model.file} belongs to {owner}.", "Remove it there.")
    freed = 0
    try:
        if model.origin == "hub":
            return hub_cache.remove(hub_cache.cache_root(), model)
        for path in model.parts or (model.path,):
            freed += 0 if path.is_symlink() else path.stat().st_size
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
    files = hub_cache.iter_files(cache, load_checksums())
    incomplete = (
        group for group in _group_splits(files) if _join_splits(group) is None
    )
    splits = [split for group in incomplete for split in group if split.removable]
    return (
        *hub_cache.find_leftovers(cache),
        *hub_cache.find_idle_splits(cache, splits),
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
    """The files that the catalogue expects in packages; none if LOCALSPEC_STARTER is 0."""
    packaged: list[LocalModel] = []
    if os.environ.get("LOCALSPEC_STARTER") == "0":
        return ()
    record = load_checksums()
    shipped_or_own, _ = catalog.load_valid()  # others report an invalid file
    for model in shipped_or_own.models.values():
        path = _find_in_package(model.package, model.file) if model.package else None
        found = describe_file(path, record, "package") if path else None
        if found and found.size == model.bytes:
            is_verified = found.verified and found.sha256 == model.sha256
            found = replace(
                found, repo=model.repo, file=model.file, revision=model.revision
            )
            packaged.append(replace(found, sha256=model.sha256, verified=is_verified))
    return tuple(packaged)


def find_packaged(path: Path) -> LocalModel | None:
    """The model of a package that this file is.

    The catalogue, which takes 50 ms to read, is asked only about files below a folder
    of packages.
    """
    own = path.is_relative_to(paths.PACKAGE)
    if own or not any(
        path.is_relative_to(os.path.abspath(folder)) for folder in sys.path
    ):
        return None
    return next((model for model in list_packaged() if model.path == path), None)


def verify_packaged(path: Path) -> None:
    """Hash a package's file unless its checksum is recorded; does nothing for other
    files.

    Raises ChecksumError if the file is damaged.
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


def load_opened() -> list[OpenedPair]:
    """The pairs whose files still exist; empty if the list is damaged."""
    try:
        return [
            (Path(entry["target"]), Path(entry["draft"]) if entry["draft"] else None)
            for entry in data_files.read_json(_RECENT_FILE)
            if os.path.isfile(entry["target"])
            and (not entry["draft"] or os.path.isfile(entry["draft"]))
        ]
    except (TypeError, KeyError):
        return []


def add_opened(pair: OpenedPair) -> None:
    """Put a pair first. Does nothing if the list cannot be written."""
    body = [
        {"target": str(target), "draft": str(draft) if draft else None}
        for target, draft in (pair, *(old for old in load_opened() if old != pair))
    ]
    data_files.write_json(_RECENT_FILE, body[:50])


def _iter_opened(record: ChecksumRecord) -> Iterator[LocalModel]:
    for pair in load_opened():
        for path in filter(None, pair):
            if model := describe_file(path, record, "opened"):
                yield model


# --- other applications: LM Studio, Ollama and llama.cpp


_OLLAMA_MODEL_TYPE = "application/vnd.ollama.image.model"


def _iter_other_apps(record: ChecksumRecord) -> Iterator[LocalModel]:
    for folder in lmstudio_folders():
        yield from iter_folder(folder, 4, record, "lmstudio")
    for folder in ollama_folders():
        yield from _ollama_models(folder, record)
    for folder in llama_cpp_folders():
        yield from hub_cache.iter_files(folder, record, "llama.cpp")
        yield from iter_folder(folder, 0, record, "llama.cpp")


def iter_folder(
    folder: Path, depth: int, record: ChecksumRecord, origin: ModelOrigin
) -> Iterator[LocalModel]:
    """The model files of a folder.

    The repository comes from a path of the form publisher/repository/file.
    """
    for path in walk_files(folder, depth):
        if path.suffix == ".gguf" and (model := describe_file(path, record, origin)):
            pieces = path.relative_to(folder).parts
            repo = "/".join(pieces[:2]) if len(pieces) >= 3 else ""
            has_repo = reference.is_repo_id(repo)
            file = sanitize(
                "/".join(pieces[2:] if has_repo else pieces), multiline=False
            )
            yield replace(model, repo=repo if has_repo else None, file=file)


def lmstudio_folders() -> list[Path]:
    """The folder in its settings, and the default ones."""
    home = Path.home()
    folders = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    setting = _read_json(home / ".lmstudio" / "settings.json").get("downloadsFolder")
    if isinstance(setting, str) and os.path.isabs(setting):
        folders.insert(0, Path(setting))
    return _existing_folders(folders)


def ollama_folders() -> list[Path]:
    """The user's folders, and that of the system service."""
    override = os.environ.get("OLLAMA_MODELS")
    defaults = [
        Path.home() / ".ollama" / "models",
        Path("/usr/share/ollama/.ollama/models"),
    ]
    return _existing_folders([Path(override), *defaults] if override else defaults)


def llama_cpp_folders() -> list[Path]:
    """Its cache folders, except the hub's cache."""
    override = os.environ.get("LLAMA_CACHE")
    home = Path.home()
    if sys.platform == "darwin":
        caches = home / "Library" / "Caches"
    elif sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    folders = _existing_folders(
        [Path(override), caches / "llama.cpp"] if override else [caches / "llama.cpp"]
    )
    hub = os.path.realpath(hub_cache.cache_root())
    return [folder for folder in folders if os.path.realpath(folder) != hub]


def _ollama_models(folder: Path, record: ChecksumRecord) -> Iterator[LocalModel]:
    """The blob's path is made from the manifest's digest only: no other file can be
    reached.
    """
    for name in ("manifests", "manifests-v2"):
        for manifest in walk_files(folder / name, depth=6):
            layers = _read_json(manifest, within=folder).get("layers")
            for layer in layers if isinstance(layers, list) else ():
                is_model = (
                    isinstance(layer, dict)
                    and layer.get("mediaType") == _OLLAMA_MODEL_TYPE
                )
                digest = str(layer.get("digest")) if is_model else ""
                if (match := re.fullmatch("sha256:([0-9a-f]{64})", digest)) is None:
                    continue
                blob = folder / "blobs" / f"sha256-{match[1]}"
                model = describe_file(blob, record, "ollama", folder, folder / "blobs")
                if model and model.size == layer.get("size"):
                    repo, file = _ollama_name(manifest.relative_to(folder / name).parts)
                    yield replace(model, repo=repo, file=file)


def _ollama_name(pieces: tuple[str, ...]) -> tuple[str | None, str]:
    """Repository and name; `registry.ollama.ai/library/llama3.2/3b` is llama3.2:3b in
    Ollama.
    """
    repo = "/".join(pieces[1:3])
    is_hub = len(pieces) == 4 and pieces[0] in ("hf.co", "huggingface.co")
    name = ":".join(("/".join(pieces[:-1]), pieces[-1]))
    for default_prefix in ("registry.ollama.ai/library/", "registry.ollama.ai/"):
        name = name.removeprefix(default_prefix)
    return repo if is_hub and reference.is_repo_id(repo) else None, sanitize(
        name, multiline=False
    )


def _read_json(path: Path, within: Path | None = None) -> dict[str, Any]:
    """A small JSON object; empty if the file cannot be read or lies outside `within`."""
    try:
        real = Path(os.path.realpath(path, strict=True))
        if within and not real.is_relative_to(os.path.realpath(within)):
            return {}
        # real ones have about 1,000
        if not real.is_file() or real.stat().st_size > 1_000_000:
            return {}
        document = json.loads(real.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _existing_folders(folders: list[Path]) -> list[Path]:
    """Without duplicates, and without those that the user may not enter."""
    real: dict[str, Path] = {}
    for folder in filter(os.path.isdir, folders):
        real.setdefault(os.path.realpath(folder), folder)
    return list(real.values())
