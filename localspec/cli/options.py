"""Option groups shared by several commands, and the load request built from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from localspec import launch
from localspec.chat.settings import CHAT_SETTING_FIELDS, ChatSettings, check_json_schema
from localspec.cli import completion, global_options
from localspec.errors import NotFoundError, StorageError, UsageError
from localspec.fit.advisor import SettingsRequest
from localspec.models.chat_template import builtin_templates
from localspec.models.resolver import NotDownloadedError, resolve
from localspec.protocol.events import Event, Notice
from localspec.protocol.wire import DRAFT_MAX, SamplingParams, SplitMode, VerifyMode
from localspec.sanitize import sanitize
from localspec.speculation_methods import SPECS
from localspec.worker_address import parse_addresses

T = TypeVar("T")


def _parse_layers(_: click.Context, option: click.Parameter, value: str) -> int | None:
    if value == "auto":
        return None
    if not value.isdecimal():
        raise click.BadParameter("give a number of layers, or auto", param=option)
    return min(int(value), 10_000)


def _parse_workers(_: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...]:
    try:
        return tuple(map(str, parse_addresses(value)))
    except UsageError as error:
        raise click.BadParameter(f"{error.message} {error.hint}", param=option) from None


def _parse_split(_: click.Context, option: click.Parameter, value: str) -> str | tuple[float, ...]:
    if value in get_args(SplitMode):
        return value
    try:
        return tuple(float(share) for share in value.split(","))
    except ValueError:
        raise click.BadParameter(
            "give none, layer, row, or shares such as 3,1", param=option
        ) from None


def single_drafts(advice: str) -> Callable[[click.Context, click.Parameter, T], T]:
    """The callback of an option or argument that takes drafts one by one."""

    def check(context: click.Context, parameter: click.Parameter, value: T) -> T:
        global_options.reject_empty(context, parameter, value)
        for ref in value if isinstance(value, tuple) else (value,):
            if isinstance(ref, str) and "," in ref and not os.path.exists(ref):
                problem = f"{ref!r} names more than one draft; {advice}"
                raise click.BadParameter(problem, context, parameter)
        return value

    return check


def _reject_empty_stop(
    context: click.Context, option: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    if "" in value:  # a line break or a space is a text to stop before
        raise click.BadParameter("it is empty.", context, option)
    return value


def _read_json_schema(context: click.Context, option: click.Parameter, value: str | None) -> str:
    text = global_options.reject_empty(context, option, value)
    if text is not None and not text.lstrip().startswith("{"):
        text = _read_file(text)
    return "" if text is None else check_json_schema(text)


def _read_grammar(context: click.Context, option: click.Parameter, value: str | None) -> str:
    path = global_options.reject_empty(context, option, value)
    return "" if path is None else _read_file(path)


def _read_file(path: str) -> str:
    name = sanitize(path, multiline=False)
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {name}.", "Check the path.") from error
    except (OSError, ValueError) as error:
        raise StorageError(f"{name} cannot be read as text.", "Give a text file.") from error


Option = Callable[[Any], Any]
"""A decorator of click."""


def _option_group(*options: Option) -> Option:
    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


class _ChatSettingParam(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A value that `/set` accepts for the chat setting of this name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        setting = CHAT_SETTING_FIELDS[self.name]
        try:
            return setting.parse(str(value).strip().lower())
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not possible. Possible: {setting.hint}.", param, ctx)


def _number(name: str, metavar: str, about: str) -> Option:
    """A numeric chat setting; its default is that of `SamplingParams`, unless `about` has one."""
    default = None if "[default:" in about else getattr(SamplingParams(), name, None)
    return click.option(
        f"--{name.replace('_', '-')}",
        type=_ChatSettingParam(name),
        default=default,
        show_default=default is not None,
        metavar=metavar,
        help=about,
    )


def _layers(option: str, model: str) -> Option:
    return click.option(
        option,
        default="auto",
        show_default=True,
        metavar="N|auto",
        callback=_parse_layers,
        help=f"Layers of the {model} on the GPU.",
    )


def _flag(option: str, about: str) -> Option:
    return click.option(option, is_flag=True, help=about)


WORKERS = click.option(
    "--workers",
    metavar="HOST[:PORT],…|none",
    callback=_parse_workers,
    help="Other computers that run localspec worker; at most two share the model.",
)

_TEMPLATES = tuple(builtin_templates.STOP_STRINGS)

PROMPT = _option_group(
    click.argument(
        "model",
        required=False,
        callback=global_options.reject_empty,
        shell_complete=completion.complete_model_or_pair,
    ),
    click.option(
        "-p",
        "--prompt",
        metavar="TEXT",
        help="The prompt; what is piped follows it after a blank line.  [default: read standard "
        "input; on a terminal, start a chat]",
    ),
    click.option("--system", default="", metavar="TEXT", help="System prompt."),
    click.option(
        "--preset",
        metavar="NAME",
        callback=global_options.reject_empty,
        help="Use the system prompt and the settings of a preset (config.toml, /preset save).",
    ),
    _flag("--raw", "Use no chat template: the model continues the prompt."),
    click.option(
        "--template",
        type=click.Choice(_TEMPLATES),
        metavar="NAME",
        help=f"Use this chat template instead of the model's own: {', '.join(_TEMPLATES)}.",
    ),
    _number("max_tokens", "N", "Max tokens of an answer.  [default: 512; in a chat, no limit]"),
    click.option(
        "--stop",
        multiple=True,
        metavar="TEXT",
        callback=_reject_empty_stop,
        help="Stop before this text; repeatable.",
    ),
    click.option(
        "--think",
        type=click.Choice(["on", "off"]),
        help="Turn thinking on or off, if the model's template supports it.",
    ),
    _number("think_budget", "N", "End the thinking after N tokens."),
    click.option(
        "--json-schema",
        metavar="FILE|JSON",
        callback=_read_json_schema,
        help="Answer with JSON that satisfies this JSON Schema.",
    ),
    click.option(
        "--grammar",
        metavar="FILE",
        callback=_read_grammar,
        help="Answer with a text of this GBNF grammar.",
    ),
)
SAMPLING = _option_group(
    _number(
        "temperature",
        "X",
        "Sampling temperature; 0 is greedy.  [default: the pair's own, else 0.8]",
    ),
    _number("top_k", "N", "Sample from the N most probable tokens; 0 turns it off."),
    _number("top_p", "X", "Sample from the most probable tokens that sum up to X; 1 turns it off."),
    _number("min_p", "X", "Skip tokens below X times the highest probability; 0 turns it off."),
    _number("repeat_penalty", "X", "Penalty for repeated tokens; 1 turns it off."),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**63 - 1),
        metavar="N",
        help="Seed of the sampling.  [default: random; --stats shows it]",
    ),
)
_DRAFT = click.option(
    "--draft",
    default="auto",
    metavar="REF|auto|none",
    callback=single_drafts("use the better one: localspec pair test compares them."),
    shell_complete=completion.complete_model,
    help="Draft model.  [default: auto, the one of the pair]",
)
EXACT = click.option(
    "--exact",
    type=_ChatSettingParam("exact"),
    is_flag=False,
    flag_value="on",
    default="off",
    show_default=True,
    metavar="[on|off]",
    help="Exact mode: on a CPU, attention that computes passes of every width alike.",
)
OVERLAP = click.option(
    "--overlap",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    callback=lambda _context, _option, value: {"on": True, "off": False}.get(value),
    help="Draft while the target verifies; auto: across devices, where it is worth it.",
)
SPECULATION = _option_group(
    _DRAFT,
    click.option(
        "--spec",
        type=click.Choice(SPECS),
        default="auto",
        metavar="NAME",
        help=f"Draft source: {', '.join(SPECS[:-1])} or {SPECS[-1]}.",
    ),
    _number("draft_max", "N", f"Max draft tokens per round, 0 to {DRAFT_MAX}.  [default: 5]"),
    click.option(
        "--verify",
        type=click.Choice(get_args(VerifyMode)),
        default="coupled",
        show_default=True,
        help="Verification method; each keeps the model's own distribution.",
    ),
    EXACT,
    OVERLAP,
)
MACHINE = _option_group(
    click.option(
        "--ctx",
        type=click.IntRange(1),
        metavar="N",
        help="Context size in tokens.  [default: what fits]",
    ),
    click.option(
        "--kv",
        type=click.Choice(["f16", "q8_0/f16", "q8_0", "q4_0"]),
        help="Type of the KV cache (keys/values).  [default: what fits]",
    ),
    _layers("--gpu-layers", "target"),
    _layers("--draft-gpu-layers", "draft model"),
    click.option(
        "--main-gpu",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        metavar="N",
        help="GPU used with --split none or row, counted from 0.",
    ),
    click.option(
        "--split",
        default="layer",
        show_default=True,
        metavar="none|layer|row|SHARES",
        callback=_parse_split,
        help="How several GPUs share the model; SHARES: 3,1.",
    ),
    _flag("--cpu-moe", "Keep the experts of a MoE model in RAM."),
    click.option(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads.  [default: measured; at first one per performance core]",
    ),
    click.option(
        "--draft-threads",
        type=int,
        metavar="N",
        help="CPU threads of the draft model.  [default: as --threads]",
    ),
    click.option(
        "--flash-attn",
        type=click.Choice(["auto", "on", "off"]),
        default="auto",
        show_default=True,
        help="Flash attention.",
    ),
    WORKERS,
    _flag("--anyway", "Load even if the memory estimate says no."),
)
MEASURING = _option_group(
    click.argument(
        "pair",
        required=False,
        callback=global_options.reject_empty,
        shell_complete=completion.complete_model_or_pair,
    ),
    _DRAFT,
    MACHINE,
    global_options.JSON,
    click.option("-q", "--quiet", is_flag=True, help="Print no progress."),
    click.option("-v", "--verbose", is_flag=True, help="After an error, print the last log lines."),
)
OUTPUT = _option_group(
    _flag("--tokens", "Mark each token as accepted, bonus, corrected or plain."),
    _flag("--stats", "Print statistics on standard error."),
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document instead of text."
    ),
    click.option("--events", type=click.Path(dir_okay=False), help="Write every event to FILE."),
    _flag("--probabilities", "Record each token's probabilities in --events and --json."),
    click.option("-q", "--quiet", is_flag=True, help="Print no notices."),
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="Print what is loaded; after an error, the last log lines.",
    ),
    _flag("--no-color", "No colours.  Also: NO_COLOR=1."),
)

HISTORY = _option_group(
    click.option(
        "--continue",
        "chat",
        is_flag=False,
        flag_value="last",
        metavar="[CHAT]",
        shell_complete=completion.complete_chat,
        help="Continue the last chat, or the one with this number.",
    ),
    _flag("--private", "Do not save this chat."),
)

YES = click.option("-y", "--yes", is_flag=True, help="Download missing models without asking.")


def build_load_request(choice: launch.ResolvedPair, given: dict[str, Any]) -> SettingsRequest:
    """Of the options of MACHINE, `spec`, and of `exact` and `overlap` where the command has them.

    Raises UsageError if drafting cannot overlap with the verification method.
    """
    method, is_preference = given.get("verify"), _is_from_config("overlap")
    if given.get("overlap") and not is_preference and method in ("rejection", "block"):
        raise UsageError(
            f"Overlapped drafting does not work with --verify {method}.",
            "Use --verify coupled or match with --overlap on.",
        )
    names = {field.name for field in fields(launch.LoadOptions)}
    options = {name: value for name, value in given.items() if name in names}
    load_options = launch.LoadOptions(**options, can_skip_workers=can_skip_workers())
    return load_options.to_request(choice, given["spec"])


def can_skip_workers() -> bool:
    """Whether they come from config.toml, for all models, and not from the command line."""
    return _is_from_config("workers")


def _is_from_config(name: str) -> bool:
    """Whether config.toml, which applies to all pairs, has the option's value."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.DEFAULT_MAP


def build_settings(choice: launch.ResolvedPair, given: dict[str, Any]) -> ChatSettings:
    """Of the options of SAMPLING and SPECULATION; the catalogue's where they are open."""
    suggested = ChatSettings.from_catalog(choice.suggested_settings)
    temperature, draft_max = given["temperature"], given["draft_max"]
    return replace(
        suggested,
        sampling=SamplingParams(
            temperature=suggested.sampling.temperature if temperature is None else temperature,
            top_k=given["top_k"],
            top_p=given["top_p"],
            min_p=given["min_p"],
            repeat_penalty=given["repeat_penalty"],
        ),
        spec=given["spec"],
        draft_length=suggested.draft_length if draft_max is None else draft_max,
        verify=given["verify"],
        exact=given["exact"],
    )


def resolve_or_pull(
    model: str | None, draft: str, *, yes: bool = False, quiet: bool = False
) -> launch.ResolvedPair:
    """Like `launch.resolve_pair`, but downloads missing models: with `yes`, or after a question.

    Raises NotDownloadedError if there is no terminal to ask on, or the answer is no.
    """

    def pull_missing(missing: NotDownloadedError) -> None:
        from localspec.cli import pull  # noqa: PLC0415  late: most runs download nothing
        from localspec.models.hub.client import HubClient  # noqa: PLC0415

        if not yes and not pull.can_prompt_user():
            raise missing
        if not quiet:
            click.echo(f"localspec: {missing.message}", err=True)
        pull_options = pull.PullOptions(yes=yes, quiet=quiet and yes)
        request = resolve(missing.pull_reference)
        if pull.pull_models([request], HubClient(), pull_options) is None:
            raise missing

    return launch.resolve_or_pull(model, draft, pull_missing)


def resolve_drafter(choice: launch.ResolvedPair, spec: str) -> str:
    """The draft source to use.  Raises UsageError if --spec names one that this pair lacks."""
    if _is_from_config("spec"):
        return launch.preferred_drafter(choice, spec)
    launch.check_drafter(choice, spec)
    return spec


def make_notice_printer(quiet: bool) -> Callable[[Event], None]:
    def print_event(event: Event) -> None:
        if isinstance(event, Notice) and not quiet:
            click.echo(f"localspec: {event.message} {event.hint}", err=True)

    return print_event
