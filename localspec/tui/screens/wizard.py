"""A new pair in three steps: what for, which of those that suit this computer, and its card."""

from __future__ import annotations

import sys

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec.fit.report import Fit
from localspec.fit.speed import Use
from localspec.launch import Choice
from localspec.models.catalog import Pair
from localspec.tui.downloads import Downloads
from localspec.tui.keys import bindings
from localspec.tui.options import Options
from localspec.tui.runner import Runner
from localspec.tui.screens.opening import OpeningScreen
from localspec.tui.screens.pricing import Key, PricingScreen
from localspec.tui.screens.pull import PullScreen
from localspec.tui.widgets.shortlist import Shortlist
from localspec.tui.wizard import card, frame, listing
from localspec.tui.wizard.checks import Refined, refined
from localspec.tui.wizard.closer import unlisted
from localspec.tui.wizard.latest import Latest
from localspec.tui.wizard.shortlist import Candidate
from localspec.tui.wizard.stock import Chosen, Stock

_SWITCH = 0.0005
"""Seconds until a thread that prices the catalogue gives way to a key; Python's own are 0.005."""


class WizardScreen(PricingScreen):
    """Every change of a dial is drawn at once; what takes longer comes from threads."""

    BINDINGS = bindings("wizard")
    AUTO_FOCUS = "#uses"

    class Read(Message):
        """What the headers of a pair's files say; None: they could not be had."""

        def __init__(self, pair: Pair, known: Refined | None, disk: int | None) -> None:
            super().__init__()
            self.pair, self.known, self.disk = pair, known, disk

    class Summed(Message):
        """A price by llama.cpp's own sums."""

        def __init__(self, one: Candidate, key: Key, fit: Fit) -> None:
            super().__init__()
            self.one, self.key, self.fit = one, key, fit

    def __init__(
        self, runner: Runner, options: Options, downloads: Downloads, stock: Stock
    ) -> None:
        super().__init__(stock)
        self._runner, self._options, self._downloads = runner, options, downloads
        self._interval = sys.getswitchinterval()
        self._reads, self._sums = Latest("headers"), Latest("sums")

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
        self.warm()  # a second, while a person reads
        self._go(1)

    def on_unmount(self) -> None:
        sys.setswitchinterval(self._interval)

    def on_resize(self) -> None:
        self.draw()

    # --- steps ----------------------------------------------------------------------------

    def _go(self, step: int) -> None:
        self.step = step
        shown = {1: ("uses",), 2: ("columns", "shortlist"), 3: ("card",)}[step]
        for name in ("uses", "columns", "shortlist", "card"):
            self.query_one(f"#{name}", Widget).display = name in shown
        if step == 2:
            self.reprice()
        self.set_focus(self.query_one({1: "#uses", 2: "#shortlist", 3: "#card"}[step], Widget))
        self.draw()

    @on(OptionList.OptionSelected, "#uses")
    def _for(self, event: OptionList.OptionSelected) -> None:
        self.action_use(event.option.id or "chat")

    def action_use(self, use: str) -> None:
        """Step 1 is answered."""
        if self.step != 1:
            return
        self._use = use
        self._go(2)
        self.ask()

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

    # --- the card of a pair ---------------------------------------------------------------

    def _look_at(self, one: Candidate) -> None:
        """Its price at once; its files' headers when they come."""
        self._closer.one = self.priced(one)
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
            self._closer.one = self.priced(self._closer.one)
        self.draw()
        self._confirm()

    def rested(self) -> None:
        super().rested()
        self._confirm()

    def _confirm(self) -> None:
        """What formulas priced, asked of llama.cpp."""
        place, key = self._places.known(self.what.card), (self._use, self.what)
        one = self._closer.one
        if self.step != 3 or place is None or one is None or (fit := one.fit) is None:
            return
        if (found := self._closer.unsure(*key)) is None:
            return

        def work() -> None:
            sure = self._stock.confirm(fit, found, place, Use(key[0]))
            self.post_message(self.Summed(one, key, sure))

        self._sums.ask(work)

    @on(Summed)
    def _summed(self, message: Summed) -> None:
        self._prices.confirm(message.one, *message.key, message.fit)
        if self._closer.one is not None and self.step == 3:
            self._closer.one = self.priced(self._closer.one)
            self.draw()

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
        self.draw()
        self._confirm()

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

    def draw(self) -> None:
        self.draw_head()
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

    def draw_head(self) -> None:
        width = self.size.width - 4
        one = self._closer.one if self.step == 3 else self.query_one(Shortlist).candidate
        fit = one.fit if one is not None else None
        shown = frame.first(width)
        if self.step > 1:
            shown = frame.head(self.step, self.what, self._dial, fit, width)
        self.query_one("#head", Static).update(shown)

    def _draw_list(self) -> None:
        columns = self.query_one("#columns", Static)
        columns.update(listing.heading(min(self.size.width, 120) - 2))
        columns.display = bool(self.query_one(Shortlist).candidates)

    def _line(self, one: Candidate, pointed: bool) -> Content:
        here = one.pair.id in self._stock.ready
        return listing.line(
            one,
            self._use,
            here=here,
            width=min(self.size.width, 120) - 2,
            glyphs=self._options.glyphs,
            pointed=pointed,
        )

    @on(OptionList.OptionHighlighted, "#shortlist")
    def _moved(self) -> None:
        self.draw_head()
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
