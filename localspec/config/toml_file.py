"""The file as it stands on the disk: its text, its tables, and where in it something is wrong."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from localspec import paths
from localspec.config.schema import SETTINGS, FolderType, SettingDefinition
from localspec.errors import NotFoundError, StorageError, UsageError
from localspec.sanitize import sanitize

_MAX_BYTES = 1_000_000
_POSITION = re.compile(r"(.*) \(at line (\d+), column (\d+)\)", re.DOTALL)
_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[\w-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[\w-]+))*)\s*=""")
_PART = re.compile(r""""([^"]*)"|'([^']*)'|([\w-]+)""")


@dataclass(frozen=True, slots=True)
class ConfigDiagnostic:
    """What is wrong, and where, as far as that is known."""

    message: str
    line: int = 0
    column: int = 0

    def format(self, path: Path) -> str:
        """`config.toml:3:9: what`, as editors and compilers write it."""
        place = "".join(f":{number}" for number in (self.line, self.column) if number)
        return sanitize(f"{path}{place}: {self.message}", multiline=False)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """`damage` is set where the file cannot be read: then nothing may be written, either."""

    path: Path
    text: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    exists: bool = False
    error: ConfigDiagnostic | None = None

    def find_line(self, key: str) -> int:
        """Where a key is set; 0 where nobody can say."""
        return next((number for number, found in _iterate_keys(self.text) if found == key), 0)


def read(path: Path) -> ConfigFile:
    """Never raises: what is wrong with the file is part of the answer."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return ConfigFile(path, exists=True, error=ConfigDiagnostic("it is too large"))
        # Notepad begins a file with a mark that TOML does not know.
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ConfigFile(path)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        return ConfigFile(path, exists=True, error=ConfigDiagnostic("it is no UTF-8 text", line))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return ConfigFile(path, exists=True, error=ConfigDiagnostic(f"it cannot be read: {why}"))
    try:
        return ConfigFile(path, text, tomllib.loads(text), exists=True)
    except (ValueError, RecursionError) as error:
        return ConfigFile(path, text, exists=True, error=_toml_error(str(error), text))


def _toml_error(message: str, text: str) -> ConfigDiagnostic:
    """tomllib's words, with line and column out of them."""
    found = _POSITION.fullmatch(message)
    if found is not None:
        return ConfigDiagnostic(found[1][:1].lower() + found[1][1:], int(found[2]), int(found[3]))
    what = message.replace(" (at end of document)", "")
    lines = text.splitlines() or [""]
    return ConfigDiagnostic(f"{what[:1].lower()}{what[1:]}", len(lines), len(lines[-1]) + 1)


def iterate_values(document: Mapping[str, Any], table: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted key."""
    for name, value in document.items():
        key = f"{table}.{name}" if table else name
        if isinstance(value, Mapping) and value:
            yield from iterate_values(value, key)
        else:
            yield key, value


def _iterate_keys(text: str) -> Iterator[tuple[int, str]]:
    """Lines that set something, with the key; of texts over several lines it may see too many."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.fullmatch(line)) is not None:
            table = f"{_normalize_key(header[1])}."
            yield number, _normalize_key(header[1])
        elif (found := _KEY.match(line)) is not None:
            yield number, table + _normalize_key(found[1])


def _normalize_key(key: str) -> str:
    """Without quotes, and without spaces around the dots."""
    return ".".join("".join(part) for part in _PART.findall(key))


# --- Changes one value in config.toml; comments, order and everything unknown stay as they are.

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

_PRIVATE = 0o600
_Table = MutableMapping[str, Any]


def parse_value(definition: SettingDefinition, text: str) -> object:
    """What a person wrote, as the file has it.  Raises UsageError, which says what is possible."""
    try:
        new = definition.value_type.parse(text)
    except ValueError:
        shown = sanitize(text, multiline=False)[:60]
        what = f"{definition.key} cannot be {shown!r}."
        raise UsageError(what, f"It must be {definition.value_type.expects}.") from None
    if isinstance(definition.value_type, FolderType) and not os.path.isdir(str(new)):
        raise UsageError(
            f"There is no folder {sanitize(str(new), multiline=False)}.", "Make it first."
        )
    return new


def set_value(key: str, value: object) -> None:
    """Set `table.name`; None takes it out of the file, so that it is as it comes.

    Raises UsageError where the file cannot be read, which is then left alone, and AccessError.
    """
    import tomlkit  # noqa: PLC0415  30 ms, only where something is written
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    contents = read(paths.config_file())
    if contents.error is not None:
        what = contents.error.format(contents.path)
        raise UsageError(f"{what}. Nothing was changed.", "Mend it: localspec config edit")
    if value is None and not _has_key(contents.document, key):
        return
    try:
        document = tomlkit.parse(contents.text)
        _set_in_document(document, key, value)
        text = _match_newlines(contents.text, tomlkit.dumps(document))
        sound = _is_applied(tomllib.loads(text), key, value)
    except (TOMLKitError, ValueError, TypeError, AttributeError) as error:
        raise _cannot_change_error(contents.path, key) from error
    if not sound:
        raise _cannot_change_error(contents.path, key)
    write_atomically(contents.path, text)


def _cannot_change_error(path: Path, key: str) -> UsageError:
    return UsageError(
        f"{key} cannot be changed in {path}.", "Write it there: localspec config edit"
    )


def _set_in_document(document: TOMLDocument, key: str, value: object) -> None:
    import tomlkit  # noqa: PLC0415  as above

    table_name, _, name = key.partition(".")
    if table_name not in document:
        if document.as_string().strip():
            document.add(tomlkit.nl())
        document.add(table_name, tomlkit.table())
    table = cast(_Table, document[table_name])
    table, name = _find_table(table, name)
    if value is None:
        del table[name]
    elif name in table:
        table[name] = value
    else:
        _append_to_table(table, name, value)


def _append_to_table(table: _Table, name: str, value: object) -> None:
    """At the end of the table's own lines: what stands below an empty line is the next one's."""
    from tomlkit.items import Table, Whitespace  # noqa: PLC0415  as above

    body = table.value.body if isinstance(table, Table) else []
    last = next((n for n in reversed(range(len(body))) if body[n][0] is not None), -1)
    after = range(last + 1, len(body))
    first = next((n for n in after if isinstance(body[n][1], Whitespace)), len(body))
    below = body[first:]
    del body[first:]
    table[name] = value
    body.extend(below)


def _match_newlines(old: str, new: str) -> str:
    """With the line ends of Windows where there were such."""
    return new.replace("\r\n", "\n").replace("\n", "\r\n") if "\r\n" in old else new


def _find_table(table: _Table, name: str) -> tuple[_Table, str]:
    """Where it stands: `"chat.send" = …`, or without quotes as a table in the table."""
    first, _, rest = name.partition(".")
    inner = table.get(first) if rest and name not in table else None
    return _find_table(inner, rest) if isinstance(inner, MutableMapping) else (table, name)


def _has_key(document: Mapping[str, Any], key: str) -> bool:
    return key in dict(iterate_values(document))


def _is_applied(document: Mapping[str, Any], key: str, value: object) -> bool:
    """Whether the new text says what was meant, before it takes the old one's place."""
    found = dict(iterate_values(document))
    return key not in found if value is None else found.get(key) == value


def write_atomically(path: Path, text: str) -> None:
    """As a whole or not at all; through a link, with the old one's rights.  Raises AccessError."""
    path = Path(os.path.realpath(path))
    name = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else _PRIVATE
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".config-")
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as new:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except OSError as error:
        if name and os.path.exists(name):
            os.unlink(name)
        what = f"{path} cannot be written: {error.strerror}."
        raise StorageError(what, "Make room, or make the folder writable.") from error


def render_template() -> str:
    """A file to begin with, in which everything stands as a comment."""
    lines = ["# What you want otherwise than it comes. Take a # away to change a value."]
    table = ""
    for value in SETTINGS.values():
        if value.table != table:
            table = value.table
            lines += ["", f"[{table}]"]
        usual = "" if value.default is None else value.value_type.format(value.default)
        quoted = f'"{usual}"' if isinstance(value.default, str) else usual
        lines += [f"# {value.help}", f"# {value.name} = {quoted or '…'}"]
    return "\n".join([*lines, "", "[keys]", '# "chat.send" = "ctrl+s"', ""])


# --- A person's own editor on config.toml.

_DEFAULT_EDITORS = ("nano", "vi", "notepad")


def open_in_editor() -> Path:
    """Wait until the editor is left; a file that is not there begins with all values as comments.

    Raises NotFoundError where no editor is found, AccessError where nothing can be written.
    """
    path = paths.config_file()
    words = _editor_command()
    if not path.exists():
        write_atomically(path, render_template())
    try:
        subprocess.run([*words, str(path)], check=False)
    except OSError as error:
        what = f"{words[0]} cannot be started: {error.strerror}."
        raise NotFoundError(what, f"Set VISUAL or EDITOR, or open {path} yourself.") from error
    return path


def _editor_command() -> list[str]:
    """$VISUAL, $EDITOR, or what is usually there."""
    for variable in ("VISUAL", "EDITOR"):
        if words := shlex.split(os.environ.get(variable, ""), posix=os.name != "nt"):
            return words
    found = next(filter(None, map(shutil.which, _DEFAULT_EDITORS)), None)
    if found is None:
        raise NotFoundError("There is no editor.", "Set VISUAL or EDITOR to one.")
    return [found]
