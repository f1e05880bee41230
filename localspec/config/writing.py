"""Changes one value in config.toml; comments, order and everything unknown stay as they are."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from localspec import paths
from localspec.clean import clean
from localspec.config import file
from localspec.config.kinds import Folder
from localspec.config.table import VALUES, Value
from localspec.errors import AccessError, UsageError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

_PRIVATE = 0o600
_Table = MutableMapping[str, Any]


def typed(value: Value, text: str) -> object:
    """What a person wrote, as the file has it.  Raises UsageError, which says what is possible."""
    try:
        new = value.kind.typed(text)
    except ValueError:
        shown = clean(text, multiline=False)[:60]
        what = f"{value.key} cannot be {shown!r}."
        raise UsageError(what, f"It must be {value.kind.expects}.") from None
    if isinstance(value.kind, Folder) and not os.path.isdir(str(new)):
        raise UsageError(
            f"There is no folder {clean(str(new), multiline=False)}.", "Make it first."
        )
    return new


def put(key: str, value: object) -> None:
    """Set `table.name`; None takes it out of the file, so that it is as it comes.

    Raises UsageError where the file cannot be read, which is then left alone, and AccessError.
    """
    import tomlkit  # noqa: PLC0415  30 ms, only where something is written
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    contents = file.read(paths.config())
    if contents.damage is not None:
        what = contents.damage.told(contents.path)
        raise UsageError(f"{what}. Nothing was changed.", "Mend it: localspec config edit")
    if value is None and not _has(contents.document, key):
        return
    try:
        document = tomlkit.parse(contents.text)
        _change(document, key, value)
        text = _lines_like(contents.text, tomlkit.dumps(document))
        sound = _holds(tomllib.loads(text), key, value)
    except (TOMLKitError, ValueError, TypeError, AttributeError) as error:
        raise _refused(contents.path, key) from error
    if not sound:
        raise _refused(contents.path, key)
    replace(contents.path, text)


def _refused(path: Path, key: str) -> UsageError:
    return UsageError(
        f"{key} cannot be changed in {path}.", "Write it there: localspec config edit"
    )


def _change(document: TOMLDocument, key: str, value: object) -> None:
    import tomlkit  # noqa: PLC0415  as above

    table_name, _, name = key.partition(".")
    if table_name not in document:
        if document.as_string().strip():
            document.add(tomlkit.nl())
        document.add(table_name, tomlkit.table())
    table = cast(_Table, document[table_name])
    table, name = _place(table, name)
    if value is None:
        del table[name]
    elif name in table:
        table[name] = value
    else:
        _add(table, name, value)


def _add(table: _Table, name: str, value: object) -> None:
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


def _lines_like(old: str, new: str) -> str:
    """With the line ends of Windows where there were such."""
    return new.replace("\r\n", "\n").replace("\n", "\r\n") if "\r\n" in old else new


def _place(table: _Table, name: str) -> tuple[_Table, str]:
    """Where it stands: `"chat.send" = …`, or without quotes as a table in the table."""
    first, _, rest = name.partition(".")
    inner = table.get(first) if rest and name not in table else None
    return _place(inner, rest) if isinstance(inner, MutableMapping) else (table, name)


def _has(document: Mapping[str, Any], key: str) -> bool:
    return key in dict(file.leaves(document))


def _holds(document: Mapping[str, Any], key: str, value: object) -> bool:
    """Whether the new text says what was meant, before it takes the old one's place."""
    found = dict(file.leaves(document))
    return key not in found if value is None else found.get(key) == value


def replace(path: Path, text: str) -> None:
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
        raise AccessError(what, "Make room, or make the folder writable.") from error


def template() -> str:
    """A file to begin with, in which everything stands as a comment."""
    lines = ["# What you want otherwise than it comes. Take a # away to change a value."]
    table = ""
    for value in VALUES.values():
        if value.table != table:
            table = value.table
            lines += ["", f"[{table}]"]
        usual = "" if value.default is None else value.kind.shown(value.default)
        quoted = f'"{usual}"' if isinstance(value.default, str) else usual
        lines += [f"# {value.about}", f"# {value.name} = {quoted or '…'}"]
    return "\n".join([*lines, "", "[keys]", '# "chat.send" = "ctrl+s"', ""])
