"""`localspec pull`: download models, whole and verified."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import click

from localspec.clean import clean
from localspec.cli import completing, places, pulling
from localspec.models import catalog, heads, wanted
from localspec.models.plan import Item
from localspec.models.remote import Hub
from localspec.models.wanted import Wanted


@click.command("pull")
@click.argument("refs", nargs=-1, required=True, metavar="REF…", shell_complete=completing.models)
@click.option("--dry-run", is_flag=True, help="Show what would be done.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--limit", type=click.FloatRange(0, min_open=True), metavar="MB/S", help="Go no faster."
)
@places.ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="No plan and no progress.")
def command(refs: tuple[str, ...], endpoint: str | None, **given: Any) -> int:
    """Download each REF: a pair or a model of the catalogue, or user/repo:QUANT.

    First comes the plan: files, sizes, licences, room on the disk, and whether a pair goes
    together.  Ctrl+C keeps what has come; the same command goes on from there.

    \b
    localspec pull qwen3-8b+qwen3-0.6b
    localspec pull bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M --dry-run
    """
    done = pulling.pull(refs, Hub(endpoint), pulling.Way(**given))
    if not done.agreed:
        click.echo("Nothing was downloaded.", err=True)
        return 1
    if given["as_json"]:
        said = pulling.document(done.plan)
        for model in said["models"]:
            path = done.paths.get(model["name"])
            model["path"] = str(path) if path else None
        click.echo(json.dumps({"schema": 1, "dry_run": given["dry_run"]} | said))
    elif not given["dry_run"]:
        for ref in refs:
            _tell_next(ref, {item.wanted: item for item in done.plan.items})
    return 0


def _tell_next(ref: str, items: Mapping[Wanted, Item]) -> None:
    """How to run what is here now, or what makes it faster."""
    asked = wanted.read(ref)
    item = items.get(asked.target)
    if item is not None and item.header is not None and heads.kind(item.header) != "model":
        click.echo("It is used by itself where its target runs.", err=True)
        return
    if asked.pair is None or asked.pair.kind in ("model", "lookup", *heads.RUN):
        click.echo(clean(f"Ready: localspec run {shlex.quote(ref)}", multiline=False))
    if asked.pair is not None:
        return
    pairs = catalog.pairs_of(catalog.load(), asked.target.model) if asked.target.model else ()
    if (with_draft := next((pair for pair in pairs if pair.kind == "model"), None)) is not None:
        click.echo(f"A draft makes it faster: localspec pull {with_draft.id}", err=True)
    for line in pulling.beside(item) if item else ():
        click.echo(f"Beside it: {line}", err=True)
