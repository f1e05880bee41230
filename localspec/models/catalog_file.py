"""Catalogue files: parsing, validating every value, and merging several by id.

The YAML is data only: texts, lists and tables. What is wrong raises ValueError, which
names the entry and the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import msgspec
import yaml
from msgspec.structs import replace

from localspec.errors import UsageError
from localspec.models import reference
from localspec.models.catalog_entries import (
    TIERS,
    USE_CASES,
    CatalogModel,
    CatalogPair,
    CatalogShape,
    MakerSampling,
    ModelKind,
    PairSettings,
    PairStatus,
)
from localspec.models.gguf.validation import MAX_EXPERTS, MAX_LAYERS
from localspec.sanitize import sanitize
from localspec.speculation_methods import SPECS

_ID = re.compile(r"[a-z0-9][a-z0-9._+-]{0,95}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9-]{0,63}==[0-9][0-9.]{0,31}")
_TYPE = re.compile(r"(UD-)?[A-Z0-9][A-Z0-9_]{1,15}")
_COUNT = re.compile(r"([0-9]{1,15})|([0-9]{1,4}(?:\.[0-9]{1,3})?)([BM])")
_ROUNDED = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,3}))? (GiB|MiB)")
_MAX_NUMBER = 10**9
_MAX_ENTRIES = 5000
_MAX_DEPTH = 20
_MAX_TEXT_LENGTH = 300

Reader = Callable[[Any], Any]  # From a value of the YAML; raises ValueError.


def read_files(
    files: Iterable[tuple[Path, str]],
) -> tuple[dict[str, CatalogModel], dict[str, CatalogPair]]:
    """Models and pairs by id, from paths and texts.

    A later file's entry replaces or hides an earlier one of the same id; hiding a model removes
    its pairs.  What is good for something, or has a draft, also has a pair with prompt lookup.
    Raises UsageError for a damaged file.
    """
    models: dict[str, CatalogModel] = {}
    samplings: dict[str, MakerSampling] = {}
    pairs: dict[str, tuple[Path, dict[str, Any]]] = {}
    hidden = set[str]()
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
            read_pairs[id_] = _read_pair(entry, models)
    return models, read_pairs | _add_lookup(models, read_pairs.values(), hidden)


def _add_lookup(
    models: Mapping[str, CatalogModel],
    pairs: Iterable[CatalogPair],
    hidden: Collection[str],
) -> dict[str, CatalogPair]:
    """Pairs for targets, by their use or a pair, that have none with prompt lookup."""
    drafts = {(pair.target.id, pair.draft_kind == "lookup") for pair in pairs}
    return {
        f"{id_}+lookup": _read_pair({"target": id_}, models)
        for id_, model in models.items()
        if model.repo
        and (model.use or (id_, False) in drafts)
        and (id_, True) not in drafts
        if f"{id_}+lookup" not in hidden
    }


def _read_samplings(document: dict[str, Any]) -> dict[str, MakerSampling]:
    samplings = {}
    for id_, entry in _read_section(document, "sampling").items():
        with _inside(f"sampling {id_}"):
            fields = _read_fields(entry, _SAMPLING_READERS, ("source",))
            samplings[id_] = MakerSampling(**fields | {"id": id_})
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


def _entry_id(entry: Any) -> str:
    """The entry's `id`, else one made of its target and draft."""
    if not isinstance(entry, dict):
        raise ValueError("it must be a table of keys and values")
    if "id" in entry:
        return _read_id(entry["id"])
    if "target" not in entry:
        raise ValueError("key id is missing")
    return f"{_read_id(entry['target'])}+{_read_id(entry.get('draft', 'lookup'))}"


def _is_hide_entry(entry: dict[str, Any]) -> bool:
    """Whether an entry only hides another one: `id` and `hide: true`."""
    if "hide" in entry and (set(entry) != {"id", "hide"} or entry["hide"] != "true"):
        raise ValueError("key hide: it must be `true`, beside `id` only")
    return "hide" in entry


# --- values


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it must be text")
    if not value.strip():
        raise ValueError("it is empty")
    if len(value) > _MAX_TEXT_LENGTH:
        raise ValueError(f"it is longer than {_MAX_TEXT_LENGTH} characters")
    if sanitize(value, multiline=False) != value:
        raise ValueError("it contains control characters")
    return value


def _text_matching(
    test: Callable[[str], object], expected: str
) -> Callable[[Any], str]:
    """A reader of texts that pass `test`; `expected` describes them in errors."""

    def read(value: Any) -> str:
        text = _read_text(value)
        if not test(text):
            raise ValueError(f"{_quote(text)} is not {expected}")
        return text

    return read


def _one_of(values: Collection[str]) -> Callable[[Any], str]:
    return _text_matching(values.__contains__, f"one of {', '.join(values)}")


def _integer_between(low: int, high: int) -> Callable[[Any], int]:
    is_number = _text_matching(re.compile("[0-9]{1,15}").fullmatch, "a whole number")

    def read(value: Any) -> int:
        number = int(is_number(value))
        if not low <= number <= high:
            raise ValueError(f"'{number}' is not between {low} and {high}")
        return number

    return read


def _read_count(value: Any) -> int:
    if not (count := _COUNT.fullmatch(_read_text(value))):
        raise ValueError(
            f"{_quote(value)} is not a number like 8190735360, 8.19B or 135M"
        )
    if count[1]:
        return int(count[1])
    return round(float(count[2]) * (10**9 if count[3] == "B" else 10**6))


def _read_rounded_size(value: Any) -> int:
    """The largest size in bytes that rounds to the text: 4.4 GiB is at most 4.45 GiB."""
    if not (size := _ROUNDED.fullmatch(_read_text(value))):
        raise ValueError(
            f"{_quote(value)} is not a rounded size like 4.4 GiB or 378.3 MiB"
        )
    digits = size[2] or ""
    upper_bound = int(size[1] + digits) + 0.5
    return int(upper_bound / 10 ** len(digits) * (2**30 if size[3] == "GiB" else 2**20))


def _number_between(low: float, high: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        text = _read_text(value)
        is_number = re.fullmatch(r"-?[0-9]{1,7}(\.[0-9]{1,3})?", text)
        if not is_number or not low <= float(text) <= high:
            raise ValueError(f"{_quote(text)} is not a number from {low:g} to {high:g}")
        return float(text)

    return read


def _read_layers(value: Any) -> tuple[int, ...]:
    layers = tuple(map(_integer_between(0, MAX_LAYERS - 1), _as_list(value)))
    if list(layers) != sorted(set(layers)):
        raise ValueError("the layers are not in ascending order")
    return layers


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _quote(text: str) -> str:
    shown = sanitize(text, multiline=False)
    return repr(shown if len(shown) <= 60 else shown[:59] + "…")


# --- entries


def _read_fields(
    table: Any, readers: Mapping[str, Reader], required: Collection[str]
) -> dict[str, Any]:
    """The values of a table by key."""
    if not isinstance(table, dict):
        raise ValueError("it must be a table of keys and values")
    fields: dict[str, Any] = {}
    for key, value in table.items():
        if key not in readers:
            raise ValueError(f"unknown key {_quote(key)}")
        with _inside(f"key {key}"):
            fields[key] = readers[key](value)
    for key in required:
        if key not in table:
            raise ValueError(f"key {key} is missing")
    return fields


def _read_model(
    entry: dict[str, Any], samplings: Mapping[str, MakerSampling]
) -> CatalogModel:
    fields = _read_fields(entry, _MODEL_READERS, ("id", "title"))
    fields.pop("memory", None)  # of earlier files: the architecture decides
    files = fields.pop("files", {})
    if (sampling := fields.get("sampling")) is not None:
        with _inside("key sampling"):
            fields["sampling"] = samplings[_one_of(samplings)(sampling)]
    if "shape" in fields:
        fields["shape_source"] = fields["shape"].pop("source")
        shape = CatalogShape(
            architecture=fields.get("architecture", ""), **fields["shape"]
        )
        fields["shape"] = shape
        with _inside("key shape"):
            shape.check()
    if (bundled := fields.pop("bundled", None)) is not None:
        if fields.keys() & {"repo", "file", "revision", "package"}:
            raise ValueError("key bundled excludes repo, file, revision and package")
        return CatalogModel(file=bundled, **fields)
    for key in ("repo", "type" if "type" in fields else "file"):
        if key not in fields:
            raise ValueError(f"key {key} is missing")
    if "package" in fields and not fields.keys() >= {"bytes", "sha256", "revision"}:
        raise ValueError("key package needs bytes, sha256 and revision")
    _check_pin(fields)
    model = CatalogModel(**fields)
    own = dict.fromkeys(("bytes", "about", "sha256", "revision", "package"))
    others = (
        replace(
            model, **own | {"file": "", "id": f"{model.id}:{name}", "type": name} | file
        )
        for name, file in files.items()
    )
    return replace(model, files=tuple(others))


def _check_pin(fields: Mapping[str, Any]) -> None:
    if "revision" in fields and "sha256" not in fields:
        raise ValueError("key revision needs sha256")
    if "bytes" in fields and "about" in fields:
        raise ValueError("keys bytes and about exclude each other")


def _read_other_files(value: Any) -> dict[str, dict[str, Any]]:
    """Fields of a model, by quantisation."""
    if not isinstance(value, dict):
        raise ValueError("it must be a table of quantisations and sizes")
    files: dict[str, dict[str, Any]] = {}
    for name, about in value.items():
        with _inside(f"quantisation {_quote(name)}"):
            _read_type(name)
            size = isinstance(about, str) and (
                "bytes" if about.isdecimal() else "about"
            )
            files[name] = _read_fields(
                {size: about} if size else about, _FILE_READERS, ()
            )
            _check_pin(files[name])
    return files


def _read_pair(
    entry: dict[str, Any], models: Mapping[str, CatalogModel]
) -> CatalogPair:
    fields = _read_fields(entry, _PAIR_READERS, ("target",))
    for key in ("target", "draft"):
        if key in fields and fields[key] not in models:
            raise ValueError(f"key {key}: there is no model {fields[key]}")
    target = models[fields.pop("target")]
    draft = models[fields.pop("draft")] if "draft" in fields else None
    if target.kind != "model":
        raise ValueError("key target: a head cannot be a target")
    if fields.get("status") == "reported" and "source" not in fields:
        raise ValueError("key source is missing: `reported` needs it")
    method = draft.title if draft else "prompt lookup"
    defaults = {
        "id": _entry_id(entry),
        "title": f"{target.title} with {method}",
        "use": target.use,
    }
    return CatalogPair(target=target, draft=draft, **(defaults | fields))


def _shape_value_reader(name: str, kind: object) -> Reader:
    if kind is bool:
        return lambda value: _one_of(("true", "false"))(value) == "true"
    if kind == tuple[int, ...]:
        return _read_layers
    if kind is str:
        return _read_text
    if name.startswith("experts"):
        return _integer_between(1, MAX_EXPERTS)
    if name == "tables":
        return _read_count
    return _integer_between(1, MAX_LAYERS if name.endswith("layers") else _MAX_NUMBER)


_read_id = _text_matching(
    _ID.fullmatch, "an id: lower-case letters, digits and . _ - +"
)
_read_type = _text_matching(_TYPE.fullmatch, "a quantisation like UD-Q4_K_XL")


def _read_use_cases(value: object) -> tuple[str, ...]:
    return tuple(map(_one_of(USE_CASES), _as_list(value)))


_SHAPE_READERS: dict[str, Reader] = {"source": _read_text} | {
    field.name: _shape_value_reader(field.name, field.type)
    for field in msgspec.structs.fields(CatalogShape)
    if field.name != "architecture"
}
_SETTINGS_READERS: dict[str, Reader] = {
    "draft_max": _integer_between(1, 64),
    "ctx": _integer_between(256, 10**7),
    "temperature": _number_between(0, 2),
}
_FILE_READERS: dict[str, Reader] = {
    "repo": _text_matching(reference.is_repo_id, "a repository like user/name"),
    "bytes": _integer_between(1, 10**13),
    "about": _read_rounded_size,
    "sha256": _text_matching(re.compile("[0-9a-f]{64}").fullmatch, "64 hex digits"),
    "revision": _text_matching(reference.COMMIT_HASH.fullmatch, "40 hex digits"),
}
_MODEL_READERS: dict[str, Reader] = {
    **_FILE_READERS,
    **dict.fromkeys(("title", "licence", "family", "architecture", "note"), _read_text),
    "id": _read_id,
    "file": _text_matching(reference.is_safe_gguf_path, "a safe .gguf file name"),
    "bundled": _text_matching(
        lambda text: "/" not in text and reference.is_safe_gguf_path(text),
        "a plain file name",
    ),
    "files": _read_other_files,
    "type": _read_type,
    "package": _text_matching(_PACKAGE.fullmatch, "a package like name==1.0"),
    "memory": _read_text,
    "parameters": _read_count,
    "active": _read_count,
    "context": _integer_between(1, 10**9),
    "shape": lambda value: _read_fields(
        value, _SHAPE_READERS, ("layers", "embd", "vocab", "source")
    ),
    "kind": _one_of(get_args(ModelKind)),
    "use": _read_use_cases,
    "released": _text_matching(re.compile(r"20\d\d-\d\d(-\d\d)?").fullmatch, "a date"),
    "tier": _one_of(TIERS),
    "sampling": _read_id,
}
_SAMPLING_VALUES = {
    name: _number_between(low, high)
    for name, low, high in (
        ("temperature", 0, 2), ("top_p", 0, 1), ("top_k", 0, 10**6), ("min_p", 0, 1),
        ("presence_penalty", -2, 2), ("repeat_penalty", 0, 2),
    )
}  # fmt: skip
_read_sampling: Reader = lambda value: tuple(  # noqa: E731
    _read_fields(value, _SAMPLING_VALUES, ()).items()
)
_SAMPLING_READERS: dict[str, Reader] = {
    "id": _read_id,
    "source": _read_text,
    "plain": _read_sampling,
    "thinking": _read_sampling,
}
_PAIR_READERS: dict[str, Reader] = {
    **dict.fromkeys(("id", "target", "draft"), _read_id),
    **dict.fromkeys(("title", "why", "source", "note"), _read_text),
    "spec": _one_of(SPECS),
    "use": _read_use_cases,
    "status": _one_of(get_args(PairStatus)),
    "settings": lambda value: PairSettings(
        **_read_fields(value, _SETTINGS_READERS, ())
    ),
}
