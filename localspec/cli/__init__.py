"""The command line: verbs by name, and one place where every error ends."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn, TextIO

try:
    import click
    from click.shell_completion import CompletionItem
except ImportError as missing:  # before there is anything that could tell it better
    sys.exit(f"localspec: {missing}.\n  Install localspec again: pip install localspec")

from localspec import __version__, errors
from localspec.cli import global_options
from localspec.sanitize import sanitize

_VERBS = {
    "run": "Complete a prompt, with speculation.",
    "bench": "Measure a pair here: plain and speculating.",
    "replay": "Show a recorded answer round by round.",
    "verify": "Check here that speculating changes nothing.",
    "pull": "Download models, whole and verified.",
    "list": "Models on this computer (also: ls).",
    "show": "Facts of a model or a pair.",
    "rm": "Remove models from this computer.",
    "search": "Find models on the hub.",
    "pair": "Which pairs there are, and which suit this computer.",
    "fit": "Whether a pair fits, how fast it will be, and what to change.",
    "history": "Chats that are kept: list, search, show, rename, rm.",
    "export": "A chat as Markdown, HTML or JSON.",
    "config": "What you want otherwise than it comes: list, get, set, edit.",
    "doctor": "What is wrong here, and how to mend it.",
    "completion": "Teach a shell these commands.",
    "version": "Show versions.",
}
_ALIASES = {"ls": "list"}
_WITHOUT_CONFIG = ("config", "doctor", "completion", "version")
"""Verbs that go on whatever is wrong with config.toml."""

_EXIT_SIGPIPE = 141
"""`localspec run … | head -1` ends quietly, as a shell counts SIGPIPE."""


class _LazyGroup(click.Group):
    """Imports a verb only when it is called; the names and their help are known before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # before click makes a plain 1 of it
            raise click.exceptions.Exit(_EXIT_SIGPIPE) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = _ALIASES.get(cmd_name, cmd_name)
        if name not in _VERBS:
            return None
        return global_options.add_to_command(
            importlib.import_module(f"localspec.cli.{name}").command
        )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs, without importing each."""
        found = [CompletionItem(name, help=about) for name, about in _VERBS.items()]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [one for one in found if one.value.startswith(incomplete)] + options


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", message="localspec %(version)s")
@click.pass_context
def localspec(context: click.Context) -> int | None:
    """Local GGUF models, faster: speculative decoding you can watch.

    Without a command: the terminal app.

    \b
    Try:  localspec run demo -p "def fibonacci(n):" --tokens --stats
    """
    verb = context.invoked_subcommand
    if verb is None:
        return _run_tui(context)
    if verb not in _WITHOUT_CONFIG:
        context.default_map = _apply_config(context.obj or ())
    return None


global_options.add_to_command(localspec)


def _apply_config(argv: Sequence[str]) -> dict[str, dict[str, object]]:
    """Values of config.toml where an option was not given.  Raises UsageError for a wrong one."""
    from localspec import config  # noqa: PLC0415  5 ms that --help has no use for

    view = config.resolve_strict()
    known = config.Config.from_effective(view)
    if not {"-q", "--quiet"} & {*argv}:
        for warning in view.warnings:
            click.echo(f"localspec: {warning}", err=True)
    usual: dict[str, object] = {"temperature": known.temperature, "spec": known.spec}
    return {"run": usual, "pull": {"limit": known.download_limit}}


def _run_tui(context: click.Context) -> int:
    """The screens, or the help where there is no terminal for them."""
    ends = (sys.stdin, sys.stdout)
    if global_options.is_plain() or not all(end is not None and end.isatty() for end in ends):
        click.echo(context.get_help(), err=True)
        return 2
    from localspec.tui import app  # noqa: PLC0415  200 ms that no other command needs

    return app.run(flags=global_options.get_flags(context))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run, and exit with the code of what happened."""
    _prepare_streams()
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = localspec.main(argv, "localspec", standalone_mode=False, obj=argv) or 0
        sys.stdout.flush()
    except click.ClickException as error:
        code = _print_usage_error(error, argv)
    except errors.LocalspecError as error:
        code = _print_error(error, argv)
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except BrokenPipeError:
        code = _EXIT_SIGPIPE
    except OSError as error:  # standard output or a file of ours: a full disk, say
        what = f"The output cannot be written: {error.strerror or error}."
        code = _print_error(errors.StorageError(what, "Make room, or write somewhere else."), argv)
    except ImportError as error:
        code = _print_error(_missing_package_error(error), argv)
    except Exception as error:  # ours: a person gets one line, a developer asks for more
        if os.environ.get("LOCALSPEC_DEBUG"):
            raise
        what = f"{type(error).__name__}: {error}"
        hint = "This is a bug. LOCALSPEC_DEBUG=1 shows where it is."
        code = _print_error(
            errors.LocalspecError(f"Something went wrong inside: {what}", hint), argv
        )
    _flush_or_discard(sys.stdout)
    sys.exit(code)


def _missing_package_error(error: ImportError) -> errors.LocalspecError:
    if os.environ.get("LOCALSPEC_DEBUG"):
        raise error
    what = f"A part that localspec needs cannot be used: {error}."
    again = f"Install it again: {sys.executable} -m pip install --force-reinstall localspec"
    return errors.LocalspecError(what, again)


def _flush_or_discard(stream: TextIO) -> None:
    """What cannot be written any more Python must not try to write, and complain of, at its end."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _prepare_streams() -> None:
    """A closed stream swallows; a locale without a character shows ?, not a crash."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="replace")


def _is_json_requested(argv: list[str]) -> bool:
    """Whether --json is an option here, not the text of one."""
    texts = ("-p", "--prompt", "--stop")
    return any(
        word == "--json" and before not in texts
        for before, word in zip(["", *argv], argv, strict=False)
    )


def _print_error(error: errors.LocalspecError, argv: list[str]) -> int:
    """One line what happened, one line what to do; as JSON on stdout where JSON was asked for."""
    message, hint = sanitize(error.message, multiline=False), sanitize(error.hint, multiline=False)
    with suppress(OSError):  # nobody may be listening; the exit code still tells
        if _is_json_requested(argv):
            body = {"code": errors.error_code(error), "message": message, "hint": hint}
            said = {"text": error.said} if error.said else {}
            click.echo(json.dumps({"schema": 1, "error": body} | said))
        else:
            click.echo(f"localspec: {message}" + (f"\n  {hint}" if hint else ""), err=True)
        if error.detail and ("-v" in argv or "--verbose" in argv):
            click.echo("\n".join(sanitize(line) for line in error.detail), err=True)
    return errors.exit_code(error)


def _print_usage_error(error: click.ClickException, argv: list[str]) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        with suppress(OSError):
            click.echo(error.format_message(), err=True)
        return 2
    verb = f" {argv[0]}" if argv and argv[0] in (*_VERBS, *_ALIASES) else ""
    hint = f"See: localspec{verb} --help"
    return _print_error(errors.UsageError(error.format_message(), hint), argv)
