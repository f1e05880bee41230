"""The shortest names that tell files apart which are shown together.

A file is identified by its path, or by its repository and its path there; its name is
only what is shown. Two publishers' files often have one name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TypeVar

from localspec.sanitize import sanitize

_CACHE_PREFIX = "models--"
"""Begins the name of a repository's folder in the hub's cache."""

_PathT = TypeVar("_PathT", bound=PurePath)


def without_suffix(path: PurePath) -> Sequence[str]:
    return (path.name.removesuffix(".gguf"),)


def file_name(path: PurePath) -> Sequence[str]:
    return (path.name,)


def shorten(
    paths: Iterable[_PathT],
    titles_of: Callable[[PurePath], Sequence[str]] = without_suffix,
) -> dict[_PathT, str]:
    """The shown name of each path; no two are equal.

    It is the first of the titles that `titles_of` makes which no other path has. Without
    one, the nearest folder that differs is put before the first
    title; where one folder is not enough, as many as it takes, and in the end the whole
    path:

        bartowski/Twin-GGUF/Twin-Q8_0.gguf   bartowski/Twin-Q8_0
        unsloth/Twin-GGUF/Twin-Q8_0.gguf     unsloth/Twin-Q8_0
        /models/other.gguf                   other
    """
    distinct = dict.fromkeys(paths)
    pending = {}
    for number, path in enumerate(distinct, start=1):
        titles = [sanitize(title, multiline=False) for title in titles_of(path)]
        pending[path] = _candidates(path, titles, number)
    shown: dict[_PathT, str] = {}
    while pending:
        candidates = {path: next(names) for path, names in pending.items()}
        counts = Counter([*candidates.values(), *shown.values()])
        for path, name in candidates.items():
            if counts[name] == 1:
                shown[path] = name
                del pending[path]
    return shown


def _candidates(path: PurePath, titles: Sequence[str], number: int) -> Iterator[str]:
    """Ever longer names of a path, without end.

    `number` tells paths apart that differ only in what `sanitize` removes.
    """
    yield from titles
    title = titles[0]
    folders = [sanitize(name, multiline=False) for name in list_folders(path)]
    for folder in reversed(folders):
        yield f"{folder}/{title}"
    for n_folders in range(2, len(folders) + 1):
        yield "/".join([*folders[-n_folders:], title])

    whole = sanitize(str(path), multiline=False)
    while True:
        yield whole
        whole += f" ({number})"


def list_folders(path: PurePath) -> list[str]:
    """The names of the folders, outermost first.

    A folder of the hub's cache, `models--OWNER--REPO/snapshots/COMMIT`, stands for the
    repository OWNER/REPO.
    """
    folders = list(path.parent.parts)
    if path.anchor:
        folders = folders[1:]
    for index, name in enumerate(folders):
        is_snapshot = folders[index + 1 : index + 2] == ["snapshots"]
        if is_snapshot and name.startswith(_CACHE_PREFIX):
            repo = name.removeprefix(_CACHE_PREFIX).split("--")
            return [*repo, *folders[index + 3 :]]
    return folders
