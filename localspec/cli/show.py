"""`localspec show`: details of a model, a pair or a repository."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import click

from localspec.cli import (
    global_options,
    pull,
    report_printer,
    shell_completion,
    terminal,
)
from localspec.errors import NotFoundError, OfflineError
from localspec.models import (
    catalog,
    draft_heads,
    model_lookup,
    pull_plan,
    reference,
)
from localspec.models.hub.client import HubClient
from localspec.models.model_lookup import ModelRequest, ResolvedModel
from localspec.models.pull_plan import PlannedModel, PlannedPair, PullPlanner
from localspec.models.reference import HubReference, RepoFile
from localspec.report.compatibility import format_pair_verdict, match_to_json
from localspec.report.lines import EMPTY_LINE, Line, format_columns, make_line
from localspec.report.model_details import details_to_json, format_model_details
from localspec.units import gb


@click.command("show")
@click.argument("ref", shell_complete=shell_completion.complete_model_or_pair)
@global_options.flag("--template", about="Print only the chat template.")
@global_options.JSON
def command(ref: str, template: bool, as_json: bool) -> None:
    """Show the details of the model or pair REF, without downloading it.

    Reads the header of the file, here or on the hub. For a repository, also lists its
    models.
    """
    request = model_lookup.resolve(ref)
    hub = HubClient(on_wait=terminal.notify)
    items, files = pull.run_cancellable(
        lambda stop: _resolve_details(request, PullPlanner(hub, stop, refresh=False))
    )
    match = pull_plan.check_pair(*items) if len(items) == 2 else None
    if template:
        terminal.echo_text(_read_template(items[0]))
    elif as_json:
        pair = match_to_json(match) if match else None
        document = {
            "models": [details_to_json(item) for item in items],
            "pair": pair,
            "files": [{"file": file.path, "bytes": file.size} for file in files],
        }
        terminal.echo_json(document)
    else:
        for line in _format_details(items, match, files):
            report_printer.echo_line(line)


def _resolve_details(
    request: ModelRequest, planner: PullPlanner
) -> tuple[list[PlannedModel], list[RepoFile]]:
    """The models, and those of the repository if the reference names no single file."""
    items = [_plan_item(planner, model, request.target) for model in request.models]
    source = request.target.source
    files: list[RepoFile] = []
    if isinstance(source, HubReference) and source.tag is None and source.file is None:
        with suppress(OfflineError):
            repo = planner.repo_info(source.repo, source.revision)
            files = _join_split_files(repo.files)
    return items, files


def _plan_item(
    planner: PullPlanner, model: ResolvedModel, target: ResolvedModel
) -> PlannedModel:
    """The plan of a model; without a network, the data of its catalogue entry.

    The target may have a projector.
    """
    try:
        if model is target:
            return planner.add_projector(model)
        return planner.plan_model(model)
    except OfflineError:
        entry = model.catalog_model
        if entry is None:
            raise
        return PlannedModel(model, entry.file, entry.size, repo=entry.repo)


def _join_split_files(files: Sequence[RepoFile]) -> list[RepoFile]:
    """The models of a repository; the parts of a split model become one entry."""
    models = []
    for file in reference.list_models(files):
        with suppress(NotFoundError):  # some of its parts are missing
            parts = reference.choose_files(files, file=file.path)
            size = sum(part.size for part in parts)
            models.append(RepoFile(file.path, size, file.digest))
    return models


def _read_template(item: PlannedModel) -> str:
    text = item.header.chat_template if item.header else ""
    if not text:
        hint = "It completes text. To use a template: localspec run --template NAME"
        raise NotFoundError(
            f"{item.resolved.name} has no readable chat template.", hint
        )
    return text


def _format_details(
    items: Sequence[PlannedModel], match: PlannedPair | None, files: Sequence[RepoFile]
) -> Iterator[Line]:
    target, *drafts = items
    yield from format_model_details(target, _find_published(target, drafts))
    for draft in drafts:
        yield EMPTY_LINE
        yield from format_model_details(draft)
    if match is not None:
        yield EMPTY_LINE
        yield from format_pair_verdict(match)
    if files:
        yield EMPTY_LINE
        rows = [(gb(file.size), file.path) for file in files]
        yield from map(make_line, format_columns(rows))


def _find_published(target: PlannedModel, drafts: Sequence[PlannedModel]) -> str:
    """The speed that others report from the computer most like this one.

    Empty if there is none: only models of the catalogue have some.
    """
    from localspec.fit import machine_profile  # noqa: PLC0415  late: most are unknown
    from localspec.machine import published  # noqa: PLC0415
    from localspec.machine.device import HOST  # noqa: PLC0415

    entry = target.resolved.catalog_model
    if entry is None:
        return ""
    measured_models = {row.model for row in published.load()}
    if catalog.own_id(entry.id) not in measured_models:
        return ""
    kind = _find_draft_kind(target, drafts)
    machine = machine_profile.detect()
    cpu = machine.hardware.nominal_speeds[HOST]
    row = published.find_nearest(
        entry.id, machine.devices, kind, cpu_reaches=cpu.reached
    )
    return row.describe() if row else ""


def _find_draft_kind(target: PlannedModel, drafts: Sequence[PlannedModel]) -> str:
    """What drafts for the target; empty if nothing does."""
    for draft in drafts:
        entry = draft.resolved.catalog_model
        return entry.kind if entry else "model"
    if target.header and draft_heads.has_own_mtp_layer(target.header):
        return "mtp"
    return ""
