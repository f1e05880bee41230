"""What is known of a model, as lines and as JSON: `localspec show` and `localspec pull`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from localspec import draft_kinds
from localspec.models import catalog, draft_heads, maker_sampling, model_names
from localspec.models.catalog import CatalogModel
from localspec.models.gguf.header import Header
from localspec.models.projectors import Senses, listed_senses
from localspec.models.pull_plan import PlannedModel, PlannedProjector
from localspec.report.lines import EMPTY_LINE, Line, format_columns, make_line
from localspec.units import gb

Fact = tuple[str, str | None]
"""A name and a value. A fact without a value is not shown."""


def format_model_details(item: PlannedModel, published: str = "") -> Iterator[Line]:
    """The facts of a model, and the draft heads beside it.

    `published` is a speed that others have measured.
    """
    facts = [*_file_facts(item), *_model_facts(item), ("others report", published)]
    rows = [(name, value) for name, value in facts if value]
    yield from map(make_line, format_columns(rows))
    head_lines = list(format_sidecar_heads(item))
    if head_lines:
        yield EMPTY_LINE
        yield from map(make_line, head_lines)


def format_sidecar_heads(item: PlannedModel) -> Iterator[str]:
    """The draft heads in the repository of a model: size, and how to download each."""
    for file in item.sidecar_heads:
        title = draft_kinds.head_title(draft_heads.kind_from_file_name(file.path))
        ref = shlex.quote(f"hf://{item.repo}/{file.path}")
        yield f"{title} head, {gb(file.size)}: localspec pull {ref}"


def _file_facts(item: PlannedModel) -> Iterator[Fact]:
    model = item.resolved.catalog_model
    yield "name", _find_name(item)
    yield "id" if model else "reference", item.resolved.name
    file = item.file
    if not file and model:
        file = model.type
    yield "file", "/".join(filter(None, (item.repo, file)))
    if item.size is not None:
        yield "size", gb(item.size)
    if model:
        others = [f"{each.id} ({gb(each.size or 0)})" for each in model.files]
        yield "also as", ", ".join(others)
    yield "licence", item.licence
    if item.gated:
        yield "gated", f"accept its terms on the page of {item.repo}"
    yield "installed", str(item.path or "no")
    yield "projector", _describe_projector(item)
    yield "revision", item.revision
    if model:
        yield "note", model.note
        pairs = catalog.load().pairs
        yield "pairs", ", ".join(pairs[id_].name for id_ in find_pair_ids(model))


def find_senses(item: PlannedModel) -> Senses:
    """What its projector is made for; without one, what the catalogue says."""
    if item.projector is not None and item.projector.header is not None:
        return item.projector.senses
    model = item.resolved.catalog_model
    if model is None:
        return Senses()
    return listed_senses(model)


def describe_senses(senses: Senses) -> str:
    """Such as `sees images`, or `sees images, hears`; empty for neither."""
    words = []
    if senses.sees:
        words.append("sees images")
    if senses.hears:
        words.append("hears")
    return ", ".join(words)


def _describe_projector(item: PlannedModel) -> str:
    """Its file, its size and whether it is here; empty for a model without one.

    Without a plan, as offline, the catalogue's facts.
    """
    projector = item.projector
    if projector is not None:
        state = "installed" if projector.path is not None else "not installed"
        return f"{projector.name} ({gb(projector.size)}), {state}"
    model = item.resolved.catalog_model
    if model is None or model.projector is None:
        return ""
    listed = model.projector
    size = f" ({gb(listed.bytes)})" if listed.bytes is not None else ""
    return f"{listed.repo}/{listed.file}{size}"


def _find_name(item: PlannedModel) -> str:
    """The name that screens show; of a repository's file, of the file."""
    model = item.resolved.catalog_model
    if model is not None:
        return model_names.name_model(model)
    path = item.path or PurePosixPath(item.repo or "", item.file)
    return model_names.name_files([path])[path]


def _model_facts(item: PlannedModel) -> Iterator[Fact]:
    """What its header says; the catalogue's numbers if it cannot be read."""
    model = item.resolved.catalog_model
    if item.header is not None:
        yield from _header_facts(item.header)
    elif model is not None:
        yield from _catalog_facts(model)
    senses = find_senses(item)
    if senses.sees or senses.hears:
        yield "senses", describe_senses(senses)
    sampling = maker_sampling.describe(maker_sampling.find(item.header, model))
    yield "sampling", sampling or "default"


def _header_facts(header: Header) -> Iterator[Fact]:
    tokenizer = header.tokenizer
    yield "architecture", header.architecture
    yield "draft head", _describe_draft_head(header)
    yield "parameters", f"{header.parameters:,}"
    yield "quantisation", header.quantization
    yield "layers", f"{header.n_layer}"
    yield "context", _describe_context(header.n_ctx_train)
    vocabulary = f"{tokenizer.n_tokens:,} tokens, {tokenizer.model} {tokenizer.pre}"
    yield "vocabulary", vocabulary
    has_template = "yes" if header.chat_template else "no"
    yield "chat template", has_template
    if header.is_moe:
        yield "experts", f"{header.hparam('expert_count')}"
    if header.is_recurrent:
        yield "recurrent state", "all layers"
    elif header.is_hybrid:
        yield "recurrent state", "some layers (hybrid)"
    yield "not supported", header.unsupported_reason


def _catalog_facts(model: CatalogModel) -> Iterator[Fact]:
    if model.kind != "model":
        yield "draft head", _describe_head(model.kind)
    yield "architecture", model.architecture
    if model.parameters:
        yield "parameters", f"{model.parameters:,}"
    if model.context:
        yield "context", _describe_context(model.context)


def _describe_context(n_ctx: int) -> str:
    return f"{n_ctx:,} tokens, as trained"


def _describe_draft_head(header: Header) -> str:
    """What the file is to a target, or what drafts in it; empty for other models."""
    kind = draft_heads.file_draft_kind(header)
    if kind != "model":
        return _describe_head(kind, draft_heads.target_layers(header))
    if draft_heads.has_own_mtp_layer(header):
        return "MTP: a layer of the model itself drafts tokens"
    return ""


def _describe_head(kind: str, target_layers: Sequence[int] = ()) -> str:
    """Such as `EAGLE-3, only for its own target; reads target layers 2, 18, 33`."""
    text = f"{draft_kinds.head_title(kind)}, only for its own target"
    if target_layers:
        text += f"; reads target layers {', '.join(map(str, target_layers))}"
    return text


def find_pair_ids(model: CatalogModel | None) -> list[str]:
    """The pairs of the catalogue that have the model as target or as draft."""
    if model is None:
        return []
    id_ = catalog.own_id(model.id)
    ids = []
    for pair in catalog.load().pairs.values():
        draft_id = pair.draft.id if pair.draft is not None else ""
        if id_ in (pair.target.id, draft_id):
            ids.append(pair.id)
    return ids


# --- JSON
# ----------------------------------------------------------------------


def model_to_json(item: PlannedModel, path: Path | None) -> dict[str, Any]:
    """A model of a plan. `path` is where its file is, if it is here."""
    return {
        "name": item.resolved.name,
        "repo": item.repo,
        "revision": item.revision,
        "file": item.file,
        "bytes": item.size,
        "licence": item.licence,
        "gated": item.gated,
        "path": str(path) if path else None,
    }


def projector_to_json(projector: PlannedProjector | None) -> dict[str, Any] | None:
    """The projector of a plan; None without one."""
    if projector is None:
        return None
    return {
        "file": projector.name,
        "repo": projector.repo,
        "bytes": projector.size,
        "missing": projector.missing_bytes,
        "path": str(projector.path) if projector.path else None,
        "sees": projector.senses.sees,
        "hears": projector.senses.hears,
    }


def details_to_json(item: PlannedModel) -> dict[str, Any]:
    """`model_to_json`, with its pairs, the heads beside it and its header."""
    heads: list[dict[str, Any]] = []
    for file in item.sidecar_heads:
        kind = draft_heads.kind_from_file_name(file.path)
        heads.append({"file": file.path, "bytes": file.size, "kind": kind})
    return model_to_json(item, item.path) | {
        "pairs": find_pair_ids(item.resolved.catalog_model),
        "beside": heads,
        "sees": find_senses(item).sees,
        "hears": find_senses(item).hears,
        "projector": projector_to_json(item.projector),
        "header": _header_to_json(item.header) if item.header else None,
    }


def _header_to_json(header: Header) -> dict[str, Any]:
    tokenizer = header.tokenizer
    drafts_as = draft_heads.file_draft_kind(header)
    if draft_heads.has_own_mtp_layer(header):
        drafts_as = "mtp"
    return {
        "architecture": header.architecture,
        "drafts_as": drafts_as,
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
