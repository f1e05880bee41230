"""`localspec show`: details of a model, a pair or a repository."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import click

from localspec import draft_kinds
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
    maker_sampling,
    model_lookup,
    pull_plan,
    reference,
)
from localspec.models.catalog import CatalogModel
from localspec.models.gguf.header import Header
from localspec.models.hub.client import HubClient
from localspec.models.model_lookup import ModelRequest, ResolvedModel
from localspec.models.pull_plan import PlannedModel, PlannedPair, PullPlanner
from localspec.models.reference import HubReference, RepoFile
from localspec.report.compatibility import format_pair_verdict, match_to_json
from localspec.report.lines import EMPTY_LINE, Line, format_columns, make_line
from localspec.units import gb

Fact = tuple[str, str | None]


@click.command("show")
@click.argument("ref", shell_complete=shell_completion.complete_model_or_pair)
@global_options.flag("--template", about="Print only the chat template.")
@global_options.ENDPOINT
@global_options.JSON
def command(ref: str, template: bool, endpoint: str | None, as_json: bool) -> None:
    """Show the details of the model or pair REF, without downloading it.

    Reads the header of the file, here or on the hub. For a repository, also lists its
    models.
    """
    request = model_lookup.resolve(ref)
    hub = HubClient(endpoint, on_wait=terminal.notify)
    items, files = pull.run_cancellable(
        lambda stop: _resolve_details(request, PullPlanner(hub, stop, refresh=False))
    )
    match = pull_plan.check_pair(*items) if len(items) == 2 else None
    if template:
        terminal.echo_text(_read_template(items[0]))
    elif as_json:
        document = {
            "models": [_item_to_json(item) for item in items],
            "pair": match_to_json(match) if match else None,
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
    items = [_plan_item(planner, model) for model in request.models]
    source = request.target.source
    files: list[RepoFile] = []
    if isinstance(source, HubReference) and source.tag is None and source.file is None:
        with suppress(OfflineError):
            repo = planner.repo_info(source.repo, source.revision)
            files = _join_split_files(repo.files)
    return items, files


def _plan_item(planner: PullPlanner, model: ResolvedModel) -> PlannedModel:
    """The plan of a model; without a network, the data of its catalogue entry."""
    try:
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
    for number, item in enumerate(items):
        if number:
            yield EMPTY_LINE
        model = item.resolved.catalog_model
        more = _header_facts(item.header) if item.header else _catalog_facts(model)
        sampling = maker_sampling.describe(maker_sampling.find(item.header, model))
        facts = [*_file_facts(item), *more, ("sampling", sampling or "default")]
        if number == 0:
            facts.append(("others report", _find_published(items)))
        rows = [(name, value) for name, value in facts if value]
        yield from map(make_line, format_columns(rows))
        head_lines = list(pull.format_sidecar_heads(item))
        if head_lines:
            yield EMPTY_LINE
            yield from map(make_line, head_lines)
    if match is not None:
        yield EMPTY_LINE
        yield from format_pair_verdict(match)
    if files:
        yield EMPTY_LINE
        rows = [(gb(file.size), file.path) for file in files]
        yield from map(make_line, format_columns(rows))


def _find_published(items: Sequence[PlannedModel]) -> str:
    """What others report nearest to this computer, of a model of the catalogue; may be
    empty.
    """
    from localspec.fit import machine_profile  # noqa: PLC0415  late: most are unknown
    from localspec.machine import published  # noqa: PLC0415

    entry, header = items[0].resolved.catalog_model, items[0].header
    if entry is None or catalog.own_id(entry.id) not in {
        row.model for row in published.load()
    }:
        return ""
    kind = "mtp" if header and draft_heads.has_own_mtp_layer(header) else ""
    for draft in items[1:]:
        kind = (
            draft.resolved.catalog_model.kind
            if draft.resolved.catalog_model
            else "model"
        )
    row = published.find_nearest(entry.id, machine_profile.detect().devices, kind)
    return row.describe() if row else ""


def _file_facts(item: PlannedModel) -> Iterator[Fact]:
    """Those that are empty are not shown."""
    model = item.resolved.catalog_model
    yield "name", item.resolved.name
    yield "title", model.title if model else ""
    parts = (item.repo, item.file or (model.type if model else ""))
    yield "file", "/".join(filter(None, parts))
    yield "size", "" if item.size is None else gb(item.size)
    files = model.files if model else ()
    yield "also as", ", ".join(f"{each.id} ({gb(each.size or 0)})" for each in files)
    yield "licence", item.licence
    yield "gated", f"accept its terms on the page of {item.repo}" if item.gated else ""
    yield "installed", str(item.path) if item.path else "no"
    yield "revision", item.revision
    yield "note", model.note if model else ""
    yield "pairs", ", ".join(_pair_ids(model))


def _header_facts(header: Header) -> Iterator[Fact]:
    drafts = "MTP: a layer of the model itself drafts tokens"
    if (kind := draft_heads.file_draft_kind(header)) != "model":
        title, layers = draft_kinds.head_title(kind), draft_heads.target_layers(header)
        reads = f"; reads target layers {', '.join(map(str, layers))}" if layers else ""
        drafts = f"{title}, only for its own target{reads}"
    elif not draft_heads.has_own_mtp_layer(header):
        drafts = ""
    tokenizer = header.tokenizer
    yield "architecture", header.architecture
    yield "draft head", drafts
    yield "parameters", f"{header.parameters:,}"
    yield "quantisation", header.quantization
    yield "layers", f"{header.n_layer}"
    yield "context", f"{header.n_ctx_train:,} tokens, as trained"
    yield (
        "vocabulary",
        f"{tokenizer.n_tokens:,} tokens, {tokenizer.model} {tokenizer.pre}",
    )
    yield "chat template", "yes" if header.chat_template else "no"
    yield "experts", f"{header.hparam('expert_count')}" if header.is_moe else ""
    if header.is_recurrent or header.is_hybrid:
        yield (
            "recurrent state",
            "all layers" if header.is_recurrent else "some layers (hybrid)",
        )
    yield "not supported", header.unsupported_reason


def _catalog_facts(model: CatalogModel | None) -> Iterator[Fact]:
    """Details from the catalogue, used if the header cannot be read."""
    if model is not None:
        kind = f"{model.kind}, only for its own target"
        yield "draft head", "" if model.kind == "model" else kind
        yield "architecture", model.architecture
        yield "parameters", f"{model.parameters:,}" if model.parameters else ""
        yield (
            "context",
            f"{model.context:,} tokens, as trained" if model.context else "",
        )


def _pair_ids(model: CatalogModel | None) -> list[str]:
    if model is None:
        return []
    id_ = catalog.own_id(model.id)
    ids = []
    for pair in catalog.load().pairs.values():
        draft_id = pair.draft.id if pair.draft is not None else ""
        if id_ in (pair.target.id, draft_id):
            ids.append(pair.id)
    return ids


def _item_to_json(item: PlannedModel) -> dict[str, Any]:
    return pull.model_to_json(item, item.path) | {
        "pairs": _pair_ids(item.resolved.catalog_model),
        "beside": [
            {
                "file": file.path,
                "bytes": file.size,
                "kind": draft_heads.kind_from_file_name(file.path),
            }
            for file in item.sidecar_heads
        ],
        "header": _header_to_json(item.header) if item.header else None,
    }


def _header_to_json(header: Header) -> dict[str, Any]:
    tokenizer = header.tokenizer
    has_own_mtp_layer = draft_heads.has_own_mtp_layer(header)
    return {
        "architecture": header.architecture,
        "drafts_as": "mtp"
        if has_own_mtp_layer
        else draft_heads.file_draft_kind(header),
        "name": header.name,
        "parameters": header.parameters,
        "quantisation": header.quantization,
        "layers": header.n_layer,
        "context": header.n_ctx_train,
        "vocabulary": {
            "model": tokenizer.model,
            "pre": tokenizer.pre,
            "tokens": tokenizer.n_tokens,
            "add_bos": tokenizer.add_bos,
            "add_eos": tokenizer.add_eos,
            "fingerprint": tokenizer.fingerprint,
        },
        "chat_template": header.chat_template,
        "experts": header.hparam("expert_count") or None,
        "recurrent": header.is_recurrent,
        "hybrid": header.is_hybrid,
        "unsupported": header.unsupported_reason or None,
    }
