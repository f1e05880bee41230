"""Resolving model and draft arguments to checked files."""

from __future__ import annotations

import os
from collections.abc import Callable
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
    pair_compatibility,
)
from localspec.models.catalog import CatalogModel
from localspec.models.gguf import reader
from localspec.models.model_lookup import ModelRequest, NotDownloadedError
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
    """A second draft, as earlier versions could use: it is not loaded, and a notice
    says so.
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
    def target_name(self) -> str:
        if self.requested_refs is not None and self.target.name.startswith("sha256-"):
            # in Ollama
            return sanitize(Path(self.requested_refs[0]).name, multiline=False)
        return _stem(self.target)

    @property
    def draft_name(self) -> str:
        """The draft for a title; the MTP layer of the target's own file is named as
        such.
        """
        if self.draft is None:
            return ""
        try:
            is_own_layer = self.draft == self.target and draft_heads.has_own_mtp_layer(
                reader.read(self.target)
            )
        except LocalspecError:  # the file is missing or damaged
            is_own_layer = False
        return "built-in MTP layer" if is_own_layer else _stem(self.draft)

    @property
    def draft_notice(self) -> str:
        """One line about a draft that nobody named, or about a second one; may be
        empty.
        """
        if self.ignored_draft:
            ignored = sanitize(self.ignored_draft, multiline=False)
            return f"A pair has one draft: {ignored} is not used."
        return f"Drafting with {self.default_draft}." if self.default_draft else ""


def _stem(path: Path) -> str:
    return sanitize(path.name.removesuffix(".gguf"), multiline=False)


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
        else:  # it names the head
            pair = replace(with_default_draft(pair), default_draft="")
    if pair.draft is not None:
        reader.check_loadable(pair.draft)
        headers = reader.read(pair.target), reader.read(pair.draft)
        verdict = pair_compatibility.check_compatibility(*headers, pair.draft)
        if not verdict.is_compatible:
            hint = " Compatible pairs: localspec pair suggest MODEL"
            names = pair.target.name, pair.draft.name
            raise pair_compatibility.incompatible_pair_error(verdict, *names, hint)
    return pair


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
    """The draft of a reference, and a second one, which earlier versions could use."""
    first, _, second = (text, "", "") if os.path.exists(text) else text.partition(",")
    return first.strip(), second.strip()


def resolve_file(text: str) -> Path:
    """Resolve a reference to one checked file. Raises as `resolve_pair`."""
    path = model_lookup.resolve(text).target.require_path()
    reader.check_loadable(path)
    return path


def _resolve_files(request: ModelRequest, draft: str) -> ResolvedPair:
    if draft == "none":
        return ResolvedPair(request.target.require_path(), None)
    if draft != "auto":
        draft, ignored = split_drafts(draft)
        # a reference to a pair means the pair's draft
        named = model_lookup.resolve(draft)
        path = (named.draft or named.target).require_path()
        return ResolvedPair(request.target.require_path(), path, ignored_draft=ignored)
    if (pair := request.pair) is None:
        return ResolvedPair(request.target.require_path(), None)
    try:
        target, *drafts = [model.require_path() for model in request.models]
    except (
        NotDownloadedError
    ) as missing:  # of the whole pair, so that both are downloaded
        raise NotDownloadedError(pair.title, request.name) from missing
    return ResolvedPair(target, (*drafts, None)[0], pair.spec, pair.why, pair.settings)


def draft_kind(pair: ResolvedPair) -> str | None:
    """The name of a row of `draft_kinds.py`; None: no draft.

    Raises as `resolve_pair`.
    """
    if pair.draft is None:
        return None
    target, draft = reader.read(pair.target), reader.read(pair.draft)
    kind = draft_heads.draft_kind_for_target(target, draft)
    verdict = pair_compatibility.check_compatibility(target, draft, pair.draft).verdict
    bridge = draft_kinds.of_verdict(verdict) if kind == "model" else None
    return bridge.name if bridge else kind


def check_drafter(pair: ResolvedPair, spec: str) -> None:
    """Raise UsageError if the pair has no such drafter."""
    if not draft_kinds.runs_with_every_pair(spec):
        draft_kinds.check(spec, draft_kind(pair))


def preferred_drafter(pair: ResolvedPair, spec: str) -> str:
    """Return the user's general preference, or `auto` if this pair has no such drafter."""
    if draft_kinds.runs_with_every_pair(spec):  # first: it reads no header
        return spec
    return spec if draft_kinds.supports(draft_kind(pair), spec) else "auto"


def with_default_draft(
    pair: ResolvedPair, model: CatalogModel | None = None
) -> ResolvedPair:
    """Add the draft of a target without one: what is here of the catalogue's pairs of `model`, else
    the head in the file or in its folder.  Whether it pays is for fit/advisor.py to say.
    """
    if pair.draft is not None:
        return pair
    target = reader.read(pair.target)
    has_own_head = draft_heads.has_own_mtp_layer(target)
    for each in catalog.pairs_for(catalog.load(), model) if model else ():
        path = model_lookup.from_catalog(each.draft).find_path() if each.draft else None
        is_head = each.draft_kind not in ("model", "lookup")
        if path and (not is_head or pair_compatibility.is_head_for(target, path)):
            title = sanitize(
                f"{path.name}, the catalogue's draft for it", multiline=False
            )
            return replace(pair, draft=path, default_draft=title)
        if each.draft is None and is_head and has_own_head:
            break
    path = (
        pair.target
        if has_own_head
        else pair_compatibility.find_sidecar(pair.target, target)
    )
    if path is None:
        return pair
    kind = "mtp" if has_own_head else draft_heads.file_draft_kind(reader.read(path))
    return replace(
        pair, draft=path, default_draft=draft_heads.describe_found_head(kind, path.name)
    )


def check_target(target: Path) -> None:
    """As `reader.check_loadable`; ModelFileError for a draft head: llama.cpp aborts on
    some.
    """
    reader.check_loadable(target)
    header = reader.read(target)
    if draft_heads.is_head(header) or header.has_trimmed_vocabulary:
        name = sanitize(target.name, multiline=False)
        kind = (
            "draft head"
            if draft_heads.is_head(header)
            else "draft with a trimmed vocabulary"
        )
        message = f"{name} is a {kind}, not a complete model."
        raise ModelFileError(
            message, f"Name its target: localspec run TARGET --draft {name}"
        )
