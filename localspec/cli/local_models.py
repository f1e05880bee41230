"""`localspec list` and `localspec rm`: the models on this computer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from localspec.cli import global_options, shell_completion, terminal
from localspec.cli.report_printer import echo_columns
from localspec.cli.terminal import echo, echo_json
from localspec.errors import NotFoundError, StorageError, UsageError
from localspec.models import catalog, model_lookup, model_names, projectors, reference
from localspec.models.catalog import CatalogModel, CatalogPair
from localspec.models.local_files import inventory
from localspec.models.local_files.hub_cache import LeftoverFile
from localspec.models.local_files.local_model import ORIGIN_TITLES, LocalModel
from localspec.models.model_lookup import ModelRequest, ResolvedModel
from localspec.units import count, gb


@click.command("list")
@global_options.JSON
def list_command(as_json: bool) -> None:
    """List the models on this computer, and the pairs that are ready to run.

    Includes the models of LM Studio, Ollama and llama.cpp, and those in --models-dir.
    """
    models = inventory.list_models()
    pairs = model_lookup.ready_pairs(models)
    leftovers = inventory.find_leftovers()
    projector_of = projectors.map_projectors(models)
    models = _leave_out(models, projector_of.values())
    names = {
        model.path: model_lookup.shortest_reference(model, models) for model in models
    }
    if as_json:
        echo_json(_list_to_json(models, names, pairs, leftovers, projector_of))
        return
    pair_rows = [("PAIR", "NAME")]
    for pair in pairs:
        pair_rows.append((pair.name, model_names.name_catalog_pair(pair).text))
    echo_columns(pair_rows)
    if models:
        shown = model_names.name_files(model.path for model in models)
        rows = [("MODEL", "NAME", "SIZE", "SOURCE", "CHECKSUM")]
        for model in models:
            checksum = "verified" if model.verified else "not verified"
            origin = ORIGIN_TITLES[model.origin]
            if model.path in projector_of:
                origin += ", with projector"
            title = shown[model.path]
            if model.origin == "ollama":
                title = model.own_name  # Its files are named by their checksums.
            rows.append((names[model.path], title, gb(model.size), origin, checksum))
        echo()
        echo_columns(rows)
    if leftovers:
        size = gb(sum(file.size for file in leftovers))
        what = count(len(leftovers), "unfinished download")
        echo(err=True)
        echo(f"{what}, {size}. Remove: localspec rm --leftovers", err=True)
    if not models:
        echo(err=True)
        echo("Find more pairs: localspec pair suggest", err=True)


def _list_to_json(
    models: Sequence[LocalModel],
    names: dict[Path, str],
    pairs: Sequence[CatalogPair],
    leftovers: Sequence[LeftoverFile],
    projector_of: Mapping[Path, Path],
) -> dict[str, object]:
    return {
        "pairs": [pair.id for pair in pairs],
        "models": [
            _model_to_json(model, names[model.path], projector_of.get(model.path))
            for model in models
        ],
        "leftovers": [
            {"path": str(file.path), "bytes": file.size, "resumable": file.resumable}
            for file in leftovers
        ],
    }


def _leave_out(
    models: Sequence[LocalModel], files: Iterable[Path]
) -> tuple[LocalModel, ...]:
    """The models without these files: a projector is listed with its model."""
    left_out = {os.path.realpath(file) for file in files}
    kept = [each for each in models if os.path.realpath(each.path) not in left_out]
    return tuple(kept)


def _model_to_json(
    model: LocalModel, name: str, projector: Path | None
) -> dict[str, object]:
    return {
        "name": name,
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
        "projector": str(projector) if projector else None,
    }


@click.command("rm")
@click.argument(
    "ref", required=False, shell_complete=shell_completion.complete_model_or_pair
)
@global_options.flag("--leftovers", about="Remove the files of unfinished downloads.")
@global_options.YES
@global_options.JSON
def rm_command(ref: str | None, leftovers: bool, yes: bool, as_json: bool) -> int:
    """Remove the model or pair REF from this computer.

    A draft model is kept if another installed pair uses it, and the projector of a
    model that sees if another model does. Files of other programs are never removed.
    """
    if (ref is None) != leftovers:
        raise UsageError("Give REF or --leftovers.", "See: localspec rm --help")
    unfinished = inventory.find_leftovers() if leftovers else ()
    models = _find_models(model_lookup.resolve(ref)) if ref else ()
    files = [*unfinished, *models]
    size = sum(file.size for file in files)
    lines = [f"{model.path}  {gb(model.size)}" for model in models]
    if unfinished:
        lines.append(f"{count(len(unfinished), 'unfinished download')}  {gb(size)}")
    if files and not yes:
        hint = "Use -y to remove without asking."
        if not terminal.confirm("Remove?", lines, hint, as_json=as_json):
            echo("Nothing was removed.", err=True)
            return 1
    freed = inventory.delete_leftovers(unfinished)
    freed += sum(inventory.remove(model) for model in models)
    if as_json:
        echo_json({"removed": [str(file.path) for file in files], "freed": freed})
    else:
        echo(f"Freed {gb(freed)}.")
    return 0


def _find_models(request: ModelRequest) -> list[LocalModel]:
    """The installed files to remove.

    Raises NotFoundError, or StorageError for a bundled model.
    """
    candidates = [(model, _find_installed(model)) for model in request.models]
    installed = [(model, local) for model, local in candidates if local is not None]
    if not installed:
        entries = [model.catalog_model for model in request.models]
        if all(entry is not None and entry.repo is None for entry in entries):
            what = f"{request.name} is part of localspec and cannot be removed."
            raise StorageError(what, "See the other models: localspec list")
        raise NotFoundError(f"{request.name} is not installed.", "See: localspec list")
    to_remove = []
    for model, local in installed:
        draft = model.catalog_model if model is request.draft else None
        user = _find_other_pair(request, draft) if draft else ""
        if user:
            terminal.notify(f"{model.name} is kept: {user} uses it.")
        else:
            to_remove.append(local)
    return to_remove + _find_projectors(to_remove)


def _find_projectors(to_remove: Sequence[LocalModel]) -> list[LocalModel]:
    """The projectors of these models that no other model here uses."""
    models = inventory.list_models()
    removed = {model.path for model in to_remove}
    used = projectors.map_projectors(
        model for model in models if model.path not in removed
    )
    own = projectors.map_projectors(to_remove)
    unused = {os.path.realpath(path) for path in own.values()}
    unused -= {os.path.realpath(path) for path in used.values()}
    found = []
    for model in models:
        is_unused = os.path.realpath(model.path) in unused
        if is_unused and model.removable and reference.is_projector(model.path.name):
            found.append(model)
    return found


def _find_installed(model: ResolvedModel) -> LocalModel | None:
    if model.path is None:
        return model.find_local()
    for local in inventory.list_models():
        if model.path in (local.path, *local.parts):
            return local
    return None


def _find_other_pair(request: ModelRequest, draft: CatalogModel) -> str:
    """An installed pair of another target with this draft, by name; or empty."""
    for pair in model_lookup.ready_pairs(inventory.list_models()):
        is_other = catalog.own_id(pair.target.id) != catalog.own_id(request.target.name)
        if is_other and pair.draft and pair.draft.id == draft.id:
            return pair.name
    return ""
