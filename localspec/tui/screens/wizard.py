"""A new pair in three steps: what for, which of those that suit this computer, and its card."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec.errors import LocalspecError
from localspec.launch import Choice
from localspec.machine.cards import Card
from localspec.models.catalog import Pair
from localspec.tui.downloads import Downloads
from localspec.tui.keys import bindings
from localspec.tui.options import Options
from localspec.tui.runner import Runner
from localspec.tui.screens.cards import CardScreen
from localspec.tui.screens.opening import OpeningScreen
from localspec.tui.screens.pull import PullScreen
from localspec.tui.widgets.shortlist import Shortlist
from localspec.tui.wizard import card, frame, listing, whatif
from localspec.tui.wizard.checks import Refined, refined
from localspec.tui.wizard.closer import Closer, unlisted
from localspec.tui.wizard.latest import Latest
from localspec.tui.wizard.shortlist import Candidate, Prices
from localspec.tui.wizard.stock import Chosen, Stock
from localspec.tui.wizard.whatif import DIALS, Dial, Places, WhatIf

_BUDGET = 0.005
"""Seconds for which prices are made before the screen looks for keys again."""
_PAUSE = 0.02
_SWITCH = 0.0005
"""Seconds until a thread that prices the catalogue gives way to a key; Python's own are 0.005."""
_REST = 0.3
"""Seconds without a turn of a dial before the whole catalogue is priced: that slows keys down."""
Key = tuple[str, WhatIf]


class WizardScreen(Screen[Chosen | None]):
    """Every change of a dial is drawn at once; what takes longer comes from threads."""

    BINDINGS = bindings("wizard")
    AUTO_FOCUS = "#uses"

    class Listed(Message):
        """The shortlist for a use and the dials."""

        def __init__(self, key: Key, found: tuple[Candidate, ...]) -> None:
            super().__init__()
            self.key, self.found = key, found

    class Read(Message):
        """What the headers of a pair's files say; None: they could not be had."""

        def __init__(self, pair: Pair, known: Refined | None, disk: int | None) -> None:
            super().__init__()
            self.pair, self.known, self.disk = pair, known, disk

    def __init__(
        self, runner: Runner, options: Options, downloads: Downloads, stock: Stock
    ) -> None:
        super().__init__()
        self._runner, self._options, self._downloads = runner, options, downloads
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
        self._resting: Timer | None = None
        self._interval = sys.getswitchinterval()
        self._lists, self._reads = Latest("shortlist"), Latest("headers")

    def compose(self) -> ComposeResult:
        yield Static("", id="head", markup=False)
        uses = [Option(frame.use_line(n, use), id=use) for n, use in enumerate(frame.USES, 1)]
        yield OptionList(*uses, id="uses", compact=True, markup=False)
        yield Static("", id="columns", markup=False)
        yield Shortlist(self._line)
        with VerticalScroll(id="card"):
            yield Static("", id="page", markup=False)
        yield Static("", id="about", markup=False)
        yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH)
        self._lists.ask(self._warm)  # a second, while a person reads
        self._go(1)

    def on_unmount(self) -> None:
        sys.setswitchinterval(self._interval)

    def on_resize(self) -> None:
        self._draw()

    # --- steps ----------------------------------------------------------------------------

    def _go(self, step: int) -> None:
        self.step = step
        shown = {1: ("uses",), 2: ("columns", "shortlist"), 3: ("card",)}[step]
        for name in ("uses", "columns", "shortlist", "card"):
            self.query_one(f"#{name}", Widget).display = name in shown
        if step == 2:
            self._reprice()
        self.set_focus(self.query_one({1: "#uses", 2: "#shortlist", 3: "#card"}[step], Widget))
        self._draw()

    @on(OptionList.OptionSelected, "#uses")
    def _for(self, event: OptionList.OptionSelected) -> None:
        self.action_use(event.option.id or "chat")

    def action_use(self, use: str) -> None:
        """Step 1 is answered."""
        if self.step != 1:
            return
        self._use = use
        self._go(2)
        self._ask()

    @on(OptionList.OptionSelected, "#shortlist")
    def _picked(self) -> None:
        if (one := self.query_one(Shortlist).candidate) is not None:
            self._look_at(one)
            self._go(3)

    def action_back(self) -> None:
        if self.step == 1:
            self.dismiss(None)
        else:
            self._go(self.step - 1)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Each step hears its own keys."""
        steps = {"use": (1,), "take": (3,), "other_draft": (3,), "other_target": (3,)}
        dials = dict.fromkeys(("turn", "dial", "settings", "card"), (2, 3))
        return self.step in (steps | dials).get(action, (1, 2, 3))

    # --- the shortlist --------------------------------------------------------------------

    def _warm(self) -> None:
        """On a thread: what every price needs."""
        self._places.of(None)
        whatif.every_card()

    def _ask(self) -> None:
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
            self._closer.one = self._priced(self._closer.one)
        self._draw()

    def _priced(self, one: Candidate) -> Candidate:
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
                self.set_timer(_PAUSE, self._price_some)
                return
            shown.put(self._priced(one))
            if shown.candidate is not None and shown.candidate.pair.id == one.pair.id:
                self._draw_head()

    # --- the dials ------------------------------------------------------------------------

    def action_turn(self, by: int) -> None:
        self._set(self.what.turned(self._dial, by))

    def _set(self, what: WhatIf) -> None:
        """Drawn at once: the pair in sight first, the others as soon as there is time."""
        self.what = what
        if self._resting is not None:
            self._resting.stop()
        self._resting = self.set_timer(_REST, self._ask)
        if self.step == 3 and self._closer.one is not None:
            self._closer.one = self._priced(self._closer.one)
        self._reprice()
        self._draw()

    def _reprice(self) -> None:
        """The lines with what is known for these dials; where they are seen, the rest soon."""
        shown, what = self.query_one(Shortlist), self.what
        known = [self._prices.get(one, self._use, what) for one in shown.candidates]
        shown.candidates = [
            new or replace(old, fit=None, unknown="")
            for old, new in zip(shown.candidates, known, strict=True)
        ]
        if self.step == 2:
            if shown.candidate is not None:
                shown.candidates[shown.highlighted or 0] = self._priced(shown.candidate)
            shown.draw_all()
            self.set_timer(_PAUSE, self._price_some)  # after this picture

    def action_dial(self) -> None:
        self._dial = DIALS[(DIALS.index(self._dial) + 1) % len(DIALS)]
        self._draw_head()

    def action_settings(self) -> None:
        """Context, then the type of keys and values."""
        self._dial = "kv" if self._dial == "context" else "context"
        self._draw_head()

    def action_card(self) -> None:
        def chosen(picked: tuple[Card | None] | None) -> None:
            if picked is not None:
                self._dial = "card"
                self._set(WhatIf(picked[0], self.what.ctx, self.what.kv))

        self.app.push_screen(CardScreen(self.what.card), chosen)

    # --- the card of a pair ---------------------------------------------------------------

    def _look_at(self, one: Candidate) -> None:
        """Its price at once; its files' headers when they come."""
        self._closer.one = self._priced(one)
        pair = one.pair
        if self._closer.was_read(pair):
            return

        def work() -> None:
            found = self._stock.refine(pair)
            known = refined(found) if found is not None else None
            self.post_message(self.Read(pair, known, self._stock.disk()))

        self._reads.ask(work)

    @on(Read)
    def _refined(self, message: Read) -> None:
        self._closer.disk = message.disk
        self._closer.heard(message.pair, message.known)
        if self._closer.one is not None:
            self._closer.one = self._priced(self._closer.one)
        self._draw()

    def action_other_draft(self) -> None:
        pair = self._closer.other_draft()
        if pair is None:
            self.notify("The catalogue has no other draft for it.", markup=False, timeout=2)
        else:
            self._show(pair)

    def action_other_target(self) -> None:
        pair = self._closer.other_target(self.query_one(Shortlist).candidates)
        if pair is not None:
            self._show(pair)

    def _show(self, pair: Pair) -> None:
        listed = {one.pair.id: one for one in self.query_one(Shortlist).candidates}
        self._look_at(listed.get(pair.id) or unlisted(pair))
        self._draw()

    def action_take(self) -> None:
        """Open the pair; what is missing of it is downloaded first."""
        if self._closer.one is None:
            return
        pair = self._closer.one.pair
        if (choice := self._stock.ready.get(pair.id)) is not None:
            self.dismiss(Chosen(self.what, choice, pair))
            return

        def left(begun: bool | None) -> None:
            if begun:
                self.dismiss(Chosen(self.what, None, pair))

        sheet = PullScreen(pair.id, self._downloads, self._options.glyphs, at_once=True)
        self.app.push_screen(sheet, left)

    def action_open_files(self) -> None:
        def chosen(choice: Choice | None) -> None:
            if choice is not None:
                self.dismiss(Chosen(self.what, choice))

        here = self._places.known(None)
        self.app.push_screen(OpeningScreen(self._runner, self._options, here), chosen)

    # --- how it is drawn ------------------------------------------------------------------

    def _draw(self) -> None:
        self._draw_head()
        if self.step == 2:
            self._draw_list()
        if self.step == 3 and self._closer.one is not None:
            width = max(40, min(self.size.width - 5, 116))  # one for a scrollbar
            lines = card.lines(
                self._closer.page(self._closer.one, self._use),
                width,
                self._room,
                self._options.glyphs,
            )
            self.query_one("#page", Static).update(Content("\n").join(lines))
        self._draw_about()
        self._draw_keys()

    @property
    def _room(self) -> int:
        """Lines between the head and the keys."""
        return self.size.height - (4 if self.size.height >= 20 else 2)

    def _draw_head(self) -> None:
        width = self.size.width - 4
        one = self._closer.one if self.step == 3 else self.query_one(Shortlist).candidate
        fit = one.fit if one is not None else None
        shown = frame.first(width)
        if self.step > 1:
            shown = frame.head(self.step, self.what, self._dial, fit, width)
        self.query_one("#head", Static).update(shown)

    def _draw_list(self) -> None:
        columns = self.query_one("#columns", Static)
        columns.update(listing.heading(self.size.width - 2))
        columns.display = bool(self.query_one(Shortlist).candidates)

    def _line(self, one: Candidate, pointed: bool) -> Content:
        here = one.pair.id in self._stock.ready
        return listing.line(
            one,
            self._use,
            here=here,
            width=self.size.width - 2,
            glyphs=self._options.glyphs,
            pointed=pointed,
        )

    @on(OptionList.OptionHighlighted, "#shortlist")
    def _moved(self) -> None:
        self._draw_head()
        self._draw_about()

    def _draw_about(self) -> None:
        """Below the list: why this one; or that there is none."""
        below = self.query_one("#about", Static)
        shown = self.query_one(Shortlist)
        words: list[Content] = []
        if self.step == 2 and not shown.candidates:
            done = self._key == (self._use, self.what)
            words = [Content.styled(frame.NOTHING if done else frame.WORKING, "$muted")]
        elif self.step == 2:
            most = 4 if self.size.height >= 30 else 3 if self.size.height >= 20 else 1
            words = listing.about(shown.candidate, min(self.size.width - 6, 110), most)
        below.update(Content("\n").join(words))
        below.display = bool(words)
        self.call_after_refresh(shown.scroll_to_highlight)

    def _draw_keys(self) -> None:
        taking = frame.taking(
            self._closer.one.pair if self._closer.one else None, self._stock.ready
        )
        keys = frame.hints(self.step, taking, self._options.keymap, self.size.width - 4)
        self.query_one("#hints", Static).update(Content(keys))
