"""Option groups shared by several commands, and the load request built from them."""

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
        raise click.BadParameter("give a number of layers, or auto", param=option)
    return min(int(value), 10_000)


def _parse_split(
    _: click.Context, option: click.Parameter, value: str
) -> dict[str, str | tuple[float, ...]]:
    if value in ("none", "layer", "row"):
        return {"split_mode": value}
    try:
        return {"tensor_split": tuple(float(share) for share in value.split(","))}
    except ValueError:
        raise click.BadParameter(
            "give none, layer, row, or shares such as 3,1", param=option
        ) from None


def _option_group(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


PROMPT = _option_group(
    click.argument("model", required=False, shell_complete=completion.complete_model_or_pair),
    click.option(
        "-p",
        "--prompt",
        metavar="TEXT",
        help="The prompt.  [default: read standard input; on a terminal, start a chat]",
    ),
    click.option("--system", default="", metavar="TEXT", help="System prompt."),
    click.option(
        "--raw", is_flag=True, help="Use no chat template: the model continues the prompt."
    ),
    click.option(
        "--template",
        type=click.Choice(list(builtin_templates.STOP_STRINGS)),
        metavar="NAME",
        help=(
            "Use this chat template instead of the model's own: "
            f"{', '.join(builtin_templates.STOP_STRINGS)}."
        ),
    ),
    click.option(
        "--max-tokens",
        type=click.IntRange(1),
        metavar="N",
        help="Max tokens of an answer.  [default: 512; in a chat, no limit]",
    ),
    click.option(
        "--stop", multiple=True, metavar="TEXT", help="Stop before this text; repeatable."
    ),
    click.option(
        "--think",
        type=click.Choice(["on", "off"]),
        help="Turn thinking on or off, if the model's template supports it.",
    ),
    click.option(
        "--think-budget",
        type=click.IntRange(0),
        metavar="N",
        help="End the thinking after N tokens.",
    ),
)
SAMPLING = _option_group(
    click.option(
        "--temperature",
        type=click.FloatRange(0),
        metavar="X",
        help="Sampling temperature; 0 is greedy.  [default: the pair's own, else 0.8]",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(0),
        default=40,
        show_default=True,
        metavar="N",
        help="Sample from the N most probable tokens; 0 turns it off.",
    ),
    click.option(
        "--top-p",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.95,
        show_default=True,
        metavar="X",
        help="Sample from the most probable tokens that sum up to X; 1 turns it off.",
    ),
    click.option(
        "--min-p",
        type=click.FloatRange(0, 1),
        default=0.05,
        show_default=True,
        metavar="X",
        help="Skip tokens below X times the highest probability; 0 turns it off.",
    ),
    click.option(
        "--repeat-penalty",
        type=click.FloatRange(0, min_open=True),
        default=1.0,
        show_default=True,
        metavar="X",
        help="Penalty for repeated tokens; 1 turns it off.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**63 - 1),
        metavar="N",
        help="Seed of the sampling.  [default: random; --stats shows it]",
    ),
)
SPECULATION = _option_group(
    click.option(
        "--draft",
        default="auto",
        metavar="REF|auto|none",
        shell_complete=completion.complete_model,
        help="Draft model.  [default: auto, the one of the pair]",
    ),
    click.option(
        "--spec",
        type=click.Choice(SPECS),
        default="auto",
        metavar="NAME",
        help=f"Draft source: {', '.join(SPECS[:-1])} or {SPECS[-1]}.",
    ),
    click.option(
        "--draft-max",
        type=click.IntRange(0, DRAFT_MAX),
        metavar="N",
        help="Max draft tokens per round.  [default: 5]",
    ),
    click.option(
        "--verify",
        type=click.Choice(get_args(VerifyMode)),
        default="coupled",
        show_default=True,
        help="Verification method; each keeps the model's own distribution.",
    ),
    click.option(
        "--exact", is_flag=True, help="Exact mode: recompute near-ties one token at a time."
    ),
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
        type=click.Choice(["f16", "q8_0", "q4_0"]),
        help="Type of the KV cache.  [default: what fits]",
    ),
    click.option(
        "--gpu-layers",
        default="auto",
        show_default=True,
        metavar="N|auto",
        callback=_parse_layers,
        help="Layers of the target on the GPU.",
    ),
    click.option(
        "--draft-gpu-layers",
        default="auto",
        show_default=True,
        metavar="N|auto",
        callback=_parse_layers,
        help="Layers of the draft model on the GPU.",
    ),
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
    click.option("--cpu-moe", is_flag=True, help="Keep the experts of a MoE model in RAM."),
    click.option(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads.  [default: physical cores minus one]",
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
    click.option("--anyway", is_flag=True, help="Load even if the memory estimate says no."),
)
OUTPUT = _option_group(
    click.option(
        "--tokens", is_flag=True, help="Mark each token as accepted, bonus, corrected or plain."
    ),
    click.option("--stats", is_flag=True, help="Print statistics on standard error."),
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document instead of text."
    ),
    click.option("--events", type=click.Path(dir_okay=False), help="Write every event to FILE."),
    click.option(
        "--probabilities",
        is_flag=True,
        help="Record each token's probabilities in --events and --json.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Print no notices."),
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="Print what is loaded; after an error, the last log lines.",
    ),
    click.option("--no-color", is_flag=True, help="No colours.  Also: NO_COLOR=1."),
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
    click.option("--private", is_flag=True, help="Do not save this chat."),
)

YES = click.option("-y", "--yes", is_flag=True, help="Download missing models without asking.")


def build_load_request(choice: launch.ResolvedPair, given: dict[str, Any]) -> SettingsRequest:
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
    uses_draft = given["spec"] not in WITHOUT_DRAFT
    path = str(choice.draft) if choice.draft and uses_draft else None
    return SettingsRequest(
        LoadCommand(str(choice.target), path, target, draft, DRAFT_MAX),
        ctx=target.n_ctx,
        kv=given["kv"],
        n_gpu_layers=None if target.n_gpu_layers < 0 else target.n_gpu_layers,
        draft_n_gpu_layers=None if draft.n_gpu_layers < 0 else draft.n_gpu_layers,
        draft_note=launch.describe_detected_head(choice) if path else "",
        skip_memory_check=given["anyway"],
    )


_MAX_DOWNLOADS = 2
"""A target and its draft model."""


def resolve_or_pull(
    model: str | None, draft: str, *, yes: bool = False, quiet: bool = False
) -> launch.ResolvedPair:
    """Like `launch.resolve_pair`, but downloads missing models: with `yes`, or after a question.

    Raises NotDownloadedError if there is no terminal to ask on, or the answer is no.
    """
    for _ in range(_MAX_DOWNLOADS):
        try:
            return launch.resolve_pair(model, draft)
        except NotDownloadedError as missing:
            _pull_missing(missing, yes, quiet)
    return launch.resolve_pair(model, draft)


def resolve_default(model: str | None, draft: str) -> tuple[str, str]:
    """Without a model: the pair of config.toml, else of the last run, else the demo.

    config.toml comes first; otherwise the last run would override it after its first use.
    """
    if model is not None:
        return model, draft
    if (configured := config.load().pair) is not None:
        return configured, draft
    last_model, last_draft = recent_pairs.load_last() or ("demo", "auto")
    return last_model, last_draft if draft == "auto" else draft


def _pull_missing(missing: NotDownloadedError, yes: bool, quiet: bool) -> None:
    from localspec.cli import pull  # noqa: PLC0415  late: most runs download nothing
    from localspec.models.hub.client import HubClient  # noqa: PLC0415

    if not yes and not pull.can_prompt_user():
        raise missing
    if not quiet:
        click.echo(f"localspec: {missing.message}", err=True)
    result = pull.pull_models(
        [missing.pull_reference], HubClient(), pull.PullOptions(yes=yes, quiet=quiet and yes)
    )
    if not result.confirmed:
        raise missing


def resolve_drafter(choice: launch.ResolvedPair, spec: str) -> str:
    """The draft source to use.  Raises UsageError if --spec names one that this pair lacks."""
    source = click.get_current_context().get_parameter_source("spec")
    if source is ParameterSource.DEFAULT_MAP:  # config.toml applies to all pairs
        return launch.preferred_drafter(choice, spec)
    launch.check_drafter(choice, spec)
    return spec
