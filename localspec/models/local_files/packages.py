"""Model files in installed Python packages, read-only: their code is never imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from localspec.errors import ChecksumError
from localspec.models import catalog
from localspec.models.local_files import checksum_cache
from localspec.models.local_files.local_model import LocalModel, stat_gguf
from localspec.sanitize import sanitize


def iter_files(record: checksum_cache.ChecksumRecord) -> Iterator[LocalModel]:
    """The files that the catalogue expects in packages; none if LOCALSPEC_STARTER is 0."""
    if os.environ.get("LOCALSPEC_STARTER") == "0":
        return
    shipped_or_own, _ = catalog.load_valid()  # others report an invalid file
    for model in shipped_or_own.models.values():
        path = _find_path(model.package, model.file) if model.package else None
        file_stat = stat_gguf(path) if path else None
        if path is None or file_stat is None or file_stat.size != model.bytes:
            continue
        yield LocalModel(
            path=path,
            size=file_stat.size,
            repo=model.repo,
            file=model.file,
            revision=model.revision,
            sha256=model.sha256,
            verified=checksum_cache.lookup(record, file_stat) == model.sha256,
            origin="package",
            removable=False,
        )


def verify(path: Path) -> None:
    """Hash a package's file unless its checksum is recorded; does nothing for other files.

    Raises ChecksumError if the file is damaged.
    """
    if not any(path.is_relative_to(os.path.abspath(folder)) for folder in sys.path):
        return  # without reading the catalogue, which takes 50 ms
    for model in iter_files(checksum_cache.load()):
        if model.path != path or model.verified or model.sha256 is None:
            continue
        if not checksum_cache.verify(path, model.sha256, lambda _: None):
            name = sanitize(path.name, multiline=False)
            raise ChecksumError(
                f"{name} is damaged: its checksum differs from the catalogue's.",
                f"Install its package again. It is in {path.parent}",
            )


def _find_path(package: str, file: str) -> Path | None:
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
