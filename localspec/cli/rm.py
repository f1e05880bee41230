"""`localspec rm`: remove models from this computer."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from localspec.cli import completion, pull
from localspec.errors import NotFoundError, StorageError, UsageError
from localspec.models import local_files, resolver
from localspec.models.catalog import CatalogModel
from localspec.models.local_files.local_model import LocalModel
from localspec.models.resolver import ModelRequest, ResolvedModel
from localspec.sanitize import sanitize
from localspec.units import gb


@click.command("rm")
@click.argument("ref", required=False, shell_complete=completion.complete_model_or_pair)
@click.option("--leftovers", is_flag=True, help="What downloads left behind that ended early.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(ref: str | None, leftovers: bool, yes: bool, as_json: bool) -> int:
    """Remove REF: of a pair both files, but not a draft that another pair here uses.

    Files of other programs are theirs, and stay.
    """
    if (ref is None) != leftovers:
        raise UsageError("Say what to remove.", "localspec rm REF, or localspec rm --leftovers")
    left = local_files.find_leftovers() if leftovers else ()
    found = _find_files(resolver.resolve(ref)) if ref else ()
    size = sum(one.size for one in [*left, *found])
    if (left or found) and not yes and not _confirm_removal(found, len(left), size, as_json):
        click.echo("Nothing was removed.", err=True)
        return 1
    freed = local_files.delete_leftovers(left) + sum(local_files.remove(one) for one in found)
    if as_json:
        removed = [str(one.path) for one in [*left, *found]]
        click.echo(json.dumps({"schema": 1, "removed": removed, "freed": freed}))
    else:
        click.echo(f"{gb(freed)} are free now.")
    return 0


def _confirm_removal(files: Sequence[LocalModel], n_left: int, size: int, as_json: bool) -> bool:
    if as_json or not pull.can_prompt_user():
        raise UsageError("Nobody can be asked here.", "Say it beforehand: -y")
    for one in files:
        click.echo(f"  {sanitize(str(one.path), multiline=False)}  {gb(one.size)}", err=True)
    if n_left:
        click.echo(f"  {n_left} unfinished downloads  {gb(size)}", err=True)
    return click.confirm("Remove?", default=False, err=True)


def _find_files(request: ModelRequest) -> list[LocalModel]:
    """What there is of it.  Raises NotFoundError or AccessError."""
    known = [(one, _find_stored(one)) for one in request.models]
    here = [(one, stored) for one, stored in known if stored is not None]
    if not here:
        bundled = all(
            one.catalog_model is not None and one.catalog_model.repo is None
            for one in request.models
        )
        if bundled:
            raise StorageError(f"{request.name} comes with localspec.", "It stays: it is small.")
        raise NotFoundError(f"{_clean_name(request.name)} is not here.", "See: localspec list")
    found = []
    for one, stored in here:
        other = (
            _find_other_pair(request, one.catalog_model)
            if one is request.draft and one.catalog_model
            else ""
        )
        if other:
            click.echo(f"localspec: {one.name} stays: {other} uses it.", err=True)
        else:
            found.append(stored)
    return found


def _find_stored(model: ResolvedModel) -> LocalModel | None:
    if (path := model.path) is None:
        return model.find_local()
    listed = (
        stored for stored in local_files.list_models() if path in (stored.path, *stored.parts)
    )
    return next(listed, None)


def _find_other_pair(request: ModelRequest, draft: CatalogModel) -> str:
    """Another pair that is here and needs this draft."""
    for pair in resolver.ready_pairs(local_files.list_models()):
        others = pair.target.id != request.target.name
        if others and pair.draft and pair.draft.id == draft.id:
            return pair.id
    return ""


def _clean_name(name: str) -> str:
    return sanitize(name, multiline=False)
