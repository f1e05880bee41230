"""`localspec config`: what a person wants otherwise than it comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
from click.shell_completion import CompletionItem

from localspec import config, paths
from localspec.clean import clean
from localspec.cli import places
from localspec.cli.table import rows
from localspec.config import editor, writing
from localspec.config.table import VALUES, Value, nearest
from localspec.config.view import Held, View
from localspec.errors import UsageError

JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document.")


def _offered(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Keys of values at once, those of the keyboard where one asks for them."""
    found = [CompletionItem(value.key, help=value.about) for value in VALUES.values()]
    if begun.startswith("k"):
        found += [CompletionItem(f"keys.{id_}", help=words) for id_, words in _actions().items()]
    return [one for one in found if one.value.startswith(begun)]


def _values(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a value may be."""
    known = VALUES.get(str(context.params.get("key")))
    if known is None:
        return []
    if known.key == "models.folder":
        return [CompletionItem(begun, type="dir")]
    return [CompletionItem(word) for word in known.kind.words if word.startswith(begun)]


KEY = click.argument("key", shell_complete=_offered)


@click.group("config")
def command() -> None:
    """What you want otherwise than it comes, in a file of your own.

    An option of the command line goes before a variable, a variable before config.toml.

    \b
    localspec config list
    localspec config set screen.theme high-contrast
    localspec config set keys.chat.send ctrl+s
    localspec config set downloads.limit --default
    """


@command.command("path")
def path() -> int:
    """Where config.toml is, or would be."""
    click.echo(clean(str(paths.config()), multiline=False))
    return 0


@command.command("list")
@click.option("--keys", "all_keys", is_flag=True, help="All keys of the app too.")
@JSON
@click.pass_context
def list_(context: click.Context, all_keys: bool, as_json: bool) -> int:
    """Every value, and where it comes from.  Exit code 2 where the file must be mended."""
    view = _look(context)
    if as_json:
        click.echo(json.dumps(_document(view, all_keys)))
    else:
        for line in rows([("KEY", "VALUE", "FROM", "WHAT"), *_lines(view, all_keys)]):
            click.echo(line)
        _complain(view)
        click.echo(clean(str(view.contents.path), multiline=False), err=True)
    return 2 if view.faults else 0


@command.command("get")
@KEY
@JSON
@click.pass_context
def get(context: click.Context, key: str, as_json: bool) -> int:
    """What KEY is; an empty line where nothing is set."""
    view = _look(context)
    _complain(view)
    if key.startswith("keys."):
        id_ = _known_key(key)
        said = {"key": key, **_key(view, id_)}
        shown = said["value"]
    else:
        held = view.held[_known(key).key]
        said, shown = _held(held), held.value.kind.shown(held.now)
    click.echo(json.dumps({"schema": 1} | said) if as_json else clean(str(shown), multiline=False))
    return 2 if view.faults else 0


@command.command("set")
@KEY
@click.argument("value", required=False, shell_complete=_values)
@click.option("--default", "as_it_comes", is_flag=True, help="Take KEY out of the file.")
@click.pass_context
def set_(context: click.Context, key: str, value: str | None, as_it_comes: bool) -> int:
    """Set KEY to VALUE in config.toml; everything else in it stays as it is."""
    if (value is None) != as_it_comes:
        raise UsageError(
            "Say what to set it to.", f"localspec config set {key} VALUE, or --default"
        )
    new = None if value is None else _typed(key, value)
    if new is None:
        _known_key(key) if key.startswith("keys.") else _known(key)
    writing.put(key, new)
    held = _look(context).held.get(key)
    if held is not None and held.locked:
        click.echo(f"localspec: {held.where} goes before it, as long as it is set.", err=True)
    return 0


@command.command("edit")
@click.pass_context
def edit(context: click.Context) -> int:
    """Open config.toml in $VISUAL or $EDITOR, and say what is wrong with it afterwards."""
    click.echo(clean(str(editor.edit()), multiline=False), err=True)
    view = _look(context)
    _complain(view)
    return 2 if view.faults else 0


# --- what is known ----------------------------------------------------------------------------


def _look(context: click.Context) -> View:
    return config.look(flags=places.flags(context), ids=frozenset(_actions()))


def _actions() -> dict[str, str]:
    """The keys of the app that can be changed, and what they do."""
    from localspec.tui.keys import KEYS  # noqa: PLC0415  late: it brings the screen's library

    return {key.id: key.words for key in KEYS}


def _known(key: str) -> Value:
    if key in VALUES:
        return VALUES[key]
    near = nearest(key, frozenset(_actions()))
    hint = f"Did you mean {near}?" if near else "There are: localspec config list"
    raise UsageError(f"There is no setting {clean(key, multiline=False)[:60]!r}.", hint)


def _known_key(key: str) -> str:
    id_ = key.removeprefix("keys.")
    if id_ not in _actions():
        _known(key)
    return id_


def _typed(key: str, text: str) -> object:
    """A value as the file has it.  Raises UsageError, which says what is possible."""
    if key.startswith("keys."):
        return _typed_key(_known_key(key), text)
    return writing.typed(_known(key), text)


def _typed_key(id_: str, text: str) -> str:
    from localspec.tui import rebinding  # noqa: PLC0415  late, as above

    keys = ",".join(part.strip() for part in text.split(","))
    if wrong := rebinding.fault(id_, keys, config.look().keys):
        raise UsageError(wrong, "All keys: localspec config list --keys")
    return keys


# --- how it is said ---------------------------------------------------------------------------


def _lines(view: View, all_keys: bool) -> Iterator[tuple[str, ...]]:
    for key, held in view.held.items():
        yield key, held.value.words(held.now), held.where, held.value.label
    actions = _actions()
    for id_ in actions if all_keys else view.keys:
        about = _key(view, id_)
        yield f"keys.{id_}", str(about["value"]), str(about["from"]), actions.get(id_, "")


def _complain(view: View) -> None:
    for line in (*view.faults, *view.warnings):
        click.echo(f"localspec: {line}", err=True)


def _document(view: View, all_keys: bool) -> dict[str, Any]:
    ids = _actions() if all_keys else view.keys
    return {
        "schema": 1,
        "path": str(view.contents.path),
        "values": [_held(held) for held in view.held.values()],
        "keys": [{"key": f"keys.{id_}", **_key(view, id_)} for id_ in ids],
        "faults": list(view.faults),
        "warnings": list(view.warnings),
    }


def _held(held: Held) -> dict[str, Any]:
    return {
        "key": held.value.key,
        "value": held.now,
        "default": held.value.default,
        "origin": held.origin,
        "from": held.where,
        "about": held.value.about,
    }


def _key(view: View, id_: str) -> dict[str, Any]:
    from localspec.tui.keys import KEYS  # noqa: PLC0415  late, as above

    usual = next((key.keys for key in KEYS if key.id == id_), "")
    own = view.keys.get(id_)
    where = ("config.toml", view.contents.path.name) if own else ("default", "as it comes")
    about = {"origin": where[0], "from": where[1], "about": _actions().get(id_, "")}
    return {"value": own or usual, "default": usual, **about}
