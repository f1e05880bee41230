"""The registry of drafters: one row for each kind of draft, and the methods of `--spec`.

A row is data. It names the factory of its drafter by an import path, which only the
engine process resolves: numpy and llama.cpp are not imported here. The rows of the core
are in `BUILT_IN`. Other rows come from the folders of `localspec/extras/` and from
installed packages, by the entry point group `localspec.drafters` (docs/drafters.md).

What a new kind needs besides its row depends on `DraftKind.needs`:

- `nothing`, `model`: no more than the row and its factory.
- `head`: a graph in llama.cpp and its context (`llama/head_context.py`), a runner that
  collects the target's hidden states (`engine/loaded_pair.py` makes it), how its GGUF
  file is recognised and fits a target (`models/gguf/architectures.py`,
  `models/draft_heads.py`, `models/pair_compatibility.py`), and its memory
  (`fit/memory.py`).
- `other-vocabulary`: a check of two vocabularies (`pairing`) and what maps one to the
  other (`loader`). `extras/crossvocab/` is the example.

Packages can offer only the first two.

Finding installed packages takes 10 to 30 ms. So only two things do it: a name that is
not a row of localspec itself, and lists of all names, such as help and completion.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from localspec import extras
from localspec.errors import DrafterPackageError, Hint, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "localspec.drafters"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_RESERVED_NAMES = ("auto", "off", "on", "none")

DraftNeeds = Literal["nothing", "model", "head", "other-vocabulary"]
AcceptanceRange = tuple[float, float]


class TypicalAcceptance(NamedTuple):
    """Acceptance rates at temperature 0 by use, from a poor to a good match."""

    chat: AcceptanceRange
    code: AcceptanceRange
    writing: AcceptanceRange
    documents: AcceptanceRange


class DraftKind(NamedTuple):
    name: str
    """What `--spec`, JSON, the history and the catalogue call it."""
    title: str
    """Its name in a sentence, such as EAGLE-3 (of a head, without the word head)."""
    factory: str
    """The import path of `make(inputs: DrafterInputs) -> Drafter`: `package.module:make`.

    Only the engine process imports it.
    """
    needs: DraftNeeds
    """What it needs beside the text.

    That is nothing, a draft model with the target's vocabulary, a head that reads the
    target's hidden states, or a draft model with another vocabulary.
    """
    article: str = "a"
    description: str = ""
    """Why a person would choose it, in one line."""
    panel_word: str = ""
    """Its name in the speculation panel, at most 11 characters; empty for the title."""
    preference: int = 100
    """The best draft of a target has the lowest number, where no speed is known."""
    search_rank: int = 100
    """Which head of a model's folder is offered first, as in llama.cpp."""
    drafts_blocks: bool = False
    """Whether one pass drafts all tokens of a round; otherwise each token takes one."""
    typical_acceptance: TypicalAcceptance | None = None
    """None: it is not estimated."""
    pairing: str = ""
    """The import path of a check of two models whose vocabularies differ.

    `models/pair_compatibility.py` calls it. If its verdict is `verdict`, this kind
    drafts.
    """
    verdict: str = ""
    """The verdict of that check, in JSON."""
    verdict_title: str = ""
    """The verdict in a sentence."""
    loader: str = ""
    """The import path of a function that prepares a loaded draft model for this kind.

    `engine/loaded_pair.py` calls it. Empty if nothing is to be prepared.
    """
    n_output_rows: int = 1
    """Rows of logits that a pass of its draft model returns."""
    package: str = ""
    """The package that it comes from and its version; empty for localspec's own."""

    @property
    def is_head(self) -> bool:
        return self.needs == "head"

    @property
    def file_prefix(self) -> str:
        """What the names of a head's files begin with, such as `eagle3-`."""
        return f"{self.name}-"

    @property
    def noun(self) -> str:
        """Its name in a sentence, with an article: an EAGLE-3 head."""
        if self.needs == "model":
            return "a model"
        what = f"{self.title} head" if self.is_head else self.title
        return f"{self.article} {what}"


BUILT_IN = (
    DraftKind(
        name="model",
        title="draft model",
        factory="localspec.spec.drafters.model:make",
        needs="model",
        preference=5,
        # Reports from 0.4 (prose) to 0.95 (code), of models of the target's family.
        typical_acceptance=TypicalAcceptance(
            chat=(0.50, 0.75),
            code=(0.65, 0.92),
            writing=(0.40, 0.65),
            documents=(0.55, 0.85),
        ),
    ),
    DraftKind(
        name="lookup",
        title="prompt lookup",
        factory="localspec.spec.drafters.lookup:make",
        needs="nothing",
        description="prompt lookup, no draft model",
        panel_word="lookup",
        preference=6,
    ),
    # Of heads, the upper ends are their authors' and the lower ends their users'.
    DraftKind(
        name="eagle3",
        title="EAGLE-3",
        factory="localspec.spec.drafters.autoregressive_head:make",
        needs="head",
        article="an",
        description="EAGLE-3 head: one layer trained on the hidden states of this model. "
        "Higher acceptance rate than a small draft model, at a lower cost",
        preference=4,
        search_rank=2,
        # 0.55 with gpt-oss (users).
        typical_acceptance=TypicalAcceptance(
            chat=(0.50, 0.75),
            code=(0.62, 0.88),
            writing=(0.40, 0.65),
            documents=(0.55, 0.82),
        ),
    ),
    DraftKind(
        name="mtp",
        title="MTP",
        factory="localspec.spec.drafters.autoregressive_head:make",
        needs="head",
        article="an",
        description="MTP: an extra layer of the model itself, trained to predict the token after next. "
        "Higher acceptance rate than a small draft model",
        preference=1,
        search_rank=1,
        # DeepSeek-V3 reports 0.85 to 0.90, users 0.48 to 0.93.
        typical_acceptance=TypicalAcceptance(
            chat=(0.58, 0.85),
            code=(0.68, 0.93),
            writing=(0.48, 0.75),
            documents=(0.60, 0.88),
        ),
    ),
    DraftKind(
        name="dspark",
        title="DSpark",
        factory="localspec.spec.drafters.block_head:make",
        needs="head",
        description="DSpark head: trained on the hidden states of this model. "
        "Drafts several tokens in one pass, with a confidence for each",
        preference=2,
        search_rank=3,
        drafts_blocks=True,
        # DSpark's paper, table 1, temperature 1, 7 draft tokens.
        typical_acceptance=TypicalAcceptance(
            chat=(0.50, 0.82),
            code=(0.62, 0.93),
            writing=(0.30, 0.66),
            documents=(0.52, 0.85),
        ),
    ),
    DraftKind(
        name="dflash",
        title="DFlash",
        factory="localspec.spec.drafters.block_head:make",
        needs="head",
        description="DFlash head: trained on the hidden states of this model. "
        "Drafts several tokens in one pass; a draft model needs one pass per token",
        preference=3,
        search_rank=4,
        drafts_blocks=True,
        # vLLM #20780; block heads give 1.3 tokens a pass for prose (users).
        typical_acceptance=TypicalAcceptance(
            chat=(0.40, 0.75),
            code=(0.60, 0.90),
            writing=(0.25, 0.60),
            documents=(0.45, 0.82),
        ),
    ),
)


@functools.cache
def kinds() -> Mapping[str, DraftKind]:
    """Localspec's own kinds by name: those of the core, then those of `extras/`.

    A function, because the rows of `extras/` import this file.
    """
    return {kind.name: kind for kind in (*BUILT_IN, *extras.load("DRAFT_KINDS"))}


@functools.cache
def heads() -> tuple[DraftKind, ...]:
    """The kinds that are heads, those of `extras/` included."""
    return tuple(kind for kind in kinds().values() if kind.is_head)


def methods() -> tuple[str, ...]:
    """The words of `--spec` without those of installed packages."""
    return ("auto", "off", *kinds())


# --- drafters of other packages
# ------------------------------------------------------------------------------


class InstalledDrafter(NamedTuple):
    """An entry point of the group `localspec.drafters`: its package is not imported yet."""

    name: str
    package: str
    """Name and version."""
    entry_point: Any
    """An `importlib.metadata.EntryPoint`."""

    def load(self) -> DraftKind:
        """The package's row. Raises DrafterPackageError; imports the package."""
        is_taken = self.name in methods() or self.name in _RESERVED_NAMES
        if is_taken or not _NAME.fullmatch(self.name):
            raise self._error(f"its name {self.name!r} is taken or not a plain word")
        try:
            row = self.entry_point.load()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise self._error(problem) from error
        if not isinstance(row, DraftKind):
            raise self._error(f"{self.entry_point.value} is not a DraftKind")
        if row.name != self.name:
            raise self._error(f"its row is named {row.name!r}")
        if row.needs not in ("nothing", "model"):
            raise self._error(f"it needs {row.needs!r}, which packages cannot offer")
        return row._replace(package=self.package)

    def _error(self, problem: str) -> DrafterPackageError:
        return _package_error(self.name, self.package, problem)


def _package_error(drafter: str, package: str, problem: str) -> DrafterPackageError:
    from localspec import install_hints  # noqa: PLC0415  only for this error

    remove = install_hints.uninstall_command(package.partition(" ")[0])
    return DrafterPackageError(
        f"The drafter {drafter!r} of the package {package} cannot be used: {problem}.",
        f"Update the package, or remove it: {remove}",
    )


@functools.cache
def installed() -> Mapping[str, InstalledDrafter]:
    """The drafters of other packages by name, found once per process."""
    from importlib.metadata import entry_points  # noqa: PLC0415  late: it takes 20 ms

    return {
        found.name: InstalledDrafter(found.name, _package_of(found), found)
        for found in entry_points(group=ENTRY_POINT_GROUP)
    }


def _package_of(entry_point: EntryPoint) -> str:
    package = entry_point.dist
    return f"{package.name} {package.version}" if package else entry_point.module


def find(name: str) -> DraftKind | None:
    """The row of a name; None if there is none. Raises DrafterPackageError."""
    if name in methods():
        return kinds().get(name)
    package = installed().get(name)
    return package.load() if package else None


def _find_usable(name: str) -> DraftKind | None:
    try:
        return find(name)
    except DrafterPackageError:
        return None


# --- what names mean
# ------------------------------------------------------------------------------


def all_methods() -> tuple[str, ...]:
    """The words of `--spec`, with those of installed packages."""
    own = methods()
    return *own, *(name for name in installed() if name not in own)


def head_title(kind: str) -> str:
    """The title of a kind of head; empty for other kinds."""
    row = kinds().get(kind)
    return row.title if row and row.is_head else ""


def of_verdict(verdict: str) -> DraftKind | None:
    """The kind that drafts where models of two vocabularies got this verdict."""
    for kind in kinds().values():
        if kind.verdict and kind.verdict == verdict:
            return kind
    return None


def describe(kind: str) -> str:
    """Why a person would choose a kind, in one line; may be empty."""
    row = kinds().get(kind)
    return row.description if row else ""


def needs_no_draft(spec: str) -> bool:
    """Whether a method runs without a draft model, and so none is loaded for it.

    `auto` is not such a method: it uses a draft if there is one. Nor is that of a
    package which cannot be used: `check` says why.
    """
    if spec == "off":
        return True
    if spec == "auto":
        return False
    kind = _find_usable(spec)
    return kind is not None and kind.needs == "nothing"


def runs_with_every_pair(spec: str) -> bool:
    return spec == "auto" or needs_no_draft(spec)


def available(draft_kind: str | None) -> tuple[str, ...]:
    """The methods of localspec that a pair supports, in the order of `methods`.

    `draft_kind` is the kind of its draft, None without one. The method `model` means a
    draft of any kind: with an EAGLE-3 head, `eagle3` and `model` are the same.
    """
    supported = {"auto", "off", draft_kind}
    supported.update(kind.name for kind in kinds().values() if kind.needs == "nothing")
    if draft_kind is not None:
        supported.add("model")
    return tuple(method for method in methods() if method in supported)


def supports(draft_kind: str | None, spec: str) -> bool:
    """Whether a pair with this kind of draft supports a method of localspec or a package.

    A package's row is compared by what it needs, `nothing` or `model`. A kind of
    draft is named after the kind's row, so a draft model's is `model`, too.
    """
    if spec in methods():
        return spec in available(draft_kind)
    kind = _find_usable(spec)
    if kind is None:
        return False
    return kind.needs in ("nothing", draft_kind)


def check(spec: str, draft_kind: str | None) -> None:
    """Raise UsageError, with the supported methods, unless a pair supports `spec`.

    Raises DrafterPackageError if the package of such a drafter cannot be used.
    """
    if supports(draft_kind, spec):
        return

    # The method is unknown, or a package's that cannot be used, or the pair's draft is
    # of another kind. For the second `find` raises.
    is_known = spec in methods() or find(spec) is not None
    if not is_known:
        raise UsageError(
            f"Unknown speculation method {spec!r}.",
            f"Use one of: {', '.join(all_methods())}.",
        )
    hint = f"Use one of: {', '.join(available(draft_kind))}."
    if draft_kind is None:
        raise UsageError(
            f"Speculation method {spec!r} needs a draft model, and none is loaded.",
            Hint(f"{hint} Or add a draft model: {{draft=FILE}}"),
        )
    row = kinds().get(draft_kind)
    draft = row.noun if row else draft_kind
    message = f"This pair does not support {spec!r}: its draft is {draft}."
    raise UsageError(message, hint)


def load_factory(kind: DraftKind) -> Any:
    """The factory of a kind's drafter; for the engine process.

    Raises DrafterPackageError if it belongs to a package that cannot be imported.
    """
    try:
        return extras.load_object(kind.factory)
    except Exception as error:
        if not kind.package:
            raise
        problem = f"{type(error).__name__}: {error}"
        raise _package_error(kind.name, kind.package, problem) from error
