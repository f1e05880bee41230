"""Which files to run, from what a person typed: each looked at before it is used."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec import speculation
from localspec.errors import (
    IncompatiblePairError,
    ModelFileError,
)
from localspec.models import catalog, draft_heads, pair_compatibility, resolver
from localspec.models.gguf import header
from localspec.models.resolver import ModelRequest, NotDownloadedError, ResolvedModel
from localspec.sanitize import sanitize


@dataclass(frozen=True, slots=True)
class ResolvedPair:
    """The files to run, and how their pair wants to speculate."""

    target: Path
    draft: Path | None
    spec: str = "auto"
    spec_reason: str = ""
    suggested_settings: catalog.PairSettings = field(default=catalog.PairSettings())
    """By the pair's entry; what a person says goes before."""
    detected_head: str = ""
    """What kind of head was found, though nobody named it; the draft is that."""
    requested_refs: tuple[str, str] | None = field(default=None, compare=False)
    """The reference by which they were opened, and what drafts: another, `auto` or `none`."""

    @property
    def portable_refs(self) -> tuple[str, str]:
        """What to ask for to have the same another day, perhaps from another folder."""
        if self.requested_refs is not None:
            return self.requested_refs
        return make_portable_refs(str(self.target), str(self.draft) if self.draft else "none")


def resolve_pair(model: str | None, draft: str) -> ResolvedPair:
    """The files for a model argument and a --draft argument (a reference, `auto` or `none`).

    Raises NotFoundError (NotHere where it can be downloaded), AccessError, ModelFileError or
    IncompatiblePairError: every file is looked at before it is used.
    """
    choice = _resolve_files(resolver.resolve(model or "demo"), draft)
    header.check_loadable(choice.target)
    _check_is_model(choice.target)
    if draft == "auto":
        choice = with_detected_head(choice)
    if choice.draft is not None:
        header.check_loadable(choice.draft)
        _check_pair(choice.target, choice.draft)
    return choice


def make_portable_refs(model: str, draft: str) -> tuple[str, str]:
    """The same arguments, so that they mean the same files from another folder, too."""
    word = draft in ("auto", "none")
    return resolver.portable_ref(model), draft if word else resolver.portable_ref(draft)


def resolve_file(text: str) -> Path:
    """The file that a reference means, looked at.  Raises as `choose`."""
    found = resolver.resolve(text).target.require_path()
    header.check_loadable(found)
    return found


def _resolve_files(request: ModelRequest, draft: str) -> ResolvedPair:
    if draft == "none":
        return ResolvedPair(request.target.require_path(), None)
    if draft != "auto":
        return ResolvedPair(request.target.require_path(), _resolve_draft(draft))
    if request.pair is None:
        return ResolvedPair(request.target.require_path(), _find_catalog_draft(request.target))
    return _resolve_catalog_pair(request, request.pair)


def _resolve_catalog_pair(request: ModelRequest, pair: catalog.CatalogPair) -> ResolvedPair:
    """What is missing of a pair is to be downloaded as the pair."""
    try:
        target, *drafts = [one.require_path() for one in request.models]
    except NotDownloadedError as missing:
        raise NotDownloadedError(pair.title, request.name) from missing
    draft = drafts[0] if drafts else None
    return ResolvedPair(target, draft, pair.spec, pair.why, pair.settings)


def _resolve_draft(text: str) -> Path:
    """The draft that a reference means; of a pair its own."""
    asked = resolver.resolve(text)
    return (asked.draft or asked.target).require_path()


def _find_catalog_draft(target: ResolvedModel) -> Path | None:
    """What the catalogue pairs a model with, if it is here."""
    if target.catalog_model is None:
        return None
    for pair in catalog.pairs_for(catalog.load(), target.catalog_model):
        if pair.draft is not None and pair.draft_kind in ("model", *draft_heads.SUPPORTED_KINDS):
            draft = resolver.from_catalog(pair.draft)
            stored = draft.find_local()
            found = stored.path if stored else draft.path
            if found and (
                pair.draft_kind == "model"
                or draft_heads.is_head_for(header.read(target.require_path()), found)
            ):
                return found
    return None


def describe_detected_head(pair: ResolvedPair) -> str:
    """That a head was found and is used, in a line; nothing where a person named the draft."""
    return (
        draft_heads.sidecar_notice(pair.detected_head, pair.draft.name)
        if pair.detected_head and pair.draft
        else ""
    )


def draft_kind(choice: ResolvedPair) -> str | None:
    """`model`, or a head's kind; None without a draft.  Raises as `choose`."""
    if choice.draft is None:
        return None
    return draft_heads.draft_kind_for_target(header.read(choice.target), header.read(choice.draft))


def check_drafter(choice: ResolvedPair, spec: str) -> None:
    """Raise UsageError where the pair has no drafter of that name."""
    if spec not in speculation.ALWAYS:
        speculation.check(spec, draft_kind(choice))


def preferred_drafter(choice: ResolvedPair, spec: str) -> str:
    """A preference for all pairs, `auto` where this pair has no such drafter."""
    if spec in speculation.ALWAYS or spec in speculation.available(draft_kind(choice)):
        return spec
    return "auto"


def with_detected_head(pair: ResolvedPair) -> ResolvedPair:
    """A target alone, with the head that it brings or that lies beside it, if there is one."""
    if pair.draft is not None:
        return pair
    target = header.read(pair.target)
    if draft_heads.has_own_mtp_layer(target):  # its own file is its head
        return replace(pair, draft=pair.target, detected_head="mtp")
    if (draft := draft_heads.find_sidecar(pair.target, target)) is None:
        return pair
    return replace(pair, draft=draft, detected_head=draft_heads.file_draft_kind(header.read(draft)))


def _check_is_model(target: Path) -> None:
    """Raise ModelFileError for a head: llama.cpp would abort for some."""
    if draft_heads.is_head(header.read(target)):
        name = sanitize(target.name, multiline=False)
        what = f"{name} is a head, which is no model by itself."
        raise ModelFileError(what, f"Give its target: localspec run TARGET --draft {name}")


def _check_pair(target: Path, draft: Path) -> None:
    """Raise IncompatiblePairError by the headers alone, before an engine is started."""
    verdict = draft_heads.check_compatibility(header.read(target), header.read(draft), draft)
    if not verdict.is_compatible:
        error = pair_compatibility.incompatible_pair_error(verdict, target.name, draft.name)
        more = "Some that go together: localspec pair suggest MODEL"
        raise IncompatiblePairError(error.message, f"{error.hint} {more}")
