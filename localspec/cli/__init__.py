"""The `localspec` command: the table of subcommands, and the handler of all errors."""

from __future__ import annotations

import difflib
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

try:
    import click
    from click.shell_completion import CompletionItem
except ImportError as missing:  # too early for _print_error
    sys.exit(f"localspec: {missing}.\n  Install localspec again, as it was installed.")

from localspec import __version__, command_table, errors, extras
from localspec.cli import global_options, terminal
from localspec.command_table import ALIASES
from localspec.sanitize import sanitize
from localspec.symbols import ASCII_ERRORS

if TYPE_CHECKING:
    from localspec.config.options import OptionGroup

_COMMANDS = command_table.read_commands()

_EXIT_SIGPIPE = 141  # 128 + SIGPIPE, as shells report it: `localspec run … | head -1`.


class _LazyGroup(click.Group):
    """Imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(row.name, row.about) for row in _COMMANDS.values()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would exit with 1
            raise click.exceptions.Exit(_EXIT_SIGPIPE) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = _COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        if row is None:
            return None
        return global_options.add_to_command(extras.load_object(row.path))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in (*_COMMANDS, *ALIASES):
            near = difflib.get_close_matches(name, _COMMANDS, n=1)
            hint = f"Did you mean {near[0]}?" if near else "See: localspec --help"
            raise errors.UsageError(f"There is no command {name!r}.", hint)
        return super().resolve_command(ctx, args)

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[CompletionItem]:
        items = [CompletionItem(row.name, help=row.about) for row in _COMMANDS.values()]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [item for item in items if item.value.startswith(incomplete)] + options


def _normalize_token(text: str) -> str:
    """`--top_k` is `--top-k`, as in llama.cpp."""
    return text.replace("_", "-")


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": _normalize_token,
    },
)
@click.version_option(__version__, "--version", message="localspec %(version)s")
@click.pass_context
def localspec(context: click.Context) -> int | None:
    """Local GGUF models, faster: speculative decoding you can watch.

    Without a command, localspec opens the terminal app.

    \b
    Try:  localspec run demo -p "def __repr__(self):" --tokens --stats
    """
    name = context.invoked_subcommand
    if name is None:
        return _run_tui(context)
    command = _COMMANDS[ALIASES.get(name, name)]
    if command.config != "repairs":
        context.default_map = _apply_config(context.obj or ())
    return None


global_options.add_to_command(localspec)


def _apply_config(argv: Sequence[str]) -> dict[str, dict[str, object]]:
    """The default map of click: settings of config.toml, by command.

    Raises UsageError for an invalid setting.
    """
    from localspec import config  # noqa: PLC0415  late: --help does not need these 5 ms

    settings = config.load()
    if not {"-q", "--quiet"} & {*argv}:
        for warning in settings.warnings:
            terminal.notify(warning)

    def collect(*groups: OptionGroup) -> dict[str, object]:
        values: dict[str, object] = {}
        for option in config.select("command", *groups):
            value = settings.get(option.key) if option.key else None
            if value not in (None, ()):
                values[option.name] = value
        return values

    defaults: dict[str, dict[str, object]] = {
        "answers": collect("sampling", "speculation", "load"),
        "load": collect("load"),
        "downloads": {"limit": settings.get("downloads.limit")},
    }
    return {
        row.name: defaults[row.config]
        for row in _COMMANDS.values()
        if row.config in defaults
    }


def _run_tui(context: click.Context) -> int:
    """Open the terminal app; print the help where there is no terminal."""
    if not terminal.can_open_app():
        terminal.echo_text(context.get_help(), err=True)
        return 2
    from localspec.cli import full_screen  # noqa: PLC0415  late: it takes 200 ms

    return full_screen.open_home(global_options.get_flags(context))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its exit code."""
    _prepare_streams()
    if not os.environ.get("LOCALSPEC_DEBUG"):
        threading.excepthook = _print_thread_error
    argv = sys.argv[1:]
    if arguments is not None:
        argv = list(arguments)
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
    except Exception as error:  # one line, or a traceback with LOCALSPEC_DEBUG
        if os.environ.get("LOCALSPEC_DEBUG") and not isinstance(error, OSError):
            raise
        code = _print_error(errors.explain(error), argv)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        # Redirect it to null, or Python prints an error at exit.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _print_thread_error(failure: threading.ExceptHookArgs) -> None:
    """Print a bug in a thread as one line, too. The command goes on."""
    if isinstance(failure.exc_value, Exception):
        _print_error(errors.explain(failure.exc_value), [])


def _prepare_streams() -> None:
    """Print symbols that the encoding lacks in ASCII. Replace closed streams.

    What is written to a closed standard output is an error, as with a full disk.
    """
    for name, mode in (("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        stream = getattr(sys, name)
        if stream is None:
            null = os.open(os.devnull, mode)
            setattr(sys, name, open(null, "w", errors=ASCII_ERRORS))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ASCII_ERRORS)


def _is_json_requested(argv: list[str]) -> bool:
    """Whether --json is an option, not the value of one."""
    previous = ""
    for argument in argv:
        if argument == "--json" and previous not in ("-p", "--prompt", "--stop"):
            return True
        previous = argument
    return False


def _print_error(error: errors.LocalspecError, argv: list[str]) -> int:
    """Print the error and its hint on stderr, or on stdout as JSON with --json."""
    message = sanitize(error.message, multiline=False)
    hint = sanitize(error.hint, multiline=False)
    document: dict[str, Any] = {
        "error": {"code": error.code, "message": message, "hint": hint}
    }
    if error.said:
        document["text"] = error.said
    is_printed = False
    if _is_json_requested(argv):
        try:
            terminal.echo_json(document)
            is_printed = True
        except BrokenPipeError:  # the reader has read what it wanted
            is_printed = True
        except OSError:  # the disk is full: say so on stderr
            pass
    with suppress(OSError):  # the stream may be closed
        if not is_printed:
            terminal.notify(message, hint)
        if {"-v", "--verbose"} & {*argv}:
            for line in error.detail:
                terminal.echo(line, err=True)
    return error.exit_code


def _find_near_option(typed: str, context: click.Context | None) -> str:
    """The most similar option of the command, or "".

    Other programs' names count too: `--tempt` is near to `--temp`, so `--temperature`.
    """
    from localspec.config.other_spellings import BY_FLAG  # noqa: PLC0415  late: rarely needed

    options: dict[str, str] = {}  # What is compared, and the option that it means.
    if context is not None:
        for param in context.command.params:
            if isinstance(param, click.Option) and not param.hidden:
                options |= {name: name for name in (*param.opts, *param.secondary_opts)}
    for flag, spelling in BY_FLAG.items():
        if spelling.ours in options:
            options[flag] = spelling.ours
    begins_alike = [name for name in options if name.startswith(typed) and typed[2:]]
    near = begins_alike or difflib.get_close_matches(typed, options, n=1)
    return options[near[0]] if near else ""


def _find_command_path(argv: Sequence[str]) -> str:
    """The command that the first words name: `localspec pair suggest`."""
    path = "localspec"
    command: click.Command = localspec
    for word in argv:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(click.Context(command), word)
        if found is None:
            break
        path = f"{path} {word}"
        command = found
    return path


def _print_usage_error(error: click.ClickException, argv: list[str]) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        with suppress(OSError):
            terminal.echo_text(error.format_message(), err=True)
        return 2
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "localspec"
    named = _find_command_path(argv)
    if named.startswith(path):
        # An option without its value has the context of a group.
        path = named
    hint = f"See: {path} --help"
    if isinstance(error, click.exceptions.NoSuchOption):
        from localspec.config.other_spellings import BY_FLAG  # noqa: PLC0415  late: rarely needed

        what = f"No such option {error.option_name!r}."
        near = _find_near_option(error.option_name, context)
        if path == "localspec" and error.option_name in BY_FLAG:
            hint = "Options of a model follow a command: localspec run MODEL --ctx N"
        elif near:
            hint = f"Did you mean {near}? {hint}"
        return _print_error(errors.UsageError(what, hint), argv)
    return _print_error(errors.UsageError(error.format_message(), hint), argv)
