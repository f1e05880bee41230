"""The list on the home screen: installed pairs, suggestions, downloads and recent chats."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from textual import on
from textual.content import Content
from textual.events import DescendantFocus
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static

from localspec import hints
from localspec.errors import LocalspecError
from localspec.launch import ResolvedPair
from localspec.sanitize import sanitize
from localspec.tui import app_options, downloads, home_rows, saved_chats
from localspec.tui.app_options import AppOptions
from localspec.tui.centered import CenteredLayout
from localspec.tui.chat_session import ChatSessions
from localspec.tui.downloads import DownloadManager
from localspec.tui.home_rows import HomeRow, HomeSection, MachineSurvey
from localspec.tui.key_bindings import fit_footer, format_footer
from localspec.tui.screens.background import LatestOnlyWorker
from localspec.tui.screens.confirm import ConfirmScreen
from localspec.tui.widgets.pair_lists import HomeList, SearchInput


class ChatListScreen(CenteredLayout, Screen[None]):
    """Saved chats on the home screen: list, search, resume, delete.

    Subclasses compose the list and the search field.
    """

    class ChatSearchDone(Message):
        """Chats that contain the search text."""

        def __init__(self, query: str, section: HomeSection) -> None:
            super().__init__()
            self.query, self.section = query, section

    def __init__(self, options: AppOptions) -> None:
        super().__init__()
        self._options = options
        self.sessions = ChatSessions(options)
        self._search_worker = LatestOnlyWorker("chats")
        self.chat_results = HomeSection("In your chats", ())

    @property
    def search_field(self) -> SearchInput:
        return self.query_one(SearchInput)

    def fill_list(self) -> None:
        """Rebuilds the list and keeps the selected row."""
        raise NotImplementedError

    def open_chat(self, choice: ResolvedPair) -> None:
        """Shows the pair's chat; the model loads in the background."""
        raise NotImplementedError

    def show_error(self, error: LocalspecError) -> None:
        text = sanitize(f"{error.message} {hints.for_screen(error.hint)}", multiline=False)
        self.notify(text, severity="error", markup=False)

    # --- chats ----------------------------------------------------------------------------

    def chat_section(self, surveyed: bool) -> HomeSection:
        """Recent chats, or the search results while a search text is set.

        `surveyed` is False until the first draw is done; the history is not opened before.
        """
        chats = self._options.chats
        history = chats.history if chats is not None and surveyed else None
        for notice in chats.take_notices() if chats else ():
            text = sanitize(f"{notice.message} {notice.hint}", multiline=False)
            self.notify(text, severity="warning", markup=False, timeout=10)
        if self.search_field.search_text:
            return self.chat_results
        return saved_chats.recent_section(history, datetime.now().astimezone())

    def search_chats(self) -> None:
        """Searches on a thread, with its own database connection; outdated results are dropped."""
        search_text, history = self.search_field.search_text, self.sessions.history
        if history is None:
            return

        def work() -> None:
            with closing(history.open_again()) as connection:
                section = saved_chats.search_section(
                    connection, search_text, datetime.now().astimezone()
                )
            self.post_message(self.ChatSearchDone(search_text, section))

        self._search_worker.submit(work)

    @on(ChatSearchDone)
    def _show_chat_results(self, message: ChatSearchDone) -> None:
        if message.query == self.search_field.search_text:
            self.chat_results = message.section
            self.fill_list()

    def resume_chat(self, chat_id: int) -> None:
        try:
            session = self.sessions.resume_chat(chat_id)
        except LocalspecError as error:
            self.show_error(error)
            return
        if session.recorder.lock_error is not None:
            self.show_error(session.recorder.lock_error)
        self.open_chat(session.choice)

    def action_remove(self) -> None:
        row = self.query_one(HomeList).highlighted_row
        if row is None or row.chat_id is None:
            return
        chat_id = row.chat_id

        def on_dismiss(confirmed: bool | None) -> None:
            if confirmed:
                try:
                    self.sessions.delete_chat(chat_id)
                except LocalspecError as error:
                    self.show_error(error)
                self.fill_list()

        question = f"Delete “{row.name[:60]}”? This cannot be undone."
        self.app.push_screen(ConfirmScreen(question, "delete"), on_dismiss)


if TYPE_CHECKING:
    from localspec.models.hub.client import HubSearchResult

_DOWNLOAD_POLL_SECONDS = 0.25
"""Seconds between two updates of the download rows."""


class ModelListScreen(ChatListScreen):
    """Fills the list, filters it, and updates the download rows."""

    class SurveyDone(Message):
        """This computer's memory and models, as found by a survey."""

        def __init__(self, survey: MachineSurvey) -> None:
            super().__init__()
            self.survey = survey

    def __init__(
        self,
        options: AppOptions,
        survey: Callable[[], MachineSurvey] = home_rows.survey_machine,
        downloads: DownloadManager | None = None,
        survey_devices: Callable[[MachineSurvey], MachineSurvey] = home_rows.refine_survey,
    ) -> None:
        """`survey` is quick; `survey_devices` refines its result and may take a second."""
        super().__init__(options)
        self._survey_models, self._survey_devices = survey, survey_devices
        self._last_survey = MachineSurvey()
        self._hub_results: tuple[HubSearchResult, ...] = ()
        self._downloads = downloads or DownloadManager(limit=options.download_limit)
        self._n_finished_downloads = 0
        """Finished downloads at the last update."""
        self._catalog_error = ""
        """The error of the user's own catalogue that was last shown."""

    def on_mount(self) -> None:
        self.fill_list()
        self.start_survey()
        self.set_interval(_DOWNLOAD_POLL_SECONDS, self._poll_downloads)

    def on_unmount(self) -> None:
        self._downloads.close()
        self.sessions.close_all()

    def on_resize(self) -> None:
        self.fill_list()

    # --- contents -------------------------------------------------------------------------

    def start_survey(self) -> None:
        """On a thread: free memory, installed models, and suggested pairs."""
        last = self._last_survey

        def work() -> None:
            _ = self.sessions.history  # opened on this thread: it takes a while
            survey = self._survey_models()
            if last.machine_profile is not None:  # suggestions are computed once
                survey = replace(
                    survey,
                    machine_profile=last.machine_profile,
                    candidates=last.candidates,
                    unused_gpu_hint=last.unused_gpu_hint,
                )
                self.post_message(
                    self.SurveyDone(replace(survey, machine_label=last.machine_label))
                )
                return
            self.post_message(self.SurveyDone(survey))
            self.preload_screens()
            self.post_message(self.SurveyDone(self._survey_devices(survey)))

        threading.Thread(target=work, daemon=True, name="survey").start()

    def preload_screens(self) -> None:
        """Runs on the survey thread after the first survey."""

    @on(SurveyDone)
    def _survey_done(self, message: SurveyDone) -> None:
        hint = message.survey.unused_gpu_hint
        is_new = hint and not self._last_survey.unused_gpu_hint
        self._last_survey = message.survey
        self.query_one("#machine", Static).update(Content(self._last_survey.machine_label))
        self.fill_list()
        self.survey_changed(self._last_survey, hint if is_new else "")

    def survey_changed(self, survey: MachineSurvey, unused_gpu_hint: str) -> None:
        """`unused_gpu_hint` is empty unless the hint is new."""

    def fill_list(self) -> None:
        banner = self.query_one("#banner", Static)
        banner.update(Content(text := app_options.format_settings_banner(self._options)))
        banner.display = bool(text)
        catalogue, error = home_rows.load_catalog()
        if error is not None and error.message != self._catalog_error:
            self.show_error(error)
        self._catalog_error = error.message if error is not None else ""
        states = self._downloads.states()
        keymap = self._options.keymap
        search_text = self.search_field.search_text
        sections = home_rows.build_sections(
            catalogue, self._last_survey, search_text, states, self._hub_results, keymap
        )
        self.query_one(HomeList).set_sections(
            saved_chats.insert_section(
                sections, self.chat_section(bool(self._last_survey.machine_label))
            )
        )
        self._update_hints()

    @on(OptionList.OptionHighlighted)
    @on(DescendantFocus)
    def _update_hints(self) -> None:
        """Below the list: a download error or a getting-started hint, and the keys."""
        pairs, field = self.query_one(HomeList), self.search_field
        row = pairs.highlighted_row
        text = (
            downloads.download_error(row.download)
            if row is not None and row.download is not None
            else ""
        )
        text = text or pairs.empty_hint(field.search_text)
        hint = self.query_one("#teach", Static)
        hint.update(Content(text))
        hint.display = bool(text)
        self.call_after_refresh(pairs.scroll_to_highlight)  # the hint may have shrunk the list
        keymap = self._options.keymap
        labels = {"home.unfilter": "back"} if field.display else {}
        enter_hint = (
            "enter search the hub" if field.has_focus else home_rows.row_key_hints(row, keymap)
        )
        keys = "  ".join(
            filter(None, (enter_hint, format_footer(keymap, "home", "app", label_overrides=labels)))
        )
        self.query_one("#hints", Static).update(Content(fit_footer(keys, self.size.width - 2)))

    def _row_note(self, row: HomeRow) -> str:
        n = self.sessions.count_turns(row.choice) if row.choice else 0
        return f"{n} turn{'s' * (n != 1)} in this chat" if n else row.note

    # --- search ---------------------------------------------------------------------------

    def action_filter(self) -> None:
        self.search_field.open_field()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the search field, a slash is an ordinary character."""
        return action != "filter" or not self.search_field.has_focus

    @on(Input.Changed, "#filter")
    def _filter_changed(self) -> None:
        self._hub_results = ()
        self.chat_results = replace(self.chat_results, rows=())
        self.fill_list()
        self.search_chats()

    @on(Input.Submitted, "#filter")
    def _filter_submitted(self) -> None:
        self.query_one(HomeList).focus()
        if self.search_field.search_text:
            self.search_field.search_hub()
        else:
            self.action_unfilter()

    def _search_hub(self, text: str) -> tuple[HubSearchResult, ...]:
        return self._downloads.hub.search(text)

    @on(SearchInput.HubSearchFinished)
    def _show_hub_results(self, message: SearchInput.HubSearchFinished) -> None:
        self._hub_results = message.results
        if message.error is not None:
            self.show_error(message.error)
        elif not message.results:
            self.notify("No models with that name on the hub.", markup=False)
        self.fill_list()

    def action_unfilter(self) -> None:
        self.search_field.close_field()
        self.query_one(HomeList).focus()

    # --- downloads ------------------------------------------------------------------------

    def _poll_downloads(self) -> None:
        """Redraws the download rows; a finished download starts a survey."""
        states = {state.job: state for state in self._downloads.states()}
        if not states:
            return
        n_finished = sum(state.phase.value == "done" for state in states.values())
        if n_finished != self._n_finished_downloads:
            self._n_finished_downloads = n_finished
            self.start_survey()
        pairs = self.query_one(HomeList)
        for number, row in enumerate(pairs.rows):
            if row.download is not None and row.download is not states.get(row.download.job):
                pairs.update_row(number, replace(row, download=states[row.download.job]))
                if row.name == (pairs.highlighted_row.name if pairs.highlighted_row else None):
                    self._update_hints()

    def action_pause(self) -> None:
        row = self.query_one(HomeList).highlighted_row
        if row is not None and row.download is not None:
            self._downloads.pause_or_resume(row.download.job)

    def action_cancel(self) -> None:
        row = self.query_one(HomeList).highlighted_row
        if row is not None and row.download is not None:
            self._downloads.cancel(row.download.job)
