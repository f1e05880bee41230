"""Resolving model and draft arguments to checked files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from localspec import draft_kinds
from localspec.errors import LocalspecError, ModelFileError
from localspec.models import (
    catalog,
    draft_heads,
    maker_sampling,
    model_lookup,
    model_names,
    pair_compatibility,
    short_names,
)
from localspec.models.catalog import CatalogModel, CatalogPair
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.models.model_lookup import ModelRequest, NotDownloadedError
from localspec.models.model_names import PairNames
from localspec.sanitize import sanitize

_MAX_DOWNLOADS = 2  # A target and its draft.


class ResolvedPair(Struct, frozen=True):
    """The files of a pair, and the catalogue's settings for it."""

    target: Path
    draft: Path | None
    spec: str = "auto"
    spec_reason: str = ""
    suggested_settings: catalog.PairSettings = field(default=catalog.PairSettings())
    """Defaults from the catalogue; the user's own settings override them."""
    default_draft: str = ""
    """What the draft is if nobody named it, such as "the model's own MTP layer"."""
    requested_refs: tuple[str, str] | None = None
    """The model reference, and the draft: a reference, `auto` or `none`."""
    ignored_draft: str = ""
    """A second draft, as earlier versions could use.

    It is not loaded, and a notice says so.
    """

    @property
    def files(self) -> tuple[Path, Path | None]:
        """Target and draft.

        They stay the same where a pair is resolved again; its settings, its reason and
        the name of its default draft depend on how it was named.
        """
        return self.target, self.draft

    @property
    def portable_refs(self) -> tuple[str, str]:
        """The arguments that open the same pair later, from any folder."""
        if self.requested_refs is not None:
            return self.requested_refs
        draft = "auto" if self.default_draft else str(self.draft or "none")
        return make_portable_refs(str(self.target), draft)

    @property
    def names_its_draft(self) -> bool:
        """Whether the draft, or none, was named, so that no other is looked for."""
        if self.draft is not None:
            return True
        if self.requested_refs is None:
            return False
        model, draft = self.requested_refs
        return draft != "auto" or model_lookup.is_lookup_pair(model)

    def recorded_name(self, others: Iterable[Path] = ()) -> str:
        """The name of the target's file, for a history; told apart as `names`."""
        files = [file for file in self.files if file is not None]
        name = short_names.shorten([*files, *others])[self.target]
        return self._ollama_name or name

    def names(self, others: Iterable[Path] = ()) -> PairNames:
        """The names to show, told apart from those of `others` beside it."""
        names = model_names.name_pair_files(self.target, self.draft, others)
        if self._ollama_name:
            names = names._replace(target=self._ollama_name)
        if self._drafts_with_own_layer:
            names = names._replace(draft=model_names.OWN_MTP_LAYER)
        return names

    @property
    def _ollama_name(self) -> str:
        """The name of one of Ollama's models, whose file is named by its checksum."""
        if self.requested_refs is None or not self.target.name.startswith("sha256-"):
            return ""
        return sanitize(Path(self.requested_refs[0]).name, multiline=False)

    @property
    def _drafts_with_own_layer(self) -> bool:
        if self.draft is None or self.draft != self.target:
            return False
        try:
            return draft_heads.has_own_mtp_layer(reader.read(self.target))
        except LocalspecError:  # The file is missing or damaged.
            return False

    @property
    def draft_notice(self) -> str:
        """One line about a draft that nobody named, or about a second one.

        Empty if there is nothing to say.
        """
        if self.ignored_draft:
            ignored = sanitize(self.ignored_draft, multiline=False)
            return f"A pair has one draft: {ignored} is not used."
        if self.default_draft:
            return f"Drafting with {self.default_draft}."
        return ""


def resolve_pair(model: str | None, draft: str) -> ResolvedPair:
    """Resolve a model argument and a --draft argument.

    The latter is a reference, `auto` or `none`. Checks the headers of all files. Raises
    NotFoundError (NotDownloadedError if it can be downloaded), AccessError,
    ModelFileError, or IncompatiblePairError.
    """
    request = model_lookup.resolve(model or model_lookup.default_pair_id())
    pair = _resolve_files(request, draft)
    check_target(pair.target)
    sampling = maker_sampling.find(
        reader.read(pair.target), request.target.catalog_model
    )
    if sampling is not None:
        suggested = replace(pair.suggested_settings, sampling=sampling)
        pair = replace(pair, suggested_settings=suggested)
    if draft == "auto" and not request.is_lookup_pair:
        if request.pair is None:
            pair = with_default_draft(pair, request.target.catalog_model)
        else:
            # The reference names the head: it is no default.
            pair = replace(with_default_draft(pair), default_draft="")
    if pair.draft is not None:
        _check_draft(pair.target, pair.draft)
    return pair


def _check_draft(target: Path, draft: Path) -> None:
    """Raise IncompatiblePairError unless the draft works with the target."""
    reader.check_loadable(draft)
    result = pair_compatibility.check_compatibility(
        reader.read(target), reader.read(draft), draft
    )
    if not result.is_compatible:
        names = short_names.shorten([target, draft], short_names.file_name)
        raise pair_compatibility.incompatible_pair_error(
            result,
            target=names[target],
            draft=names[draft],
            suggestion=" Compatible pairs: localspec pair suggest MODEL",
        )


def resolve_or_pull(
    model: str | None, draft: str, pull: Callable[[NotDownloadedError], None]
) -> ResolvedPair:
    """Like `resolve_pair`; `pull` downloads a missing target or draft, or raises."""
    for _ in range(_MAX_DOWNLOADS):
        try:
            return resolve_pair(model, draft)
        except NotDownloadedError as missing:
            pull(missing)
    return resolve_pair(model, draft)


def make_portable_refs(model: str, draft: str) -> tuple[str, str]:
    """Make the arguments valid in any folder: relative paths become absolute."""
    draft, _ = split_drafts(draft)
    if draft not in ("auto", "none"):
        draft = model_lookup.portable_ref(draft)
    return model_lookup.portable_ref(model), draft


def split_drafts(text: str) -> tuple[str, str]:
    """The draft of a reference, and a second one, which earlier versions could use.

    `a.gguf,b.gguf` names two, unless there is a file of that name.
    """
    if os.path.exists(text):
        return text.strip(), ""
    first, _, second = text.partition(",")
    return first.strip(), second.strip()


def resolve_file(text: str) -> Path:
    """Resolve a reference to one checked file. Raises as `resolve_pair`."""
    path = model_lookup.resolve(text).target.require_path()
    reader.check_loadable(path)
    return path


def _resolve_files(request: ModelRequest, draft: str) -> ResolvedPair:
    """The files that the two arguments name, before any draft that nobody named."""
    if draft not in ("auto", "none"):
        return _resolve_named_draft(request, draft)
    if draft == "auto" and request.pair is not None:
        return _resolve_catalog_pair(request, request.pair)
    return ResolvedPair(request.target.require_path(), None)


def _resolve_named_draft(request: ModelRequest, reference: str) -> ResolvedPair:
    first, second = split_drafts(reference)
    named = model_lookup.resolve(first)
    # A reference to a pair means the pair's draft.
    draft = named.draft or named.target
    draft_path = draft.require_path()
    target_path = request.target.require_path()
    return ResolvedPair(target_path, draft_path, ignored_draft=second)


def _resolve_catalog_pair(request: ModelRequest, pair: CatalogPair) -> ResolvedPair:
    draft = None
    try:
        target = request.target.require_path()
        if request.draft is not None:
            draft = request.draft.require_path()
    except NotDownloadedError as missing:
        # The error names the whole pair, so that both files are downloaded.
        raise NotDownloadedError(pair.title, request.name) from missing
    return ResolvedPair(
        target,
        draft,
        spec=pair.spec,
        spec_reason=pair.why,
        suggested_settings=pair.settings,
    )


def draft_kind(pair: ResolvedPair) -> str | None:
    """The name of a row of `draft_kinds.py`; None: no draft.

    Raises as `resolve_pair`.
    """
    if pair.draft is None:
        return None
    target = reader.read(pair.target)
    draft = reader.read(pair.draft)
    kind = draft_heads.draft_kind_for_target(target, draft)
    if kind != "model":
        return kind
    # A draft model with another vocabulary is a kind of its own.
    result = pair_compatibility.check_compatibility(target, draft, pair.draft)
    other_kind = draft_kinds.of_verdict(result.verdict)
    return other_kind.name if other_kind else kind


def check_drafter(pair: ResolvedPair, spec: str) -> None:
    """Raise UsageError if the pair has no such drafter."""
    if not draft_kinds.runs_with_every_pair(spec):
        draft_kinds.check(spec, draft_kind(pair))


def preferred_drafter(pair: ResolvedPair, spec: str) -> str:
    """The user's general preference, or `auto` if the pair has no such drafter."""
    if draft_kinds.runs_with_every_pair(spec):  # first: it reads no header
        return spec
    if draft_kinds.supports(draft_kind(pair), spec):
        return spec
    return "auto"


def with_default_draft(
    pair: ResolvedPair, model: CatalogModel | None = None
) -> ResolvedPair:
    """Add a draft that is on this computer to a pair without one.

    In this order: a draft of the catalogue's pairs of `model`, the head in the target's
    own file, and a head in its folder. `fit/advisor.py` decides later whether that
    draft is faster than none.
    """
    if pair.draft is not None:
        return pair
    target = reader.read(pair.target)
    if model is not None:
        listed = _find_catalog_draft(target, model)
        if listed is not None:
            names = model_names.name_pair_files(pair.target, listed)
            description = f"{names.draft}, the catalogue's draft for it"
            return replace(pair, draft=listed, default_draft=description)

    if draft_heads.has_own_mtp_layer(target):
        head = pair.target
        kind = "mtp"
    else:
        sidecar = pair_compatibility.find_sidecar(pair.target, target)
        if sidecar is None:
            return pair
        head = sidecar
        kind = draft_heads.file_draft_kind(reader.read(head))
    description = draft_heads.describe_found_head(kind, head.name)
    return replace(pair, draft=head, default_draft=description)


def _find_catalog_draft(target: Header, model: CatalogModel) -> Path | None:
    """The draft file of the first pair of `model` that can be run now.

    None also if that pair drafts with the head in the target's own file.
    """
    for listed in catalog.pairs_for(catalog.load(), model):
        is_head = listed.draft_kind not in ("model", "lookup")
        if listed.draft is None:
            if is_head and draft_heads.has_own_mtp_layer(target):
                return None
            continue
        path = model_lookup.from_catalog(listed.draft).find_path()
        if path is None:
            continue
        if not is_head or pair_compatibility.is_head_for(target, path):
            return path
    return None


def check_target(target: Path) -> None:
    """Check a file as `reader.check_loadable` does, and that it is a complete model.

    Raises ModelFileError for a draft alone: llama.cpp aborts on some heads.
    """
    reader.check_loadable(target)
    header = reader.read(target)
    if draft_heads.is_head(header):
        kind = "draft head"
    elif header.has_trimmed_vocabulary:
        kind = "draft with a trimmed vocabulary"
    else:
        return
    name = sanitize(target.name, multiline=False)
    raise ModelFileError(
        f"{name} is a {kind}, not a complete model.",
        f"Name its target: localspec run TARGET --draft {name}",
    )
