"""`localspec pair`: which pairs there are, which suit this computer, whether two files are one."""

from __future__ import annotations

import json

import click

from localspec.cli import completing, pulling
from localspec.cli import places as where
from localspec.cli.table import rows
from localspec.errors import UsageError
from localspec.fit import places
from localspec.models import catalog, heads, plan, store, wanted
from localspec.models.catalogue.entry import USES
from localspec.models.hub.errand import Stop
from localspec.models.plan import Match, Planner
from localspec.models.remote import Hub
from localspec.suggest import Suggestion, Wanted, suggest
from localspec.units import gb, gib

_SHOWN = 5


@click.group("pair")
def command() -> None:
    """Find pairs: a target, and a draft that makes it faster."""


@command.command("suggest")
@click.argument("ref", required=False, shell_complete=completing.only_models)
@click.option(
    "--vram",
    type=click.FloatRange(0, 10_000, min_open=True),
    metavar="GIB",
    help="Memory of a GPU.  [default: what this computer has free, without a GPU]",
)
@click.option("--use", type=click.Choice(USES), help="What for.")
@click.option("--all", "everything", is_flag=True, help=f"More than {_SHOWN}.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def _suggest(
    ref: str | None, vram: float | None, use: str | None, everything: bool, as_json: bool
) -> int:
    """The pairs that fit, the best first; with REF those of one model.  Asks nobody."""
    place = places.with_memory(vram) if vram is not None else places.here()
    found = suggest(place, Wanted(use), ref)
    device = (*place.devices, place.cpu)[0]
    free = device.free or 0
    if as_json:
        said = {"memory": free, "gpu": bool(place.devices), "use": use}
        click.echo(json.dumps({"schema": 1} | said | {"pairs": [_entry(one) for one in found]}))
        return 0
    of = "of a GPU" if place.devices else "free on this computer"
    click.echo(f"For {gib(free)} {of}:", err=True)
    shown = found if everything else found[:_SHOWN]
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
@click.argument("target", shell_complete=completing.models)
@click.argument("draft", required=False, shell_complete=completing.only_models)
@where.ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def _check(target: str, draft: str | None, endpoint: str | None, as_json: bool) -> int:
    """Whether DRAFT can speculate for TARGET; by their headers alone, wherever they are.

    TARGET alone may be a pair.  Ends with 5 where they do not go together.
    """
    asked = wanted.read(target)
    drafts = wanted.read(draft) if draft else None
    second = asked.draft if drafts is None else drafts.draft or drafts.target
    if second is None:
        raise UsageError("Two models are needed.", "localspec pair check TARGET DRAFT")
    one, other = asked.target, second

    def look(stop: Stop) -> Match | None:
        planner = Planner(Hub(endpoint), stop, fresh=False)
        return plan.match(planner.item(one), planner.item(other))

    match = pulling.stoppable(look)
    if match is None:
        what = "A header could not be read."
        raise UsageError(what, "Connect, or pull both first.")
    if as_json:
        click.echo(json.dumps({"schema": 1} | pulling.judged(match)))
    else:
        for line in pulling.verdict(match):
            click.echo(line)
    return 0 if match.verdict.compatible else 5


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def _list(as_json: bool) -> int:
    """All pairs of the catalogue."""
    pairs = catalog.load().pairs.values()
    ready = {pair.id for pair in wanted.ready(store.listing())}
    if as_json:
        said = [
            {
                "id": pair.id,
                "title": pair.title,
                "target": pair.target.id,
                "draft": pair.draft.id if pair.draft else None,
                "kind": pair.kind,
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
        if pair.kind not in ("model", "lookup", *heads.RUN):
            here = "cannot be run here yet"
        table.append((pair.id, size, pair.kind, pair.status, here))
    for line in rows(table):
        click.echo(line)
    return 0


def _entry(one: Suggestion) -> dict[str, object]:
    pair = one.pair
    return {
        "id": pair.id,
        "target": pair.target.id,
        "draft": pair.draft.id if pair.draft else None,
        "bytes": one.bytes,
        "needed": one.needed,
        "verdict": one.verdict,
        "speed": one.fit.speed.speculative if one.fit else None,
        "reasons": list(one.reasons),
    }
