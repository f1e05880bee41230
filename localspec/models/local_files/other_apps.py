"""Model files of other applications, read-only: LM Studio, Ollama and llama.cpp."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from localspec.models import reference
from localspec.models.local_files import hub_cache
from localspec.models.local_files.local_model import (
    ChecksumRecord,
    LocalModel,
    ModelOrigin,
    describe_file,
    walk_files,
)
from localspec.sanitize import sanitize

_OLLAMA_MODEL_TYPE = "application/vnd.ollama.image.model"


def iter_files(record: ChecksumRecord) -> Iterator[LocalModel]:
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
            file = sanitize("/".join(pieces[2:] if has_repo else pieces), multiline=False)
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
    defaults = [Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]
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
    """The blob's path is made from the manifest's digest only: no other file can be reached."""
    for name in ("manifests", "manifests-v2"):
        for manifest in walk_files(folder / name, depth=6):
            layers = _read_json(manifest, within=folder).get("layers")
            for layer in layers if isinstance(layers, list) else ():
                is_model = isinstance(layer, dict) and layer.get("mediaType") == _OLLAMA_MODEL_TYPE
                digest = str(layer.get("digest")) if is_model else ""
                if (match := re.fullmatch("sha256:([0-9a-f]{64})", digest)) is None:
                    continue
                blob = folder / "blobs" / f"sha256-{match[1]}"
                model = describe_file(blob, record, "ollama", folder, folder / "blobs")
                if model and model.size == layer.get("size"):
                    repo, file = _ollama_name(manifest.relative_to(folder / name).parts)
                    yield replace(model, repo=repo, file=file)


def _ollama_name(pieces: tuple[str, ...]) -> tuple[str | None, str]:
    """Repository and name; `registry.ollama.ai/library/llama3.2/3b` is llama3.2:3b in Ollama."""
    repo = "/".join(pieces[1:3])
    is_hub = len(pieces) == 4 and pieces[0] in ("hf.co", "huggingface.co")
    name = ":".join(("/".join(pieces[:-1]), pieces[-1]))
    for default_prefix in ("registry.ollama.ai/library/", "registry.ollama.ai/"):
        name = name.removeprefix(default_prefix)
    return repo if is_hub and reference.is_repo_id(repo) else None, sanitize(name, multiline=False)


def _read_json(path: Path, within: Path | None = None) -> dict[str, Any]:
    """A small JSON object; empty if the file cannot be read or lies outside `within`."""
    try:
        real = Path(os.path.realpath(path, strict=True))
        if within and not real.is_relative_to(os.path.realpath(within)):
            return {}
        if not real.is_file() or real.stat().st_size > 1_000_000:  # real ones have about 1,000
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
