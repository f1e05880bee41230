"""The options of every command, and kinds of options that commands share.

The options of every command are --offline, --endpoint, --plain, --models-dir and
--data-dir. They set environment variables, so that child processes inherit them, and
`config list` shows which option set a variable.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

_PLAIN_VARIABLE = "LOCALSPEC_PLAIN"
_FLAGS_KEY = "localspec.flags"

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A range that excludes infinity and nan, which is not below any limit."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def reject_empty(context: click.Context, parameter: click.Parameter, value: T) -> T:
    """The callback of a parameter that must not be empty.

    An empty value would count as none: "$UNSET" in a script.
    """
    values = value if isinstance(value, tuple) else (value,)
    if any(isinstance(text, str) and not text.strip() for text in values):
        raise click.BadParameter("it is empty.", context, parameter)
    return value


def text_option(name: str, metavar: str, about: str, **more: Any) -> Callable[[F], F]:
    """An option whose text must not be empty."""
    return click.option(
        name, metavar=metavar, callback=reject_empty, help=about, **more
    )


def number_option(
    name: str, about: str, low: int | None = None, high: int | None = None, **more: Any
) -> Callable[[F], F]:
    """A whole number from `low` to `high`, or a number of `type`."""
    usual: dict[str, Any] = {
        "type": click.IntRange(low, high),
        "metavar": "N",
        "show_default": "default" in more,
    }
    return click.option(name, help=about, **usual | more)


def flag(*names: str, about: str) -> Callable[[F], F]:
    return click.option(*names, is_flag=True, help=about)


def get_flags(context: click.Context) -> dict[str, str]:
    """The global options of this command line, keyed by the variable that each sets."""
    flags: dict[str, str] = context.meta.setdefault(_FLAGS_KEY, {})
    return flags


def _folder_option(
    name: str, variable: str, about: str, *, must_exist: bool = False
) -> click.Option:
    def set_variable(
        context: click.Context, option: click.Parameter, value: str | None
    ) -> None:
        reject_empty(context, option, value)
        if value is not None:
            folder = os.path.abspath(os.path.expanduser(value))
            problem = ""
            if must_exist and not os.path.isdir(folder):
                problem = f"there is no folder {folder}."
            elif os.path.isfile(folder):
                problem = f"{folder} is a file."
            if problem:
                raise click.BadParameter(problem, context, option)
            os.environ[variable] = folder
            get_flags(context)[variable] = name

    return click.Option(
        [name],
        expose_value=False,
        callback=set_variable,
        help=about,
        metavar="DIR",
        type=click.Path(),
    )


def _switch(name: str, callback: Any, about: str) -> click.Option:
    return click.Option(
        [name], expose_value=False, callback=callback, help=about, is_flag=True
    )


def _set_offline(context: click.Context, __: click.Parameter, value: bool) -> None:
    if value:
        from localspec import config  # noqa: PLC0415  late: slow to import

        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ[f"{config.OPTION_PREFIX}HF_HUB_OFFLINE"] = "--offline"
        get_flags(context)["HF_HUB_OFFLINE"] = "--offline"


def _set_endpoint(
    context: click.Context, option: click.Parameter, value: str | None
) -> None:
    """Set the address of the hub for every client, whichever command makes it."""
    reject_empty(context, option, value)
    if value is not None:
        from localspec import config  # noqa: PLC0415  late: rarely used
        from localspec.models.hub import network_errors  # noqa: PLC0415

        address = network_errors.trim_address(value)
        if not network_errors.is_web_address(address):
            problem = (
                f"{value!r} is not a web address. "
                f"A valid one looks like {network_errors.DEFAULT_ENDPOINT}."
            )
            raise click.BadParameter(problem, context, option)
        os.environ["HF_ENDPOINT"] = address
        os.environ[f"{config.OPTION_PREFIX}HF_ENDPOINT"] = "--endpoint"
        get_flags(context)["HF_ENDPOINT"] = "--endpoint"


def _set_plain(_: click.Context, __: click.Parameter, value: bool) -> None:
    if value:
        os.environ[_PLAIN_VARIABLE] = "1"  # not TERM: readline reads it too


def is_plain() -> bool:
    """Whether to print words only.

    A screen reader reads symbols and redrawn lines aloud.
    """
    return bool(os.environ.get(_PLAIN_VARIABLE)) or os.environ.get("TERM") == "dumb"


def use_colour(*, no_color: bool = False, err: bool = False) -> bool:
    """Whether to colour stdout, or with `err` stderr; `no_color` is the option."""
    if no_color or is_plain() or os.environ.get("NO_COLOR"):
        return False
    stream = sys.stderr if err else sys.stdout
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def can_redraw() -> bool:
    """Whether standard error is a terminal where a progress line can be redrawn."""
    return sys.stderr is not None and sys.stderr.isatty() and not is_plain()


def _global_options() -> tuple[click.Option, ...]:
    return (
        _switch(
            "--offline",
            _set_offline,
            "Do not use the network.  Also: HF_HUB_OFFLINE=1.",
        ),
        click.Option(
            ["--endpoint"],
            expose_value=False,
            callback=_set_endpoint,
            help="A mirror of the Hugging Face hub.  Also: HF_ENDPOINT.",
            metavar="URL",
        ),
        _switch(
            "--plain",
            _set_plain,
            "Words only, for screen readers.  Also: TERM=dumb.",
        ),
        _folder_option(
            "--models-dir",
            "LOCALSPEC_MODELS_DIR",
            "Also use the .gguf files in DIR.",
            must_exist=True,
        ),
        _folder_option(
            "--data-dir",
            "LOCALSPEC_DATA_DIR",
            "Folder for chats, measurements and logs.",
        ),
    )


def add_to_command(command: click.Command) -> click.Command:
    """Add the global options to a command and its subcommands.

    So they are accepted before and after the name of a subcommand.
    """
    present: set[str] = set()
    for parameter in command.params:
        present.update(parameter.opts)
    for option in _global_options():
        if option.opts[0] not in present:
            command.params.append(option)
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            add_to_command(subcommand)
    return command


JSON = flag("--json", "as_json", about="Print one JSON document.")
YES = flag("-y", "--yes", about="Do not ask.")
GPU = click.option(
    "--gpu",
    metavar="NAME",
    help='Estimate for another GPU, such as "RTX 4060" or "M4 Pro 48".',
)
VRAM = number_option(
    "--vram",
    "Estimate for a GPU with this much memory.",
    type=FiniteRange(0, 10_000, min_open=True),
    metavar="GB",
)
CPU = text_option(
    "--cpu",
    "NAME",
    'Estimate for another CPU, such as "Ryzen 7 5800X" or "i5-12400, DDR4-3200"; '
    "without --gpu for a computer that has no GPU.",
)
RAM = number_option(
    "--ram",
    "Estimate for a computer with this much system memory.",
    type=FiniteRange(0, 10_000, min_open=True),
    metavar="GB",
)


def simulated_hardware(command: F) -> F:
    """Adds --gpu, --vram, --cpu and --ram, which name another computer."""
    for option in (RAM, CPU, VRAM, GPU):
        command = option(command)
    return command
