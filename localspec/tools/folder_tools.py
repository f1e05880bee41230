"""Three tools that read one folder: list, read a part of a file, search.

They change nothing, and nothing outside the folder can be reached. A path is walked
component by component, each opened relative to the folder above that is already open,
and never through a link: `_FolderWalk` reads the link itself, and follows it only while
it stays inside. So it does not matter what another program renames meanwhile, which it
would if a path was first checked and then opened.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

from msgspec import Meta, Struct
from msgspec.structs import replace

from localspec.errors import NotFoundError
from localspec.protocol.json_values import JsonError, from_json
from localspec.sanitize import sanitize
from localspec.text_decoding import decode_text
from localspec.tools.tool_types import (
    StopSignal,
    ToolDefinition,
    ToolResult,
    make_error,
    make_result,
)
from localspec.units import count, size_limit

PROVIDER = "folder"
READ_NAME = f"{PROVIDER}.read"
_MAX_ENTRIES = 500
_MAX_FILE_BYTES = 16 << 20
_MAX_SEARCHED_BYTES = 2 << 20
_MAX_LINE = 2_000
"""Characters of a line that are shown; a line of minified code may have a million."""
_DEFAULT_LINES = 400
_MAX_READ_CHARACTERS = 60_000
_MAX_FOUND = 100
_MAX_FOUND_LINE = 200
_MAX_SEARCHED_FILES = 20_000
_MAX_DEPTH = 40
_MAX_LINKS = 20
_SEARCH_SECONDS = 20.0

_OPENS_RELATIVELY = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Windows lacks it; there the path is compared again after it was opened."""


class _ListArguments(Struct, frozen=True):
    path: str = "."


class _ReadArguments(Struct, frozen=True):
    path: str
    line: Annotated[int, Meta(ge=1, le=2**31)] = 1
    lines: Annotated[int, Meta(ge=1, le=10_000)] = _DEFAULT_LINES


class _SearchArguments(Struct, frozen=True):
    text: Annotated[str, Meta(min_length=1, max_length=1000)]
    path: str = "."
    files: Annotated[str, Meta(max_length=100)] = "*"


_PATH = {"type": "string", "description": "A path inside the folder, such as src/a.py."}
_DEFINITIONS = (
    ToolDefinition(
        provider=PROVIDER,
        name="list",
        description="List the files and folders in a folder.",
        schema={
            "type": "object",
            "properties": {"path": {**_PATH, "default": "."}},
            "additionalProperties": False,
        },
        claims=("read-only",),
    ),
    ToolDefinition(
        provider=PROVIDER,
        name="read",
        description=(
            f"Read lines of a text file, {_DEFAULT_LINES} unless told otherwise. "
            "The last line of the result says from which line to read on."
        ),
        schema={
            "type": "object",
            "properties": {
                "path": _PATH,
                "line": {"type": "integer", "minimum": 1, "default": 1},
                "lines": {"type": "integer", "minimum": 1, "default": _DEFAULT_LINES},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
        claims=("read-only",),
    ),
    ToolDefinition(
        provider=PROVIDER,
        name="search",
        description=(
            "Find the lines of text files that contain a text, in any case. "
            "`files` chooses file names, such as *.py. Hidden files are left out."
        ),
        schema={
            "type": "object",
            "properties": {
                "text": {"type": "string", "minLength": 1},
                "path": {**_PATH, "default": "."},
                "files": {"type": "string", "default": "*"},
            },
            "required": ["text"],
            "additionalProperties": False,
        },
        claims=("read-only",),
    ),
)


class FolderTools:
    """A `ToolProvider` of the files below one folder."""

    def __init__(self, folder: Path) -> None:
        """Raises NotFoundError if there is no such folder."""
        self.folder = Path(os.path.realpath(folder))
        if not self.folder.is_dir():
            shown = sanitize(str(folder), multiline=False)
            raise NotFoundError(f"There is no folder {shown}.", "Check its path.")
        # Who allows to read one folder does not allow another.
        origin = str(self.folder)
        self._definitions = tuple(replace(each, origin=origin) for each in _DEFINITIONS)

    @property
    def name(self) -> str:
        return PROVIDER

    def definitions(self) -> Sequence[ToolDefinition]:
        return self._definitions

    def call(
        self, tool: str, arguments: Mapping[str, Any], stop: StopSignal
    ) -> ToolResult:
        try:
            match tool:
                case "list":
                    listed = from_json(_ListArguments, dict(arguments))
                    return self._list(listed.path)
                case "read":
                    return self._read(from_json(_ReadArguments, dict(arguments)))
                case "search":
                    wanted = from_json(_SearchArguments, dict(arguments))
                    return self._search(wanted, stop)
            return make_error(f"There is no tool {tool!r}.")
        except JsonError as error:
            return make_error(f"The arguments are wrong: {error}.")
        except OSError as error:
            return make_error(f"It cannot be read: {error.strerror or error}.")
        except ValueError as error:  # a NUL in a path, or a file that is no text
            return make_error(f"It cannot be read: {error}.")

    def close(self) -> None:
        """Nothing stays open between two calls."""

    def _list(self, path: str) -> ToolResult:
        with _FolderWalk(self.folder) as walk:
            walk.enter(path)
            lines = [entry.describe() for entry in walk.entries(_MAX_ENTRIES + 1)]
        if not lines:
            return make_result("The folder is empty.")
        if len(lines) > _MAX_ENTRIES:
            lines[_MAX_ENTRIES:] = [f"[There are more than {_MAX_ENTRIES} entries.]"]
        return make_result("\n".join(lines))

    def _read(self, wanted: _ReadArguments) -> ToolResult:
        with _FolderWalk(self.folder) as walk:
            data = walk.read_file(wanted.path, _MAX_FILE_BYTES)
        all_lines = decode_text(data).text.splitlines()
        if wanted.line > len(all_lines):
            return make_error(f"The file has {count(len(all_lines), 'line')}.")
        shown: list[str] = []
        n_characters = 0
        for line in all_lines[wanted.line - 1 :][: wanted.lines]:
            text = _shorten(line, _MAX_LINE)
            n_characters += len(text) + 1
            if n_characters > _MAX_READ_CHARACTERS:
                break
            shown.append(text)
        next_line = wanted.line + len(shown)
        if next_line <= len(all_lines):
            shown.append(
                f"[Lines {wanted.line} to {next_line - 1} of {len(all_lines)}. "
                f"Read on with line={next_line}.]"
            )
        return make_result("\n".join(shown))

    def _search(self, wanted: _SearchArguments, stop: StopSignal) -> ToolResult:
        search = _FolderSearch(wanted, stop)
        with _FolderWalk(self.folder) as walk:
            walk.enter(wanted.path)
            search.search(walk, "", depth=0)
        lines = search.found
        if search.ended_by:
            lines = [*lines, f"[The search ended early: {search.ended_by}.]"]
        elif not lines:
            return make_result(f"No line of {count(search.n_files, 'file')} has it.")
        return make_result("\n".join(lines))


def cut_read_text(kept: str, arguments: str) -> tuple[str, str]:
    """The beginning of what `read` returned, to a line's end, and how to read on.

    `arguments` is the JSON of the call. Of lines 11 to 14 with a beginning of line 15,
    the four lines and "[Read on with line=15, and fewer lines.]" are returned. Without a
    whole line the second text is empty.
    """
    lines = kept.split("\n")[:-1]
    try:
        wanted = from_json(_ReadArguments, json.loads(arguments))
    except ValueError:
        return kept, ""
    if not lines:
        return kept, ""
    note = f"[Read on with line={wanted.line + len(lines)}, and fewer lines.]"
    return "\n".join(lines), note


def _shorten(line: str, limit: int) -> str:
    if len(line) <= limit:
        return line
    return f"{line[:limit]}… [{len(line) - limit:,} more characters]"


class _FolderSearch:
    """Searches files below a folder until one of its limits is reached."""

    def __init__(self, wanted: _SearchArguments, stop: StopSignal) -> None:
        self._text = wanted.text.casefold()
        self._files = wanted.files.casefold()
        self._stop = stop
        self._deadline = time.monotonic() + _SEARCH_SECONDS
        self.found: list[str] = []
        self.n_files = 0
        self.ended_by = ""

    def search(self, walk: _FolderWalk, prefix: str, depth: int) -> None:
        """Search the walk's current folder, whose path is `prefix`, and those below."""
        for entry in walk.entries(_MAX_SEARCHED_FILES):
            if self._has_ended():
                return
            if entry.name.startswith("."):
                continue
            if entry.is_folder and depth < _MAX_DEPTH:
                # It may be gone meanwhile, or be another's.
                with suppress(OSError), walk.inside(entry.name):
                    self.search(walk, f"{prefix}{entry.name}/", depth + 1)
            elif entry.is_file and self._is_chosen(entry):
                with suppress(OSError, ValueError):
                    data = walk.read_child(entry.name, _MAX_SEARCHED_BYTES)
                    self._search_text(f"{prefix}{entry.name}", decode_text(data).text)
                self.n_files += 1

    def _is_chosen(self, entry: _FolderEntry) -> bool:
        if entry.size > _MAX_SEARCHED_BYTES:
            return False
        return fnmatch.fnmatchcase(entry.name.casefold(), self._files)

    def _search_text(self, path: str, text: str) -> None:
        if self._text not in text.casefold():
            return
        for number, line in enumerate(text.splitlines(), 1):
            if self._text in line.casefold():
                shown = _shorten(line.strip(), _MAX_FOUND_LINE)
                self.found.append(f"{path}:{number}: {shown}")
                if len(self.found) >= _MAX_FOUND:
                    return

    def _has_ended(self) -> bool:
        if len(self.found) >= _MAX_FOUND:
            self.ended_by = f"it found {_MAX_FOUND} lines"
        elif self.n_files >= _MAX_SEARCHED_FILES:
            self.ended_by = f"it read {_MAX_SEARCHED_FILES:,} files"
        elif time.monotonic() > self._deadline:
            self.ended_by = f"it took {_SEARCH_SECONDS:.0f} seconds"
        elif self._stop.is_set():
            self.ended_by = "it was stopped"
        return bool(self.ended_by)


class _FolderEntry(Struct, frozen=True):
    name: str
    mode: int
    size: int

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    def describe(self) -> str:
        """One line: a name may hold line breaks and control characters."""
        name = sanitize(self.name, multiline=False)
        if self.is_folder:
            return f"{name}/"
        if self.is_file:
            return f"{name}  {count(self.size, 'byte')}"
        if stat.S_ISLNK(self.mode):
            return f"{name}  (link)"
        return f"{name}  (no file)"


class _FolderWalk:
    """Open folders, from the root of the tools to the current one.

    Where the system opens relatively to a folder, `_folders` holds descriptors. The root
    is never left: `..` in it is refused. Elsewhere `_folders` holds real paths.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._folders: list[int | str] = []

    def __enter__(self) -> _FolderWalk:
        if _OPENS_RELATIVELY:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            self._folders.append(os.open(self._root, flags))
        else:
            self._folders.append(self._root)
        return self

    def __exit__(self, *_: object) -> None:
        while self._folders:
            self._close_last()

    def _close_last(self) -> None:
        last = self._folders.pop()
        if isinstance(last, int):
            os.close(last)

    def leave(self) -> None:
        """Back to the folder above. Raises PermissionError in the root."""
        if len(self._folders) == 1:
            _refuse()
        self._close_last()

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Go into a child that is a folder and no link. Raises OSError."""
        self.enter_child(name)
        try:
            yield
        finally:
            self._close_last()

    def enter(self, path: str) -> None:
        """Go to a folder, by a path from the current one. Raises OSError."""
        self._walk(_split(path))

    def read_file(self, path: str, limit: int) -> bytes:
        """Raises OSError, also if it is no regular file, or ValueError if too large."""
        parts = _split(path)
        if not parts:
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        name = self._walk(parts, has_file=True)
        return self.read_child(name, limit)

    def _walk(self, parts: Sequence[str], *, has_file: bool = False) -> str:
        """Enter the parts. With `has_file`, return the last one, which is no link."""
        # The parts that are still to be walked, the next one last.
        waiting = list(reversed(parts))
        n_links = 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                self.leave()
                continue
            target = self._read_link(part)
            if target is None:
                if has_file and not waiting:
                    return part
                self.enter_child(part)
                continue
            n_links += 1
            if n_links > _MAX_LINKS:
                raise OSError(errno.ELOOP, "it has too many links")
            if os.path.isabs(target):
                target = self._make_relative(target)
                while len(self._folders) > 1:
                    self._close_last()
            waiting += reversed(_split(target))
        if has_file:  # the last part was a link to a folder
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        return ""

    def _make_relative(self, target: str) -> str:
        """An absolute link's target as a path from the root, if it is inside."""
        normal = os.path.normpath(target)
        if normal != self._root and not Path(normal).is_relative_to(self._root):
            _refuse()
        return os.path.relpath(normal, self._root)

    def _read_link(self, name: str) -> str | None:
        """The target of a link; None for everything else."""
        folder = self._folders[-1]
        try:
            if isinstance(folder, int):
                return os.readlink(name, dir_fd=folder)
            return os.readlink(os.path.join(folder, name))
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            if getattr(error, "winerror", 0) == 4390:  # no reparse point
                return None
            raise

    def enter_child(self, name: str) -> None:
        """Enter a folder of the current one, which is no link. Raises OSError."""
        folder = self._folders[-1]
        if isinstance(folder, int):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            self._folders.append(os.open(name, flags, dir_fd=folder))
            return
        path = self._require_inside(os.path.join(folder, name))
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, "it is no folder")
        self._folders.append(path)

    def read_child(self, name: str, limit: int) -> bytes:
        """Read a file of the current folder, which is no link. Raises as `read_file`."""
        folder = self._folders[-1]
        if isinstance(folder, int):
            # A pipe that no program has open would be waited for.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            handle = os.open(name, flags, dir_fd=folder)
        else:
            path = os.path.join(folder, name)
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, "it is a folder")
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            if isinstance(folder, str):
                self._require_same(os.path.join(folder, name), file.fileno())
            data = file.read(limit + 1)
        if len(data) > limit:
            raise ValueError(f"it has more than {size_limit(limit)}")
        return data

    def entries(self, limit: int) -> Iterator[_FolderEntry]:
        """The entries of the current folder by name, at most `limit`."""
        folder = self._folders[-1]
        found: list[_FolderEntry] = []
        with os.scandir(folder) as listing:
            for each in listing:
                with suppress(OSError):  # it is gone meanwhile
                    facts = each.stat(follow_symlinks=False)
                    entry = _FolderEntry(each.name, facts.st_mode, facts.st_size)
                    found.append(entry)
                if len(found) >= limit:
                    break
        found.sort(key=lambda entry: entry.name)
        yield from found

    def _require_inside(self, path: str) -> str:
        real = os.path.realpath(path)
        if real != self._root and not Path(real).is_relative_to(self._root):
            _refuse()
        return real

    def _require_same(self, path: str, file: int) -> None:
        """Refuse an open file that is not the one at this path inside the folder."""
        real = self._require_inside(path)
        if not os.path.samestat(os.stat(real), os.fstat(file)):
            _refuse()


def _split(path: str) -> list[str]:
    """The components of a path; an absolute one is refused, unless it is `/`.

    A model may write `/` for the folder itself. `a//b/./c` is a, b, c.
    """
    if "\0" in path:
        raise ValueError("a path cannot have a NUL")
    normal = path.replace("\\", "/") if os.name == "nt" else path
    if os.path.splitdrive(normal)[0]:
        _refuse()
    parts = [part for part in normal.split("/") if part not in ("", ".")]
    if normal.startswith("/") and parts:
        _refuse()
    return parts


def _refuse() -> NoReturn:
    raise PermissionError(errno.EACCES, "it is outside the folder")
