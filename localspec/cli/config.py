"""`localspec config`: the settings in config.toml."""

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

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def _complete_key(_: click.Context, __: click.Parameter, prefix: str) -> list[CompletionItem]:
    """Settings; key bindings only after the prefix `k`, as they load Textual."""
    items = [CompletionItem(setting.key, help=setting.help) for setting in SETTINGS.values()]
    if prefix.startswith("k"):
        actions = _key_actions()
        items += [CompletionItem(f"keys.{id_}", help=text) for id_, text in actions.items()]
    return [item for item in items if item.value.startswith(prefix)]


def _complete_value(
    context: click.Context, _: click.Parameter, prefix: str
) -> list[CompletionItem]:
    setting = SETTINGS.get(str(context.params.get("key")))
    if setting is None:
        return []
    if setting.key == "models.folder":
        return [CompletionItem(prefix, type="dir")]
    choices = setting.value_type.choices
    return [CompletionItem(choice) for choice in choices if choice.startswith(prefix)]


KEY_ARGUMENT = click.argument("key", shell_complete=_complete_key)


@click.group("config")
def command() -> None:
    """List, get, set and edit the settings in config.toml.

    Command-line options override environment variables; variables override config.toml.

    \b
    localspec config list
    localspec config set screen.theme high-contrast
    localspec config set keys.chat.send ctrl+s
    localspec config set downloads.limit --default
    """


@command.command("path")
def path() -> int:
    """Print the path of config.toml."""
    click.echo(sanitize(str(paths.config_file()), multiline=False))
    return 0


@command.command("list")
@click.option("--keys", "all_keys", is_flag=True, help="Include all key bindings of the app.")
@JSON_OPTION
@click.pass_context
def list_(context: click.Context, all_keys: bool, as_json: bool) -> int:
    """List every setting and the source of its value.

    Exit code 2 if config.toml has errors.
    """
    view = _load_view(context)
    if as_json:
        click.echo(json.dumps(_config_to_json(view, all_keys)))
    else:
        for line in format_columns(
            [("KEY", "VALUE", "SOURCE", "DESCRIPTION"), *_list_rows(view, all_keys)]
        ):
            click.echo(line)
        _print_problems(view)
        click.echo(sanitize(str(view.file.path), multiline=False), err=True)
    return 2 if view.errors else 0


@command.command("get")
@KEY_ARGUMENT
@JSON_OPTION
@click.pass_context
def get(context: click.Context, key: str, as_json: bool) -> int:
    """Print the value of KEY; an empty line if it is not set."""
    view = _load_view(context)
    _print_problems(view)
    if key.startswith("keys."):
        id_ = _find_key_id(key)
        body = {"key": key, **_key_to_json(view, id_)}
        value = body["value"]
    else:
        setting = view.settings[_find_setting(key).key]
        body = _setting_to_json(setting)
        value = setting.definition.value_type.format(setting.current)
    click.echo(
        json.dumps({"schema": 1} | body) if as_json else sanitize(str(value), multiline=False)
    )
    return 2 if view.errors else 0


@command.command("set")
@KEY_ARGUMENT
@click.argument("value", required=False, shell_complete=_complete_value)
@click.option("--default", "use_default", is_flag=True, help="Remove KEY from the file.")
@click.pass_context
def set_(context: click.Context, key: str, value: str | None, use_default: bool) -> int:
    """Set KEY to VALUE in config.toml.

    The rest of the file, with its comments, stays unchanged.
    """
    if (value is None) != use_default:
        raise UsageError("Give VALUE or --default.", "See: localspec config set --help")
    parsed = None if value is None else _parse_value(key, value)
    if parsed is None:
        _find_key_id(key) if key.startswith("keys.") else _find_setting(key)
    toml_file.set_value(key, parsed)
    setting = _load_view(context).settings.get(key)
    if setting is not None and setting.is_overridden:
        click.echo(f"localspec: {setting.origin_text} overrides this value.", err=True)
    return 0


@command.command("edit")
@click.pass_context
def edit(context: click.Context) -> int:
    """Open config.toml in $VISUAL or $EDITOR, then report its errors."""
    click.echo(sanitize(str(toml_file.open_in_editor()), multiline=False), err=True)
    view = _load_view(context)
    _print_problems(view)
    return 2 if view.errors else 0


def _load_view(context: click.Context) -> EffectiveConfig:
    return config.resolve(
        flags=global_options.get_flags(context), key_ids=frozenset(_key_actions())
    )


def _key_actions() -> dict[str, str]:
    """Descriptions of the app's key bindings, by id."""
    from localspec.tui.key_bindings import KEY_BINDINGS  # noqa: PLC0415  late: it imports Textual

    return {key.id: key.description for key in KEY_BINDINGS}


def _find_setting(key: str) -> SettingDefinition:
    if key in SETTINGS:
        return SETTINGS[key]
    nearest = find_nearest_key(key, frozenset(_key_actions()))
    hint = f"Did you mean {nearest}?" if nearest else "See: localspec config list"
    raise UsageError(f"There is no setting {sanitize(key, multiline=False)[:60]!r}.", hint)


def _find_key_id(key: str) -> str:
    id_ = key.removeprefix("keys.")
    if id_ not in _key_actions():
        _find_setting(key)
    return id_


def _parse_value(key: str, text: str) -> object:
    """The value as stored in the file.  Raises UsageError with the possible values."""
    if key.startswith("keys."):
        return _parse_key(_find_key_id(key), text)
    return toml_file.parse_value(_find_setting(key), text)


def _parse_key(id_: str, text: str) -> str:
    from localspec.tui import key_bindings  # noqa: PLC0415  late, as above

    keys = ",".join(part.strip() for part in text.split(","))
    if problem := key_bindings.check_keys(id_, keys, config.resolve().key_bindings):
        raise UsageError(problem, "All keys: localspec config list --keys")
    return keys


def _list_rows(view: EffectiveConfig, all_keys: bool) -> Iterator[tuple[str, ...]]:
    for key, setting in view.settings.items():
        definition = setting.definition
        yield key, definition.display(setting.current), setting.origin_text, definition.label
    actions = _key_actions()
    for id_ in actions if all_keys else view.key_bindings:
        binding = _key_to_json(view, id_)
        yield f"keys.{id_}", str(binding["value"]), str(binding["from"]), actions.get(id_, "")


def _print_problems(view: EffectiveConfig) -> None:
    for line in (*view.errors, *view.warnings):
        click.echo(f"localspec: {line}", err=True)


def _config_to_json(view: EffectiveConfig, all_keys: bool) -> dict[str, Any]:
    ids = _key_actions() if all_keys else view.key_bindings
    return {
        "schema": 1,
        "path": str(view.file.path),
        "values": [_setting_to_json(setting) for setting in view.settings.values()],
        "keys": [{"key": f"keys.{id_}", **_key_to_json(view, id_)} for id_ in ids],
        "faults": list(view.errors),
        "warnings": list(view.warnings),
    }


def _setting_to_json(setting: EffectiveSetting) -> dict[str, Any]:
    return {
        "key": setting.definition.key,
        "value": setting.current,
        "default": setting.definition.default,
        "origin": setting.origin,
        "from": setting.origin_text,
        "about": setting.definition.help,
    }


def _key_to_json(view: EffectiveConfig, id_: str) -> dict[str, Any]:
    from localspec.tui.key_bindings import KEY_BINDINGS  # noqa: PLC0415  late, as above

    default = next((key.keys for key in KEY_BINDINGS if key.id == id_), "")
    configured = view.key_bindings.get(id_)
    return {
        "value": configured or default,
        "default": default,
        "origin": "config.toml" if configured else "default",
        "from": view.file.path.name if configured else "default",
        "about": _key_actions().get(id_, ""),
    }
