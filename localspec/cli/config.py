"""`localspec config`: the settings in config.toml."""

from __future__ import annotations

import json
from typing import Any

import click
from click.shell_completion import CompletionItem

from localspec import config, paths
from localspec.cli import global_options
from localspec.cli.global_options import flag
from localspec.cli.report_printer import echo_columns
from localspec.cli.terminal import echo, echo_json, notify
from localspec.config import other_spellings, toml_file
from localspec.config.effective import EffectiveConfig
from localspec.config.key_table import BINDINGS_BY_ID, check_keys
from localspec.config.options import SETTINGS, find_key, find_nearest_key
from localspec.errors import UsageError

_ACTION_KEYS = {f"keys.{id_}": binding for id_, binding in BINDINGS_BY_ID.items()}
"""The actions of the app by their keys in config.toml."""


def _complete_key(
    _: click.Context, __: click.Parameter, prefix: str
) -> list[CompletionItem]:
    helps = {key: option.help for key, option in SETTINGS.items()}
    helps |= {key: action.description for key, action in _ACTION_KEYS.items()}
    return [
        CompletionItem(key, help=text)
        for key, text in helps.items()
        if key.startswith(prefix)
    ]


def _complete_value(
    context: click.Context, _: click.Parameter, prefix: str
) -> list[CompletionItem]:
    key = str(context.params.get("key"))
    if key == "models.folder":
        return [CompletionItem(prefix, type="dir")]
    words = SETTINGS[key].value_type.all_words() if key in SETTINGS else ()
    return [CompletionItem(word) for word in words if word.startswith(prefix)]


KEY_ARGUMENT = click.argument("key", shell_complete=_complete_key)


@click.group("config")
def command() -> None:
    """List, get, set and edit the settings in config.toml.

    Command-line options override environment variables; variables override config.toml.

    \b
    localspec config list
    localspec config set screen.theme high-contrast
    localspec config set keys.chat.send alt+s
    localspec config set downloads.limit --default
    """


@command.command("path")
def path() -> None:
    """Print the path of config.toml."""
    echo(str(paths.config_file()))


@command.command("list")
@flag("--keys", "all_keys", about="Include all key bindings of the app.")
@global_options.JSON
@click.pass_context
def list_(context: click.Context, all_keys: bool, as_json: bool) -> int:
    """List every setting and the source of its value.

    Exit code 2 if config.toml has errors.
    """
    view = _load_view(context)
    ids = BINDINGS_BY_ID if all_keys else view.key_bindings
    keys = [f"keys.{id_}" for id_ in ids]
    if as_json:
        document = {
            "path": str(view.file.path),
            "values": [_setting_to_json(view, key) for key in view.settings],
            "keys": [_key_to_json(view, key) for key in keys],
            "faults": list(view.errors),
            "warnings": list(view.warnings),
        }
        echo_json(document)
        return 2 if view.errors else 0
    rows = [("KEY", "VALUE", "SOURCE", "DESCRIPTION")]
    for key, option in SETTINGS.items():
        shown = option.display(view.get(key))
        rows.append((key, shown, view.settings[key].origin_text, option.label))
    for key in keys:
        body = _key_to_json(view, key)
        rows.append((key, body["value"], body["from"], body["about"]))
    echo_columns(rows)
    _print_problems(view)
    echo(str(view.file.path), err=True)
    return 2 if view.errors else 0


@command.command("get")
@KEY_ARGUMENT
@global_options.JSON
@click.pass_context
def get(context: click.Context, key: str, as_json: bool) -> int:
    """Print the value of KEY; an empty line if it is not set."""
    view = _load_view(context)
    _print_problems(view)
    key = _resolve_key(key)
    to_json = _setting_to_json if key in SETTINGS else _key_to_json
    body = to_json(view, key)
    value = body["value"]
    if as_json:
        echo_json(body)
    elif value is None:
        echo()
    elif isinstance(value, str):
        echo(value)
    else:
        echo(json.dumps(value))
    return 2 if view.errors else 0


@command.command("set")
@KEY_ARGUMENT
@click.argument("value", required=False, shell_complete=_complete_value)
@flag("--default", "use_default", about="Remove KEY from the file.")
@click.pass_context
def set_(
    context: click.Context, key: str, value: str | None, use_default: bool
) -> None:
    """Set KEY to VALUE in config.toml.

    The rest of the file, with its comments, stays unchanged.
    """
    if (value is None) != use_default:
        raise UsageError("Give VALUE or --default.", "See: localspec config set --help")
    key = _resolve_key(key)
    if value is None:
        toml_file.set_value(key, None)
    elif key in SETTINGS:
        toml_file.set_value(key, toml_file.parse_value(SETTINGS[key], value))
    else:
        toml_file.set_value(key, _parse_keys(key, value))
    setting = _load_view(context).settings.get(key)
    if setting is not None and setting.is_overridden:
        notify(f"{setting.origin_text} overrides this value.")


@command.command("edit")
@click.pass_context
def edit(context: click.Context) -> int:
    """Open config.toml in $VISUAL or $EDITOR, then report its errors."""
    echo(str(toml_file.open_in_editor()), err=True)
    view = _load_view(context)
    _print_problems(view)
    return 2 if view.errors else 0


def _load_view(context: click.Context) -> EffectiveConfig:
    flags = global_options.get_flags(context)
    return config.resolve(flags=flags, key_ids=BINDINGS_BY_ID)


def _resolve_key(typed: str) -> str:
    """The key of a setting or an action, also for another program's name.

    Raises UsageError if it is neither.
    """
    if typed in _ACTION_KEYS:
        return typed
    key = find_key(typed)
    if key:
        return key
    nearest = find_nearest_key(typed, frozenset(BINDINGS_BY_ID))
    spelling = other_spellings.find_name(typed.rpartition(".")[2])
    hint = "See: localspec config list"
    if spelling is not None and spelling.hint:
        hint = spelling.hint
    elif nearest:
        hint = f"Did you mean {nearest}?"
    elif spelling is not None:
        hint = f"It is an option of localspec run: {spelling.ours}"
    raise UsageError(f"There is no setting {typed[:60]!r}.", hint)


def _parse_keys(key: str, text: str) -> str:
    """The keys as stored in the file.  Raises UsageError with the possible values."""
    keys = ",".join(part.strip() for part in text.split(","))
    user_keys = config.resolve().key_bindings
    problem = check_keys(key.removeprefix("keys."), keys, user_keys)
    if problem:
        raise UsageError(problem, "All keys: localspec config list --keys")
    return keys


def _print_problems(view: EffectiveConfig) -> None:
    for line in (*view.errors, *view.warnings):
        notify(line)


def _setting_to_json(view: EffectiveConfig, key: str) -> dict[str, Any]:
    setting = view.settings[key]
    option = setting.option
    return {
        "key": key,
        "value": option.value_type.to_toml(setting.current),
        "default": option.value_type.to_toml(option.default),
        "origin": setting.origin,
        "from": setting.origin_text,
        "about": option.help,
    }


def _key_to_json(view: EffectiveConfig, key: str) -> dict[str, Any]:
    """The keys of an action. The file may name actions that this version lacks."""
    id_ = key.removeprefix("keys.")
    document: dict[str, Any] = {
        "key": key,
        "value": "",
        "default": "",
        "origin": "default",
        "from": "default",
        "about": "",
    }
    binding = BINDINGS_BY_ID.get(id_)
    if binding is not None:
        document["value"] = binding.keys
        document["default"] = binding.keys
        document["about"] = binding.description
    if id_ in view.key_bindings:
        document["value"] = view.key_bindings[id_]
        document["origin"] = "config.toml"
        document["from"] = view.file.path.name
    return document
