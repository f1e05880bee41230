"""Recently opened pairs, and the pair of the last run."""

from __future__ import annotations

import os
from typing import NamedTuple

from msgspec import Struct

from localspec import config, data_files, paths
from localspec.errors import LocalspecError
from localspec.launch import ResolvedPair
from localspec.launch.pair import split_drafts
from localspec.models import model_lookup
from localspec.models.local_files import inventory
from localspec.paths import DataFile


def load() -> list[ResolvedPair]:
    """Load the pairs whose files still exist, latest first; none of a damaged list."""
    return [ResolvedPair(target, draft) for target, draft in inventory.load_opened()]


def add(pair: ResolvedPair) -> None:
    """Put a pair first. Does nothing if the list cannot be written."""
    inventory.add_opened((pair.target, pair.draft))


def add_if_path(pair: ResolvedPair, opened_by: str) -> None:
    """Like `add`, for a pair whose target was opened by its path, not by a name.

    From then on it is listed, and its files can be opened by their names.
    """
    is_path = os.path.isfile(os.path.expanduser(opened_by))
    if is_path and os.path.isabs(pair.portable_refs[0]):
        add(pair)


class DefaultPair(NamedTuple):
    model: str
    draft: str
    why: str = ""
    """Where it comes from, if it was not named and is not the default pair."""


def resolve_default(model: str | None, draft: str) -> DefaultPair:
    """The pair to open if no model is named.

    It is that of config.toml, else of the last run, else the default pair. config.toml
    comes first; otherwise the last run would override it after its first use.
    """
    if model is not None:
        return DefaultPair(model, draft)
    default = model_lookup.default_pair_id()
    configured = config.load().get("run.pair")
    if configured is not None:
        pair = DefaultPair(configured, draft, "the default model of your settings")
    else:
        last = load_last()
        if last is None:
            return DefaultPair(default, draft)
        last_model, last_draft = last
        if draft == "auto":
            draft = last_draft
        pair = DefaultPair(last_model, draft, "the last one used")
    return pair if pair.model != default else pair._replace(why="")


def save_last(model: str, draft: str) -> None:
    """Save the arguments of the last run, and whether a model was not ours.

    `draft` is a reference, `auto` or `none`.
    """
    last = load_last()
    if last == (model, draft):
        return
    data_files.write_json(DataFile.LAST_RUN, {"model": model, "draft": draft})

    used = [model]
    if last is not None:
        last_model, _ = last  # An earlier version has not looked at it.
        used.append(last_model)
    if not has_used_another_model() and not all(map(_comes_with_localspec, used)):
        data_files.write_mark(DataFile.USED_ANOTHER_MODEL.path, f"{model} was used.")


def has_used_another_model() -> bool:
    """Whether a model was ever used that did not come with localspec.

    Where nothing can be remembered it is taken to be so.
    """
    try:
        return DataFile.USED_ANOTHER_MODEL.path.exists()
    except OSError:  # of a name that is too long, say
        return True


def _comes_with_localspec(model: str) -> bool:
    """Whether a reference is that of a bundled model, or of the one in a package."""
    try:
        target = model_lookup.resolve(model).target.find_path()
    except LocalspecError:
        return False
    if target is None:
        return False
    is_bundled = target.is_relative_to(paths.PACKAGE)
    return is_bundled or inventory.find_packaged(target) is not None


class _LastRun(Struct, frozen=True):
    model: str
    draft: str


def load_last() -> tuple[str, str] | None:
    """Load the arguments of the last run.

    None if there was none, or if a file no longer exists.
    """
    last = data_files.read_json(DataFile.LAST_RUN, _LastRun)
    if last is None:
        return None
    first_draft, _ = split_drafts(last.draft)
    for ref in (last.model, first_draft):
        if os.path.isabs(ref) and not os.path.isfile(ref):
            return None
    return last.model, last.draft
