"""Model files that other programs keep here: LM Studio, Ollama and llama.cpp.  Only looked at."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from localspec.models import safe_names
from localspec.models.hub import hub_cache
from localspec.models.local_files import checksum_cache, hub_snapshots
from localspec.models.local_files.local_model import (
    GgufFileStat,
    LocalModel,
    ModelOrigin,
    stat_gguf,
    walk_files,
)
from localspec.sanitize import sanitize

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_OLLAMA_MODEL_TYPE = "application/vnd.ollama.image.model"
_MAX_JSON_BYTES = 1_000_000
"""Bytes of an Ollama manifest; real ones have one thousand."""
_HUGGING_FACE_HOSTS = ("hf.co", "huggingface.co")


def iter_files(record: checksum_cache.ChecksumRecord) -> Iterator[LocalModel]:
    """Every model file of theirs."""
    for folder in lmstudio_folders():
        for path in walk_files(folder, depth=4):
            if path.suffix == ".gguf" and (about := stat_gguf(path)):
                yield model_from_path(path, folder, about, record, "lmstudio")
    for folder in ollama_folders():
        yield from _ollama_models(folder, record)
    for folder in llama_cpp_folders():
        yield from hub_snapshots.iter_files(folder, record, "llama.cpp")
        for path in walk_files(folder, depth=0):
            if path.suffix == ".gguf" and (about := stat_gguf(path)):
                yield model_from_path(path, folder, about, record, "llama.cpp")


def model_from_path(
    path: Path,
    top: Path,
    file_stat: GgufFileStat,
    record: checksum_cache.ChecksumRecord,
    origin: ModelOrigin,
) -> LocalModel:
    """A file that lies as publisher/repository/file, or anyhow."""
    pieces = path.relative_to(top).parts
    repo = "/".join(pieces[:2]) if len(pieces) >= 3 else None
    known = repo is not None and safe_names.is_repo_id(repo)
    file = "/".join(pieces[2:] if known else pieces)
    hashed = checksum_cache.lookup(record, file_stat)
    return LocalModel(
        path=path,
        size=file_stat.size,
        repo=repo if known else None,
        file=_display_name(file),
        revision=None,
        sha256=hashed,
        verified=hashed is not None,
        origin=origin,
        removable=origin == "folder" and file_stat.is_owned,
    )


def lmstudio_folders() -> list[Path]:
    """Its folders of models: as its settings say, and the usual ones."""
    home = Path.home()
    found = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    said = _read_json(home / ".lmstudio" / "settings.json").get("downloadsFolder")
    if isinstance(said, str) and os.path.isabs(said):
        found.insert(0, Path(said))
    return _existing_folders(found)


def ollama_folders() -> list[Path]:
    """Its folders, of a person and of the system's service."""
    chosen = os.environ.get("OLLAMA_MODELS")
    usual = [Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]
    return _existing_folders([Path(chosen), *usual] if chosen else usual)


def llama_cpp_folders() -> list[Path]:
    """Its own cache, unless that is the hub's."""
    chosen = os.environ.get("LLAMA_CACHE")
    home = Path.home()
    if sys.platform == "darwin":
        usual = home / "Library" / "Caches"
    elif sys.platform == "win32":
        usual = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        usual = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    folders = _existing_folders(
        [Path(chosen), usual / "llama.cpp"] if chosen else [usual / "llama.cpp"]
    )
    hub = os.path.realpath(hub_cache.cache_root())
    return [folder for folder in folders if os.path.realpath(folder) != hub]


def _ollama_models(folder: Path, record: checksum_cache.ChecksumRecord) -> Iterator[LocalModel]:
    """A manifest names a digest; only that names the file, so that nothing else can be reached."""
    for name in ("manifests", "manifests-v2"):
        for manifest in walk_files(folder / name, depth=6):
            layers = _read_json(manifest, within=folder).get("layers")
            for layer in layers if isinstance(layers, list) else ():
                digest = _weights_digest(layer)
                blob = folder / "blobs" / f"sha256-{digest}" if digest else None
                about = stat_gguf(blob, folder) if blob else None
                if blob and digest and about and about.size == layer.get("size"):
                    pieces = manifest.relative_to(folder / name).parts
                    yield _ollama_model(
                        blob, pieces, about, (digest, checksum_cache.lookup(record, about))
                    )


def _weights_digest(layer: Any) -> str | None:
    if not isinstance(layer, dict) or layer.get("mediaType") != _OLLAMA_MODEL_TYPE:
        return None
    digest = layer.get("digest")
    found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    return found[1] if found else None


def _ollama_model(
    blob: Path, pieces: tuple[str, ...], about: GgufFileStat, digests: tuple[str, str | None]
) -> LocalModel:
    """`registry.ollama.ai/library/llama3.2/3b` is what Ollama calls llama3.2:3b."""
    said, hashed = digests
    repo = "/".join(pieces[1:3])
    known = len(pieces) == 4 and pieces[0] in _HUGGING_FACE_HOSTS and safe_names.is_repo_id(repo)
    name = ":".join(("/".join(pieces[:-1]), pieces[-1]))
    for usual in ("registry.ollama.ai/library/", "registry.ollama.ai/"):
        name = name.removeprefix(usual)
    return LocalModel(
        path=blob,
        size=about.size,
        repo=repo if known else None,
        file=_display_name(name),
        revision=None,
        sha256=said,
        verified=hashed == said,
        origin="ollama",
        removable=False,
    )


def _read_json(path: Path, within: Path | None = None) -> dict[str, Any]:
    """A small JSON object; an empty one where there is none."""
    try:
        real = Path(os.path.realpath(path, strict=True))
        if within and not real.is_relative_to(os.path.realpath(within)):
            return {}
        if not real.is_file() or real.stat().st_size > _MAX_JSON_BYTES:
            return {}
        document = json.loads(real.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _existing_folders(folders: list[Path]) -> list[Path]:
    """Those that exist, each once."""
    real = {os.path.realpath(folder): folder for folder in reversed(folders)}
    return [folder for folder in reversed(real.values()) if folder.is_dir()]


def _display_name(name: str) -> str:
    return sanitize(name, multiline=False)
