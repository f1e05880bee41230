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
from localspec.errors import LocalspecError
from localspec.fit import machine_profile
from localspec.launch import ResolvedPair, recent_pairs
from localspec.models import catalog
from localspec.models.gguf import header
from localspec.sanitize import sanitize
from localspec.tui import home_rows
from localspec.tui.app_options import AppOptions
from localspec.tui.downloads import DownloadManager
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.key_bindings import bindings_for
from localspec.tui.screens.home_list import ModelListScreen
from localspec.tui.screens.welcome import WelcomeChoice, WelcomeScreen
from localspec.tui.widgets.pair_lists import HomeList, SearchInput
from localspec.tui.wizard.services import (
    HeaderReader,
    WizardResult,
    WizardServices,
    confirm_by_probe,
    measure_free_disk,
)
from localspec.tui.wizard.what_if import WhatIf

if TYPE_CHECKING:
    from localspec.tui.screens.bench import BenchScreen
    from localspec.tui.screens.verify import VerifyScreen


class HomeScreen(ModelListScreen):
    """Enter opens a pair that is here, and offers to download one that is not."""

    BINDINGS = bindings_for("home")
    AUTO_FOCUS = "#pairs"

    def __init__(
        self,
        runner: EngineRunner,
        options: AppOptions,
        survey: Callable[[], MachineSurvey] = home_rows.survey_machine,
        downloads: DownloadManager | None = None,
        survey_devices: Callable[[MachineSurvey], MachineSurvey] = home_rows.refine_survey,
    ) -> None:
        """As a shelf's."""
        super().__init__(options, survey, downloads, survey_devices)
        self._runner = runner
        self._pending_opens: dict[str, WhatIf] = {}
        """Pairs that are opened when they have come, and with what."""

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("localspec", id="brand", markup=False)
            yield Static("", id="machine", markup=False)
        yield Static("", id="banner", markup=False)
        yield SearchInput(self._search_hub)
        yield HomeList(self._options.glyphs, self._row_note)
        yield Static("", id="teach", markup=False)
        yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        if self._options.first_run:
            self._options.first_run = False
            self.app.push_screen(WelcomeScreen(self._options), self._welcome_dismissed)

    def _welcome_dismissed(self, choice: WelcomeChoice | None) -> None:
        """What was chosen at the very first."""
        if choice == "wizard":
            self.action_wizard()
        elif choice == "demo":
            demo = home_rows.find_ready_pairs(
                catalog.load(paths.catalog_file()), MachineSurvey()
            ).get("demo")
            if demo is not None:
                self.open_chat(demo)

    def survey_changed(self, survey: MachineSurvey, unused_gpu_hint: str) -> None:
        first = [one for one in self.app.screen_stack if isinstance(one, WelcomeScreen)]
        for screen in first:
            screen.show_survey(survey)
        if unused_gpu_hint and not first:
            self.notify(unused_gpu_hint, severity="warning", markup=False, timeout=15)
        self._open_downloaded()

    def preload_screens(self) -> None:
        """The screens that may come next are read while one looks: not before the first picture."""
        for name in ("chat", "pull", "open_files", "wizard"):
            import_module(f"localspec.tui.screens.{name}")

    def apply_preferences(self) -> None:
        """Something was changed in the preferences."""
        self._downloads.apply_settings(self._options.download_limit, self._options.offline)
        self.fill_list()
        self.start_survey()

    # --- opening --------------------------------------------------------------------------

    @on(OptionList.OptionSelected)
    def _open_selected(self) -> None:
        row = self.query_one(HomeList).highlighted_row
        if row is None:
            return
        if row.choice is not None:
            self.open_chat(row.choice)
        elif row.chat_id is not None:
            self.resume_chat(row.chat_id)
        elif row.reference is not None:
            self._offer_download(row.reference)
        elif row.download is not None:
            self._downloads.pause_or_resume(row.download.job)

    def open_chat(self, choice: ResolvedPair) -> None:
        """Show the chat of a pair; it loads while one looks."""
        looked_at = self._check_choice(choice)
        if looked_at is None:
            return
        choice = looked_at
        if paths.package_data_dir() not in choice.target.parents:
            recent_pairs.save_last(*choice.portable_refs)
        from localspec.tui.screens.chat import ChatScreen  # noqa: PLC0415  see `prepare`

        self._push_engine_screen(
            ChatScreen(self.sessions.for_pair(choice), self._runner, self._options)
        )

    def _check_choice(self, choice: ResolvedPair) -> ResolvedPair | None:
        """As it can be loaded: with a head that is there; None where a file is no good."""
        try:
            if choice.draft is None and choice not in recent_pairs.load():
                choice = launch.with_detected_head(
                    choice
                )  # nobody has said that it should have none
            for file in (choice.target, choice.draft):
                if file is not None:
                    header.check_magic(file)
        except LocalspecError as error:
            self.show_error(error)
            return None
        return choice

    def _push_engine_screen(self, screen: Screen[None]) -> None:
        """A screen with an engine; it ends when one comes back."""

        def on_dismiss(_: None) -> None:
            self._runner.close()
            self.fill_list()

        self.app.push_screen(screen, on_dismiss)

    def action_bench(self) -> None:
        from localspec.tui.screens.bench import BenchScreen  # noqa: PLC0415  not at the start

        self._push_measurement(BenchScreen)

    def action_verify(self) -> None:
        from localspec.tui.screens.verify import VerifyScreen  # noqa: PLC0415  as above

        self._push_measurement(VerifyScreen)

    def _push_measurement(self, screen_class: type[BenchScreen] | type[VerifyScreen]) -> None:
        """The pair that one stands on."""
        row = self.query_one(HomeList).highlighted_row
        if row is None or row.choice is None:
            self.notify("Stand on a pair that is ready to run first.", markup=False)
            return
        choice = self._check_choice(row.choice)
        if choice is not None:
            self._push_engine_screen(screen_class(row.name, choice, self._runner, self._options))

    def action_open_files(self) -> None:
        def on_dismiss(choice: ResolvedPair | None) -> None:
            if choice is not None:
                self.open_chat(choice)

        from localspec.tui.screens.open_files import OpenFilesScreen  # noqa: PLC0415  see `prepare`

        sheet = OpenFilesScreen(self._runner, self._options, self._last_survey.machine_profile)
        self.app.push_screen(sheet, on_dismiss)

    def _offer_download(self, reference: str) -> None:
        def on_dismiss(started: bool | None) -> None:
            if started:
                self.fill_list()

        from localspec.tui.screens.pull import PullScreen  # noqa: PLC0415  see `prepare`

        self.app.push_screen(
            PullScreen(reference, self._downloads, self._options.glyphs), on_dismiss
        )

    # --- the wizard -----------------------------------------------------------------------

    def action_wizard(self) -> None:
        """A pair for this computer; what is missing of it comes first."""
        shelf, _ = home_rows.load_catalog()
        place, reader = self._last_survey.machine_profile, HeaderReader(lambda: self._downloads.hub)
        stock = WizardServices(
            shelf,
            (lambda: place) if place is not None else machine_profile.detect,
            home_rows.find_ready_pairs(shelf, self._last_survey),
            reader,
            confirm_fit=confirm_by_probe,
            free_disk=measure_free_disk,
        )

        def on_dismiss(result: WizardResult | None) -> None:
            reader.stop()
            if result is not None:
                self._take_wizard_result(result)

        from localspec.tui.screens.wizard import WizardScreen  # noqa: PLC0415  see `prepare`

        screen = WizardScreen(self._runner, self._options, self._downloads, stock)
        self.app.push_screen(screen, on_dismiss)

    def _take_wizard_result(self, result: WizardResult) -> None:
        if result.choice is not None:
            self._open_with_what_if(result.choice, result.what_if)
        elif result.pair is not None:
            self._pending_opens = {result.pair.id: result.what_if}
            self.fill_list()
            self.start_survey()  # everything may be here already
            self.notify("It opens when it is here.", markup=False)

    def _open_downloaded(self) -> None:
        """What the wizard downloads; where one is elsewhere by then, it is only said."""
        ready = (
            home_rows.find_ready_pairs(home_rows.load_catalog()[0], self._last_survey)
            if self._pending_opens
            else {}
        )
        for name in [name for name in self._pending_opens if name in ready]:
            what = self._pending_opens.pop(name)
            if self.app.screen is self:
                self._open_with_what_if(ready[name], what)
            else:
                self.notify(f"{sanitize(name, multiline=False)} is here.", markup=False)

    def _open_with_what_if(self, choice: ResolvedPair, what_if: WhatIf) -> None:
        """With what was asked for in the wizard, today."""
        self._options.load_overrides[choice] = what_if
        self.open_chat(choice)

    def action_open_recording(self) -> None:
        self.notify("On the command line: localspec replay FILE", markup=False)
