"""Which files to run, from what a person typed: each looked at before it is used."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec import speculation
from localspec.clean import clean
from localspec.errors import (
    IncompatiblePairError,
    ModelFileError,
)
from localspec.models import catalog, header, heads, pairing, wanted
from localspec.models.wanted import Asked, NotHere, Wanted


@dataclass(frozen=True, slots=True)
class Choice:
    """The files to run, and how their pair wants to speculate."""

    target: Path
    draft: Path | None
    spec: str = "auto"
    why: str = ""
    suggested: catalog.Settings = field(default=catalog.Settings())
    """By the pair's entry; what a person says goes before."""
    found: str = ""
    """What kind of head was found, though nobody named it; the draft is that."""
    asked: tuple[str, str] | None = field(default=None, compare=False)
    """The reference by which they were opened, and what drafts: another, `auto` or `none`."""

    @property
    def lasting(self) -> tuple[str, str]:
        """What to ask for to have the same another day, perhaps from another folder."""
        if self.asked is not None:
            return self.asked
        return lasting(str(self.target), str(self.draft) if self.draft else "none")


def choose(model: str | None, draft: str) -> Choice:
    """The files for a model argument and a --draft argument (a reference, `auto` or `none`).

    Raises NotFoundError (NotHere where it can be downloaded), AccessError, ModelFileError or
    IncompatiblePairError: every file is looked at before it is used.
    """
    choice = _files(wanted.read(model or "demo"), draft)
    header.check(choice.target)
    _check_is_model(choice.target)
    if draft == "auto":
        choice = with_head(choice)
    if choice.draft is not None:
        header.check(choice.draft)
        _check_pair(choice.target, choice.draft)
    return choice


def lasting(model: str, draft: str) -> tuple[str, str]:
    """The same arguments, so that they mean the same files from another folder, too."""
    word = draft in ("auto", "none")
    return wanted.lasting(model), draft if word else wanted.lasting(draft)


def file(text: str) -> Path:
    """The file that a reference means, looked at.  Raises as `choose`."""
    found = wanted.read(text).target.located()
    header.check(found)
    return found


def _files(asked: Asked, draft: str) -> Choice:
    if draft == "none":
        return Choice(asked.target.located(), None)
    if draft != "auto":
        return Choice(asked.target.located(), _draft(draft))
    if asked.pair is None:
        return Choice(asked.target.located(), _usual_draft(asked.target))
    return _pair(asked, asked.pair)


def _pair(asked: Asked, pair: catalog.Pair) -> Choice:
    """What is missing of a pair is to be downloaded as the pair."""
    try:
        target, *drafts = [one.located() for one in asked.models]
    except NotHere as missing:
        raise NotHere(pair.title, asked.name) from missing
    draft = drafts[0] if drafts else None
    return Choice(target, draft, pair.spec, pair.why, pair.settings)


def _draft(text: str) -> Path:
    """The draft that a reference means; of a pair its own."""
    asked = wanted.read(text)
    return (asked.draft or asked.target).located()


def _usual_draft(target: Wanted) -> Path | None:
    """What the catalogue pairs a model with, if it is here."""
    if target.model is None:
        return None
    for pair in catalog.pairs_of(catalog.load(), target.model):
        if pair.draft is not None and pair.kind in ("model", *heads.RUN):
            draft = wanted.of(pair.draft)
            stored = draft.stored()
            found = stored.path if stored else draft.path
            if found and (pair.kind == "model" or heads.fits(header.read(target.located()), found)):
                return found
    return None


def says(choice: Choice) -> str:
    """That a head was found and is used, in a line; nothing where a person named the draft."""
    return heads.found(choice.found, choice.draft.name) if choice.found and choice.draft else ""


def draft_kind(choice: Choice) -> str | None:
    """`model`, or a head's kind; None without a draft.  Raises as `choose`."""
    if choice.draft is None:
        return None
    return heads.drafting(header.read(choice.target), header.read(choice.draft))


def check_drafter(choice: Choice, spec: str) -> None:
    """Raise UsageError where the pair has no drafter of that name."""
    if spec not in speculation.ALWAYS:
        speculation.check(spec, draft_kind(choice))


def preferred_drafter(choice: Choice, spec: str) -> str:
    """A preference for all pairs, `auto` where this pair has no such drafter."""
    if spec in speculation.ALWAYS or spec in speculation.available(draft_kind(choice)):
        return spec
    return "auto"


def with_head(choice: Choice) -> Choice:
    """A target alone, with the head that it brings or that lies beside it, if there is one."""
    if choice.draft is not None:
        return choice
    target = header.read(choice.target)
    if heads.predicts(target):  # its own file is its head
        return replace(choice, draft=choice.target, found="mtp")
    if (draft := heads.beside(choice.target, target)) is None:
        return choice
    return replace(choice, draft=draft, found=heads.kind(header.read(draft)))


def _check_is_model(target: Path) -> None:
    """Raise ModelFileError for a head: llama.cpp would abort for some."""
    if heads.is_head(header.read(target)):
        name = clean(target.name, multiline=False)
        what = f"{name} is a head, which is no model by itself."
        raise ModelFileError(what, f"Give its target: localspec run TARGET --draft {name}")


def _check_pair(target: Path, draft: Path) -> None:
    """Raise IncompatiblePairError by the headers alone, before an engine is started."""
    verdict = heads.judge(header.read(target), header.read(draft), draft)
    if not verdict.compatible:
        error = pairing.refusal(verdict, target.name, draft.name)
        more = "Some that go together: localspec pair suggest MODEL"
        raise IncompatiblePairError(error.message, f"{error.hint} {more}")
