"""The models and pairs that are known by name: models.yaml, and a person's own file merged in."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localspec import paths
from localspec.errors import NotFoundError, UsageError
from localspec.models.catalog.entries import CatalogModel, CatalogPair, PairSettings
from localspec.sanitize import sanitize

__all__ = ["Catalog", "CatalogModel", "CatalogPair", "PairSettings", "find", "load", "pairs_for"]

_MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Catalog:
    """Entries by id, in the files' order."""

    models: Mapping[str, CatalogModel]
    pairs: Mapping[str, CatalogPair]


def load(path: Path | None = None, user_file: Path | None = None) -> Catalog:
    """The shipped catalogue with the person's own over it; `path` reads that file and `own` only.

    Raises UsageError where a file is damaged, with line, key and reason.  Read again only when a
    file has changed.
    """
    files = (
        (path, user_file)
        if path
        else (paths.catalog_file(), user_file or paths.user_catalog_file())
    )
    return _load_cached(tuple((file, _file_stamp(file)) for file in files if file))


def find(catalogue: Catalog, name: str) -> CatalogModel | CatalogPair:
    """The entry with this id, or the only one whose id holds it.

    Raises NotFoundError: none (with the closest) or several (with their ids).
    """
    entries: dict[str, CatalogModel | CatalogPair] = {**catalogue.models, **catalogue.pairs}
    wanted = name.lower()
    if wanted in entries:
        return entries[wanted]
    models = [id_ for id_ in catalogue.models if wanted and wanted in id_]
    holding = models or [id_ for id_ in catalogue.pairs if wanted and wanted in id_]
    if len(holding) == 1:
        return entries[holding[0]]
    shown = sanitize(name[:80], multiline=False)
    if holding:
        raise NotFoundError(f"{shown} could be several.", f"Say which: {_join_ids(holding)}.")
    close = difflib.get_close_matches(wanted[:80], entries, n=4) or list(catalogue.pairs)[:4]
    raise NotFoundError(
        f"The catalogue has nothing called {shown}.", f"Closest: {_join_ids(close)}."
    )


def pairs_for(catalogue: Catalog, target: CatalogModel) -> tuple[CatalogPair, ...]:
    """The pairs of a target, in the files' order: the first is the one to take."""
    return tuple(pair for pair in catalogue.pairs.values() if pair.target.id == target.id)


def _join_ids(ids: list[str]) -> str:
    return ", ".join(ids[:10]) + (", …" if len(ids) > 10 else "")


def _file_stamp(path: Path) -> tuple[int, int] | None:
    """What changes when the file does."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


@functools.lru_cache(maxsize=4)
def _load_cached(files: tuple[tuple[Path, tuple[int, int] | None], ...]) -> Catalog:
    from localspec.models.catalog import catalog_file  # noqa: PLC0415  yaml: 30 ms, not before it is needed

    shipped, *others = (path for path, _ in files)
    read = [catalog_file.parse_catalog(shipped, _read_text(shipped))]
    read += [catalog_file.parse_catalog(path, _read_text(path)) for path in others if path.exists()]
    return Catalog(*catalog_file.merge_files(read))


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UsageError(f"{path} is too large for a catalogue.", "Keep it under 1 MB.")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        what = f"The catalogue {path} cannot be read: {error.strerror}."
        raise UsageError(what, "Install localspec again.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"The catalogue {path} is damaged: it is no UTF-8.", "Mend it.") from error
