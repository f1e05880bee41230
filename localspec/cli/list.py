"""`localspec list`: the models on this computer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from localspec.cli import global_options
from localspec.cli.table import format_columns
from localspec.models import model_lookup
from localspec.models.catalog import CatalogPair
from localspec.models.local_files import inventory
from localspec.models.local_files.hub_cache import LeftoverFile
from localspec.models.local_files.local_model import ORIGIN_TITLES, LocalModel
from localspec.units import count, gb


@click.command("list")
@global_options.JSON
def command(as_json: bool) -> int:
    """List the models on this computer, and the pairs that are ready to run.

    Includes the models of LM Studio, Ollama and llama.cpp, and those in --models-dir.
    """
    models = inventory.list_models()
    pairs, leftovers = model_lookup.ready_pairs(models), inventory.find_leftovers()
    names = {model.path: model_lookup.shortest_reference(model, models) for model in models}
    if as_json:
        click.echo(json.dumps(_list_to_json(models, names, pairs, leftovers)))
        return 0
    for line in format_columns([("PAIR", "TITLE"), *((pair.id, pair.title) for pair in pairs)]):
        click.echo(line)
    if models:
        click.echo()
        rows = [_model_row(model, names) for model in models]
        for line in format_columns([("MODEL", "SIZE", "SOURCE", "CHECKSUM"), *rows]):
            click.echo(line)
    if leftovers:
        size = gb(sum(file.size for file in leftovers))
        what = count(len(leftovers), "unfinished download")
        click.echo(f"\n{what}, {size}. Remove: localspec rm --leftovers", err=True)
    if not models:
        click.echo("\nFind more pairs: localspec pair suggest", err=True)
    return 0


def _model_row(model: LocalModel, names: dict[Path, str]) -> tuple[str, str, str, str]:
    checked = "verified" if model.verified else "not verified"
    return names[model.path], gb(model.size), ORIGIN_TITLES[model.origin], checked


def _list_to_json(
    models: Sequence[LocalModel],
    names: dict[Path, str],
    pairs: Sequence[CatalogPair],
    leftovers: Sequence[LeftoverFile],
) -> dict[str, object]:
    return {
        "schema": 1,
        "pairs": [pair.id for pair in pairs],
        "models": [
            {
                "name": names[model.path],
                "path": str(model.path),
                "bytes": model.size,
                "repo": model.repo,
                "file": model.file,
                "revision": model.revision,
                "sha256": model.sha256,
                "verified": model.verified,
                "where": model.origin,
                "removable": model.removable,
                "parts": len(model.parts) or 1,
            }
            for model in models
        ],
        "leftovers": [
            {"path": str(file.path), "bytes": file.size, "resumable": file.resumable}
            for file in leftovers
        ],
    }
