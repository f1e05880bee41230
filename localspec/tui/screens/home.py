"""The first screen: from its list to a chat, a bench, the wizard."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import OptionList, Static

from localspec import launch, paths
from localspec.chat import recent
from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.fit import places
from localspec.launch import Choice
from localspec.models import catalog, header
from localspec.tui import rows
from localspec.tui.downloads import Downloads
from localspec.tui.keys import bindings
from localspec.tui.options import Options
from localspec.tui.rows import Survey
from localspec.tui.runner import Runner
from localspec.tui.screens.first import FirstScreen, Next
from localspec.tui.screens.shelf import ShelfScreen
from localspec.tui.widgets.finder import Finder
from localspec.tui.widgets.pairs import Pairs
from localspec.tui.wizard.stock import Chosen, Reader, Stock, by_llama, free_disk
from localspec.tui.wizard.whatif import WhatIf

if TYPE_CHECKING:
    from localspec.tui.screens.bench import BenchScreen
    from localspec.tui.screens.verify import VerifyScreen


class HomeScreen(ShelfScreen):
    """Enter opens a pair that is here, and offers to download one that is not."""

    BINDINGS = bindings("home")
    AUTO_FOCUS = "#pairs"

    def __init__(
        self,
        runner: Runner,
        options: Options,
        survey: Callable[[], Survey] = rows.survey,
        queue: Downloads | None = None,
        closer: Callable[[Survey], Survey] = rows.closer,
    ) -> None:
        """As a shelf's."""
        super().__init__(options, survey, queue, closer)
        self._runner = runner
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
        if self._options.first_run:
            self._options.first_run = False
            self.app.push_screen(FirstScreen(self._options), self._welcomed)

    def _welcomed(self, wanted: Next | None) -> None:
        """What was chosen at the very first."""
        if wanted == "wizard":
            self.action_wizard()
        elif wanted == "demo":
            demo = rows.ready(catalog.load(paths.catalogue()), Survey()).get("demo")
            if demo is not None:
                self.open(demo)

    def seen(self, survey: Survey, missed: str) -> None:
        first = [one for one in self.app.screen_stack if isinstance(one, FirstScreen)]
        for screen in first:
            screen.tell(survey)
        if missed and not first:
            self.notify(missed, severity="warning", markup=False, timeout=15)
        self._open_awaited()

    def prepare(self) -> None:
        """The screens that may come next are read while one looks: not before the first picture."""
        for name in ("chat", "pull", "opening", "wizard"):
            import_module(f"localspec.tui.screens.{name}")

    def preferred(self) -> None:
        """Something was changed in the preferences."""
        self._downloads.change(self._options.download_limit, self._options.offline)
        self.fill()
        self.look()

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
        from localspec.tui.screens.chat import ChatScreen  # noqa: PLC0415  see `prepare`

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

        from localspec.tui.screens.opening import OpeningScreen  # noqa: PLC0415  see `prepare`

        sheet = OpeningScreen(self._runner, self._options, self._seen.place)
        self.app.push_screen(sheet, chosen)

    def _pull(self, reference: str) -> None:
        def left(begun: bool | None) -> None:
            if begun:
                self.fill()

        from localspec.tui.screens.pull import PullScreen  # noqa: PLC0415  see `prepare`

        self.app.push_screen(PullScreen(reference, self._downloads, self._options.glyphs), left)

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

        from localspec.tui.screens.wizard import WizardScreen  # noqa: PLC0415  see `prepare`

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
