"""The command line: verbs by name, and one place where every error ends."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from localspec import __version__, errors
from localspec.clean import clean

_VERBS = {"run": "Complete a prompt, with speculation.", "version": "Show versions."}


class _Verbs(click.Group):
    """Imports a verb only when it is called; the names and their help are known before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        if ctx.resilient_parsing or (ctx.invoked_subcommand is None and "--help" in sys.argv[1:2]):
            return click.Command(cmd_name, short_help=_VERBS[cmd_name])
        command: click.Command = importlib.import_module(f"localspec.cli.{cmd_name}").command
        return command


@click.group(
    cls=_Verbs,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", message="localspec %(version)s")
def localspec() -> None:
    """Local GGUF models, faster: speculative decoding you can watch.

    \b
    Try:  localspec run demo -p "def fibonacci(n):" --tokens --stats
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run, and exit with the code of what happened."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a locale without the character shows ?, not a crash
            stream.reconfigure(errors="replace")
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = localspec.main(argv, prog_name="localspec", standalone_mode=False) or 0
        sys.stdout.flush()
    except click.ClickException as error:
        code = _tell_usage(error, argv)
    except errors.LocalspecError as error:
        code = _tell(error, argv)
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except BrokenPipeError:  # `localspec run … | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except Exception as error:  # ours: a person gets one line, a developer asks for more
        if os.environ.get("LOCALSPEC_DEBUG"):
            raise
        what = f"{type(error).__name__}: {error}"
        hint = "This is a bug. LOCALSPEC_DEBUG=1 shows where it is."
        code = _tell(errors.LocalspecError(f"Something went wrong inside: {what}", hint), argv)
    sys.exit(code)


def _tell(error: errors.LocalspecError, argv: list[str]) -> int:
    """One line what happened, one line what to do; as JSON on stdout where JSON was asked for."""
    message, hint = clean(error.message, multiline=False), clean(error.hint, multiline=False)
    if "--json" in argv:
        body = {"code": errors.code(error), "message": message, "hint": hint}
        click.echo(json.dumps({"schema": 1, "error": body}))
    else:
        click.echo(f"localspec: {message}" + (f"\n  {hint}" if hint else ""), err=True)
    return errors.exit_code(error)


def _tell_usage(error: click.ClickException, argv: list[str]) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return 2
    hint = "See: localspec run --help" if "run" in argv[:1] else "See: localspec --help"
    return _tell(errors.UsageError(error.format_message(), hint), argv)
