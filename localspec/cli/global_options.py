"""Options that every verb has: where files lie, whether the network may be used, who reads.

They set the variables that are read wherever a file or the hub is looked for, so that they hold
for the processes that we start, too; that an option did it is remembered for `config list`.
"""

from __future__ import annotations

import os
import sys

import click

_PLAIN_VARIABLE = "LOCALSPEC_PLAIN"
_FLAGS_KEY = "localspec.hints"


def get_flags(context: click.Context) -> dict[str, str]:
    """The options of this command line, by the variables that they have set."""
    found: dict[str, str] = context.meta.setdefault(_FLAGS_KEY, {})
    return found


def _folder_option(variable: str) -> click.Option:
    def put(context: click.Context, __: click.Parameter, value: str | None) -> None:
        if value:
            os.environ[variable] = os.path.abspath(os.path.expanduser(value))
            get_flags(context)[variable] = name

    name, about = {
        "LOCALSPEC_MODELS_DIR": ("--models-dir", "A folder of .gguf files of your own."),
        "LOCALSPEC_DATA_DIR": ("--data-dir", "Where localspec keeps what it learnt, and logs."),
    }[variable]
    return click.Option(
        [name], metavar="DIR", type=click.Path(), expose_value=False, callback=put, help=about
    )


def _set_offline(context: click.Context, __: click.Parameter, value: bool) -> None:
    if value:
        os.environ["HF_HUB_OFFLINE"] = "1"
        get_flags(context)["HF_HUB_OFFLINE"] = "--offline"


def _set_plain(_: click.Context, __: click.Parameter, value: bool) -> None:
    if value:
        os.environ[_PLAIN_VARIABLE] = "1"  # not TERM: it also tells readline what it may do


def is_plain() -> bool:
    """Whether words alone are wanted: a screen reader reads signs and redrawn lines aloud."""
    return bool(os.environ.get(_PLAIN_VARIABLE)) or os.environ.get("TERM") == "dumb"


def can_redraw() -> bool:
    """Whether progress may be one line of standard error that is written over."""
    return sys.stderr is not None and sys.stderr.isatty() and not is_plain()


def _global_options() -> tuple[click.Option, ...]:
    offline = click.Option(
        ["--offline"],
        is_flag=True,
        expose_value=False,
        callback=_set_offline,
        help="Never use the network; also: HF_HUB_OFFLINE=1, network.offline.",
    )
    words = click.Option(
        ["--plain"],
        is_flag=True,
        expose_value=False,
        callback=_set_plain,
        help="Words alone, for screen readers; also: TERM=dumb.",
    )
    return (
        offline,
        words,
        _folder_option("LOCALSPEC_MODELS_DIR"),
        _folder_option("LOCALSPEC_DATA_DIR"),
    )


def add_to_command(command: click.Command) -> click.Command:
    """Give them to a command and all below it; they may stand before or after its name."""
    known = {option for param in command.params for option in param.opts}
    command.params += [option for option in _global_options() if option.opts[0] not in known]
    if isinstance(command, click.Group):
        for below in command.commands.values():
            add_to_command(below)
    return command


ENDPOINT = click.option(
    "--endpoint", metavar="URL", help="A mirror of the hub; also: HF_ENDPOINT.  [default: its own]"
)
