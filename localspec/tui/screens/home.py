"""The home screen: pairs, chats and downloads, and what each of them opens."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.events import DescendantFocus
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static

from localspec import launch, paths
from localspec.chat import presets
from localspec.chat.session import ChatSession
from localspec.errors import LocalspecError
from localspec.fit import machine_profile
from localspec.fit.machine_profile import MachineProfile
from localspec.launch import ResolvedPair, recent_pairs
from localspec.models import catalog, model_lookup
from localspec.models.gguf import reader
from localspec.tui import app_options, downloads, home_rows, saved_chats
from localspec.tui.app_options import AppOptions
from localspec.tui.chat_actions import ChatAction, SavedChatActions
from localspec.tui.dialogs.choices import ConfirmScreen
from localspec.tui.downloads import DownloadManager
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.home_rows import HomeRow, HomeSection, MachineSurvey
from localspec.tui.key_bindings import bindings_for, format_footer
from localspec.tui.navigation import (
    FirstChoice,
    MeasurementCommand,
    PreferencesChanged,
    ShowChat,
    ShowChatList,
    ShowMeasurement,
    ShowWelcome,
    ShowWizard,
)
from localspec.tui.notices import problem_text
from localspec.tui.saved_chats import ChatSessions
from localspec.tui.scheduling import run_on_thread
from localspec.tui.text.wrapping import one_line
from localspec.tui.widgets.pointer_list import PointerList
from localspec.tui.widgets.screen_frame import (
    CenteredLayout,
    HintLine,
    KeyLine,
    TitleLine,
)
from localspec.tui.widgets.search_field import SearchField
from localspec.tui.wizard.shortlist import WizardResult, WizardServices
from localspec.tui.wizard.what_if import WhatIf
from localspec.units import count

if TYPE_CHECKING:
    from localspec.chat.history import SearchHit
    from localspec.models.hub.cached_file import DownloadJob

_DOWNLOAD_POLL_SECONDS = 0.25  # Between two updates of the download rows.
_LIKELY_NEXT = ("screens.chat", "dialogs.pull", "dialogs.open_files", "screens.wizard")
"""What is imported in the background, so that it opens at once."""
_GETTING_STARTED = (
    "Your models will be listed here. w finds a pair for this computer and downloads it. "
    "o opens a target and a draft model by path: any two GGUF files with the same vocabulary. "
    "/ searches the catalogue, your chats and the hub."
)
_NO_MATCH = (
    "No match on this computer. ↓ selects the search on the hub; esc clears the search."
)


class HomeScreen(CenteredLayout, Screen[None]):
    """Lists what can be opened.

    Enter opens an installed pair or a chat, or offers to download what is not
    installed.
    """

    BINDINGS = bindings_for("home")
    AUTO_FOCUS = "#pairs"

    def __init__(
        self,
        runner: EngineRunner,
        options: AppOptions,
        survey: Callable[[], MachineSurvey] = home_rows.survey_machine,
        downloads: DownloadManager | None = None,
        survey_devices: Callable[
            [MachineSurvey], MachineSurvey
        ] = home_rows.refine_survey,
    ) -> None:
        """`survey` is quick; `survey_devices` refines its result and may take a second."""
        super().__init__()
        self._runner = runner
        self._options = options
        self._survey_models = survey
        self._survey_devices = survey_devices
        self._survey = home_rows.initial_survey()
        self._downloads = downloads or DownloadManager(limit=options.download_limit)
        self._n_finished_downloads = 0  # At the last update.
        self._pending_opens: dict[str, WhatIf] = {}
        """Pairs to open once downloaded, with the wizard's settings for each."""
        self.sessions = ChatSessions(options)
        self._prepared_pairs: dict[ResolvedPair, ResolvedPair] = {}
        """What the pairs of rows were opened as: maybe with a head."""
        self._list = PointerList[HomeRow]("pairs", lambda row: row.key, self._draw_row)
        self._search = SearchField(
            lambda: self.sessions.history, lambda: self._downloads.hub
        )
        self._chat_actions = SavedChatActions(
            self,
            self.sessions,
            find_selected=lambda: self._list.highlighted_row,
            on_change=self.fill_list,
        )
        self._marked_hub_search = ""
        """The words of the row that searches the hub, while it is marked."""
        # The error of the user's own catalogue that was last shown.

    def compose(self) -> ComposeResult:
        yield TitleLine("localspec")
        yield Static("", id="banner", markup=False)
        yield self._search
        yield self._list
        yield HintLine(id="teach")
        yield KeyLine()

    def on_mount(self) -> None:
        self.fill_list()
        self._start_survey()
        self.set_interval(_DOWNLOAD_POLL_SECONDS, self._poll_downloads)
        if self._options.first_run:
            self._options.first_run = False
            self.app.post_message(
                ShowWelcome(lambda: self._survey, self._welcome_dismissed)
            )

    def on_unmount(self) -> None:
        self._downloads.close()
        self.sessions.close_all()

    def on_resize(self) -> None:
        self.fill_list()

    @on(PreferencesChanged)
    def _apply_preferences(self) -> None:
        self._downloads.apply_settings(
            self._options.download_limit, self._options.offline
        )
        self.fill_list()
        self._start_survey()

    def _welcome_dismissed(self, choice: FirstChoice | None) -> None:
        if choice == "wizard":
            self.action_wizard()
        elif choice == "chat":
            built_in = catalog.load(paths.catalog_file())
            ready = home_rows.find_ready_pairs(built_in, home_rows.initial_survey())
            pair = ready.get(model_lookup.default_pair_id(built_in))
            if pair is not None:
                self._open_chat(pair)

    def _show_error(self, error: LocalspecError) -> None:
        self.notify(problem_text(error), severity="error", markup=False)

    # --- the survey
    # -----------------------------------------------------------------------

    def _start_survey(self) -> None:
        """On a thread: installed models, free memory, and once the suggested pairs."""
        last = self._survey
        hosts = self._options.load.remote_hosts

        def work() -> None:
            _ = self.sessions.history  # opened on this thread: it takes a while
            if not last.machine_label:
                self._downloads.restore()
            survey = replace(self._survey_models(), remote_hosts=hosts)
            if last.machine_profile is not None and last.remote_hosts == hosts:
                survey = replace(last, local_models=survey.local_models)
                # `call_later` is thread-safe: it posts a message.
                self.call_later(self._survey_done, survey)
                return
            self.call_later(self._survey_done, survey)
            for name in _LIKELY_NEXT:
                import_module(f"localspec.tui.{name}")
            self.call_later(self._survey_done, self._survey_devices(survey))

        run_on_thread(self, "survey", work, failed=self._survey_failed)

    def _survey_failed(self, error: LocalspecError) -> None:
        """Home goes on with what is known; the next survey looks again."""
        self._show_error(error)
        label = self._survey.machine_label or "not examined"
        self._survey_done(replace(self._survey, machine_label=label))

    def _survey_done(self, survey: MachineSurvey) -> None:
        old_hint = self._survey.unused_gpu_hint
        self._survey = survey
        self.query_one(TitleLine).show_status(survey.machine_label)
        self.fill_list()
        is_shown_by_another = False
        for screen in self.app.screen_stack:
            show_survey = getattr(screen, "show_survey", None)
            if show_survey is not None:
                show_survey(survey)
                is_shown_by_another = True
        hint = survey.unused_gpu_hint
        if hint and not old_hint and not is_shown_by_another:
            self.notify(hint, severity="warning", markup=False, timeout=15)
        self._open_downloaded()

    # --- the list
    # -------------------------------------------------------------------------

    @on(Input.Changed, "#filter")
    @on(SearchField.ResultsChanged)
    def fill_list(self) -> None:
        catalogue, catalog_error = catalog.load_valid()
        self._show_banner(catalog_error)
        sections = home_rows.build_sections(
            catalogue,
            self._survey,
            search_text=self._search.text,
            chats=self._chat_section(),
            hub_results=self._search.hub_results,
            download_states=self._downloads.states(),
        )
        width = self.app.size.width
        keymap = self._options.keymap
        self._list.set_sections(
            [
                (home_rows.draw_heading(section, width, keymap), section.rows)
                for section in sections
            ]
        )
        self._point_at_hub_result()
        self._update_hints()

    def _show_banner(self, catalog_error: LocalspecError | None) -> None:
        """What is wrong with the user's own files, for as long as it is wrong.

        A notification would be gone before a slow computer has drawn the list.
        """
        lines = [app_options.format_settings_banner(self._options)]
        if catalog_error is not None:
            lines.append(problem_text(catalog_error))
        text = "\n".join(line for line in lines if line)
        banner = self.query_one("#banner", Static)
        banner.update(Content(text))
        banner.display = bool(text)

    def _point_at_hub_result(self) -> None:
        """Marks the first hub result after a search; never the search itself unasked."""
        row = self._list.highlighted_row
        results = self._search.hub_results
        if row is not None and row.hub_search_text not in ("", self._marked_hub_search):
            self._list.remove_pointer()
        elif self._marked_hub_search and results:
            references = [each.reference for each in self._list.rows]
            self._list.point_at(references.index(results[0].repo))

    def _chat_section(self) -> HomeSection:
        """Recent chats, or the search results while a search text is set."""
        chats = self._options.chats
        history = None
        if chats is not None:
            for notice in chats.take_notices():
                self.notify(
                    problem_text(notice), severity="warning", markup=False, timeout=10
                )
            # The history is not opened before the first survey, which opens it on its
            # thread.
            if self._survey.machine_label and not self._search.text:
                history = chats.history
        if self._search.text:
            return self._search.chat_results
        return saved_chats.recent_section(history, datetime.now().astimezone())

    def _draw_row(self, row: HomeRow) -> Content:
        if row.pair is not None:
            opened_pair = self._prepared_pairs.get(row.pair, row.pair)
            n_turns = self.sessions.count_turns(opened_pair)
            if n_turns > 0:
                row = replace(row, note=f"{count(n_turns, 'turn')} in this chat")
        return home_rows.draw_row(row, self.app.size.width)

    @on(OptionList.OptionHighlighted)
    @on(DescendantFocus)
    def _update_hints(self) -> None:
        """Below the list: a download error or a getting-started hint, and the keys."""
        row = self._list.highlighted_row
        self._marked_hub_search = row.hub_search_text if row is not None else ""
        text = ""
        if row is not None and row.download is not None:
            text = downloads.download_error(row.download)
        text = text or self._empty_hint()
        hint = self.query_one("#teach", Static)
        hint.update(Content(text))
        hint.display = bool(text)
        # The hint may have shrunk the list.
        self.call_after_refresh(self._list.scroll_to_highlight)
        keys = filter(None, self._key_hints(row))
        self.query_one(KeyLine).show_keys("  ".join(keys))

    def _key_hints(self, row: HomeRow | None) -> list[str]:
        keymap = self._options.keymap
        if self._search.has_focus:
            return [
                home_rows.row_key_hints(row, keymap, typing=True),
                "↑↓ select",
                "esc back",
                format_footer(keymap, "app"),
            ]
        labels = {"home.unfilter": "back"} if self._search.display else {}
        return [
            home_rows.row_key_hints(row, keymap),
            format_footer(keymap, "home", "app", label_overrides=labels),
            home_rows.chat_key_hints(row, keymap),
        ]

    def _empty_hint(self) -> str:
        """Help for a search without a match, or for a list with few own models."""
        rows = self._list.rows
        if self._search.text:
            has_match = any(not row.hub_search_text for row in rows)
            return "" if has_match else _NO_MATCH
        has_own_pairs = any(
            row.pair is not None and not row.is_included for row in rows
        )
        has_space = self.size.height - self._list.option_count >= 10
        return _GETTING_STARTED if has_space and not has_own_pairs else ""

    # --- search
    # ---------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the search field, a slash is an ordinary character."""
        return action != "filter" or not self._search.has_focus

    def action_filter(self) -> None:
        self._search.open_field()

    def action_unfilter(self) -> None:
        self._search.close_field()
        self._list.focus()

    def action_move_pointer(self, by: int) -> None:
        """The arrows work in the list while the search field has the focus."""
        if by > 0:
            self._list.action_cursor_down()
        else:
            self._list.action_cursor_up()

    @on(Input.Submitted, "#filter")
    def _filter_submitted(self) -> None:
        if not self._search.text:
            self.action_unfilter()
        elif self._selected_job is None:
            self._open_selected()

    # --- downloads
    # ------------------------------------------------------------------------

    def _poll_downloads(self) -> None:
        """Redraws the download rows; a finished download starts a survey."""
        self._downloads.save_unfinished()
        states = {state.job: state for state in self._downloads.states()}
        n_finished = sum(state.phase.value == "done" for state in states.values())
        if n_finished != self._n_finished_downloads:
            self._n_finished_downloads = n_finished
            self._start_survey()
        for index, row in enumerate(self._list.rows):
            if row.download is None:
                continue
            state = states[row.download.job]
            if row.download is not state:
                self._list.update_row(index, replace(row, download=state))
                if index == self._list.highlighted_index:
                    self._update_hints()

    @property
    def _selected_job(self) -> DownloadJob | None:
        row = self._list.highlighted_row
        if row is None or row.download is None:
            return None
        return row.download.job

    def action_pause(self) -> None:
        job = self._selected_job
        if job is not None:
            self._downloads.pause_or_resume(job)

    def action_cancel(self) -> None:
        job = self._selected_job
        if job is not None:
            self._downloads.queue.cancel(job)

    # --- opening
    # --------------------------------------------------------------------------

    @on(OptionList.OptionSelected)
    def _open_selected(self) -> None:
        row = self._list.highlighted_row
        if row is None:
            return
        if row.pair is not None:
            self._open_chat(row.pair)
        elif row.chat_id is not None:
            self.resume_chat(row.chat_id, row.found)
        elif row.preset:
            self._open_with_preset(row.preset)
        elif row.reference is not None:
            from localspec.tui.dialogs.pull import PullScreen  # noqa: PLC0415  as above

            profile = self._survey.machine_profile
            sheet = PullScreen(row.reference, self._downloads, profile)
            self.app.push_screen(sheet, lambda _: self.fill_list())
        elif row.hub_search_text:
            self._search.search_hub(row.hub_search_text)
        else:
            self.action_pause()

    def _open_with_preset(self, name: str) -> None:
        try:
            model, draft, _ = recent_pairs.resolve_default(None, "auto")
            pair = launch.resolve_pair(model, draft)
            session = self._find_session(replace(pair, requested_refs=(model, draft)))
            session.start_new_chat()
            session.apply_preset(presets.find(name))
        except LocalspecError as error:
            self._show_error(error)
        else:
            self._show_chat(session)

    def _open_chat(self, pair: ResolvedPair) -> None:
        """Shows the chat that used the pair last, or a new one."""
        try:
            session = self._find_session(pair)
        except LocalspecError as error:
            self._show_error(error)
        else:
            self._show_chat(session)

    def _find_session(self, pair: ResolvedPair) -> ChatSession:
        """The session of a pair that is opened.  Raises as `_prepare_pair`.

        Its pair may have got a head: from here on the session is passed on, never
        looked up again.
        """
        prepared = self._prepare_pair(pair)
        self._prepared_pairs[pair] = prepared
        return self.sessions.for_pair(prepared)

    def _prepare_pair(self, pair: ResolvedPair) -> ResolvedPair:
        """Adds a detected head and checks the files.  Raises LocalspecError."""
        # A pair from the recent list was already opened as is, without a head.
        if not pair.names_its_draft and pair not in recent_pairs.load():
            pair = launch.with_default_draft(pair)
        _check_files(pair)
        return pair

    def _show_chat(self, session: ChatSession, found: SearchHit | None = None) -> None:
        """The model loads in the background.  `found`: a search match to show first."""
        pair = session.pair
        if paths.package_data_dir() not in pair.target.parents:
            recent_pairs.save_last(*pair.portable_refs)
        self.app.post_message(ShowChat(session, self._engine_screen_left, found))

    def _engine_screen_left(self) -> None:
        self._runner.close()
        self.fill_list()

    def resume_chat(self, chat_id: int, found: SearchHit | None) -> None:
        """Opens a saved chat with its pair as it was saved, without another head."""
        try:
            session = self.sessions.resume_chat(chat_id)
            _check_files(session.pair)
        except LocalspecError as error:
            self._show_error(error)
            return
        lock_error = session.recorder.lock_error
        if lock_error is None:
            self._show_chat(session, found)
            return

        def on_dismiss(confirmed: bool | None) -> None:
            if confirmed:
                self._show_chat(session, found)

        # Before the model is loaded, which may take minutes.
        question = f"{problem_text(lock_error)}\nUntil then it can only be read here."
        self.app.push_screen(ConfirmScreen(question, "read it"), on_dismiss)

    def action_remove(self) -> None:
        self._chat_actions.run("delete")

    def action_chat(self, what: ChatAction) -> None:
        self._chat_actions.run(what)

    def action_chats(self) -> None:
        self.app.post_message(ShowChatList())

    def action_measure(self, command: MeasurementCommand) -> None:
        row = self._list.highlighted_row
        if row is None or row.pair is None:
            self.notify("Select an installed pair first.", markup=False)
            return
        try:
            pair = self._prepare_pair(row.pair)
        except LocalspecError as error:
            self._show_error(error)
            return
        self.app.post_message(
            ShowMeasurement(command, row.name, pair, self._engine_screen_left)
        )

    def action_open_files(self) -> None:
        def on_dismiss(pair: ResolvedPair | None) -> None:
            if pair is not None:
                self._open_chat(pair)

        from localspec.tui.dialogs.open_files import OpenFilesScreen  # noqa: PLC0415  starts faster

        sheet = OpenFilesScreen(
            self._runner, self._options, self._survey.machine_profile
        )
        self.app.push_screen(sheet, on_dismiss)

    def action_open_recording(self) -> None:
        self.notify("Use the command line: localspec replay FILE", markup=False)

    # --- the wizard
    # -----------------------------------------------------------------------

    def action_wizard(self) -> None:
        catalogue, _ = catalog.load_valid()
        profile = self._survey.machine_profile

        def load_machine_profile() -> MachineProfile:
            return profile if profile is not None else machine_profile.detect()

        services = WizardServices(
            catalogue,
            load_machine_profile,
            home_rows.find_ready_pairs(catalogue, self._survey),
            lambda: self._downloads.hub,
        )

        def on_dismiss(result: WizardResult | None) -> None:
            services.stop_reading()
            if result is not None and result.ready_pair is not None:
                self._open_with_what_if(result.ready_pair, result.what_if)
            elif result is not None and result.pair is not None:
                self._pending_opens = {result.pair.id: result.what_if}
                self.fill_list()
                self._start_survey()  # all its files may be on the disk already
                self.notify("Opens when the download has finished.", markup=False)

        self.app.post_message(ShowWizard(self._downloads, services, on_dismiss))

    def _open_downloaded(self) -> None:
        """Opens the wizard's pair once it is downloaded.

        If another screen is in front, it only notifies.
        """
        if not self._pending_opens:
            return
        catalogue, _ = catalog.load_valid()
        ready = home_rows.find_ready_pairs(catalogue, self._survey)
        for pair_id in self._pending_opens.keys() & ready:
            what_if = self._pending_opens.pop(pair_id)
            if self.app.screen is self:
                self._open_with_what_if(ready[pair_id], what_if)
            else:
                self.notify(f"{one_line(pair_id)} is downloaded.", markup=False)

    def _open_with_what_if(self, pair: ResolvedPair, what_if: WhatIf) -> None:
        """Opens with the context and KV type chosen in the wizard, until the app exits."""
        try:
            session = self._find_session(pair)
        except LocalspecError as error:
            self._show_error(error)
            return
        self._options.load_overrides[session.pair.files] = what_if
        self._show_chat(session)


def _check_files(pair: ResolvedPair) -> None:
    """Raises LocalspecError if a file is missing, damaged or of another kind."""
    launch.check_target(pair.target)
    if pair.draft is not None:
        reader.check_loadable(pair.draft)
