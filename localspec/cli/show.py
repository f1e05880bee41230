"""`localspec show`: what is known of a model or a pair."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import click

from localspec.clean import clean
from localspec.cli import completing, places, pulling
from localspec.cli.table import rows
from localspec.errors import NotFoundError, OfflineError
from localspec.models import catalog, heads, plan, reference, wanted
from localspec.models.catalog import Model
from localspec.models.header import Header
from localspec.models.plan import Item, Match, Planner
from localspec.models.reference import HubReference, RemoteFile
from localspec.models.remote import Hub
from localspec.models.wanted import Asked, Wanted
from localspec.units import gb

Fact = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a reference led to."""

    items: list[Item]
    match: Match | None
    files: list[RemoteFile]
    """Of the repository, where that alone was named."""


@click.command("show")
@click.argument("ref", shell_complete=completing.models)
@click.option("--template", is_flag=True, help="Its chat template alone.")
@places.ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(ref: str, template: bool, endpoint: str | None, as_json: bool) -> int:
    """Facts of REF from its header, here or on the hub, without downloading it.

    Of a repository also the files that it has.
    """
    asked, hub = wanted.read(ref), Hub(endpoint)
    seen = pulling.stoppable(lambda stop: _look(asked, Planner(hub, stop, fresh=False)))
    if template:
        click.echo(_template(seen.items[0]))
    elif as_json:
        click.echo(json.dumps(_document(seen)))
    else:
        for line in _lines(seen):
            click.echo(line)
    return 0


def _look(asked: Asked, planner: Planner) -> _Seen:
    items = [_item(planner, one) for one in asked.models]
    match = plan.match(*items) if len(items) == 2 else None
    source = asked.target.source
    files: list[RemoteFile] = []
    if isinstance(source, HubReference) and source.tag is None and source.file is None:
        with suppress(OfflineError):
            files = _wholes(planner.listing(source.repo, source.revision).files)
    return _Seen(items, match, files)


def _item(planner: Planner, one: Wanted) -> Item:
    """Without the network what the catalogue says, if it says anything."""
    try:
        return planner.item(one)
    except OfflineError:
        if (model := one.model) is None:
            raise
        return Item(one, model.repo, None, model.file, size=model.size, licence=model.licence)


def _wholes(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """The models among a repository's files; parts are counted together."""
    found = []
    for file in files:
        if not reference.is_model(file.path) or reference.part(file.path).index != 1:
            continue
        with suppress(NotFoundError):  # some of its parts are missing
            parts = reference.choose(files, file=file.path)
            found.append(RemoteFile(file.path, sum(part.size for part in parts), file.sha256))
    return found


def _template(item: Item) -> str:
    text = item.header.chat_template if item.header else ""
    if not text:
        what = (
            f"{clean(item.wanted.name, multiline=False)} has no chat template that could be read."
        )
        raise NotFoundError(what, "It completes text; or choose one: localspec run --template NAME")
    return clean(text)


def _lines(seen: _Seen) -> Iterator[str]:
    for number, item in enumerate(seen.items):
        if number:
            yield ""
        facts = [*_facts(item), *(_of_header(item.header) if item.header else _known(item))]
        yield from rows(facts)
        if heads_ := list(pulling.beside(item)):
            yield ""
            yield from heads_
    if seen.match is not None:
        yield ""
        yield from pulling.verdict(seen.match)
    if seen.files:
        yield ""
        yield from rows([(gb(file.size), file.path) for file in seen.files])


def _facts(item: Item) -> Iterator[Fact]:
    model = item.wanted.model
    yield "name", item.wanted.name
    if model is not None:
        yield "title", model.title
    yield "file", f"{item.repo}/{item.file}" if item.repo else item.file
    if item.size is not None:
        yield "size", gb(item.size)
    if item.licence:
        yield "licence", item.licence
    if item.gated:
        yield "gated", f"accept its terms on the page of {item.repo}"
    yield "here", str(item.path) if item.path else "no"
    if item.revision:
        yield "revision", item.revision
    if model is not None and model.note:
        yield "note", model.note
    if pairs := _pairs(model):
        yield "pairs", ", ".join(pairs)


def _of_header(header: Header) -> Iterator[Fact]:
    yield "architecture", header.architecture
    if (kind := heads.kind(header)) != "model":
        read = ", ".join(map(str, heads.layers(header)))
        yield "head", f"{heads.NAMES[kind]}, drafts for its target only; reads layers {read or '–'}"
    elif heads.predicts(header):
        yield "head", "MTP: a layer of its own predicts further tokens, and is used for guessing"
    yield "parameters", f"{header.parameters:,}"
    yield "weights", header.quantisation
    yield "layers", f"{header.n_layer}"
    yield "context", f"{header.n_ctx_train:,} tokens, as trained"
    vocabulary = header.tokenizer
    yield "vocabulary", f"{vocabulary.n_tokens:,} tokens, {vocabulary.model} {vocabulary.pre}"
    yield "chat template", "yes" if header.chat_template else "no"
    if header.moe:
        yield "experts", f"{header.number('expert_count')}"
    if header.recurrent or header.hybrid:
        yield "memory", "recurrent" if header.recurrent else "hybrid"
    if header.unsupported:
        yield "cannot run", header.unsupported


def _known(item: Item) -> Iterator[Fact]:
    """What the catalogue says where no header can be read."""
    model = item.wanted.model
    if model is None:
        return
    if model.kind != "model":
        yield "kind", f"{model.kind}: a head, which drafts for its target only"
    if model.architecture:
        yield "architecture", model.architecture
    if model.parameters:
        yield "parameters", f"{model.parameters:,}"
    if model.context:
        yield "context", f"{model.context:,} tokens, as trained"


def _pairs(model: Model | None) -> list[str]:
    if model is None:
        return []
    pairs = catalog.load().pairs.values()
    return [p.id for p in pairs if model.id in (p.target.id, p.draft.id if p.draft else "")]


def _document(seen: _Seen) -> dict[str, Any]:
    return {
        "schema": 1,
        "models": [_entry(item) for item in seen.items],
        "pair": pulling.judged(seen.match) if seen.match else None,
        "files": [{"file": file.path, "bytes": file.size} for file in seen.files],
    }


def _entry(item: Item) -> dict[str, Any]:
    header = item.header
    about = {
        "name": item.wanted.name,
        "repo": item.repo,
        "revision": item.revision,
        "file": item.file,
        "bytes": item.size,
        "licence": item.licence,
        "gated": item.gated,
        "path": str(item.path) if item.path else None,
        "pairs": _pairs(item.wanted.model),
        "beside": [
            {"file": file.path, "bytes": file.size, "kind": heads.named(file.path)}
            for file in item.beside
        ],
    }
    if header is None:
        return about | {"header": None}
    vocabulary = header.tokenizer
    return about | {
        "header": {
            "architecture": header.architecture,
            "drafts_as": "mtp" if heads.predicts(header) else heads.kind(header),
            "name": header.name,
            "parameters": header.parameters,
            "quantisation": header.quantisation,
            "layers": header.n_layer,
            "context": header.n_ctx_train,
            "vocabulary": {
                "model": vocabulary.model,
                "pre": vocabulary.pre,
                "tokens": vocabulary.n_tokens,
                "add_bos": vocabulary.add_bos,
                "add_eos": vocabulary.add_eos,
                "fingerprint": vocabulary.fingerprint,
            },
            "chat_template": header.chat_template,
            "experts": header.number("expert_count") or None,
            "recurrent": header.recurrent,
            "hybrid": header.hybrid,
            "unsupported": header.unsupported or None,
        }
    }
