"""The catalogue of models and pairs: models.yaml, merged with the user's own file."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from localspec import paths
from localspec.errors import NotFoundError, UsageError
from localspec.models.catalog_entries import (
    CatalogModel,
    CatalogPair,
    PairSettings,
    own_id,
)
from localspec.sanitize import sanitize
from localspec.units import join_first

__all__ = [
    "Catalog", "CatalogModel", "CatalogPair", "PairSettings", "find", "load", "own_id", "pairs_for",
]  # fmt: skip


class Catalog(Struct, frozen=True):
    """Entries by id, in file order."""

    models: Mapping[str, CatalogModel]
    pairs: Mapping[str, CatalogPair]


def load(path: Path | None = None, user_file: Path | None = None) -> Catalog:
    """The shipped catalogue, overridden by the user's; with `path`, only that file and
    `user_file`.

    Raises UsageError, with entry, key and reason, for a damaged file.  Cached until a file changes.
    """
    user_file = user_file or (None if path else paths.user_catalog_file())
    shipped = path or paths.catalog_file()
    files = [(shipped, _file_stamp(shipped))]
    if user_file and (stamp := _file_stamp(user_file)):
        files.append((user_file, stamp))
    return _load_cached(tuple(files))


def load_valid() -> tuple[Catalog, UsageError | None]:
    """The catalogue; if the user's models.yaml is invalid, the shipped part and the
    error.
    """
    try:
        return load(), None
    except UsageError as error:
        return load(paths.catalog_file()), error


def find(catalogue: Catalog, name: str) -> CatalogModel | CatalogPair:
    """The entry with this id, or the only entry whose id contains it.

    Raises NotFoundError for no match (with the closest ids) or several (with their
    ids).
    """
    entries: dict[str, CatalogModel | CatalogPair] = {
        **catalogue.models,
        **catalogue.pairs,
    }
    part = name.lower()
    if part in entries:
        return entries[part]
    models = [id_ for id_ in catalogue.models if part and part in id_]
    matches = models or [id_ for id_ in catalogue.pairs if part and part in id_]
    if len(matches) == 1:
        return entries[matches[0]]
    shown = sanitize(name[:80], multiline=False)
    if matches:
        hint = f"Choose one: {join_first(matches, 10)}."
        raise NotFoundError(f"{shown} matches several entries.", hint)
    close = difflib.get_close_matches(part[:80], entries, n=4)
    hint = (
        f"Closest: {', '.join(close)}."
        if close
        else "See: localspec list, localspec pair list"
    )
    raise NotFoundError(f"The catalogue has no entry {shown}.", hint)


def pairs_for(catalogue: Catalog, target: CatalogModel) -> tuple[CatalogPair, ...]:
    """The pairs of a target, in file order: the first is the recommended one."""
    return tuple(
        pair for pair in catalogue.pairs.values() if pair.target.id == own_id(target.id)
    )


def _file_stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=4)
def _load_cached(files: tuple[tuple[Path, tuple[int, int] | None], ...]) -> Catalog:
    from localspec.models import catalog_file  # noqa: PLC0415  yaml takes 30 ms to import

    return Catalog(
        *catalog_file.read_files((path, _read_text(path)) for path, _ in files)
    )


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > 1_000_000:
            raise UsageError(
                f"{path} is too large for a catalogue.", "Keep it under 1 MB."
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"The catalogue {path} cannot be read: {error.strerror}."
        is_own = path == paths.user_catalog_file()
        hint = "Check its permissions." if is_own else "Install localspec again."
        raise UsageError(message, hint) from error
    except UnicodeDecodeError as error:
        message = f"The catalogue {path} is damaged: it is not UTF-8."
        raise UsageError(message, "Save it as UTF-8.") from error
