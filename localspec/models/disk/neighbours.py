"""Model files that other programs keep here: LM Studio, Ollama and llama.cpp.  Only looked at."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from localspec.clean import clean
from localspec.models import names
from localspec.models.disk import snapshots, verified
from localspec.models.disk.stored import Look, Stored, Where, below, look
from localspec.models.hub import hubcache

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MODEL = "application/vnd.ollama.image.model"
_MANIFEST = 1_000_000
"""Bytes of an Ollama manifest; real ones have one thousand."""
_HUGGING_FACE = ("hf.co", "huggingface.co")


def files(record: verified.Record) -> Iterator[Stored]:
    """Every model file of theirs."""
    for folder in lmstudio():
        for path in below(folder, depth=4):
            if path.suffix == ".gguf" and (about := look(path)):
                yield plain(path, folder, about, record, "lmstudio")
    for folder in ollama():
        yield from _ollama(folder, record)
    for folder in llama_cpp():
        yield from snapshots.files(folder, record, "llama.cpp")
        for path in below(folder, depth=0):
            if path.suffix == ".gguf" and (about := look(path)):
                yield plain(path, folder, about, record, "llama.cpp")


def plain(path: Path, top: Path, about: Look, record: verified.Record, where: Where) -> Stored:
    """A file that lies as publisher/repository/file, or anyhow."""
    pieces = path.relative_to(top).parts
    repo = "/".join(pieces[:2]) if len(pieces) >= 3 else None
    known = repo is not None and names.is_repo(repo)
    file = "/".join(pieces[2:] if known else pieces)
    hashed = verified.of(record, about)
    return Stored(
        path=path,
        size=about.size,
        repo=repo if known else None,
        file=_shown(file),
        revision=None,
        sha256=hashed,
        verified=hashed is not None,
        where=where,
        removable=where == "folder" and about.mine,
    )


def lmstudio() -> list[Path]:
    """Its folders of models: as its settings say, and the usual ones."""
    home = Path.home()
    found = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    said = _json(home / ".lmstudio" / "settings.json").get("downloadsFolder")
    if isinstance(said, str) and os.path.isabs(said):
        found.insert(0, Path(said))
    return _there(found)


def ollama() -> list[Path]:
    """Its folders, of a person and of the system's service."""
    chosen = os.environ.get("OLLAMA_MODELS")
    usual = [Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]
    return _there([Path(chosen), *usual] if chosen else usual)


def llama_cpp() -> list[Path]:
    """Its own cache, unless that is the hub's."""
    chosen = os.environ.get("LLAMA_CACHE")
    home = Path.home()
    if sys.platform == "darwin":
        usual = home / "Library" / "Caches"
    elif sys.platform == "win32":
        usual = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        usual = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    folders = _there([Path(chosen), usual / "llama.cpp"] if chosen else [usual / "llama.cpp"])
    hub = os.path.realpath(hubcache.root())
    return [folder for folder in folders if os.path.realpath(folder) != hub]


def _ollama(folder: Path, record: verified.Record) -> Iterator[Stored]:
    """A manifest names a digest; only that names the file, so that nothing else can be reached."""
    for name in ("manifests", "manifests-v2"):
        for manifest in below(folder / name, depth=6):
            layers = _json(manifest, within=folder).get("layers")
            for layer in layers if isinstance(layers, list) else ():
                digest = _weights(layer)
                blob = folder / "blobs" / f"sha256-{digest}" if digest else None
                about = look(blob, folder) if blob else None
                if blob and digest and about and about.size == layer.get("size"):
                    pieces = manifest.relative_to(folder / name).parts
                    yield _of_ollama(blob, pieces, about, (digest, verified.of(record, about)))


def _weights(layer: Any) -> str | None:
    if not isinstance(layer, dict) or layer.get("mediaType") != _MODEL:
        return None
    digest = layer.get("digest")
    found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    return found[1] if found else None


def _of_ollama(
    blob: Path, pieces: tuple[str, ...], about: Look, digests: tuple[str, str | None]
) -> Stored:
    """`registry.ollama.ai/library/llama3.2/3b` is what Ollama calls llama3.2:3b."""
    said, hashed = digests
    repo = "/".join(pieces[1:3])
    known = len(pieces) == 4 and pieces[0] in _HUGGING_FACE and names.is_repo(repo)
    name = ":".join(("/".join(pieces[:-1]), pieces[-1]))
    for usual in ("registry.ollama.ai/library/", "registry.ollama.ai/"):
        name = name.removeprefix(usual)
    return Stored(
        path=blob,
        size=about.size,
        repo=repo if known else None,
        file=_shown(name),
        revision=None,
        sha256=said,
        verified=hashed == said,
        where="ollama",
        removable=False,
    )


def _json(path: Path, within: Path | None = None) -> dict[str, Any]:
    """A small JSON object; an empty one where there is none."""
    try:
        real = Path(os.path.realpath(path, strict=True))
        if within and not real.is_relative_to(os.path.realpath(within)):
            return {}
        if not real.is_file() or real.stat().st_size > _MANIFEST:
            return {}
        document = json.loads(real.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _there(folders: list[Path]) -> list[Path]:
    """Those that exist, each once."""
    real = {os.path.realpath(folder): folder for folder in reversed(folders)}
    return [folder for folder in reversed(real.values()) if folder.is_dir()]


def _shown(name: str) -> str:
    return clean(name, multiline=False)
