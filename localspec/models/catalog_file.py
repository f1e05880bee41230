"""Catalogue files: models.yaml as typed entries, and merging several files by id.

The YAML is data only: texts, lists and tables. Each entry is converted to a Struct that
declares its keys, types and ranges; what types cannot say is a function, one a rule.
What is wrong raises ValueError, which names the entry, the key and the value.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from msgspec import Meta, Struct, field
from msgspec.structs import asdict, replace

from localspec import draft_kinds
from localspec.errors import UsageError
from localspec.models import reference
from localspec.models.catalog_entries import (
    CatalogModel,
    CatalogPair,
    CatalogProjector,
    CatalogShape,
    MakerSampling,
    PairSettings,
    PairStatus,
    Sight,
    Tier,
    UseCase,
    name_pair,
)
from localspec.protocol.json_values import from_json
from localspec.sanitize import sanitize

_COUNT = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,3})?)([BM])")
_ROUNDED = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,3}))? (GiB|MiB)")
_MAX_ENTRIES = 5000
_MAX_DEPTH = 20

if TYPE_CHECKING:
    FileKind = str
    SpeculationMethod = str
else:  # Words of the registry, which no type checker can know.
    FileKind = Literal[("model", *(kind.name for kind in draft_kinds.heads()))]
    SpeculationMethod = Literal[draft_kinds.methods()]
Text = Annotated[str, Meta(pattern=r"\S", max_length=300)]
EntryId = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._+-]{0,95}$")]
Quantization = Annotated[str, Meta(pattern=r"^(UD-)?[A-Z0-9][A-Z0-9_]{1,15}$")]
Package = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}==[0-9][0-9.]{0,31}$")]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
CommitHash = Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]
ReleaseDate = Annotated[str, Meta(pattern=r"^20\d\d-\d\d(-\d\d)?$")]
FileBytes = Annotated[int, Meta(ge=1, le=10**13)]
ParameterCount = Annotated[int, Meta(ge=0, lt=10**15)]
TokenCount = Annotated[int, Meta(ge=1, le=10**9)]


class SamplingValues(Struct, frozen=True, forbid_unknown_fields=True):
    """Sampling parameters that the makers of a model suggest; None: not stated."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[float, Meta(ge=0, le=10**6)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repeat_penalty: Annotated[float, Meta(ge=0, le=2)] | None = None

    def stated(self) -> tuple[tuple[str, float], ...]:
        values = asdict(self).items()
        return tuple((name, value) for name, value in values if value is not None)


class SamplingEntry(Struct, frozen=True, forbid_unknown_fields=True):
    id: EntryId
    source: Text
    plain: SamplingValues = field(default_factory=SamplingValues)
    thinking: SamplingValues = field(default_factory=SamplingValues)


class ShapeEntry(CatalogShape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shape with its source; the architecture is a key of its model."""

    architecture: Literal[""] = ""
    source: Text


class OtherFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The same model in another quantisation; None is that of the first file."""

    repo: Text | None = None
    bytes: FileBytes | None = None
    about: FileBytes | None = None
    sha256: Sha256 | None = None
    revision: CommitHash | None = None


class ProjectorEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A projector; `repo` is the model's if it is missing."""

    file: Text
    repo: Text | None = None
    bytes: FileBytes | None = None
    sha256: Sha256 | None = None


class ModelEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: EntryId
    title: Text
    repo: Text | None = None
    file: Text | None = None
    type: Quantization | None = None
    bundled: Text | None = None
    bytes: FileBytes | None = None
    about: FileBytes | None = None
    sha256: Sha256 | None = None
    revision: CommitHash | None = None
    package: Package | None = None
    files: dict[Quantization, OtherFile] = field(default_factory=dict)
    licence: Text | None = None
    family: Text | None = None
    architecture: Text | None = None
    parameters: ParameterCount | None = None
    active: ParameterCount | None = None
    context: TokenCount | None = None
    shape: ShapeEntry | None = None
    kind: FileKind = "model"
    use: tuple[UseCase, ...] = ()
    released: ReleaseDate | None = None
    tier: Tier = "good"
    thinks: bool = False
    sampling: EntryId | None = None
    projector: ProjectorEntry | None = None
    sees: tuple[Sight, ...] = ()
    hears: bool = False
    note: Text | None = None


class SettingsEntry(Struct, frozen=True, forbid_unknown_fields=True):
    draft_max: Annotated[int, Meta(ge=1, le=64)] | None = None
    ctx: Annotated[int, Meta(ge=256, le=10**7)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None


class PairEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    target: EntryId
    id: EntryId | None = None
    draft: EntryId | None = None
    title: Text | None = None
    spec: SpeculationMethod = "auto"
    why: Text | None = None
    use: tuple[UseCase, ...] | None = None  # None: the target's.
    status: PairStatus = "untested"
    source: Text | None = None
    settings: SettingsEntry = field(default=SettingsEntry())
    note: Text | None = None


def read_files(
    files: Iterable[tuple[Path, str]],
) -> tuple[dict[str, CatalogModel], dict[str, CatalogPair]]:
    """Models and pairs by id, from paths and texts.

    A later file's entry replaces or hides an earlier one of the same id; hiding a model
    removes its pairs. Targets without a pair with prompt lookup get one
    (`_add_lookup`). Raises UsageError for a damaged file.
    """
    models: dict[str, CatalogModel] = {}
    samplings: dict[str, MakerSampling] = {}
    pairs: dict[str, tuple[Path, dict[str, Any]]] = {}
    hidden: set[str] = set()
    for path, text in files:
        with _explain_damage(path):
            document = _read_document(text)
            samplings |= _read_samplings(document)
            for id_, entry in _read_section(document, "models").items():
                with _inside(f"model {id_}"):
                    if not _is_hide_entry(entry):
                        models[id_] = _read_model(entry, samplings)
                        continue
                models.pop(id_, None)
                for pair_id, (_, pair) in tuple(pairs.items()):
                    if id_ in (pair.get("target"), pair.get("draft")):
                        del pairs[pair_id]
            for id_, entry in _read_section(document, "pairs").items():
                with _inside(f"pair {id_}"):
                    if _is_hide_entry(entry):
                        pairs.pop(id_, None)
                        hidden.add(id_)
                        continue
                    if id_ in models:
                        raise ValueError("its id is that of a model")
                pairs[id_] = path, entry
    read_pairs: dict[str, CatalogPair] = {}
    for id_, (path, entry) in pairs.items():
        with _explain_damage(path), _inside(f"pair {id_}"):
            read_pairs[id_] = _read_pair(entry, models, taken=pairs)
    return models, read_pairs | _add_lookup(models, read_pairs.values(), hidden)


def _add_lookup(
    models: Mapping[str, CatalogModel],
    pairs: Iterable[CatalogPair],
    hidden: Collection[str],
) -> dict[str, CatalogPair]:
    """Pairs with prompt lookup, for the targets that have none.

    A target is a model of a repository that has a use, or a pair with a draft.
    """
    with_lookup: set[str] = set()
    with_draft: set[str] = set()
    for pair in pairs:
        group = with_lookup if pair.draft_kind == "lookup" else with_draft
        group.add(pair.target.id)
    added: dict[str, CatalogPair] = {}
    for id_, model in models.items():
        is_target = bool(model.use) or id_ in with_draft
        if not model.repo or not is_target or id_ in with_lookup:
            continue
        pair_id = f"{id_}+lookup"
        if pair_id not in hidden:
            added[pair_id] = _read_pair({"target": id_}, models, taken=())
    return added


def _read_samplings(document: dict[str, Any]) -> dict[str, MakerSampling]:
    samplings = {}
    for id_, entry in _read_section(document, "sampling").items():
        with _inside(f"sampling {id_}"):
            sampling = from_json(SamplingEntry, entry, strict=False)
            samplings[id_] = MakerSampling(
                id_,
                sampling.source,
                plain=sampling.plain.stated(),
                thinking=sampling.thinking.stated(),
            )
    return samplings


@contextmanager
def _explain_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        message = f"The catalogue {path} is damaged: {error}."
        raise UsageError(
            sanitize(message, multiline=False), "Fix or remove the entry."
        ) from error


@contextmanager
def _inside(place: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _read_document(text: str) -> dict[str, Any]:
    try:
        # libyaml's parser, if PyYAML has it, is eight times as fast.
        root = yaml.compose(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}{error.problem or 'it is not YAML'}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    document = _construct(root, set()) if root else {}
    if not isinstance(document, dict):
        raise ValueError("it must be a table with `schema`, `models` and `pairs`")
    if unknown := document.keys() - {"schema", "models", "pairs", "sampling"}:
        raise ValueError(f"unknown section {_quote(min(unknown))}")
    if document.get("schema", "1") != "1":
        raise ValueError("its schema is newer than this localspec supports")
    return document


def _construct(node: yaml.Node, seen: set[int], depth: int = 0) -> Any:
    """Texts, lists and tables.

    Aliases are rejected: a few of them stand for billions of values.
    """
    if id(node) in seen:
        raise ValueError("aliases are not allowed")
    seen.add(id(node))
    if depth > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(node, yaml.SequenceNode):
        return [_construct(item, seen, depth + 1) for item in node.value]
    if isinstance(node, yaml.ScalarNode):
        if sanitize(node.value, multiline=False) != node.value:
            line = node.start_mark.line + 1
            raise ValueError(f"line {line}: it contains control characters")
        return node.value
    table: dict[str, Any] = {}
    for key_node, value in node.value:
        key = _construct(key_node, seen, depth + 1)
        if not isinstance(key, str):
            raise ValueError("a key must be a word")
        if key in table:
            raise ValueError(
                f"line {key_node.start_mark.line + 1}: {_quote(key)} is duplicated"
            )
        table[key] = _construct(value, seen, depth + 1)
    return table


def _read_section(document: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    entries = document.get(name) or []
    if not isinstance(entries, list):
        raise ValueError(f"{name} must be a list of entries")
    if len(entries) > _MAX_ENTRIES:
        raise ValueError(f"{name} has more than {_MAX_ENTRIES} entries")
    section: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries, 1):
        with _inside(f"entry {number} of {name}"):
            id_ = _entry_id(entry)
            if id_ in section:
                raise ValueError(f"the id {id_} is duplicated")
        section[id_] = entry
    return section


class _EntryNames(Struct, frozen=True):
    """The keys of which the id of an entry is made."""

    id: EntryId | None = None
    target: EntryId | None = None
    draft: EntryId = "lookup"


def _entry_id(entry: Any) -> str:
    """The entry's `id`, else one made of its target and draft."""
    if not isinstance(entry, dict):
        raise ValueError("it must be a table of keys and values")
    names = from_json(_EntryNames, entry)
    if names.id is not None:
        return names.id
    if names.target is None:
        raise ValueError("id: it is missing")
    return f"{names.target}+{names.draft}"


def _is_hide_entry(entry: dict[str, Any]) -> bool:
    """Whether an entry only hides another one: `id` and `hide: true`."""
    if "hide" in entry and (set(entry) != {"id", "hide"} or entry["hide"] != "true"):
        raise ValueError("hide: it must be `true`, beside `id` only")
    return "hide" in entry


def _quote(text: str) -> str:
    shown = sanitize(text, multiline=False)
    if len(shown) > 60:
        shown = shown[:59] + "…"
    return repr(shown)


# --- short forms of values


def _expand(entry: dict[str, Any]) -> dict[str, Any]:
    """A model's entry with numbers and tables in place of the short forms for them.

    `{parameters: 8.19B, files: {Q8_0: 8.7 GiB}}` becomes
    `{parameters: 8190000000, files: {Q8_0: {about: 9395240960}}}`. What is no short
    form stays as it is, and is refused later.
    """
    expanded: dict[str, Any] = _expand_file(entry)
    for key in ("parameters", "active"):
        if key in entry:
            expanded[key] = _expand_count(entry[key])
    for key in ("use", "sees"):
        if key in entry:
            expanded[key] = _as_list(entry[key])
    shape = entry.get("shape")
    if isinstance(shape, dict):
        shape = dict(shape)
        if "tables" in shape:
            shape["tables"] = _expand_count(shape["tables"])
        if "full_layers" in shape:
            shape["full_layers"] = _as_list(shape["full_layers"])
        expanded["shape"] = shape
    files = entry.get("files")
    if isinstance(files, dict):
        expanded["files"] = {
            type_: _expand_file(_expand_size(file)) for type_, file in files.items()
        }
    return expanded


def _expand_size(file: Any) -> Any:
    """`8.7 GiB` or `9341763232` in place of a table."""
    if not isinstance(file, str):
        return file
    if file.isdecimal():
        return {"bytes": file}
    return {"about": file}


def _expand_file(file: Any) -> Any:
    """A copy of the table of a file."""
    if not isinstance(file, dict):
        return file
    if "about" not in file:
        return dict(file)
    return file | {"about": _expand_rounded_size(file["about"])}


def _expand_count(value: Any) -> Any:
    """8190000000 of `8.19B`."""
    if not isinstance(value, str):
        return value
    count = _COUNT.fullmatch(value)
    if count is None:
        return value
    unit = 10**6
    if count[2] == "B":
        unit = 10**9
    return round(float(count[1]) * unit)


def _expand_rounded_size(value: Any) -> Any:
    """The most bytes that round to the text: 4.4 GiB is at most 4.45 GiB."""
    size = _ROUNDED.fullmatch(value) if isinstance(value, str) else None
    if size is None:
        raise ValueError(
            f"about: {_quote(str(value))} is not a rounded size like 4.4 GiB or 378.3 MiB"
        )
    digits = size[2] or ""
    upper_bound = int(size[1] + digits) + 0.5
    unit = 2**30 if size[3] == "GiB" else 2**20
    return int(upper_bound / 10 ** len(digits) * unit)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


# --- models


def _read_model(
    entry: dict[str, Any], samplings: Mapping[str, MakerSampling]
) -> CatalogModel:
    given = from_json(ModelEntry, _expand(entry), strict=False)
    _check_location(given)
    _check_names(given.repo, given.file, given.bundled)
    _check_package(given)
    _check_pin(given)
    for type_, file in given.files.items():
        with _inside(f"files.{type_}"):
            _check_names(file.repo)
            _check_pin(file)
    shape_source = given.shape.source if given.shape else ""
    projector = _make_projector(given)
    model = CatalogModel(
        id=given.id,
        title=given.title,
        repo=given.repo,
        file=given.bundled or given.file or "",
        bytes=given.bytes,
        about=given.about,
        sha256=given.sha256,
        revision=given.revision,
        package=given.package,
        licence=given.licence,
        family=given.family or "",
        architecture=given.architecture,
        parameters=given.parameters,
        active=given.active,
        context=given.context,
        shape=_make_shape(given),
        shape_source=shape_source,
        kind=given.kind,
        use=given.use,
        released=given.released or "",
        tier=given.tier,
        thinks=given.thinks,
        sampling=_find_sampling(given.sampling, samplings),
        note=given.note or "",
        type=given.type or "",
        projector=projector,
        sees=given.sees,
        hears=given.hears,
    )
    others = (_with_file(model, type_, file) for type_, file in given.files.items())
    return replace(model, files=tuple(others))


def _with_file(model: CatalogModel, type_: str, file: OtherFile) -> CatalogModel:
    """The model in another quantisation."""
    return replace(
        model,
        id=f"{model.id}:{type_}",
        repo=file.repo or model.repo,
        file="",
        type=type_,
        bytes=file.bytes,
        about=file.about,
        sha256=file.sha256,
        revision=file.revision,
        package=None,
    )


def _make_shape(model: ModelEntry) -> CatalogShape | None:
    if model.shape is None:
        return None
    fields = asdict(model.shape)
    del fields["source"]
    fields["architecture"] = model.architecture or ""
    shape = CatalogShape(**fields)
    with _inside("shape"):
        _check_ascending(shape.full_layers)
        shape.check()
    return shape


def _make_projector(model: ModelEntry) -> CatalogProjector | None:
    """A projector is of a model of a repository, and serves a sense."""
    given = model.projector
    if given is None:
        return None
    if not model.sees and not model.hears:
        raise ValueError("projector: the model needs `sees` or `hears`")
    repo = given.repo or model.repo
    if repo is None:
        raise ValueError("projector: repo: it is missing")
    with _inside("projector"):
        _check_names(repo, given.file)
        if not reference.is_projector(given.file):
            raise ValueError(f"file: {_quote(given.file)} is not named as a projector")
    return CatalogProjector(repo, given.file, bytes=given.bytes, sha256=given.sha256)


def _find_sampling(
    id_: str | None, samplings: Mapping[str, MakerSampling]
) -> MakerSampling | None:
    if id_ is None:
        return None
    if id_ not in samplings:
        raise ValueError(f"sampling: there is no entry {_quote(id_)}")
    return samplings[id_]


def _check_location(model: ModelEntry) -> None:
    """A model is in a repository, by the name of its file or its type, or bundled."""
    of_repo = (model.repo, model.file, model.revision, model.package)
    if model.bundled is not None:
        if any(of_repo):
            raise ValueError("bundled excludes repo, file, revision and package")
        return
    if model.repo is None:
        raise ValueError("repo: it is missing")
    if model.file is None and model.type is None:
        raise ValueError("file: it is missing")


def _check_names(
    repo: str | None, file: str | None = None, bundled: str | None = None
) -> None:
    """Names become parts of paths and addresses."""
    if repo is not None and not reference.is_repo_id(repo):
        raise ValueError(f"repo: {_quote(repo)} is not a repository like user/name")
    if file is not None and not reference.is_safe_gguf_path(file):
        raise ValueError(f"file: {_quote(file)} is not a safe .gguf file name")
    if bundled is None:
        return
    if "/" in bundled or not reference.is_safe_gguf_path(bundled):
        raise ValueError(f"bundled: {_quote(bundled)} is not a plain file name")


def _check_package(model: ModelEntry) -> None:
    """A file of a package is taken only if it is the same as that of the repository."""
    identity = (model.bytes, model.sha256, model.revision)
    if model.package is not None and None in identity:
        raise ValueError("package needs bytes, sha256 and revision")


def _check_pin(file: ModelEntry | OtherFile) -> None:
    if file.revision is not None and file.sha256 is None:
        raise ValueError("revision needs sha256")
    if file.bytes is not None and file.about is not None:
        raise ValueError("bytes and about exclude each other")


def _check_ascending(layers: tuple[int, ...]) -> None:
    if list(layers) != sorted(set(layers)):
        raise ValueError("full_layers: the layers are not in ascending order")


# --- pairs


def _read_pair(
    entry: dict[str, Any],
    models: Mapping[str, CatalogModel],
    *,
    taken: Container[str],
) -> CatalogPair:
    """`taken`: the ids of all pairs."""
    if "use" in entry:
        entry = entry | {"use": _as_list(entry["use"])}
    given = from_json(PairEntry, entry, strict=False)
    target = _find_model("target", given.target, models)
    draft = None
    method = "prompt lookup"
    if given.draft is not None:
        draft = _find_model("draft", given.draft, models)
        method = draft.title
    if target.kind != "model":
        raise ValueError("target: a head cannot be a target")
    if given.status == "reported" and given.source is None:
        raise ValueError("source: it is missing, `reported` needs it")
    id_ = _entry_id(entry)
    use = target.use if given.use is None else given.use
    return CatalogPair(
        id=id_,
        name=name_pair(id_, given.target, draft, taken),
        title=given.title or f"{target.title} with {method}",
        target=target,
        draft=draft,
        spec=given.spec,
        why=given.why or "",
        use=use,
        status=given.status,
        source=given.source or "",
        note=given.note or "",
        settings=PairSettings(**asdict(given.settings)),
    )


def _find_model(key: str, id_: str, models: Mapping[str, CatalogModel]) -> CatalogModel:
    if id_ not in models:
        raise ValueError(f"{key}: there is no model {id_}")
    return models[id_]
