"""The pair of the wizard's last step: what is known of it, and what could stand in its place."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.fit import reason
from localspec.fit.subject import Subject
from localspec.models.catalog import Pair
from localspec.tui.wizard.card import Page
from localspec.tui.wizard.checks import Refined, checks
from localspec.tui.wizard.shortlist import Candidate, Prices, others
from localspec.tui.wizard.stock import Stock
from localspec.tui.wizard.whatif import WhatIf


class Closer:
    """Headers that were read are remembered by pair."""

    def __init__(self, stock: Stock, prices: Prices) -> None:
        self._stock, self._prices = stock, prices
        self.one: Candidate | None = None
        self.disk: int | None = None
        """Bytes free where files will be."""
        self._read: dict[str, Refined | None] = {}
        self._confirmed = set[tuple[str, str, WhatIf]]()
        """Or tried to be."""

    def was_read(self, pair: Pair) -> bool:
        """Or tried, in vain."""
        return pair.id in self._read

    def unsure(self, use: str, what: WhatIf) -> Subject | None:
        """The files' headers, where the price by formulas can be confirmed and was not; once."""
        if self.one is None or self.one.fit is None:
            return None
        known, key = self._read.get(self.one.pair.id), (self.one.pair.id, use, what)
        if known is None or not known.read or key in self._confirmed:
            return None
        self._confirmed.add(key)
        return known.subject

    def heard(self, pair: Pair, known: Refined | None) -> None:
        """What the headers of its files say; None: they could not be had."""
        self._read[pair.id] = known
        if known is not None and known.read:
            self._prices.refine(pair, known.subject)

    def other_draft(self) -> Pair | None:
        """The next pair of this target, round and round."""
        if self.one is None:
            return None
        pairs = others(self.one.pair, self._stock.catalogue)
        ids = [pair.id for pair in pairs]
        at = ids.index(self.one.pair.id) if self.one.pair.id in ids else -1
        return pairs[(at + 1) % len(pairs)] if len(pairs) > 1 else None

    def other_target(self, shown: Sequence[Candidate]) -> Pair | None:
        """The next of the shortlist with another target."""
        if self.one is None:
            return None
        mine = self.one.pair.target.id
        ids = [one.pair.target.id for one in shown]
        at = ids.index(mine) if mine in ids else -1
        after = [*shown[at + 1 :], *shown[: at + 1]]
        return next((one.pair for one in after if one.pair.target.id != mine), None)

    def page(self, one: Candidate, use: str) -> Page:
        pair, known = one.pair, self._read.get(one.pair.id)
        found = known.subject if known else self._prices.subject(pair)
        return Page(
            candidate=one,
            use=use,
            checks=checks(pair, one.fit, found, known),
            here=pair.id in self._stock.ready,
            disk=self.disk,
            basis=self._basis(one),
        )

    def _basis(self, one: Candidate) -> str:
        """How sure the memory is."""
        known = self._read.get(one.pair.id)
        if one.fit is not None and one.fit.projection.method == "exact":
            return "exact, from the files' headers"
        if known is not None and known.read:
            return "from the files' headers"
        return "estimated from the catalogue"


def unlisted(pair: Pair) -> Candidate:
    """One that is not in the shortlist."""
    why = tuple(filter(None, (pair.why, pair.note)))
    return Candidate(pair, pair.size or 0, reasons=why, why_draft=reason.of_head(pair.kind))
