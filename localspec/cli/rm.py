"""`localspec rm`: remove models from this computer."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from localspec.clean import clean
from localspec.cli import completing, pulling
from localspec.errors import AccessError, NotFoundError, UsageError
from localspec.models import store, wanted
from localspec.models.catalog import Model
from localspec.models.disk.stored import Stored
from localspec.models.wanted import Asked, Wanted
from localspec.units import gb


@click.command("rm")
@click.argument("ref", required=False, shell_complete=completing.models)
@click.option("--leftovers", is_flag=True, help="What downloads left behind that ended early.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(ref: str | None, leftovers: bool, yes: bool, as_json: bool) -> int:
    """Remove REF: of a pair both files, but not a draft that another pair here uses.

    Files of other programs are theirs, and stay.
    """
    if (ref is None) != leftovers:
        raise UsageError("Say what to remove.", "localspec rm REF, or localspec rm --leftovers")
    left = store.orphans() if leftovers else ()
    found = _found(wanted.read(ref)) if ref else ()
    size = sum(one.size for one in [*left, *found])
    if (left or found) and not yes and not _agreed(found, len(left), size, as_json):
        click.echo("Nothing was removed.", err=True)
        return 1
    freed = store.sweep(left) + sum(store.remove(one) for one in found)
    if as_json:
        removed = [str(one.path) for one in [*left, *found]]
        click.echo(json.dumps({"schema": 1, "removed": removed, "freed": freed}))
    else:
        click.echo(f"{gb(freed)} are free now.")
    return 0


def _agreed(found: Sequence[Stored], n_left: int, size: int, as_json: bool) -> bool:
    if as_json or not pulling.can_ask():
        raise UsageError("Nobody can be asked here.", "Say it beforehand: -y")
    for one in found:
        click.echo(f"  {clean(str(one.path), multiline=False)}  {gb(one.size)}", err=True)
    if n_left:
        click.echo(f"  {n_left} unfinished downloads  {gb(size)}", err=True)
    return click.confirm("Remove?", default=False, err=True)


def _found(asked: Asked) -> list[Stored]:
    """What there is of it.  Raises NotFoundError or AccessError."""
    known = [(one, _stored(one)) for one in asked.models]
    here = [(one, stored) for one, stored in known if stored is not None]
    if not here:
        bundled = all(one.model is not None and one.model.repo is None for one in asked.models)
        if bundled:
            raise AccessError(f"{asked.name} comes with localspec.", "It stays: it is small.")
        raise NotFoundError(f"{_shown(asked.name)} is not here.", "See: localspec list")
    found = []
    for one, stored in here:
        other = _user(asked, one.model) if one is asked.draft and one.model else ""
        if other:
            click.echo(f"localspec: {one.name} stays: {other} uses it.", err=True)
        else:
            found.append(stored)
    return found


def _stored(one: Wanted) -> Stored | None:
    if (path := one.path) is None:
        return one.stored()
    listed = (stored for stored in store.listing() if path in (stored.path, *stored.parts))
    return next(listed, None)


def _user(asked: Asked, draft: Model) -> str:
    """Another pair that is here and needs this draft."""
    for pair in wanted.ready(store.listing()):
        others = pair.target.id != asked.target.name
        if others and pair.draft and pair.draft.id == draft.id:
            return pair.id
    return ""


def _shown(name: str) -> str:
    return clean(name, multiline=False)
