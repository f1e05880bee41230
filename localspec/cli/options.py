"""Option groups that several commands share, and what is built from their values.

click passes a command its arguments by name. `read_arguments` makes a typed value of
them: a Struct of the command's own arguments, whose field `options` holds the values of
the table of options (`config/options.py`). What a load or a chat needs of these is made
by `build_load_request` and `build_settings`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from msgspec import Struct
from msgspec.structs import fields

from localspec import extras, launch
from localspec.chat.settings import ANSWER_OPTIONS, ChatSettings
from localspec.cli import global_options, shell_completion
from localspec.cli.global_options import flag, text_option
from localspec.cli.terminal import can_prompt_user, notify, notify_of
from localspec.config import other_spellings
from localspec.config.option_types import SWITCH, check_json_schema
from localspec.config.option_types import Option as TableOption
from localspec.config.options import (
    EXTRA_LOAD_OPTIONS,
    EXTRA_SPECULATION_OPTIONS,
    OPTIONS,
    OptionGroup,
    select,
)
from localspec.errors import LocalspecError, NotFoundError, StorageError, UsageError
from localspec.fit import machine_profile
from localspec.fit.advisor import SettingsRequest
from localspec.fit.machine_profile import MachineProfile, SimulatedHardware
from localspec.machine import gpu_catalog, ram_speed, remote_devices
from localspec.models.chat_template import builtin_templates
from localspec.models.model_lookup import NotDownloadedError
from localspec.protocol.events import Notice
from localspec.protocol.wire import LoadEvent
from localspec.units import gib

T = TypeVar("T")

OptionValues = Mapping[str, Any]
"""Values of options of the table, by name. Each has the type that its row declares."""


class CommandArguments(Struct, frozen=True, kw_only=True):
    """The arguments of a command that has options of the table."""

    options: OptionValues


A = TypeVar("A", bound=CommandArguments)


def read_arguments(kind: type[A], given: Mapping[str, Any]) -> A:
    """What click passes to a command: its own arguments, and those of the table."""
    own_names = {field.name for field in fields(kind)}
    own: dict[str, Any] = {}
    table: dict[str, Any] = {}
    for name, value in given.items():
        if name in own_names:
            own[name] = value
        else:
            assert name in OPTIONS, f"{kind.__name__} has no field {name}"
            table[name] = value
    return kind(**own, options=table)


# --- checks of what is typed
# ----------------------------------------------------------------------


def single_drafts(advice: str) -> Callable[[click.Context, click.Parameter, T], T]:
    """The callback of an option or argument that takes drafts one by one."""

    def check(context: click.Context, parameter: click.Parameter, value: T) -> T:
        global_options.reject_empty(context, parameter, value)
        refs = value if isinstance(value, tuple) else (value,)
        for ref in refs:
            if isinstance(ref, str) and ref.isdecimal() and not os.path.exists(ref):
                problem = (
                    f"it is a model; the number of draft tokens is --draft-max {ref}"
                )
                raise click.BadParameter(problem, context, parameter)
            if isinstance(ref, str) and "," in ref and not os.path.exists(ref):
                problem = f"{ref!r} names more than one draft; {advice}"
                raise click.BadParameter(problem, context, parameter)
        return value

    return check


def _reject_empty_texts(
    context: click.Context, option: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    if "" in value:  # A line break or a space is a text to stop before, or a name.
        raise click.BadParameter("it is empty.", context, option)
    return value


def _read_json_schema(
    context: click.Context, option: click.Parameter, value: str | None
) -> str:
    text = global_options.reject_empty(context, option, value)
    if text is not None and not text.lstrip().startswith("{"):
        text = _read_file(text)
    return "" if text is None else check_json_schema(text)


def _read_grammar(
    context: click.Context, option: click.Parameter, value: str | None
) -> str:
    path = global_options.reject_empty(context, option, value)
    if path is not None and "::=" in path:  # the grammar itself, as in llama.cpp
        return path
    return "" if path is None else _read_file(path)


def _read_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {path}.", "Check the path.") from error
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{path} cannot be read as text.", "Give a text file."
        ) from error


# --- options of click, made of the rows of the table
# ----------------------------------------------------------------------

Option = Callable[[Any], Any]  # A decorator of click.


def _option_group(*options: Option) -> Option:
    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


class _OptionParam(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    name = "value"

    def __init__(self, option: TableOption) -> None:
        self._option = option

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._option.value_type.parse(value)
        except UsageError as error:
            self.fail(f"{error.message} {error.hint}", param, ctx)
        except ValueError:
            problem = f"{value!r} is not possible. Possible: {self._option.hint}."
            self.fail(problem, param, ctx)

    def late_words(self) -> list[str]:
        return list(self._option.value_type.late_words())

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        words = self._option.value_type.all_words()
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


_SPECIAL: dict[str, dict[str, Any]] = {
    "stop": {"type": str, "multiple": True, "callback": _reject_empty_texts},
    "json_schema": {"type": str, "callback": _read_json_schema},
    "grammar": {"type": str, "callback": _read_grammar},
    "exact": {"is_flag": False, "flag_value": "on"},
    "cpu_moe": {"is_flag": False, "flag_value": "all"},  # as llama.cpp's flag
}


class _LateWordsOption(click.Option):
    """An option whose help lists words that take time to find."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        value_type = self.type
        assert isinstance(value_type, _OptionParam)
        late_words = value_type.late_words()
        if late_words:
            self.help = f"{self.help}  Of other packages: {', '.join(late_words)}."
        return super().get_help_record(ctx)


def _render(option: TableOption) -> Option:
    value_type = option.value_type
    if value_type is SWITCH:
        return flag(option.flag, about=option.about)
    default = option.default
    # Then the default is not the option's: another place decides it.
    is_default_described = "[default:" in option.about
    words = "|".join(value_type.words)
    has_late_words = value_type.late_words is not dict
    attributes: dict[str, Any] = {
        "type": _OptionParam(option),
        "default": default,
        "show_default": not is_default_described and default not in (None, "", ()),
        "metavar": option.metavar or value_type.metavar or f"[{words}]",
        "help": option.about,
        "cls": click.Option,
    }
    if has_late_words:
        attributes["cls"] = _LateWordsOption
    if is_default_described or default == "":
        attributes["default"] = None
    attributes |= _SPECIAL.get(option.name, {})
    return click.option(option.flag, **attributes)


def _render_group(group: OptionGroup) -> tuple[Option, ...]:
    return tuple(_render(option) for option in select("command", group))


OFFLOAD = _option_group(*(_render(OPTIONS[name]) for name in ("gpu_layers", "cpu_moe")))
EXTRA_LOAD = _option_group(*(_render(option) for option in EXTRA_LOAD_OPTIONS))
EXACT = _render(OPTIONS["exact"])
DRAFT_MAX = _render(OPTIONS["draft_max"])
EXTRA_SPECULATION = _option_group(
    *(_render(option) for option in EXTRA_SPECULATION_OPTIONS)
)

_TEMPLATES = tuple(builtin_templates.STOP_STRINGS)
TEMPLATE = click.option(
    "--template",
    type=click.Choice(_TEMPLATES),
    metavar="NAME",
    help=f"Use this chat template instead of the model's own: {', '.join(_TEMPLATES)}.",
)
QUIET = flag("-q", "--quiet", about="Print no notices and no progress.")


_MODEL_ARGUMENTS = ("model", "models", "pair", "ref")
"""The argument that is a model or a pair, by its name in a command."""


class _OtherSpellings(click.Option):
    """Takes or refuses the options of other programs: `config/other_spellings.py`.

    It is no option itself. It adds their names to the command's parser, so that the
    help lists only ours. For example, `-ngl 99` fills `--gpu-layers`, `-m FILE` is
    MODEL, and `-ctk q8_0` is refused with a hint, because click would read it as
    `-c tk`.
    """

    _NAMED_MODEL = "named_model"
    _REFUSED = "refused_spellings"

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        options: dict[str, click.Option] = {}
        for param in ctx.command.params:
            if isinstance(param, click.Option):
                options |= dict.fromkeys([*param.opts, *param.secondary_opts], param)
        has_model = _find_model_argument(ctx) is not None
        for typed, spelling in other_spellings.BY_FLAG.items():
            if typed in options:
                continue
            if spelling.ours in options:
                same = copy.copy(options[spelling.ours])
                same.opts = [typed]
                same.secondary_opts = []
                same.add_to_parser(parser, ctx)
            elif spelling.ours == other_spellings.MODEL and has_model:
                parser.add_option(self, [typed], self._NAMED_MODEL, action="store")
            else:
                parser.add_option(
                    self, [typed], self._REFUSED, action="append_const", const=typed
                )

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """It is eager, so the values of the other parameters are not read yet."""
        refused = opts.get(self._REFUSED)
        if refused and not ctx.resilient_parsing:
            raise _refuse(refused[0], ctx)
        model = opts.get(self._NAMED_MODEL)
        argument = _find_model_argument(ctx)
        if model and argument is not None and isinstance(opts, dict):
            name = str(argument.name)
            if argument.nargs != 1:
                given = opts.get(name)
                others = given if isinstance(given, tuple) else ()
                opts[name] = (*others, model)
            elif not isinstance(opts.get(name), str):
                opts[name] = model
        return None, args


def _find_model_argument(ctx: click.Context) -> click.Argument | None:
    for param in ctx.command.params:
        if isinstance(param, click.Argument) and param.name in _MODEL_ARGUMENTS:
            return param
    return None


def _refuse(typed: str, ctx: click.Context) -> UsageError:
    spelling = other_spellings.BY_FLAG[typed]
    hint = spelling.hint
    if spelling.ours:
        hint = f"It is {spelling.ours} of other commands: localspec run --help"
    return UsageError(f"{ctx.command_path} has no option {typed}.", hint)


OTHER_SPELLINGS = click.option(
    "--other-spellings",
    cls=_OtherSpellings,
    is_flag=True,
    hidden=True,
    expose_value=False,
    is_eager=True,
)


def _pair_argument(name: str) -> Option:
    argument = click.argument(
        name,
        required=False,
        callback=global_options.reject_empty,
        shell_complete=shell_completion.complete_model_or_pair,
    )
    return _option_group(argument, OTHER_SPELLINGS)


PROMPT = _option_group(
    _pair_argument("model"),
    click.option(
        "-p",
        "--prompt",
        metavar="TEXT",
        help="The prompt; what is piped follows it after a blank line.  [default: read standard "
        "input; on a terminal, start a chat]",
    ),
    click.option(
        "--file",
        "files",
        metavar="FILE",
        multiple=True,
        callback=_reject_empty_texts,
        help="Attach a text, PDF, DOCX, ODT, EPUB or HTML file; 'FILE pages 3-10' attaches "
        "some of it.  Repeatable.",
    ),
    click.option(
        "--image",
        "images",
        multiple=True,
        metavar="FILE",
        callback=_reject_empty_texts,
        help="A picture for the model to see, with the prompt or the first message; repeatable.",
    ),
    click.option(
        "--audio",
        "audio",
        multiple=True,
        metavar="FILE",
        callback=_reject_empty_texts,
        help="A WAV, MP3 or FLAC file for the model to hear; repeatable.",
    ),
    click.option("--system", default="", metavar="TEXT", help="System prompt."),
    text_option(
        "--preset",
        "NAME",
        "Use the system prompt and the settings of a preset (config.toml, /preset save).",
    ),
    flag("--raw", about="Use no chat template: the model continues the prompt."),
    TEMPLATE,
    *_render_group("answer"),
)
SAMPLING = _option_group(*_render_group("sampling"))
_DRAFT = click.option(
    "--draft",
    default="auto",
    metavar="REF|auto|none",
    callback=single_drafts("use the better one: localspec pair test compares them."),
    shell_complete=shell_completion.complete_model,
    help="Draft model.  [default: auto, the one of the pair]",
)
SPECULATION = _option_group(_DRAFT, *_render_group("speculation"))
MACHINE = _option_group(
    *_render_group("load"),
    flag("--anyway", about="Load even if the memory estimate says no."),
)
MEASURING = _option_group(
    _pair_argument("pair"),
    _DRAFT,
    MACHINE,
    global_options.JSON,
    QUIET,
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,  # `cli.main` looks for it when it prints an error
        help="After an error, print the last log lines.",
    ),
)
NO_COLOUR = flag("--no-color", about="No colours.  Also: NO_COLOR=1.")
OUTPUT = _option_group(
    flag("--tokens", about="Mark each token as accepted, bonus, corrected or plain."),
    flag("--stats", about="Print statistics on standard error."),
    global_options.JSON,
    click.option(
        "--events", type=click.Path(dir_okay=False), help="Write every event to FILE."
    ),
    flag(
        "--probabilities",
        about="Record each token's probabilities in --events and --json.",
    ),
    QUIET,
    flag(
        "-v",
        "--verbose",
        about="Print what is loaded; after an error, the last log lines.",
    ),
    NO_COLOUR,
)

HISTORY = _option_group(
    click.option(
        "--continue",
        "chat",
        is_flag=False,
        flag_value="last",
        metavar="[CHAT]",
        shell_complete=shell_completion.complete_chat,
        help="Continue the last chat, or the one with this number.",
    ),
    flag("--private", about="Do not save this chat."),
)
_ALL_SERVERS = "all"
TOOLS = _option_group(
    text_option(
        "--folder",
        "DIR",
        "Offer tools that list, read and search the files of DIR, and change nothing.",
    ),
    click.option(
        "--tools",
        multiple=True,
        is_flag=False,
        flag_value=_ALL_SERVERS,
        metavar="[SERVER|all|none]",
        callback=_reject_empty_texts,
        shell_complete=shell_completion.complete_server,
        help="Offer the tools of SERVER, or of all servers that are on; repeatable.  "
        "[default: all in a chat, none with a prompt]",
    ),
    click.option(
        "--allow",
        multiple=True,
        metavar="SERVER.TOOL",
        callback=_reject_empty_texts,
        help="Run calls of this tool without asking; SERVER or folder: all of its tools.  "
        "Repeatable.",
    ),
)
YES = flag("-y", "--yes", about="Download missing models without asking.")


# --- what the values of options are for
# ----------------------------------------------------------------------


def build_load_request(
    pair: launch.ResolvedPair,
    options: OptionValues,
    *,
    spec: str,
    anyway: bool = False,
) -> SettingsRequest:
    """How to load the pair: the options that are fields of `LoadOptions`.

    Raises UsageError if two options exclude each other.
    """
    for check in extras.load("OPTION_CHECKS"):
        check(options, _is_from_config)
    names = {field.name for field in fields(launch.LoadOptions)}
    values: dict[str, Any] = {}
    for name, value in options.items():
        attribute = OPTIONS[name].attribute
        if attribute in names:
            values[attribute] = value
    # Other computers of config.toml are for all models.
    can_skip_remote = _is_from_config(remote_devices.option_name())
    load_options = launch.LoadOptions(
        **values, can_skip_remote=can_skip_remote, anyway=anyway
    )
    return load_options.to_request(pair, spec)


def print_skipped(error: LocalspecError) -> None:
    """Say why another computer, which is not needed, cannot be used."""
    notify(f"{error.message} Going on without it.")


def _is_from_config(name: str) -> bool:
    """Whether config.toml, which applies to all pairs, has the option's value."""
    return (
        click.get_current_context().get_parameter_source(name)
        is ParameterSource.DEFAULT_MAP
    )


def build_settings(pair: launch.ResolvedPair, options: OptionValues) -> ChatSettings:
    """The settings of a chat; those of the catalogue where an option is open."""
    values = {
        name: options[name] for name in ANSWER_OPTIONS if options.get(name) is not None
    }
    settings = ChatSettings.from_catalog(pair.suggested_settings, values.get("think"))
    return settings.with_values(values)


def simulate_machine(hardware: SimulatedHardware) -> MachineProfile:
    """This computer, or what --gpu, --vram, --cpu and --ram say.

    An assumed size is said, and that little is known of a CPU.
    """
    machine = machine_profile.simulate(hardware)
    if hardware.gpu is not None and hardware.vram is None:
        assumption = gpu_catalog.describe_assumption(hardware.gpu)
        if assumption:
            notify(assumption)
    if hardware.cpu is None:
        return machine
    if hardware.ram is None and machine.cpu.total is not None:
        size = gib(machine.cpu.total)
        notify(f"{size} of RAM are assumed, as here. Say the size: --ram 32.")
    if not ram_speed.is_known_cpu(hardware.cpu):
        notify(
            "Of this CPU nothing is known, so its speeds are a wide range. Name its "
            'memory, such as --cpu "i5-12400, DDR4-3200"; on that computer '
            "`localspec doctor --cpu` measures it."
        )
    return machine


def resolve_or_pull(
    model: str | None, draft: str, *, yes: bool = False, quiet: bool = False
) -> launch.ResolvedPair:
    """Like `launch.resolve_pair`, but downloads missing models.

    It asks first, unless `yes`. Raises NotDownloadedError if there is no terminal to
    ask on, or the answer is no.
    """

    def pull_missing(missing: NotDownloadedError) -> None:
        from localspec.cli import pull  # noqa: PLC0415  late: most runs download nothing
        from localspec.fit import suggestions  # noqa: PLC0415
        from localspec.models.hub.client import HubClient  # noqa: PLC0415

        if not yes and not can_prompt_user():
            raise missing
        if not quiet:
            notify(missing.message)
        pull_options = pull.PullOptions(yes=yes, quiet=quiet and yes)
        request = suggestions.resolve_best_file(
            missing.pull_reference, machine_profile.detect, launch.saved_criteria()
        )
        if pull.pull_models([request], HubClient(on_wait=notify), pull_options) is None:
            raise missing

    return launch.resolve_or_pull(model, draft, pull_missing)


def resolve_drafter(pair: launch.ResolvedPair, spec: str) -> str:
    """The draft source to use.

    Raises UsageError if --spec names one that this pair lacks.
    """
    if _is_from_config("spec"):
        return launch.preferred_drafter(pair, spec)
    launch.check_drafter(pair, spec)
    return spec


def make_notice_printer(quiet: bool) -> Callable[[LoadEvent], None]:
    def print_event(event: LoadEvent) -> None:
        if isinstance(event, Notice) and not quiet:
            notify_of(event)

    return print_event
