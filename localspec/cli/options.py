"""The options that verbs share, in groups, and what to load by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import click
from click.core import ParameterSource

from localspec import config, launch
from localspec.cli import completion
from localspec.fit.advisor import SettingsRequest
from localspec.launch import recent_pairs
from localspec.models.chat_template import builtin_templates
from localspec.models.resolver import NotDownloadedError
from localspec.protocol.wire import (
    DRAFT_MAX,
    ContextSettings,
    LoadCommand,
    VerifyMode,
)
from localspec.speculation import SPECS, WITHOUT_DRAFT


def _parse_layers(_: click.Context, option: click.Parameter, value: str) -> int:
    if value == "auto":
        return -1
    if not value.isdecimal():
        raise click.BadParameter("use a number of layers, or auto", param=option)
    return min(int(value), 10_000)


def _parse_split(
    _: click.Context, option: click.Parameter, value: str
) -> dict[str, str | tuple[float, ...]]:
    if value in ("none", "layer", "row"):
        return {"split_mode": value}
    try:
        return {"tensor_split": tuple(float(share) for share in value.split(","))}
    except ValueError:
        raise click.BadParameter("use none, layer, row, or shares: 3,1", param=option) from None


def _option_group(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


PROMPT = _option_group(
    click.argument("model", required=False, shell_complete=completion.complete_model_or_pair),
    click.option(
        "-p", "--prompt", metavar="TEXT", help="Default: standard input; on a terminal, a chat."
    ),
    click.option("--system", default="", metavar="TEXT", help="The system prompt."),
    click.option("--raw", is_flag=True, help="No chat template: the prompt is continued as it is."),
    click.option(
        "--template",
        type=click.Choice(list(builtin_templates.STOP_STRINGS)),
        metavar="NAME",
        help=(
            "A chat template other than the model's own: "
            f"{', '.join(builtin_templates.STOP_STRINGS)}."
        ),
    ),
    click.option("--max-tokens", type=click.IntRange(1), help="Default: 512; in a chat, no limit."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable."),
    click.option("--think", type=click.Choice(["on", "off"]), help="For models that are asked."),
    click.option(
        "--think-budget", type=click.IntRange(0), metavar="N", help="End thinking after N tokens."
    ),
)
SAMPLING = _option_group(
    click.option(
        "--temperature", type=click.FloatRange(0), help="Default: the pair's own, else 0.8."
    ),
    click.option("--top-k", type=click.IntRange(0), default=40, show_default=True),
    click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=0.95),
    click.option("--min-p", type=click.FloatRange(0, 1), default=0.05),
    click.option("--repeat-penalty", type=click.FloatRange(0, min_open=True), default=1.0),
    click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Default: drawn, and shown."),
)
SPECULATION = _option_group(
    click.option(
        "--draft",
        default="auto",
        metavar="REF|auto|none",
        shell_complete=completion.complete_model,
        help="The draft model.",
    ),
    click.option(
        "--spec",
        type=click.Choice(SPECS),
        default="auto",
        metavar="NAME",
        help=f"What drafts: {', '.join(SPECS[:-1])} or {SPECS[-1]}.",
    ),
    click.option(
        "--draft-max", type=click.IntRange(0, DRAFT_MAX), help="Guesses a round [default: 5]."
    ),
    click.option(
        "--verify",
        type=click.Choice(get_args(VerifyMode)),
        default="coupled",
        show_default=True,
        help="How guesses are checked; each keeps the model's own distribution.",
    ),
    click.option("--exact", is_flag=True, help="Compute near-ties again, one token at a time."),
)
MACHINE = _option_group(
    click.option("--ctx", type=click.IntRange(1), help="Context in tokens.  Default: what fits."),
    click.option("--kv", type=click.Choice(["f16", "q8_0", "q4_0"]), help="Default: what fits."),
    click.option("--gpu-layers", default="auto", metavar="N|auto", callback=_parse_layers),
    click.option("--draft-gpu-layers", default="auto", metavar="N|auto", callback=_parse_layers),
    click.option("--main-gpu", type=click.IntRange(0), default=0),
    click.option(
        "--split", default="layer", metavar="none|layer|row|SHARES", callback=_parse_split
    ),
    click.option("--cpu-moe", is_flag=True, help="A mixture's experts in the computer's memory."),
    click.option("--threads", type=int, help="Default: physical cores less one."),
    click.option("--draft-threads", type=int, help="Default: as --threads."),
    click.option("--flash-attn", type=click.Choice(["auto", "on", "off"]), default="auto"),
    click.option("--anyway", is_flag=True, help="Load even what seems not to fit."),
)
OUTPUT = _option_group(
    click.option("--tokens", is_flag=True, help="Mark which tokens were guessed, kept, corrected."),
    click.option("--stats", is_flag=True, help="Numbers at the end, on standard error."),
    click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text."),
    click.option("--events", type=click.Path(dir_okay=False), help="Write every event here."),
    click.option(
        "--probabilities",
        is_flag=True,
        help="Record each token's probabilities in --events and --json.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="No notices."),
    click.option("-v", "--verbose", is_flag=True, help="Show what is loaded, and how."),
    click.option("--no-color", is_flag=True, help="Also: NO_COLOR in the environment."),
)

HISTORY = _option_group(
    click.option(
        "--continue",
        "chat",
        is_flag=False,
        flag_value="last",
        metavar="[CHAT]",
        shell_complete=completion.complete_chat,
        help="Go on with the last chat, or the one of this number.",
    ),
    click.option("--private", is_flag=True, help="Keep nothing of this chat."),
)

YES = click.option("-y", "--yes", is_flag=True, help="Download what is missing without asking.")


def build_load_request(choice: launch.ResolvedPair, given: dict[str, Any]) -> SettingsRequest:
    """The pair to load, and how, as far as these options say."""
    target = ContextSettings(
        n_gpu_layers=given["gpu_layers"],
        main_gpu=given["main_gpu"],
        kv_type=given["kv"] or "f16",
        cpu_moe=given["cpu_moe"],
        flash_attn=given["flash_attn"],
        n_ctx=given["ctx"] or choice.suggested_settings.ctx,
        n_threads=given["threads"],
        **given["split"],
    )
    draft = replace(
        target,
        cpu_moe=False,
        n_gpu_layers=given["draft_gpu_layers"],
        n_threads=given["draft_threads"] or given["threads"],
    )
    wanted = given["spec"] not in WITHOUT_DRAFT
    path = str(choice.draft) if choice.draft and wanted else None
    return SettingsRequest(
        LoadCommand(str(choice.target), path, target, draft, DRAFT_MAX),
        ctx=target.n_ctx,
        kv=given["kv"],
        n_gpu_layers=None if target.n_gpu_layers < 0 else target.n_gpu_layers,
        draft_n_gpu_layers=None if draft.n_gpu_layers < 0 else draft.n_gpu_layers,
        draft_note=launch.describe_detected_head(choice) if path else "",
        skip_memory_check=given["anyway"],
    )


# --- The files that a command runs, downloaded first where somebody is there to say yes.

_MAX_DOWNLOADS = 2
"""Downloads: a target, and a draft that was named beside it."""


def resolve_or_pull(
    model: str | None, draft: str, *, yes: bool = False, quiet: bool = False
) -> launch.ResolvedPair:
    """As `launch.choose`; what is missing is pulled, after a question or with `yes`.

    Raises NotHere where nobody can be asked, or says no.
    """
    for _ in range(_MAX_DOWNLOADS):
        try:
            return launch.resolve_pair(model, draft)
        except NotDownloadedError as missing:
            _pull_missing(missing, yes, quiet)
    return launch.resolve_pair(model, draft)


def resolve_default(model: str | None, draft: str) -> tuple[str, str]:
    """What to open where no model was named: that of config.toml, of the last run, or the demo.

    What was set on purpose goes before what happened to be last: otherwise it would count once.
    """
    if model is not None:
        return model, draft
    if (usual := config.load().pair) is not None:
        return usual, draft
    last_model, last_draft = recent_pairs.load_last() or ("demo", "auto")
    return last_model, last_draft if draft == "auto" else draft


def _pull_missing(missing: NotDownloadedError, yes: bool, quiet: bool) -> None:
    from localspec.cli import pull  # noqa: PLC0415  late: most runs need no download
    from localspec.models.hub.client import HubClient  # noqa: PLC0415

    if not yes and not pull.can_prompt_user():
        raise missing
    if not quiet:
        click.echo(f"localspec: {missing.message}", err=True)
    done = pull.pull_models(
        [missing.pull_reference], HubClient(), pull.PullOptions(yes=yes, quiet=quiet and yes)
    )
    if not done.confirmed:
        raise missing


def drafter(choice: launch.ResolvedPair, spec: str) -> str:
    """What drafts.  Raises UsageError where this pair lacks what was typed."""
    source = click.get_current_context().get_parameter_source("spec")
    if source is ParameterSource.DEFAULT_MAP:  # config.toml speaks of all pairs
        return launch.preferred_drafter(choice, spec)
    launch.check_drafter(choice, spec)
    return spec
