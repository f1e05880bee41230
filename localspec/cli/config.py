"""`localspec config`: what a person wants otherwise than it comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
from click.shell_completion import CompletionItem

from localspec import config, paths
from localspec.cli import global_options
from localspec.cli.table import format_columns
from localspec.config import toml_file
from localspec.config.effective import EffectiveConfig, EffectiveSetting
from localspec.config.schema import SETTINGS, SettingDefinition, find_nearest_key
from localspec.errors import UsageError
from localspec.sanitize import sanitize

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="One JSON document.")


def _complete_key(_: click.Context, __: click.Parameter, prefix: str) -> list[CompletionItem]:
    """Keys of values at once, those of the keyboard where one asks for them."""
    found = [CompletionItem(value.key, help=value.help) for value in SETTINGS.values()]
    if prefix.startswith("k"):
        found += [
            CompletionItem(f"keys.{id_}", help=words) for id_, words in _key_actions().items()
        ]
    return [one for one in found if one.value.startswith(prefix)]


def _complete_value(
    context: click.Context, _: click.Parameter, prefix: str
) -> list[CompletionItem]:
    """What a value may be."""
    known = SETTINGS.get(str(context.params.get("key")))
    if known is None:
        return []
    if known.key == "models.folder":
        return [CompletionItem(prefix, type="dir")]
    return [CompletionItem(word) for word in known.value_type.choices if word.startswith(prefix)]


KEY_ARGUMENT = click.argument("key", shell_complete=_complete_key)


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
    click.echo(sanitize(str(paths.config_file()), multiline=False))
    return 0


@command.command("list")
@click.option("--keys", "all_keys", is_flag=True, help="All keys of the app too.")
@JSON_OPTION
@click.pass_context
def list_(context: click.Context, all_keys: bool, as_json: bool) -> int:
    """Every value, and where it comes from.  Exit code 2 where the file must be mended."""
    view = _load_view(context)
    if as_json:
        click.echo(json.dumps(_config_to_json(view, all_keys)))
    else:
        for line in format_columns([("KEY", "VALUE", "FROM", "WHAT"), *_list_rows(view, all_keys)]):
            click.echo(line)
        _print_problems(view)
        click.echo(sanitize(str(view.file.path), multiline=False), err=True)
    return 2 if view.errors else 0


@command.command("get")
@KEY_ARGUMENT
@JSON_OPTION
@click.pass_context
def get(context: click.Context, key: str, as_json: bool) -> int:
    """What KEY is; an empty line where nothing is set."""
    view = _load_view(context)
    _print_problems(view)
    if key.startswith("keys."):
        id_ = _find_key_id(key)
        said = {"key": key, **_key_to_json(view, id_)}
        shown = said["value"]
    else:
        held = view.settings[_find_value(key).key]
        said, shown = _value_to_json(held), held.definition.value_type.format(held.current)
    click.echo(
        json.dumps({"schema": 1} | said) if as_json else sanitize(str(shown), multiline=False)
    )
    return 2 if view.errors else 0


@command.command("set")
@KEY_ARGUMENT
@click.argument("value", required=False, shell_complete=_complete_value)
@click.option("--default", "as_it_comes", is_flag=True, help="Take KEY out of the file.")
@click.pass_context
def set_(context: click.Context, key: str, value: str | None, as_it_comes: bool) -> int:
    """Set KEY to VALUE in config.toml; everything else in it stays as it is."""
    if (value is None) != as_it_comes:
        raise UsageError(
            "Say what to set it to.", f"localspec config set {key} VALUE, or --default"
        )
    new = None if value is None else _parse_value(key, value)
    if new is None:
        _find_key_id(key) if key.startswith("keys.") else _find_value(key)
    toml_file.set_value(key, new)
    held = _load_view(context).settings.get(key)
    if held is not None and held.is_overridden:
        click.echo(f"localspec: {held.origin_text} goes before it, as long as it is set.", err=True)
    return 0


@command.command("edit")
@click.pass_context
def edit(context: click.Context) -> int:
    """Open config.toml in $VISUAL or $EDITOR, and say what is wrong with it afterwards."""
    click.echo(sanitize(str(toml_file.open_in_editor()), multiline=False), err=True)
    view = _load_view(context)
    _print_problems(view)
    return 2 if view.errors else 0


# --- what is known ----------------------------------------------------------------------------


def _load_view(context: click.Context) -> EffectiveConfig:
    return config.resolve(
        flags=global_options.get_flags(context), key_ids=frozenset(_key_actions())
    )


def _key_actions() -> dict[str, str]:
    """The keys of the app that can be changed, and what they do."""
    from localspec.tui.key_bindings import KEY_BINDINGS  # noqa: PLC0415  late: it brings the screen's library

    return {key.id: key.description for key in KEY_BINDINGS}


def _find_value(key: str) -> SettingDefinition:
    if key in SETTINGS:
        return SETTINGS[key]
    near = find_nearest_key(key, frozenset(_key_actions()))
    hint = f"Did you mean {near}?" if near else "There are: localspec config list"
    raise UsageError(f"There is no setting {sanitize(key, multiline=False)[:60]!r}.", hint)


def _find_key_id(key: str) -> str:
    id_ = key.removeprefix("keys.")
    if id_ not in _key_actions():
        _find_value(key)
    return id_


def _parse_value(key: str, text: str) -> object:
    """A value as the file has it.  Raises UsageError, which says what is possible."""
    if key.startswith("keys."):
        return _parse_key(_find_key_id(key), text)
    return toml_file.parse_value(_find_value(key), text)


def _parse_key(id_: str, text: str) -> str:
    from localspec.tui import key_bindings  # noqa: PLC0415  late, as above

    keys = ",".join(part.strip() for part in text.split(","))
    if wrong := key_bindings.check_keys(id_, keys, config.resolve().key_bindings):
        raise UsageError(wrong, "All keys: localspec config list --keys")
    return keys


# --- how it is said ---------------------------------------------------------------------------


def _list_rows(view: EffectiveConfig, all_keys: bool) -> Iterator[tuple[str, ...]]:
    for key, held in view.settings.items():
        yield key, held.definition.display(held.current), held.origin_text, held.definition.label
    actions = _key_actions()
    for id_ in actions if all_keys else view.key_bindings:
        about = _key_to_json(view, id_)
        yield f"keys.{id_}", str(about["value"]), str(about["from"]), actions.get(id_, "")


def _print_problems(view: EffectiveConfig) -> None:
    for line in (*view.errors, *view.warnings):
        click.echo(f"localspec: {line}", err=True)


def _config_to_json(view: EffectiveConfig, all_keys: bool) -> dict[str, Any]:
    ids = _key_actions() if all_keys else view.key_bindings
    return {
        "schema": 1,
        "path": str(view.file.path),
        "values": [_value_to_json(held) for held in view.settings.values()],
        "keys": [{"key": f"keys.{id_}", **_key_to_json(view, id_)} for id_ in ids],
        "faults": list(view.errors),
        "warnings": list(view.warnings),
    }


def _value_to_json(held: EffectiveSetting) -> dict[str, Any]:
    return {
        "key": held.definition.key,
        "value": held.current,
        "default": held.definition.default,
        "origin": held.origin,
        "from": held.origin_text,
        "about": held.definition.help,
    }


def _key_to_json(view: EffectiveConfig, id_: str) -> dict[str, Any]:
    from localspec.tui.key_bindings import KEY_BINDINGS  # noqa: PLC0415  late, as above

    usual = next((key.keys for key in KEY_BINDINGS if key.id == id_), "")
    own = view.key_bindings.get(id_)
    where = ("config.toml", view.file.path.name) if own else ("default", "as it comes")
    about = {"origin": where[0], "from": where[1], "about": _key_actions().get(id_, "")}
    return {"value": own or usual, "default": usual, **about}
