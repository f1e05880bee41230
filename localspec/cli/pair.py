"""`localspec pair`: which pairs there are, which suit this computer, whether two files are one."""

from __future__ import annotations

import json

import click

from localspec.cli import completion, pull
from localspec.cli import global_options as where
from localspec.cli.table import format_columns
from localspec.errors import UsageError
from localspec.fit import machine_profile
from localspec.models import catalog, draft_heads, local_files, pull_plan, resolver
from localspec.models.catalog.entries import USE_CASES
from localspec.models.hub.cancellation import CancelToken
from localspec.models.hub.client import HubClient
from localspec.models.pull_plan import PlannedPair, PullPlanner
from localspec.suggest import PairSuggestion, SuggestionCriteria, suggest
from localspec.units import gb, gib

_MAX_SHOWN = 5


@click.group("pair")
def command() -> None:
    """Find pairs: a target, and a draft that makes it faster."""


@command.command("suggest")
@click.argument("ref", required=False, shell_complete=completion.complete_model)
@click.option(
    "--vram",
    type=click.FloatRange(0, 10_000, min_open=True),
    metavar="GIB",
    help="Memory of a GPU.  [default: what this computer has free, without a GPU]",
)
@click.option("--use", type=click.Choice(USE_CASES), help="What for.")
@click.option("--all", "everything", is_flag=True, help=f"More than {_MAX_SHOWN}.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def _suggest(
    ref: str | None, vram: float | None, use: str | None, everything: bool, as_json: bool
) -> int:
    """The pairs that fit, the best first; with REF those of one model.  Asks nobody."""
    place = machine_profile.with_vram(vram) if vram is not None else machine_profile.detect()
    found = suggest(place, SuggestionCriteria(use), ref)
    device = (*place.devices, place.cpu)[0]
    free = device.free or 0
    if as_json:
        said = {"memory": free, "gpu": bool(place.devices), "use": use}
        click.echo(
            json.dumps(
                {"schema": 1} | said | {"pairs": [_suggestion_to_json(one) for one in found]}
            )
        )
        return 0
    of = "of a GPU" if place.devices else "free on this computer"
    click.echo(f"For {gib(free)} {of}:", err=True)
    shown = found if everything else found[:_MAX_SHOWN]
    for number, one in enumerate(shown, 1):
        click.echo(f"{number}. {one.pair.id}  {one.pair.title}")
        for reason in one.reasons:
            click.echo(f"   {reason}")
    if len(found) > len(shown):
        click.echo(f"{len(found) - len(shown)} more: --all", err=True)
    if found:
        click.echo(f"Get one: localspec pull {found[0].pair.id}", err=True)
    else:
        click.echo("Nothing fits.", err=True)
    return 0


@command.command("check")
@click.argument("target", shell_complete=completion.complete_model_or_pair)
@click.argument("draft", required=False, shell_complete=completion.complete_model)
@where.ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def _check(target: str, draft: str | None, endpoint: str | None, as_json: bool) -> int:
    """Whether DRAFT can speculate for TARGET; by their headers alone, wherever they are.

    TARGET alone may be a pair.  Ends with 5 where they do not go together.
    """
    asked = resolver.resolve(target)
    drafts = resolver.resolve(draft) if draft else None
    second = asked.draft if drafts is None else drafts.draft or drafts.target
    if second is None:
        raise UsageError("Two models are needed.", "localspec pair check TARGET DRAFT")
    one, other = asked.target, second

    def look(stop: CancelToken) -> PlannedPair | None:
        planner = PullPlanner(HubClient(endpoint), stop, refresh=False)
        return pull_plan.check_pair(planner.plan_model(one), planner.plan_model(other))

    match = pull.run_cancellable(look)
    if match is None:
        what = "A header could not be read."
        raise UsageError(what, "Connect, or pull both first.")
    if as_json:
        click.echo(json.dumps({"schema": 1} | pull.match_to_json(match)))
    else:
        for line in pull.format_pair_verdict(match):
            click.echo(line)
    return 0 if match.compatibility.is_compatible else 5


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def _list(as_json: bool) -> int:
    """All pairs of the catalogue."""
    pairs = catalog.load().pairs.values()
    ready = {pair.id for pair in resolver.ready_pairs(local_files.list_models())}
    if as_json:
        said = [
            {
                "id": pair.id,
                "title": pair.title,
                "target": pair.target.id,
                "draft": pair.draft.id if pair.draft else None,
                "kind": pair.draft_kind,
                "bytes": pair.size,
                "use": list(pair.use),
                "status": pair.status,
                "source": pair.source or None,
                "here": pair.id in ready,
            }
            for pair in pairs
        ]
        click.echo(json.dumps({"schema": 1, "pairs": said}))
        return 0
    table = [("PAIR", "SIZE", "DRAFTS BY", "STATUS", "")]
    for pair in pairs:
        size = gb(pair.size) if pair.size else "–"
        here = "here" if pair.id in ready else ""
        if pair.draft_kind not in ("model", "lookup", *draft_heads.SUPPORTED_KINDS):
            here = "cannot be run here yet"
        table.append((pair.id, size, pair.draft_kind, pair.status, here))
    for line in format_columns(table):
        click.echo(line)
    return 0


def _suggestion_to_json(suggestion: PairSuggestion) -> dict[str, object]:
    pair = suggestion.pair
    return {
        "id": pair.id,
        "target": pair.target.id,
        "draft": pair.draft.id if pair.draft else None,
        "bytes": suggestion.bytes,
        "needed": suggestion.needed_bytes,
        "verdict": suggestion.verdict,
        "speed": suggestion.fit.speed.speculative if suggestion.fit else None,
        "reasons": list(suggestion.reasons),
    }
