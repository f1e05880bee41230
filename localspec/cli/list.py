"""`localspec list`: the models on this computer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from localspec.cli.table import rows
from localspec.models import store, wanted
from localspec.models.catalog import Pair
from localspec.models.disk.stored import Stored
from localspec.units import gb

WHERE = {
    "hub": "downloaded",
    "folder": "models folder",
    "lmstudio": "LM Studio",
    "ollama": "Ollama",
    "llama.cpp": "llama.cpp",
}


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(as_json: bool) -> int:
    """List the models on this computer, and the pairs that are ready to run.

    Also those in LM Studio's, Ollama's and llama.cpp's folders, and in --models-dir.
    """
    found = store.listing()
    pairs, left = wanted.ready(found), store.orphans()
    names = {one.path: wanted.called(one, found) for one in found}
    if as_json:
        click.echo(json.dumps(_document(found, names, pairs, left)))
        return 0
    shown = [("PAIR", "", "")] + [(pair.id, pair.title, "ready") for pair in pairs]
    for line in rows(shown):
        click.echo(line)
    if found:
        click.echo()
        models = [("MODEL", "SIZE", "WHERE", "CHECKED"), *(_row(one, names) for one in found)]
        for line in rows(models):
            click.echo(line)
    if left:
        size = gb(sum(orphan.size for orphan in left))
        click.echo(
            f"\n{len(left)} unfinished downloads, {size}: localspec rm --leftovers", err=True
        )
    if not found:
        click.echo("\nMore: localspec pair suggest", err=True)
    return 0


def _row(one: Stored, names: dict[Path, str]) -> tuple[str, str, str, str]:
    checked = "verified" if one.verified else "not verified"
    return names[one.path], gb(one.size), WHERE[one.where], checked


def _document(
    found: Sequence[Stored],
    names: dict[Path, str],
    pairs: Sequence[Pair],
    left: Sequence[store.Orphan],
) -> dict[str, object]:
    return {
        "schema": 1,
        "pairs": [pair.id for pair in pairs],
        "models": [
            {
                "name": names[one.path],
                "path": str(one.path),
                "bytes": one.size,
                "repo": one.repo,
                "file": one.file,
                "revision": one.revision,
                "sha256": one.sha256,
                "verified": one.verified,
                "where": one.where,
                "removable": one.removable,
                "parts": len(one.parts) or 1,
            }
            for one in found
        ],
        "leftovers": [
            {"path": str(one.path), "bytes": one.size, "resumable": one.resumable} for one in left
        ],
    }
