"""Which pairs suit a place and a use, each priced.  The only place that asks `suggest`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from localspec import suggest
from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.fit import report, subject
from localspec.fit.report import Fit, Place
from localspec.fit.speed import Use
from localspec.fit.subject import Subject
from localspec.machine.parameters import DEFAULT_CTX
from localspec.models import heads
from localspec.models.catalog import Catalogue, Pair
from localspec.protocol.wire import ContextSettings, Load
from localspec.suggest import Suggestion
from localspec.tui.wizard.whatif import WhatIf

_RUNS = ("model", "lookup", *heads.RUN)
SHAPELESS = "its shape is not in the catalogue"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair, and why it stands where it stands."""

    pair: Pair
    bytes: int
    """Of both files."""
    fit: Fit | None = None
    """None: not priced yet, or its shape is unknown."""
    reasons: tuple[str, ...] = ()
    why_draft: str = ""
    unknown: str = ""
    """Why there is no fit."""
    guessed: str = ""
    """By the size of its files: fits, tight or no."""


Suggesting = Callable[[Place, str, WhatIf, Catalogue], tuple[Candidate, ...]]


def suggested(place: Place, use: str, what: WhatIf, catalogue: Catalogue) -> tuple[Candidate, ...]:
    """The best pair of each target that fits.  A second or so: not where keys wait."""
    wanted = suggest.Wanted(use, what.ctx, what.kv)
    found: dict[str, Candidate] = {}
    for one in suggest.suggest(place, wanted, catalogue=catalogue):
        if one.pair.target.repo is not None:  # what comes along needs no advice
            found.setdefault(one.pair.target.id, _candidate(one))
    return tuple(found.values())


def _candidate(one: Suggestion) -> Candidate:
    """With the reasons that the screen does not show as a bar or a number anyway."""
    shown = 1
    if one.fit is not None and one.fit.speed.speculative is not None:
        shown += 1
    reasons = tuple(why for why in one.reasons[shown:] if not why.startswith("no draft"))
    unknown = "" if one.fit else f"{SHAPELESS}; {one.reasons[0]}"
    return Candidate(one.pair, one.bytes, one.fit, reasons, one.why_draft, unknown, one.verdict)


def others(pair: Pair, catalogue: Catalogue) -> tuple[Pair, ...]:
    """The pairs of the same target."""
    pairs = catalogue.pairs.values()
    return tuple(o for o in pairs if o.target.id == pair.target.id and o.kind in _RUNS)


class Prices:
    """What was priced, and what headers were read: a change of a dial must not wait."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, WhatIf], Candidate] = {}
        self._subjects: dict[str, Subject] = {}
        """By pair: better than its shape."""

    def keep(self, use: str, what: WhatIf, found: tuple[Candidate, ...]) -> None:
        """Prices that were made elsewhere, but for pairs whose headers were read since."""
        for one in found:
            if one.pair.id not in self._subjects:
                self._known[one.pair.id, use, what] = one

    def refine(self, pair: Pair, known: Subject) -> None:
        """From now on by these headers."""
        self._subjects[pair.id] = known
        for key in [key for key in self._known if key[0] == pair.id]:
            del self._known[key]

    def subject(self, pair: Pair) -> Subject | None:
        return self._subjects.get(pair.id) or subject.of_pair(pair)

    def get(self, one: Candidate, use: str, what: WhatIf) -> Candidate | None:
        """As it was priced for this, or None."""
        return self._known.get((one.pair.id, use, what))

    def confirm(self, one: Candidate, use: str, what: WhatIf, fit: Fit) -> None:
        """Priced anew, with the same headers."""
        self._known[one.pair.id, use, what] = replace(one, fit=fit)

    def price(self, one: Candidate, place: Place, use: str, what: WhatIf) -> Candidate:
        """In some milliseconds."""
        known = self.get(one, use, what) or self._priced(one, place, use, what)
        known = replace(known, reasons=one.reasons, why_draft=one.why_draft)
        self._known[one.pair.id, use, what] = known
        return known

    def _priced(self, one: Candidate, place: Place, use: str, what: WhatIf) -> Candidate:
        found = self.subject(one.pair)
        if found is None:
            return replace(one, fit=None, unknown=one.unknown or SHAPELESS)
        target, draft = found.headers
        ctx = what.ctx or min(DEFAULT_CTX, target.n_ctx_train or DEFAULT_CTX)
        kv = what.kv or "f16"
        load = Load(
            found.target.name,
            found.draft.name if found.draft else None,
            ContextSettings(n_ctx=ctx, kv_type=kv),
            ContextSettings(kv_type=kv),
        )
        try:
            fit = report.price(load, target, draft, place, Use(use))
        except LocalspecError as error:
            return replace(one, fit=None, unknown=clean(error.message, multiline=False))
        return replace(one, fit=fit, unknown="")
