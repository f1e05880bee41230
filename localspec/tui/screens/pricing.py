"""Of the wizard: the dials, the pairs that suit them, and what each would take."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from textual import on
from textual.message import Message
from textual.screen import Screen

from localspec.errors import LocalspecError
from localspec.machine.cards import Card
from localspec.tui.later import later
from localspec.tui.middle import Middle
from localspec.tui.screens.cards import CardScreen
from localspec.tui.widgets.shortlist import Shortlist
from localspec.tui.wizard import whatif
from localspec.tui.wizard.closer import Closer
from localspec.tui.wizard.latest import Latest
from localspec.tui.wizard.shortlist import Candidate, Prices
from localspec.tui.wizard.stock import Chosen, Stock
from localspec.tui.wizard.whatif import DIALS, Dial, Places, WhatIf

_BUDGET = 0.005
"""Seconds for which prices are made before the screen looks for keys again."""
_PAUSE = 0.02
_REST = 0.3
"""Seconds without a turn of a dial before the whole catalogue is priced: that slows keys down."""
Key = tuple[str, WhatIf]


class PricingScreen(Middle, Screen[Chosen | None]):
    """What is in sight is priced at once; the rest comes from a thread and between keys."""

    class Listed(Message):
        """The shortlist for a use and the dials."""

        def __init__(self, key: Key, found: tuple[Candidate, ...]) -> None:
            super().__init__()
            self.key, self.found = key, found

    def __init__(self, stock: Stock) -> None:
        super().__init__()
        self._stock = stock
        self.step = 1
        self.what = WhatIf()
        self._dial: Dial = "card"
        self._use = "chat"
        self._places = Places(stock.here)
        self._prices = Prices()
        self._closer = Closer(stock, self._prices)
        self._key: Key | None = None
        """Of the shortlist as it stands."""
        self._resting: asyncio.TimerHandle | None = None
        self._lists = Latest("shortlist")

    def draw(self) -> None:
        """All of it, as things stand."""
        raise NotImplementedError

    def draw_head(self) -> None:
        """The dials, and what is pointed at."""
        raise NotImplementedError

    def rested(self) -> None:
        """The dials have been left alone for a moment."""
        self.ask()

    # --- the shortlist --------------------------------------------------------------------

    def warm(self) -> None:
        """What every price needs, on a thread."""

        def work() -> None:
            self._places.of(None)
            whatif.every_card()

        self._lists.ask(work)

    def ask(self) -> None:
        """The pairs for this use and these dials, on a thread."""
        key = self._use, self.what
        if key == self._key:
            return

        def work() -> None:
            place = self._places.of(key[1].card)
            try:
                found = self._stock.suggest(place, *key, self._stock.catalogue)
            except LocalspecError:  # what is said of each pair says it too
                found = ()
            self.post_message(self.Listed(key, found))

        self._lists.ask(work)

    @on(Listed)
    def _listed(self, message: Listed) -> None:
        if message.key != (self._use, self.what):
            return
        self._key = message.key
        self._prices.keep(*message.key, message.found)
        self.query_one(Shortlist).fill(message.found)
        if self._closer.one is not None:
            self._closer.one = self.priced(self._closer.one)
        self.draw()

    def priced(self, one: Candidate) -> Candidate:
        """As it stands with these dials; without a fit where the place is not known yet."""
        place = self._places.known(self.what.card)
        if place is None:
            return one
        return self._prices.price(one, place, self._use, self.what)

    def _price_some(self) -> None:
        """As many lines as there is time for, from the pointer on; the rest after the next keys."""
        shown, until = self.query_one(Shortlist), time.monotonic() + _BUDGET
        at = shown.highlighted or 0
        for one in [*shown.candidates[at:], *shown.candidates[:at]]:
            if one.fit is not None or one.unknown:
                continue
            if time.monotonic() >= until:
                later(self, _PAUSE, self._price_some)
                return
            shown.put(self.priced(one))
            if shown.candidate is not None and shown.candidate.pair.id == one.pair.id:
                self.draw_head()

    # --- the dials ------------------------------------------------------------------------

    def action_turn(self, by: int) -> None:
        self._set(self.what.turned(self._dial, by))

    def _set(self, what: WhatIf) -> None:
        """Drawn at once: the pair in sight first, the others as soon as there is time."""
        self.what = what
        if self._resting is not None:
            self._resting.cancel()
        self._resting = later(self, _REST, self.rested)
        if self.step == 3 and self._closer.one is not None:
            self._closer.one = self.priced(self._closer.one)
        self.reprice()
        self.draw()

    def reprice(self) -> None:
        """The lines with what is known for these dials; where they are seen, the rest soon."""
        shown, what = self.query_one(Shortlist), self.what
        known = [self._prices.get(one, self._use, what) for one in shown.candidates]
        shown.candidates = [
            new or replace(old, fit=None, unknown="")
            for old, new in zip(shown.candidates, known, strict=True)
        ]
        if self.step == 2:
            if shown.candidate is not None:
                shown.candidates[shown.highlighted or 0] = self.priced(shown.candidate)
            shown.draw_all()
            later(self, _PAUSE, self._price_some)  # after this picture

    def action_dial(self) -> None:
        self._dial = DIALS[(DIALS.index(self._dial) + 1) % len(DIALS)]
        self.draw_head()

    def action_settings(self) -> None:
        """Context, then the type of keys and values."""
        self._dial = "kv" if self._dial == "context" else "context"
        self.draw_head()

    def action_card(self) -> None:
        def chosen(picked: tuple[Card | None] | None) -> None:
            if picked is not None:
                self._dial = "card"
                self._set(WhatIf(picked[0], self.what.ctx, self.what.kv))

        self.app.push_screen(CardScreen(self.what.card), chosen)
