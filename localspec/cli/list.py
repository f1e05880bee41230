"""`localspec list`: the models on this computer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from localspec.cli.table import format_columns
from localspec.models import local_files, resolver
from localspec.models.catalog import CatalogPair
from localspec.models.local_files.local_model import LocalModel
from localspec.units import gb

SOURCE_NAMES = {
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
    found = local_files.list_models()
    pairs, left = resolver.ready_pairs(found), local_files.find_leftovers()
    names = {one.path: resolver.shortest_reference(one, found) for one in found}
    if as_json:
        click.echo(json.dumps(_list_to_json(found, names, pairs, left)))
        return 0
    shown = [("PAIR", "", "")] + [(pair.id, pair.title, "ready") for pair in pairs]
    for line in format_columns(shown):
        click.echo(line)
    if found:
        click.echo()
        models = [("MODEL", "SIZE", "WHERE", "CHECKED"), *(_model_row(one, names) for one in found)]
        for line in format_columns(models):
            click.echo(line)
    if left:
        size = gb(sum(orphan.size for orphan in left))
        click.echo(
            f"\n{len(left)} unfinished downloads, {size}: localspec rm --leftovers", err=True
        )
    if not found:
        click.echo("\nMore: localspec pair suggest", err=True)
    return 0


def _model_row(stored: LocalModel, names: dict[Path, str]) -> tuple[str, str, str, str]:
    checked = "verified" if stored.verified else "not verified"
    return names[stored.path], gb(stored.size), SOURCE_NAMES[stored.origin], checked


def _list_to_json(
    models: Sequence[LocalModel],
    names: dict[Path, str],
    pairs: Sequence[CatalogPair],
    orphans: Sequence[local_files.LeftoverFile],
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
                "where": one.origin,
                "removable": one.removable,
                "parts": len(one.parts) or 1,
            }
            for one in models
        ],
        "leftovers": [
            {"path": str(one.path), "bytes": one.size, "resumable": one.resumable}
            for one in orphans
        ],
    }
