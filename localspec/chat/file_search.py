"""The files below a folder, without those that git ignores, and the search among them.

Files whose names begin with a dot are left out. Walking is bounded, because the folder
may be a whole disk; what was found so far can be searched meanwhile.
"""

from __future__ import annotations

import fnmatch
import functools
import heapq
import os
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

MAX_FILES = 50_000
MAX_ENTRIES = 300_000  # Files and folders that are looked at.
MAX_SECONDS = 10.0
_PAUSE_SECONDS = 0.25  # Between two reports of a walk.
_MAX_IGNORE_BYTES = 256 * 1024  # Of one .gitignore.
_MAX_RULES = 5_000  # Of all that apply to a folder.
_ESCAPED = re.compile(r"\\(.)")
_UNCLOSED_CLASS = re.compile(r"(?<!\\)\[(?!.[^\]]*\])")


class FileIndex:
    """The paths below a folder, the nearest first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files: list[tuple[str, str]] = []
        """Paths from the folder, with `/`, as they are and in lower case. It only grows."""
        self.is_cut = False  # Whether a limit has ended the walk.

    def walk(self) -> Iterator[None]:
        """Find the files; the caller gets a turn every quarter of a second."""
        started = time.monotonic()
        reported = started
        n_entries = 0
        queue = deque([("", _rules_above(self._folder))])
        while queue:
            prefix, rules = queue.popleft()
            entries = _list_folder(self._folder / prefix)
            n_entries += len(entries)
            if any(entry.name == ".gitignore" for entry in entries):
                rules = _add_rules(self._folder / prefix / ".gitignore", prefix, rules)
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                path = f"{prefix}{entry.name}"
                is_folder = _is_folder(entry)
                if is_ignored(path, rules, is_folder=is_folder):
                    continue
                if is_folder:
                    queue.append((f"{path}/", rules))
                elif _is_file(entry):
                    self.files.append((path, path.lower()))
            now = time.monotonic()
            is_full = len(self.files) >= MAX_FILES or n_entries >= MAX_ENTRIES
            if is_full or now - started > MAX_SECONDS:
                self.is_cut = bool(queue)
                return
            if now - reported > _PAUSE_SECONDS:
                reported = now
                yield


def _list_folder(folder: Path) -> list[os.DirEntry[str]]:
    """Its entries in the order of their names; none if it cannot be read."""
    with suppress(OSError), os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)
    return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Not a link to one: it may lead around in a circle."""
    with suppress(OSError):
        return entry.is_dir(follow_symlinks=False)
    return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_file()
    return False


# --- .gitignore
# --------------------------------------------------------------------------------


class IgnoreRule(Struct, frozen=True):
    """A line of a .gitignore."""

    base: tuple[str, ...]
    """The folder of the .gitignore, from the searched folder; `..` for those above."""
    segments: tuple[str, ...]
    """The pattern between its slashes; `**` stands for any number of folders."""
    is_negated: bool = False  # Whether what it matches is not ignored.
    only_folders: bool = False


def parse_rules(text: str, base: tuple[str, ...] = ()) -> list[IgnoreRule]:
    """The rules of a .gitignore, as `man gitignore` describes them."""
    rules = []
    for written in text.splitlines():
        line = re.sub(r"(?<!\\) +$", "", written)
        if not line or line.startswith("#"):
            continue
        is_negated = line.startswith("!")
        if is_negated:
            line = line[1:]
        only_folders = line.endswith("/")
        segments = [each for each in line.rstrip("/").split("/") if each]
        if not segments:
            continue
        if "/" not in line.rstrip("/"):
            segments.insert(0, "**")
        rules.append(IgnoreRule(base, tuple(segments), is_negated, only_folders))
    return rules


def is_ignored(path: str, rules: Sequence[IgnoreRule], *, is_folder: bool) -> bool:
    """Whether the last rule that matches the path ignores it.

    The folders above the path are taken not to be ignored.
    """
    names = path.split("/")
    for rule in reversed(rules):
        if rule.only_folders and not is_folder:
            continue
        inside = _names_inside(rule.base, names)
        if inside is not None and _matches(rule.segments, inside):
            return not rule.is_negated
    return False


def _names_inside(base: tuple[str, ...], names: list[str]) -> list[str] | None:
    """The path from the folder `base`; None if it is not in there.

    A base of folders above the searched one ends with `.`: then `("a", "b", ".")` are
    the names from there to the searched folder.
    """
    if base and base[-1] == ".":
        return [*base[:-1], *names]
    n = len(base)
    if tuple(names[:n]) != base or len(names) == n:
        return None
    return names[n:]


def _matches(segments: tuple[str, ...], names: list[str]) -> bool:
    """Whether a pattern matches a path.

    `places` are the numbers of names that its beginning can match: for `**/b/*` and
    the path `a/b/c` these are 0 to 3, then 2, then 3, which is the whole path.
    """
    if len(segments) == 2 and segments[0] == "**":  # Most are the name of a file.
        return _compile(segments[1]).match(names[-1]) is not None
    places = [0]
    for i, segment in enumerate(segments):
        if not places:
            return False
        if segment == "**":
            first = places[0]
            if i == len(segments) - 1:
                first += 1  # At the end it stands for one name or more.
            places = list(range(first, len(names) + 1))
            continue
        pattern = _compile(segment)
        reached = []
        for place in places:
            if place < len(names) and pattern.match(names[place]):
                reached.append(place + 1)
        places = reached
    return len(names) in places


@functools.lru_cache(maxsize=4096)
def _compile(segment: str) -> re.Pattern[str]:
    r"""A pattern of a name; `\*` is an asterisk.

    What `fnmatch` makes of many asterisks is matched in linear time.
    """
    if _UNCLOSED_CLASS.search(segment):
        return re.compile(r"(?!)")  # Git lets it match nothing.
    return re.compile(fnmatch.translate(_ESCAPED.sub(_quote, segment)))


def _quote(escaped: re.Match[str]) -> str:
    letter = escaped[1]
    return f"[{letter}]" if letter in "*?[" else letter


def _add_rules(
    file: Path, prefix: str, rules: tuple[IgnoreRule, ...]
) -> tuple[IgnoreRule, ...]:
    base = tuple(name for name in prefix.split("/") if name)
    return (*rules, *_read_rules(file, base))[-_MAX_RULES:]


def _read_rules(file: Path, base: tuple[str, ...]) -> list[IgnoreRule]:
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_IGNORE_BYTES)
    except OSError:
        return []
    return parse_rules(data.decode("utf-8", "surrogateescape"), base)


def _rules_above(folder: Path) -> tuple[IgnoreRule, ...]:
    """Those of the repository that the folder is in."""
    inside: list[str] = []
    found: list[list[IgnoreRule]] = []
    for above in (folder, *folder.parents):
        base = (*inside, ".")
        if above != folder:
            found.append(_read_rules(above / ".gitignore", base))
        if (above / ".git").exists():
            found.append(_read_rules(above / ".git" / "info" / "exclude", base))
            rules: list[IgnoreRule] = []
            for each in reversed(found):
                rules += each
            return tuple(rules)
        inside.insert(0, above.name)
    return ()


# --- searching
# --------------------------------------------------------------------------------


def find_files(
    files: Sequence[tuple[str, str]], query: str, limit: int = 100
) -> list[str]:
    """The paths that have the query's letters in this order, the best first.

    With `comp` the order is `comp`, `composer.py`, `my_composer.py`, `comp/a.py`,
    `cool_maps.py` and `c/o/m/p.py`; of those that are equal in this, the shorter path. Without
    letters it is that of names, folder by folder.
    """
    lowered = query.lower()
    ranked: list[tuple[int, int, str]] = []
    for path, low in files:
        rank = _rank(low, lowered)
        if rank is not None:
            ranked.append((rank, len(path) if query else 0, path))
    return [path for _, _, path in heapq.nsmallest(limit, ranked)]


def _rank(path: str, query: str) -> int | None:
    """0 for the best; None if the path does not match. Both are in lower case."""
    if not query:
        return path.count("/")
    if not _has_in_order(path, query):
        return None
    name = path[path.rfind("/") + 1 :]
    if name == query:
        return 0
    if name.startswith(query):
        return 1
    if query in name:
        return 2
    if query in path:
        return 3
    return 4 if _has_in_order(name, query) else 5


def _has_in_order(text: str, letters: str) -> bool:
    place = 0
    for letter in letters:
        place = text.find(letter, place) + 1
        if not place:
            return False
    return True
