"""Reading, changing and editing config.toml."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field

from localspec import data_files, paths
from localspec.config.option_types import FOLDER, Option
from localspec.config.options import SETTINGS
from localspec.errors import NotFoundError, StorageError, UsageError
from localspec.sanitize import sanitize

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

_MAX_BYTES = 1_000_000
_POSITION = re.compile(r"(.*) \(at line (\d+), column (\d+)\)", re.DOTALL)
"""The message of tomllib, and where the error is."""
_KEY_LINE = re.compile(r"""\s*(\[)?\s*((?:"[^"]*"|'[^']*'|[\w.\s-]+)+?)\s*(?(1)\]|=)""")
_Table = MutableMapping[str, Any]


class ConfigFile(Struct, frozen=True):
    path: Path
    text: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    """Set, with its position, if the file cannot be read.

    Then it must not be written either.
    """

    def locate(self, message: str, key: str) -> str:
        """An error message with the position of a key."""
        return _format_error(self.path, message, self._find_line(key))

    def _find_line(self, key: str) -> int:
        """The line that sets a key, from 1; 0 if not found."""
        table_prefix = ""
        for number, line in enumerate(self.text.splitlines(), 1):
            match = _KEY_LINE.match(line)
            if match is None:
                continue
            is_heading = match[1] is not None
            name = re.sub(r"""["'\s]""", "", match[2])
            found = name if is_heading else table_prefix + name
            if found == key:
                return number
            if is_heading:
                table_prefix = f"{name}."
        return 0


def _format_error(path: Path, message: str, *position: int) -> str:
    """Format as compilers do: `config.toml:3:9: message`.

    `position` is line and column; 0 is unknown.
    """
    where = "".join(f":{number}" for number in position if number)
    return sanitize(f"{path}{where}: {message}", multiline=False)


def read(path: Path) -> ConfigFile:
    """Read the file. Does not raise: an error is part of the result."""

    def damaged(message: str, *position: int, text: str = "") -> ConfigFile:
        return ConfigFile(path, text, error=_format_error(path, message, *position))

    try:
        with path.open("rb") as file:
            body = file.read(_MAX_BYTES + 1)
        if len(body) > _MAX_BYTES:
            return damaged("the file is too large")
        # utf-8-sig: Notepad writes a byte order mark, which tomllib rejects.
        text = body.decode("utf-8-sig")
    except FileNotFoundError:
        return ConfigFile(path)
    except UnicodeDecodeError as error:
        return damaged(
            "the file is not UTF-8 text", error.object[: error.start].count(b"\n") + 1
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return damaged(f"the file cannot be read: {reason}")
    try:
        return ConfigFile(path, text, tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        message, line, column = _locate_syntax_error(error, text)
        return damaged(message, line, column, text=text)


def _locate_syntax_error(error: Exception, text: str) -> tuple[str, int, int]:
    """The message of tomllib, without a capital, and its line and column.

    tomllib ends a message in `(at line 3, column 9)` or `(at end of document)`.
    """
    message = str(error).replace(" (at end of document)", "")
    lines = text.splitlines() or [""]
    line = len(lines)
    column = len(lines[-1]) + 1
    match = _POSITION.fullmatch(message)
    if match is not None:
        message = match[1]
        line = int(match[2])
        column = int(match[3])
    return message[:1].lower() + message[1:], line, column


def iterate_values(
    document: Mapping[str, Any], table: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield all values with their dotted keys."""
    for name, value in document.items():
        key = f"{table}.{name}" if table else name
        if isinstance(value, Mapping) and value:
            yield from iterate_values(value, key)
        else:
            yield key, value


# --- changing one value
# ----------------------------------------------------------------------


def parse_value(option: Option, text: str) -> object:
    """Parse typed text. Raises UsageError, with the possible values as its hint."""
    try:
        value = option.value_type.parse(text)
    except (ValueError, UsageError):
        message = f"{option.key} cannot be {sanitize(text, multiline=False)[:60]!r}."
        raise UsageError(message, f"It must be {option.value_type.expects}.") from None
    if option.value_type is FOLDER and not os.path.isdir(str(value)):
        raise UsageError(
            f"There is no folder {sanitize(str(value), multiline=False)}.",
            "Create it first.",
        )
    if isinstance(value, tuple):
        return text.strip()
    return option.value_type.to_toml(value)


def set_value(key: str, value: object) -> None:
    """Set `table.name`, or remove it from the file if `value` is None.

    A dict becomes a table. Comments, order and unknown keys stay. Raises UsageError if the file has errors;
    then it is not changed. Raises StorageError if it cannot be written.
    """
    import tomlkit  # noqa: PLC0415  the import takes 30 ms
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    contents = read(paths.config_file())
    if contents.error:
        message = f"{contents.error}. Nothing was changed."
        raise UsageError(message, "Fix it: localspec config edit")
    if value is None and _find_value(contents.document, key) is None:
        return
    try:
        document = tomlkit.parse(contents.text)
        _set_in_document(document, key, value)
        text = tomlkit.dumps(document)
        if "\r\n" in contents.text:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        # In an unusual file tomlkit may have changed another table of this name.
        is_applied = bool(_find_value(tomllib.loads(text), key) == value)
    except (TOMLKitError, ValueError, TypeError, AttributeError):
        is_applied = False
    if not is_applied:
        message = f"{key} cannot be changed in {contents.path}."
        raise UsageError(message, "Change it there: localspec config edit")
    write_atomically(contents.path, text)


def _set_in_document(document: TOMLDocument, key: str, value: object) -> None:
    import tomlkit  # noqa: PLC0415  as above

    table_name, _, name = key.partition(".")
    if table_name not in document:
        if document.as_string().strip():
            document.add(tomlkit.nl())
        document.add(table_name, tomlkit.table())
    table = cast(_Table, document[table_name])
    # a name with dots is quoted (`"chat.send" = …`), or nested tables
    while name not in table:
        first, _, rest = name.partition(".")
        if not rest or not isinstance(table.get(first), MutableMapping):
            break
        table = table[first]
        name = rest
    if value is None:
        del table[name]
    elif name in table:
        table[name] = value
    else:
        _append_to_table(table, name, value)


def _append_to_table(table: _Table, name: str, value: object) -> None:
    """Add a key below the last key of a table.

    tomlkit would add it at the table's end. But a comment below an empty line belongs to
    the next table. The new key `b` comes before that empty line:

        [one]
        a = 1
        # A comment on `a`, or on nothing.
        b = 2

        # What table two is for.
        [two]
    """
    from tomlkit.items import Table, Whitespace  # noqa: PLC0415  as above

    body = table.value.body if isinstance(table, Table) else []
    # An item of the body is a key with its value, or a comment or white space.
    end = 0
    for number, (item_key, _) in enumerate(body):
        if item_key is not None:
            end = number + 1
    while end < len(body) and not isinstance(body[end][1], Whitespace):
        end += 1
    below = body[end:]
    del body[end:]
    table[name] = value
    body.extend(below)


def _find_value(document: Mapping[str, Any], key: str) -> Any:
    """The value or the table of a dotted key; None if there is none."""
    values = dict(iterate_values(document))
    if key in values:
        return values[key]
    table: Any = document
    for name in key.split("."):
        table = table.get(name) if isinstance(table, Mapping) else None
    return table


def write_atomically(path: Path, text: str) -> None:
    """Replace the file atomically. Follows symbolic links and keeps the file mode.

    TOML is UTF-8, so a file name with other bytes cannot stand in it. Raises
    UsageError for such a text, StorageError if the file cannot be written.
    """
    path = Path(os.path.realpath(path))
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        wrong = ascii(text[error.start : error.end])
        message = f"{path.name} cannot hold {wrong}, which is no UTF-8."
        hint = "Rename the file or folder that has it in its name."
        raise UsageError(message, hint) from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o600
        if path.exists():
            mode = path.stat().st_mode & 0o777
        data_files.replace_file(path, data, mode=mode, is_durable=True)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}."
        hint = "Free some disk space, or make the folder writable."
        raise StorageError(message, hint) from error


# --- editing the file
# ----------------------------------------------------------------------


def open_in_editor() -> Path:
    """Open the file in the user's editor and wait.

    A new file is created from the template. Raises NotFoundError if no editor is found, StorageError if the file cannot be
    written.
    """
    path = paths.config_file()
    _editor_command()  # raises before a file is created
    if not path.exists():
        write_atomically(path, render_template())
    run_editor(path)
    return path


@contextmanager
def ignore_signal_keys() -> Iterator[None]:
    """Let ctrl+c and ctrl+\\ end only the program that has the terminal.

    system(3) of C does the same.
    """
    numbers = [getattr(signal, name, None) for name in ("SIGINT", "SIGQUIT")]
    before = {}
    with suppress(ValueError):  # not in the main thread
        for number in filter(None, numbers):
            # A handler, because a child inherits SIG_IGN.
            before[number] = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_editor(path: Path) -> None:
    """Open a file in the user's editor and wait. Raises NotFoundError."""
    command = _editor_command()
    try:
        with ignore_signal_keys():
            subprocess.run([*command, str(path)], check=False)
    except OSError as error:
        message = f"{command[0]} cannot be started: {error.strerror}."
        raise NotFoundError(
            message, f"Set VISUAL or EDITOR, or open {path} yourself."
        ) from error


def render_template() -> str:
    """Return a new file's text: all settings with their defaults, as comments."""
    lines = ["# localspec settings. Remove a # to change a value."]
    for option in SETTINGS.values():
        table, _, name = option.key.partition(".")
        if f"[{table}]" not in lines:
            lines += ["", f"[{table}]"]
        default = option.value_type.to_toml(option.default)
        shown = "…" if option.setting.unset_label else json.dumps(default)
        lines += [f"# {option.help}", f"# {name} = {shown}"]
    return "\n".join([*lines, "", "[keys]", '# "chat.send" = "alt+s"', ""])


def _editor_command() -> list[str]:
    """$VISUAL, $EDITOR, or a default editor that is installed.

    Raises NotFoundError.
    """
    for variable in ("VISUAL", "EDITOR"):
        typed = os.environ.get(variable, "")
        try:
            command = shlex.split(typed, posix=os.name != "nt")
        except ValueError as error:  # a quotation mark is not closed
            raise NotFoundError(
                f"{variable} is no command: {typed!r}.",
                f"Set {variable} to your editor.",
            ) from error
        if command:
            return command
    for name in ("nano", "vi", "notepad"):
        editor = shutil.which(name)
        if editor is not None:
            return [editor]
    raise NotFoundError("No editor found.", "Set VISUAL or EDITOR.")
