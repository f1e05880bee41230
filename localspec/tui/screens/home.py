"""The home screen: opens chats, benches, verify runs and the wizard from its list."""

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
    """Enter opens an installed pair, or offers to download one that is not installed."""

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
        super().__init__(options, survey, downloads, survey_devices)
        self._runner = runner
        self._pending_opens: dict[str, WhatIf] = {}
        """Pairs to open once downloaded, with the wizard's settings for each."""

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
        if choice == "wizard":
            self.action_wizard()
        elif choice == "demo":
            demo = home_rows.find_ready_pairs(
                catalog.load(paths.catalog_file()), MachineSurvey()
            ).get("demo")
            if demo is not None:
                self.open_chat(demo)

    def survey_changed(self, survey: MachineSurvey, unused_gpu_hint: str) -> None:
        welcome_screens = [s for s in self.app.screen_stack if isinstance(s, WelcomeScreen)]
        for screen in welcome_screens:
            screen.show_survey(survey)
        if unused_gpu_hint and not welcome_screens:
            self.notify(unused_gpu_hint, severity="warning", markup=False, timeout=15)
        self._open_downloaded()

    def preload_screens(self) -> None:
        """Imports the screens that are likely to come next, after the first draw."""
        for name in ("chat", "pull", "open_files", "wizard"):
            import_module(f"localspec.tui.screens.{name}")

    def apply_preferences(self) -> None:
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
        """Shows the pair's chat; the model loads in the background."""
        checked = self._check_choice(choice)
        if checked is None:
            return
        if paths.package_data_dir() not in checked.target.parents:
            recent_pairs.save_last(*checked.portable_refs)
        from localspec.tui.screens.chat import ChatScreen  # noqa: PLC0415  see `preload_screens`

        self._push_engine_screen(
            ChatScreen(self.sessions.for_pair(checked), self._runner, self._options)
        )

    def _check_choice(self, choice: ResolvedPair) -> ResolvedPair | None:
        """Checks the files and adds a detected head. Shows an error and returns None on failure."""
        try:
            if choice.draft is None and choice not in recent_pairs.load():
                # A pair from the recent list was already opened as is, without a head.
                choice = launch.with_detected_head(choice)
            for file in (choice.target, choice.draft):
                if file is not None:
                    header.check_magic(file)
        except LocalspecError as error:
            self.show_error(error)
            return None
        return choice

    def _push_engine_screen(self, screen: Screen[None]) -> None:
        """Shows a screen that uses the engine; the engine is closed when it is left."""

        def on_dismiss(_: None) -> None:
            self._runner.close()
            self.fill_list()

        self.app.push_screen(screen, on_dismiss)

    def action_bench(self) -> None:
        from localspec.tui.screens.bench import BenchScreen  # noqa: PLC0415  keeps start-up fast

        self._push_measurement(BenchScreen)

    def action_verify(self) -> None:
        from localspec.tui.screens.verify import VerifyScreen  # noqa: PLC0415  as above

        self._push_measurement(VerifyScreen)

    def _push_measurement(self, screen_class: type[BenchScreen] | type[VerifyScreen]) -> None:
        """Measures the selected pair."""
        row = self.query_one(HomeList).highlighted_row
        if row is None or row.choice is None:
            self.notify("Select an installed pair first.", markup=False)
            return
        choice = self._check_choice(row.choice)
        if choice is not None:
            self._push_engine_screen(screen_class(row.name, choice, self._runner, self._options))

    def action_open_files(self) -> None:
        def on_dismiss(choice: ResolvedPair | None) -> None:
            if choice is not None:
                self.open_chat(choice)

        from localspec.tui.screens.open_files import OpenFilesScreen  # noqa: PLC0415  see `preload_screens`

        sheet = OpenFilesScreen(self._runner, self._options, self._last_survey.machine_profile)
        self.app.push_screen(sheet, on_dismiss)

    def _offer_download(self, reference: str) -> None:
        def on_dismiss(started: bool | None) -> None:
            if started:
                self.fill_list()

        from localspec.tui.screens.pull import PullScreen  # noqa: PLC0415  see `preload_screens`

        self.app.push_screen(
            PullScreen(reference, self._downloads, self._options.glyphs), on_dismiss
        )

    # --- the wizard -----------------------------------------------------------------------

    def action_wizard(self) -> None:
        catalogue, _ = home_rows.load_catalog()
        profile = self._last_survey.machine_profile
        reader = HeaderReader(lambda: self._downloads.hub)
        services = WizardServices(
            catalogue,
            (lambda: profile) if profile is not None else machine_profile.detect,
            home_rows.find_ready_pairs(catalogue, self._last_survey),
            reader,
            confirm_fit=confirm_by_probe,
            free_disk=measure_free_disk,
        )

        def on_dismiss(result: WizardResult | None) -> None:
            reader.stop()
            if result is not None:
                self._take_wizard_result(result)

        from localspec.tui.screens.wizard import WizardScreen  # noqa: PLC0415  see `preload_screens`

        screen = WizardScreen(self._runner, self._options, self._downloads, services)
        self.app.push_screen(screen, on_dismiss)

    def _take_wizard_result(self, result: WizardResult) -> None:
        if result.choice is not None:
            self._open_with_what_if(result.choice, result.what_if)
        elif result.pair is not None:
            self._pending_opens = {result.pair.id: result.what_if}
            self.fill_list()
            self.start_survey()  # all its files may be on the disk already
            self.notify("Opens when the download has finished.", markup=False)

    def _open_downloaded(self) -> None:
        """Opens the wizard's pair once downloaded; only notifies if another screen is in front."""
        ready = (
            home_rows.find_ready_pairs(home_rows.load_catalog()[0], self._last_survey)
            if self._pending_opens
            else {}
        )
        for pair_id in [pair_id for pair_id in self._pending_opens if pair_id in ready]:
            what_if = self._pending_opens.pop(pair_id)
            if self.app.screen is self:
                self._open_with_what_if(ready[pair_id], what_if)
            else:
                self.notify(f"{sanitize(pair_id, multiline=False)} is downloaded.", markup=False)

    def _open_with_what_if(self, choice: ResolvedPair, what_if: WhatIf) -> None:
        """Opens with the context and KV type chosen in the wizard, until the app exits."""
        self._options.load_overrides[choice] = what_if
        self.open_chat(choice)

    def action_open_recording(self) -> None:
        self.notify("Use the command line: localspec replay FILE", markup=False)
