"""Options of every command: --offline, --plain, --models-dir, --data-dir.

They set environment variables, so that child processes inherit them.  `config list` shows which
option set a variable.
"""

from __future__ import annotations

import os
import sys

import click

_PLAIN_VARIABLE = "LOCALSPEC_PLAIN"
_FLAGS_KEY = "localspec.flags"


def get_flags(context: click.Context) -> dict[str, str]:
    """The global options of this command line, keyed by the variable that each sets."""
    flags: dict[str, str] = context.meta.setdefault(_FLAGS_KEY, {})
    return flags


def _folder_option(variable: str) -> click.Option:
    def set_variable(context: click.Context, __: click.Parameter, value: str | None) -> None:
        if value:
            os.environ[variable] = os.path.abspath(os.path.expanduser(value))
            get_flags(context)[variable] = name

    name, about = {
        "LOCALSPEC_MODELS_DIR": ("--models-dir", "Also use the .gguf files in DIR."),
        "LOCALSPEC_DATA_DIR": ("--data-dir", "Folder for chats, measurements and logs."),
    }[variable]
    return click.Option(
        [name],
        metavar="DIR",
        type=click.Path(),
        expose_value=False,
        callback=set_variable,
        help=about,
    )


def _set_offline(context: click.Context, __: click.Parameter, value: bool) -> None:
    if value:
        os.environ["HF_HUB_OFFLINE"] = "1"
        get_flags(context)["HF_HUB_OFFLINE"] = "--offline"


def _set_plain(_: click.Context, __: click.Parameter, value: bool) -> None:
    if value:
        os.environ[_PLAIN_VARIABLE] = "1"  # not TERM: readline reads it too


def is_plain() -> bool:
    """Whether to print words only: a screen reader reads symbols and redrawn lines aloud."""
    return bool(os.environ.get(_PLAIN_VARIABLE)) or os.environ.get("TERM") == "dumb"


def can_redraw() -> bool:
    """Whether standard error is a terminal where a progress line can be redrawn."""
    return sys.stderr is not None and sys.stderr.isatty() and not is_plain()


def _global_options() -> tuple[click.Option, ...]:
    offline = click.Option(
        ["--offline"],
        is_flag=True,
        expose_value=False,
        callback=_set_offline,
        help="Do not use the network.  Also: HF_HUB_OFFLINE=1.",
    )
    plain = click.Option(
        ["--plain"],
        is_flag=True,
        expose_value=False,
        callback=_set_plain,
        help="Words only, for screen readers.  Also: TERM=dumb.",
    )
    return (
        offline,
        plain,
        _folder_option("LOCALSPEC_MODELS_DIR"),
        _folder_option("LOCALSPEC_DATA_DIR"),
    )


def add_to_command(command: click.Command) -> click.Command:
    """Add the global options to a command and its subcommands.

    So they are accepted before and after the name of a subcommand.
    """
    present = {option for param in command.params for option in param.opts}
    command.params += [option for option in _global_options() if option.opts[0] not in present]
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            add_to_command(subcommand)
    return command


ENDPOINT = click.option(
    "--endpoint", metavar="URL", help="A mirror of the Hugging Face hub.  Also: HF_ENDPOINT."
)
