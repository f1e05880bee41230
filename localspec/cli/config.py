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
from localspec.config import toml_file
from localspec.config.effective import EffectiveConfig
from localspec.config.key_table import BINDINGS_BY_ID, check_keys
from localspec.config.options import SETTINGS, find_nearest_key
from localspec.errors import UsageError


def _complete_key(
    _: click.Context, __: click.Parameter, prefix: str
) -> list[CompletionItem]:
    helps = {key: option.help for key, option in SETTINGS.items()}
    helps |= {f"keys.{id_}": each.description for id_, each in BINDINGS_BY_ID.items()}
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
    keys = [
        f"keys.{id_}" for id_ in (BINDINGS_BY_ID if all_keys else view.key_bindings)
    ]
    if as_json:
        document = {
            "path": str(view.file.path),
            "values": [_value_to_json(view, key) for key in view.settings],
            "keys": [_value_to_json(view, key) for key in keys],
            "faults": list(view.errors),
            "warnings": list(view.warnings),
        }
        echo_json(document)
        return 2 if view.errors else 0
    rows = [("KEY", "VALUE", "SOURCE", "DESCRIPTION")]
    for key, option in SETTINGS.items():
        shown = option.display(view.get(key))
        rows.append((key, shown, view.settings[key].origin_text, option.label))
    for body in (_value_to_json(view, key) for key in keys):
        rows.append((body["key"], body["value"], body["from"], body["about"]))
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
    body = _value_to_json(view, _check_name(key))
    value = "" if body["value"] is None else body["value"]
    if as_json:
        echo_json(body)
    else:
        echo(value if isinstance(value, str) else json.dumps(value))
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
    _check_name(key)
    if value is None:
        toml_file.set_value(key, None)
    else:
        option = SETTINGS.get(key)
        parsed = (
            toml_file.parse_value(option, value) if option else _parse_key(key, value)
        )
        toml_file.set_value(key, parsed)
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


def _check_name(key: str) -> str:
    """The key of a setting or of an action. Raises UsageError if it is neither."""
    id_ = key.removeprefix("keys.")
    if key in SETTINGS or (id_ != key and id_ in BINDINGS_BY_ID):
        return key
    nearest = find_nearest_key(key, frozenset(BINDINGS_BY_ID))
    hint = f"Did you mean {nearest}?" if nearest else "See: localspec config list"
    raise UsageError(f"There is no setting {key[:60]!r}.", hint)


def _parse_key(key: str, text: str) -> str:
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


def _value_to_json(view: EffectiveConfig, key: str) -> dict[str, Any]:
    """Of a setting or a key binding."""
    if (setting := view.settings.get(key)) is not None:
        option = setting.option
        return {
            "key": key,
            "value": option.value_type.to_toml(setting.current),
            "default": option.value_type.to_toml(option.default),
            "origin": setting.origin,
            "from": setting.origin_text,
            "about": option.help,
        }
    id_ = key.removeprefix("keys.")
    binding, configured = BINDINGS_BY_ID.get(id_), view.key_bindings.get(id_)
    default = binding.keys if binding else ""
    return {
        "key": key,
        "value": configured or default,
        "default": default,
        "origin": "config.toml" if configured else "default",
        "from": view.file.path.name if configured else "default",
        "about": binding.description if binding else "",
    }
