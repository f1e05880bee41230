"""The catalogue of models and pairs: models.yaml, merged with the user's own file."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from localspec import paths
from localspec.errors import NotFoundError, UsageError
from localspec.models.catalog_entries import (
    CatalogModel,
    CatalogPair,
    PairSettings,
    own_id,
    split_quantization,
)
from localspec.sanitize import sanitize
from localspec.units import join_first

__all__ = [
    "Catalog",
    "CatalogModel",
    "CatalogPair",
    "PairSettings",
    "find",
    "load",
    "own_id",
    "pairs_for",
]

_MAX_BYTES = 1_000_000


class Catalog(Struct, frozen=True, dict=True):
    """Entries by id, in file order."""

    models: Mapping[str, CatalogModel]
    pairs: Mapping[str, CatalogPair]

    def find_exact(self, name: str) -> CatalogModel | CatalogPair | None:
        """By id, or by the name of a pair on screens (`CatalogPair.name`)."""
        entry = self.pairs.get(name) or self.models.get(name)
        if entry is not None or "+" not in name:
            return entry
        for pair in self.pairs.values():
            if pair.name == name:
                return pair
        return None

    @functools.cached_property
    def models_by_repo(self) -> Mapping[str, Sequence[CatalogModel]]:
        """All quantisations of all models."""
        found: dict[str, list[CatalogModel]] = {}
        for model in self.models.values():
            for each in (model, *model.files):
                if each.repo is not None:
                    found.setdefault(each.repo, []).append(each)
        return found

    @functools.cached_property
    def models_by_base(self) -> Mapping[str, Sequence[CatalogModel]]:
        """By the names of their files without the quantisation, in capitals.

        A name without a number, such as that of dflash-kquant.gguf, says nothing of the
        model, unless the file is bundled.
        """
        found: dict[str, list[CatalogModel]] = {}
        for model in self.models.values():
            base, _ = split_quantization(model.file.rpartition("/")[2])
            says_model = any(character.isdigit() for character in base)
            if says_model or (base and model.repo is None):
                found.setdefault(base, []).append(model)
        return found


def load(path: Path | None = None, user_file: Path | None = None) -> Catalog:
    """The shipped catalogue, overridden by the user's.

    With `path`, only that file and `user_file`. Raises UsageError, with entry, key and
    reason, for a damaged file. The catalogue is cached until a file changes.
    """
    if path is None and user_file is None:
        user_file = paths.user_catalog_file()
    shipped = path or paths.catalog_file()
    files = [(shipped, _file_stamp(shipped))]
    if user_file is not None:
        stamp = _file_stamp(user_file)
        if stamp is not None:
            files.append((user_file, stamp))
    return _load_cached(tuple(files))


def load_valid() -> tuple[Catalog, UsageError | None]:
    """The catalogue, or the shipped part and the error.

    The error is that of the user's models.yaml.
    """
    try:
        return load(), None
    except UsageError as error:
        return load(paths.catalog_file()), error


def find(catalogue: Catalog, name: str) -> CatalogModel | CatalogPair:
    """The entry with this id, or the only entry whose id contains it.

    Models come before pairs. Raises NotFoundError for no match (with the closest ids)
    or several (with their ids).
    """
    entries: dict[str, CatalogModel | CatalogPair] = {
        **catalogue.models,
        **catalogue.pairs,
    }
    part = name.lower()
    exact = catalogue.find_exact(part)
    if exact is not None:
        return exact
    matches = []
    if part:
        matches = [id_ for id_ in catalogue.models if part in id_]
        matches = matches or [id_ for id_ in catalogue.pairs if part in id_]
    if len(matches) == 1:
        return entries[matches[0]]

    shown = sanitize(name[:80], multiline=False)
    if matches:
        hint = f"Choose one: {join_first(matches, 10)}."
        raise NotFoundError(f"{shown} matches several entries.", hint)
    hint = "See: localspec list, localspec pair list"
    close = difflib.get_close_matches(part[:80], entries, n=4)
    if close:
        hint = f"Closest: {', '.join(close)}."
    raise NotFoundError(f"The catalogue has no entry {shown}.", hint)


def pairs_for(catalogue: Catalog, target: CatalogModel) -> tuple[CatalogPair, ...]:
    """The pairs of a target, in file order: the first is the recommended one."""
    id_ = own_id(target.id)
    return tuple(pair for pair in catalogue.pairs.values() if pair.target.id == id_)


def _file_stamp(path: Path) -> tuple[int, int] | None:
    """What differs after a change of the file; None if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return (0, 0)  # The reason is given when the file is read.
    return status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=4)
def _load_cached(files: tuple[tuple[Path, tuple[int, int] | None], ...]) -> Catalog:
    from localspec.models import catalog_file  # noqa: PLC0415  yaml takes 30 ms to import

    texts = [(path, _read_text(path)) for path, _ in files]
    models, pairs = catalog_file.read_files(texts)
    return Catalog(models, pairs)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            body = file.read(_MAX_BYTES + 1)
        if len(body) > _MAX_BYTES:
            raise UsageError(
                f"{path} is too large for a catalogue.", "Keep it under 1 MB."
            )
        return body.decode("utf-8")
    except OSError as error:
        message = f"The catalogue {path} cannot be read: {error.strerror}."
        hint = "Install localspec again."
        if path == paths.user_catalog_file():
            hint = "Check its permissions."
        raise UsageError(message, hint) from error
    except UnicodeDecodeError as error:
        message = f"The catalogue {path} is damaged: it is not UTF-8."
        raise UsageError(message, "Save it as UTF-8.") from error
