"""`localspec rm`: remove models from this computer."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from localspec.cli import completion, global_options, pull
from localspec.errors import NotFoundError, StorageError, UsageError
from localspec.models import model_lookup
from localspec.models.catalog import CatalogModel
from localspec.models.local_files import inventory
from localspec.models.local_files.local_model import LocalModel
from localspec.models.model_lookup import ModelRequest, ResolvedModel
from localspec.sanitize import sanitize
from localspec.units import count, gb


@click.command("rm")
@click.argument("ref", required=False, shell_complete=completion.complete_model_or_pair)
@click.option("--leftovers", is_flag=True, help="Remove the files of unfinished downloads.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@global_options.JSON
def command(ref: str | None, leftovers: bool, yes: bool, as_json: bool) -> int:
    """Remove the model or pair REF from this computer.

    A draft model is kept if another installed pair uses it. Files of other programs are never
    removed.
    """
    if (ref is None) != leftovers:
        raise UsageError("Give REF or --leftovers.", "See: localspec rm --help")
    unfinished = inventory.find_leftovers() if leftovers else ()
    models = _find_models(model_lookup.resolve(ref)) if ref else ()
    files = [*unfinished, *models]
    size = sum(file.size for file in files)
    if files and not yes and not _confirm_removal(models, len(unfinished), size, as_json):
        click.echo("Nothing was removed.", err=True)
        return 1
    freed = inventory.delete_leftovers(unfinished)
    freed += sum(inventory.remove(model) for model in models)
    if as_json:
        removed = [str(file.path) for file in files]
        click.echo(json.dumps({"schema": 1, "removed": removed, "freed": freed}))
    else:
        click.echo(f"Freed {gb(freed)}.")
    return 0


def _confirm_removal(
    models: Sequence[LocalModel], n_unfinished: int, size: int, as_json: bool
) -> bool:
    if as_json or not pull.can_prompt_user():
        raise UsageError("Cannot ask: not a terminal.", "Use -y to remove without asking.")
    for model in models:
        click.echo(f"  {sanitize(str(model.path), multiline=False)}  {gb(model.size)}", err=True)
    if n_unfinished:
        click.echo(f"  {count(n_unfinished, 'unfinished download')}  {gb(size)}", err=True)
    return click.confirm("Remove?", default=False, err=True)


def _find_models(request: ModelRequest) -> list[LocalModel]:
    """The installed files to remove.  Raises NotFoundError, or StorageError for a bundled model."""
    candidates = [(model, _find_installed(model)) for model in request.models]
    installed = [(model, local) for model, local in candidates if local is not None]
    if not installed:
        bundled = all(
            model.catalog_model is not None and model.catalog_model.repo is None
            for model in request.models
        )
        if bundled:
            what = f"{request.name} is part of localspec and cannot be removed."
            raise StorageError(what, "See the other models: localspec list")
        name = sanitize(request.name, multiline=False)
        raise NotFoundError(f"{name} is not installed.", "See: localspec list")
    to_remove = []
    for model, local in installed:
        draft = model.catalog_model if model is request.draft else None
        user = _find_other_pair(request, draft) if draft else ""
        if user:
            click.echo(f"localspec: {model.name} is kept: {user} uses it.", err=True)
        else:
            to_remove.append(local)
    return to_remove


def _find_installed(model: ResolvedModel) -> LocalModel | None:
    if (path := model.path) is None:
        return model.find_local()
    models = inventory.list_models()
    return next((local for local in models if path in (local.path, *local.parts)), None)


def _find_other_pair(request: ModelRequest, draft: CatalogModel) -> str:
    """Id of an installed pair with another target that uses this draft model; empty if none."""
    for pair in model_lookup.ready_pairs(inventory.list_models()):
        is_other = pair.target.id != request.target.name
        if is_other and pair.draft and pair.draft.id == draft.id:
            return pair.id
    return ""
