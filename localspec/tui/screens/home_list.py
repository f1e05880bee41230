"""The list of the first screen: what can be opened, what could be had, and what is on its way."""

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

# --- What the first screen does with chats that are kept: listed, searched, opened, deleted.


class ChatListScreen(CenteredLayout, Screen[None]):
    """The list and the field above it are composed by whoever has more to list."""

    class ChatSearchDone(Message):
        """The chats in which something is said."""

        def __init__(self, query: str, section: HomeSection) -> None:
            super().__init__()
            self.query, self.section = query, section

    def __init__(self, options: AppOptions) -> None:
        super().__init__()
        self._options = options
        self.sessions = ChatSessions(options)
        self._search_worker = LatestOnlyWorker("chats")
        self.chat_results = HomeSection("In your chats", ())
        """Where what is looked for was found."""

    @property
    def search_field(self) -> SearchInput:
        return self.query_one(SearchInput)

    def fill_list(self) -> None:
        """The list anew, the pointer where it was."""
        raise NotImplementedError

    def open_chat(self, choice: ResolvedPair) -> None:
        """Show the chat of a pair; it loads while one looks."""
        raise NotImplementedError

    def show_error(self, error: LocalspecError) -> None:
        words = sanitize(f"{error.message} {hints.for_screen(error.hint)}", multiline=False)
        self.notify(words, severity="error", markup=False)

    # --- chats ----------------------------------------------------------------------------

    def chat_section(self, surveyed: bool) -> HomeSection:
        """The last few, or those in which something was found; `seen`: the first picture is."""
        known = self._options.chats
        history = known.history if known is not None and surveyed else None
        for notice in known.take_notices() if known else ():
            words = sanitize(f"{notice.message} {notice.hint}", multiline=False)
            self.notify(words, severity="warning", markup=False, timeout=10)
        if self.search_field.search_text:
            return self.chat_results
        return saved_chats.recent_section(history, datetime.now().astimezone())

    def search_chats(self) -> None:
        """On a thread, and beside whoever writes; what was typed since is what counts."""
        wanted, history = self.search_field.search_text, self.sessions.history
        if history is None:
            return

        def work() -> None:
            with closing(history.open_again()) as beside:
                found = saved_chats.search_section(beside, wanted, datetime.now().astimezone())
            self.post_message(self.ChatSearchDone(wanted, found))

        self._search_worker.submit(work)

    @on(ChatSearchDone)
    def _show_chat_results(self, message: ChatSearchDone) -> None:
        if message.query == self.search_field.search_text:
            self.chat_results = message.section
            self.fill_list()

    def resume_chat(self, chat: int) -> None:
        try:
            dialogue = self.sessions.resume_chat(chat)
        except LocalspecError as error:
            self.show_error(error)
            return
        if dialogue.recorder.lock_error is not None:
            self.show_error(dialogue.recorder.lock_error)
        self.open_chat(dialogue.choice)

    def action_remove(self) -> None:
        row = self.query_one(HomeList).highlighted_row
        if row is None or row.chat_id is None:
            return
        chat = row.chat_id

        def on_dismiss(confirmed: bool | None) -> None:
            if confirmed:
                try:
                    self.sessions.delete_chat(chat)
                except LocalspecError as error:
                    self.show_error(error)
                self.fill_list()

        question = f"Delete “{row.name[:60]}”? Nothing of it will be left."
        self.app.push_screen(ConfirmScreen(question, "delete"), on_dismiss)


# --- The list of the first screen: what can be opened, what could be had, and what is on its way.

if TYPE_CHECKING:
    from localspec.models.hub.client import HubSearchResult

_DOWNLOAD_POLL_SECONDS = 0.25
"""Seconds from one look at the downloads to the next."""


class ModelListScreen(ChatListScreen):
    """Fills the list, searches it, and draws the downloads in it."""

    class SurveyDone(Message):
        """This computer was looked at."""

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
        """`survey` looks at this computer, `closer` once more where that takes a second."""
        super().__init__(options)
        self._survey_models, self._survey_devices = survey, survey_devices
        self._last_survey = MachineSurvey()
        self._hub_results: tuple[HubSearchResult, ...] = ()
        self._downloads = downloads or DownloadManager(limit=options.download_limit)
        self._n_finished_downloads = 0
        """Downloads that were over at the last look."""
        self._catalog_error = ""
        """Of the person's own catalogue, as it was said."""

    def on_mount(self) -> None:
        self.fill_list()
        self.start_survey()
        self.set_interval(_DOWNLOAD_POLL_SECONDS, self._poll_downloads)

    def on_unmount(self) -> None:
        self._downloads.close()
        self.sessions.close_all()

    def on_resize(self) -> None:
        self.fill_list()

    # --- what there is --------------------------------------------------------------------

    def start_survey(self) -> None:
        """On a thread: what memory there is, which models are on the disk, and what would suit."""
        before = self._last_survey

        def work() -> None:
            _ = self.sessions.history  # opened here, where nobody waits
            seen = self._survey_models()
            if before.machine_profile is not None:  # what suits it was found out before
                seen = replace(
                    seen,
                    machine_profile=before.machine_profile,
                    candidates=before.candidates,
                    unused_gpu_hint=before.unused_gpu_hint,
                )
                self.post_message(
                    self.SurveyDone(replace(seen, machine_label=before.machine_label))
                )
                return
            self.post_message(self.SurveyDone(seen))
            self.preload_screens()
            self.post_message(self.SurveyDone(self._survey_devices(seen)))

        threading.Thread(target=work, daemon=True, name="survey").start()

    def preload_screens(self) -> None:
        """On that thread, once this computer was looked at: what will be needed next."""

    @on(SurveyDone)
    def _survey_done(self, message: SurveyDone) -> None:
        news, self._last_survey = (
            message.survey.unused_gpu_hint and not self._last_survey.unused_gpu_hint,
            message.survey,
        )
        self.query_one("#machine", Static).update(Content(self._last_survey.machine_label))
        self.fill_list()
        self.survey_changed(self._last_survey, self._last_survey.unused_gpu_hint if news else "")

    def survey_changed(self, survey: MachineSurvey, unused_gpu_hint: str) -> None:
        """This computer was looked at; `missed`: what it could do and does not, said first now."""

    def fill_list(self) -> None:
        """The list anew, the pointer where it was."""
        banner = self.query_one("#banner", Static)
        banner.update(Content(said := app_options.format_settings_banner(self._options)))
        banner.display = bool(said)
        shelf, error = home_rows.load_catalog()
        if error is not None and error.message != self._catalog_error:
            self.show_error(error)
        self._catalog_error = error.message if error is not None else ""
        states = self._downloads.states()
        own = self._options.keymap
        wanted = self.search_field.search_text
        found = home_rows.build_sections(
            shelf, self._last_survey, wanted, states, self._hub_results, own
        )
        self.query_one(HomeList).set_sections(
            saved_chats.insert_section(
                found, self.chat_section(bool(self._last_survey.machine_label))
            )
        )
        self._update_hints()

    @on(OptionList.OptionHighlighted)
    @on(DescendantFocus)
    def _update_hints(self) -> None:
        """Below the list: what is wrong, or how to begin; and the keys of the moment."""
        pairs, field = self.query_one(HomeList), self.search_field
        row = pairs.highlighted_row
        words = (
            downloads.download_error(row.download)
            if row is not None and row.download is not None
            else ""
        )
        words = words or pairs.empty_hint(field.search_text)
        teach = self.query_one("#teach", Static)
        teach.update(Content(words))
        teach.display = bool(words)
        self.call_after_refresh(pairs.scroll_to_highlight)  # it may have taken room from the list
        own = self._options.keymap
        now = {"home.unfilter": "back"} if field.display else {}
        does = "enter ask the hub" if field.has_focus else home_rows.row_key_hints(row, own)
        keys = "  ".join(
            filter(None, (does, format_footer(own, "home", "app", label_overrides=now)))
        )
        self.query_one("#hints", Static).update(Content(fit_footer(keys, self.size.width - 2)))

    def _row_note(self, row: HomeRow) -> str:
        n = self.sessions.count_turns(row.choice) if row.choice else 0
        return f"{n} turn{'s' * (n != 1)} in this chat" if n else row.note

    # --- looking for more -----------------------------------------------------------------

    def action_filter(self) -> None:
        self.search_field.open_field()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the field, a slash is a letter like others."""
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
            self.notify("The hub has nothing of that name.", markup=False)
        self.fill_list()

    def action_unfilter(self) -> None:
        self.search_field.close_field()
        self.query_one(HomeList).focus()

    # --- downloads ------------------------------------------------------------------------

    def _poll_downloads(self) -> None:
        """Draw the downloads; what has come may be opened."""
        states = {state.job: state for state in self._downloads.states()}
        if not states:
            return
        done = sum(state.phase.value == "done" for state in states.values())
        if done != self._n_finished_downloads:
            self._n_finished_downloads = done
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
