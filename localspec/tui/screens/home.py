"""The first screen: what can be opened now, what could be downloaded, and what is on its way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.events import DescendantFocus
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static

from localspec import launch, paths
from localspec.chat import recent
from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.fit import places
from localspec.launch import Choice
from localspec.models import catalog, header
from localspec.tui import chats, downloads, preferring, rows
from localspec.tui.downloads import Downloads
from localspec.tui.keys import bindings, fitting, footer
from localspec.tui.options import Options
from localspec.tui.rows import Row, Survey
from localspec.tui.runner import Runner
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.first import FirstScreen, Next
from localspec.tui.screens.kept import KeptScreen
from localspec.tui.screens.opening import OpeningScreen
from localspec.tui.screens.pull import PullScreen
from localspec.tui.screens.wizard import WizardScreen
from localspec.tui.widgets.finder import Finder
from localspec.tui.widgets.pairs import Pairs
from localspec.tui.wizard.stock import Chosen, Reader, Stock, by_llama, free_disk
from localspec.tui.wizard.whatif import WhatIf

if TYPE_CHECKING:
    from localspec.models.remote import Found
    from localspec.tui.screens.bench import BenchScreen
    from localspec.tui.screens.verify import VerifyScreen

_TICK = 0.25
"""Seconds from one look at the downloads to the next."""
_TEACH = (
    "Your own models would be listed here. w finds a pair that suits this computer, and downloads "
    "it. o opens a target and a draft by their paths: any two GGUF files that share a vocabulary. "
    "/ looks through the catalogue and the hub."
)


class HomeScreen(KeptScreen):
    """Enter opens a pair that is here, and offers to download one that is not."""

    BINDINGS = bindings("home")
    AUTO_FOCUS = "#pairs"

    class Surveyed(Message):
        """This computer was looked at."""

        def __init__(self, survey: Survey) -> None:
            super().__init__()
            self.survey = survey

    def __init__(
        self,
        runner: Runner,
        options: Options,
        survey: Callable[[], Survey] = rows.survey,
        queue: Downloads | None = None,
        closer: Callable[[Survey], Survey] = rows.closer,
    ) -> None:
        """`survey` looks at this computer, `closer` once more where that takes a second."""
        super().__init__(options)
        self._runner = runner
        self._survey, self._closer = survey, closer
        self._seen = Survey()
        self._found: tuple[Found, ...] = ()
        self._downloads = queue or Downloads(limit=options.download_limit)
        self._done = 0
        """Downloads that were over at the last look."""
        self._damage = ""
        """Of the person's own catalogue, as it was said."""
        self._awaited: dict[str, WhatIf] = {}
        """Pairs that are opened when they have come, and with what."""

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("localspec", id="brand", markup=False)
            yield Static("", id="machine", markup=False)
        yield Static("", id="banner", markup=False)
        yield Finder(self._search_hub)
        yield Pairs(self._options.glyphs, self._note)
        yield Static("", id="teach", markup=False)
        yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self.fill()
        self.look()
        self.set_interval(_TICK, self._tick)
        if self._options.first_run:
            self._options.first_run = False
            self.app.push_screen(FirstScreen(self._options), self._welcomed)

    def on_unmount(self) -> None:
        self._downloads.close()
        self.dialogues.close()

    def on_resize(self) -> None:
        self.fill()

    def _welcomed(self, wanted: Next | None) -> None:
        """What was chosen at the very first."""
        if wanted == "wizard":
            self.action_wizard()
        elif wanted == "demo":
            demo = rows.ready(catalog.load(paths.catalogue()), Survey()).get("demo")
            if demo is not None:
                self.open(demo)

    def preferred(self) -> None:
        """Something was changed in the preferences."""
        self._downloads.change(self._options.download_limit, self._options.offline)
        self.fill()
        self.look()

    # --- what there is --------------------------------------------------------------------

    def look(self) -> None:
        """On a thread: what memory there is, which models are on the disk, and what would suit."""
        before = self._seen

        def work() -> None:
            _ = self.dialogues.history  # opened here, where nobody waits
            seen = self._survey()
            if before.place is not None:  # what suits it was found out before
                seen = replace(
                    seen, place=before.place, suggested=before.suggested, missed=before.missed
                )
                self.post_message(self.Surveyed(replace(seen, machine=before.machine)))
                return
            self.post_message(self.Surveyed(seen))
            self.post_message(self.Surveyed(self._closer(seen)))

        threading.Thread(target=work, daemon=True, name="survey").start()

    @on(Surveyed)
    def _surveyed(self, message: Surveyed) -> None:
        first = [one for one in self.app.screen_stack if isinstance(one, FirstScreen)]
        if message.survey.missed and not self._seen.missed and not first:
            self.notify(message.survey.missed, severity="warning", markup=False, timeout=15)
        self._seen = message.survey
        for screen in first:
            screen.tell(self._seen)
        self.query_one("#machine", Static).update(Content(self._seen.machine))
        self.fill()
        self._open_awaited()

    def fill(self) -> None:
        """The list anew, the pointer where it was."""
        banner = self.query_one("#banner", Static)
        banner.update(Content(said := preferring.banner(self._options)))
        banner.display = bool(said)
        shelf, error = rows.known()
        if error is not None and error.message != self._damage:
            self.warn(error)
        self._damage = error.message if error is not None else ""
        states = self._downloads.states()
        own = self._options.keymap
        wanted = self.finder.wanted
        found = rows.sections(shelf, self._seen, wanted, states, self._found, own)
        self.query_one(Pairs).fill(chats.before(found, self.chats(bool(self._seen.machine))))
        self._explain()

    @on(OptionList.OptionHighlighted)
    @on(DescendantFocus)
    def _explain(self) -> None:
        """Below the list: what is wrong, or how to begin; and the keys of the moment."""
        pairs, field = self.query_one(Pairs), self.finder
        row = pairs.row
        words = downloads.trouble(row.state) if row is not None and row.state is not None else ""
        mine = sum(row.choice is not None for row in pairs.rows) > 1
        if not (words or mine or self.finder.wanted) and self._is_room(pairs):
            words = _TEACH
        teach = self.query_one("#teach", Static)
        teach.update(Content(words))
        teach.display = bool(words)
        self.call_after_refresh(pairs.scroll_to_highlight)  # it may have taken room from the list
        own = self._options.keymap
        now = {"home.unfilter": "back"} if field.display else {}
        does = "enter ask the hub" if field.has_focus else rows.doing(row, own)
        keys = "  ".join(filter(None, (does, footer(own, "home", "app", now=now))))
        self.query_one("#hints", Static).update(Content(fitting(keys, self.size.width - 2)))

    def _is_room(self, pairs: Pairs) -> bool:
        """For some lines that are not needed."""
        return self.size.height - pairs.option_count >= 10

    def _note(self, row: Row) -> str:
        n = self.dialogues.turns(row.choice) if row.choice else 0
        return f"{n} turn{'s' * (n != 1)} in this chat" if n else row.note

    # --- opening --------------------------------------------------------------------------

    @on(OptionList.OptionSelected)
    def _selected(self) -> None:
        row = self.query_one(Pairs).row
        if row is None:
            return
        if row.choice is not None:
            self.open(row.choice)
        elif row.chat is not None:
            self.go_on(row.chat)
        elif row.reference is not None:
            self._pull(row.reference)
        elif row.state is not None:
            self._downloads.pause_or_resume(row.state.job)

    def open(self, choice: Choice) -> None:
        """Show the chat of a pair; it loads while one looks."""
        looked_at = self._looked_at(choice)
        if looked_at is None:
            return
        choice = looked_at
        if paths.data() not in choice.target.parents:
            recent.used(*choice.lasting)
        self._show(ChatScreen(self.dialogues.of(choice), self._runner, self._options))

    def _looked_at(self, choice: Choice) -> Choice | None:
        """As it can be loaded: with a head that is there; None where a file is no good."""
        try:
            if choice.draft is None and choice not in recent.read():
                choice = launch.with_head(choice)  # nobody has said that it should have none
            for file in (choice.target, choice.draft):
                if file is not None:
                    header.glance(file)
        except LocalspecError as error:
            self.warn(error)
            return None
        return choice

    def _show(self, screen: Screen[None]) -> None:
        """A screen with an engine; it ends when one comes back."""

        def left(_: None) -> None:
            self._runner.close()
            self.fill()

        self.app.push_screen(screen, left)

    def action_bench(self) -> None:
        from localspec.tui.screens.bench import BenchScreen  # noqa: PLC0415  not at the start

        self._measure(BenchScreen)

    def action_verify(self) -> None:
        from localspec.tui.screens.verify import VerifyScreen  # noqa: PLC0415  as above

        self._measure(VerifyScreen)

    def _measure(self, kind: type[BenchScreen] | type[VerifyScreen]) -> None:
        """The pair that one stands on."""
        row = self.query_one(Pairs).row
        if row is None or row.choice is None:
            self.notify("Stand on a pair that is ready to run first.", markup=False)
            return
        choice = self._looked_at(row.choice)
        if choice is not None:
            self._show(kind(row.name, choice, self._runner, self._options))

    def action_open_files(self) -> None:
        def chosen(choice: Choice | None) -> None:
            if choice is not None:
                self.open(choice)

        sheet = OpeningScreen(self._runner, self._options, self._seen.place)
        self.app.push_screen(sheet, chosen)

    # --- the wizard -----------------------------------------------------------------------

    def action_wizard(self) -> None:
        """A pair for this computer; what is missing of it comes first."""
        shelf, _ = rows.known()
        place, reader = self._seen.place, Reader(lambda: self._downloads.hub)
        stock = Stock(
            shelf,
            (lambda: place) if place is not None else places.here,
            rows.ready(shelf, self._seen),
            reader,
            confirm=by_llama,
            disk=free_disk,
        )

        def left(chosen: Chosen | None) -> None:
            reader.stop()
            if chosen is not None:
                self._take(chosen)

        screen = WizardScreen(self._runner, self._options, self._downloads, stock)
        self.app.push_screen(screen, left)

    def _take(self, chosen: Chosen) -> None:
        if chosen.choice is not None:
            self._open_with(chosen.choice, chosen.what)
        elif chosen.pair is not None:
            self._awaited = {chosen.pair.id: chosen.what}
            self.fill()
            self.look()  # everything may be here already
            self.notify("It opens when it is here.", markup=False)

    def _open_awaited(self) -> None:
        """What the wizard downloads; where one is elsewhere by then, it is only said."""
        ready = rows.ready(rows.known()[0], self._seen) if self._awaited else {}
        for name in [name for name in self._awaited if name in ready]:
            what = self._awaited.pop(name)
            if self.app.screen is self:
                self._open_with(ready[name], what)
            else:
                self.notify(f"{clean(name, multiline=False)} is here.", markup=False)

    def _open_with(self, choice: Choice, what: WhatIf) -> None:
        """With what was asked for in the wizard, today."""
        self._options.asked[choice] = what
        self.open(choice)

    def action_open_recording(self) -> None:
        self.notify("On the command line: localspec replay FILE", markup=False)

    # --- looking for more -----------------------------------------------------------------

    def action_filter(self) -> None:
        self.finder.show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the field, a slash is a letter like others."""
        return action != "filter" or not self.finder.has_focus

    @on(Input.Changed, "#filter")
    def _filtered(self) -> None:
        self._found = ()
        self.in_chats = replace(self.in_chats, rows=())
        self.fill()
        self.look_in_chats()

    @on(Input.Submitted, "#filter")
    def _submitted(self) -> None:
        self.query_one(Pairs).focus()
        if self.finder.wanted:
            self.finder.search()
        else:
            self.action_unfilter()

    def _search_hub(self, text: str) -> tuple[Found, ...]:
        return self._downloads.hub.search(text)

    @on(Finder.Answered)
    def _searched(self, message: Finder.Answered) -> None:
        self._found = message.found
        if message.error is not None:
            self.warn(message.error)
        elif not message.found:
            self.notify("The hub has nothing of that name.", markup=False)
        self.fill()

    def action_unfilter(self) -> None:
        self.finder.hide()
        self.query_one(Pairs).focus()

    # --- downloads ------------------------------------------------------------------------

    def _pull(self, reference: str) -> None:
        def left(begun: bool | None) -> None:
            if begun:
                self.fill()

        self.app.push_screen(PullScreen(reference, self._downloads, self._options.glyphs), left)

    def _tick(self) -> None:
        """Draw the downloads; what has come may be opened."""
        states = {state.job: state for state in self._downloads.states()}
        if not states:
            return
        done = sum(state.phase.value == "done" for state in states.values())
        if done != self._done:
            self._done = done
            self.look()
        pairs = self.query_one(Pairs)
        for number, row in enumerate(pairs.rows):
            if row.state is not None and row.state is not states.get(row.state.job):
                pairs.put(number, replace(row, state=states[row.state.job]))
                if row.name == (pairs.row.name if pairs.row else None):
                    self._explain()

    def action_pause(self) -> None:
        row = self.query_one(Pairs).row
        if row is not None and row.state is not None:
            self._downloads.pause_or_resume(row.state.job)

    def action_cancel(self) -> None:
        row = self.query_one(Pairs).row
        if row is not None and row.state is not None:
            self._downloads.cancel(row.state.job)
