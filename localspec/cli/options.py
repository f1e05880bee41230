"""The options that verbs share, in groups, and what to load by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import click

from localspec import launch
from localspec.cli import completing
from localspec.fit.advisor import Wish
from localspec.models.chat import fallbacks
from localspec.protocol.wire import (
    DRAFT_MAX,
    ContextSettings,
    Load,
    VerifyMode,
)
from localspec.speculation import SPECS, WITHOUT_DRAFT


def _layers(_: click.Context, option: click.Parameter, value: str) -> int:
    if value == "auto":
        return -1
    if not value.isdecimal():
        raise click.BadParameter("use a number of layers, or auto", param=option)
    return min(int(value), 10_000)


def _split(
    _: click.Context, option: click.Parameter, value: str
) -> dict[str, str | tuple[float, ...]]:
    if value in ("none", "layer", "row"):
        return {"split_mode": value}
    try:
        return {"tensor_split": tuple(float(share) for share in value.split(","))}
    except ValueError:
        raise click.BadParameter("use none, layer, row, or shares: 3,1", param=option) from None


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


PROMPT = _options(
    click.argument("model", required=False, shell_complete=completing.models),
    click.option(
        "-p", "--prompt", metavar="TEXT", help="Default: standard input; on a terminal, a chat."
    ),
    click.option("--system", default="", metavar="TEXT", help="The system prompt."),
    click.option("--raw", is_flag=True, help="No chat template: the prompt is continued as it is."),
    click.option(
        "--template",
        type=click.Choice(list(fallbacks.STOPS)),
        metavar="NAME",
        help=f"A chat template other than the model's own: {', '.join(fallbacks.STOPS)}.",
    ),
    click.option("--max-tokens", type=click.IntRange(1), help="Default: 512; in a chat, no limit."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable."),
    click.option("--think", type=click.Choice(["on", "off"]), help="For models that are asked."),
    click.option(
        "--think-budget", type=click.IntRange(0), metavar="N", help="End thinking after N tokens."
    ),
)
SAMPLING = _options(
    click.option(
        "--temperature", type=click.FloatRange(0), help="Default: the pair's own, else 0.8."
    ),
    click.option("--top-k", type=click.IntRange(0), default=40, show_default=True),
    click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=0.95),
    click.option("--min-p", type=click.FloatRange(0, 1), default=0.05),
    click.option("--repeat-penalty", type=click.FloatRange(0, min_open=True), default=1.0),
    click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Default: drawn, and shown."),
)
SPECULATION = _options(
    click.option(
        "--draft",
        default="auto",
        metavar="REF|auto|none",
        shell_complete=completing.only_models,
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
MACHINE = _options(
    click.option("--ctx", type=click.IntRange(1), help="Context in tokens.  Default: what fits."),
    click.option("--kv", type=click.Choice(["f16", "q8_0", "q4_0"]), help="Default: what fits."),
    click.option("--gpu-layers", default="auto", metavar="N|auto", callback=_layers),
    click.option("--draft-gpu-layers", default="auto", metavar="N|auto", callback=_layers),
    click.option("--main-gpu", type=click.IntRange(0), default=0),
    click.option("--split", default="layer", metavar="none|layer|row|SHARES", callback=_split),
    click.option("--cpu-moe", is_flag=True, help="A mixture's experts in the computer's memory."),
    click.option("--threads", type=int, help="Default: physical cores less one."),
    click.option("--draft-threads", type=int, help="Default: as --threads."),
    click.option("--flash-attn", type=click.Choice(["auto", "on", "off"]), default="auto"),
    click.option("--anyway", is_flag=True, help="Load even what seems not to fit."),
)
OUTPUT = _options(
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

KEEPING = _options(
    click.option(
        "--continue",
        "chat",
        is_flag=False,
        flag_value="last",
        metavar="[CHAT]",
        shell_complete=completing.chats,
        help="Go on with the last chat, or the one of this number.",
    ),
    click.option("--private", is_flag=True, help="Keep nothing of this chat."),
)

YES = click.option("-y", "--yes", is_flag=True, help="Download what is missing without asking.")


def wish(choice: launch.Choice, given: dict[str, Any]) -> Wish:
    """The pair to load, and how, as far as these options say."""
    target = ContextSettings(
        n_gpu_layers=given["gpu_layers"],
        main_gpu=given["main_gpu"],
        kv_type=given["kv"] or "f16",
        cpu_moe=given["cpu_moe"],
        flash_attn=given["flash_attn"],
        n_ctx=given["ctx"] or choice.suggested.ctx,
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
    return Wish(
        Load(str(choice.target), path, target, draft, DRAFT_MAX),
        ctx=target.n_ctx,
        kv=given["kv"],
        layers=None if target.n_gpu_layers < 0 else target.n_gpu_layers,
        draft_layers=None if draft.n_gpu_layers < 0 else draft.n_gpu_layers,
        found=launch.says(choice) if path else "",
        anyway=given["anyway"],
    )
