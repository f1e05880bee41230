"""The list of the first screen: what can be opened, what could be had, and what is on its way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from textual import on
from textual.content import Content
from textual.events import DescendantFocus
from textual.message import Message
from textual.widgets import Input, OptionList, Static

from localspec.tui import chats, downloads, preferring, rows
from localspec.tui.downloads import Downloads
from localspec.tui.keys import fitting, footer
from localspec.tui.options import Options
from localspec.tui.rows import Row, Survey
from localspec.tui.screens.kept import KeptScreen
from localspec.tui.widgets.finder import Finder
from localspec.tui.widgets.pairs import Pairs

if TYPE_CHECKING:
    from localspec.models.remote import Found

_TICK = 0.25
"""Seconds from one look at the downloads to the next."""


class ShelfScreen(KeptScreen):
    """Fills the list, searches it, and draws the downloads in it."""

    class Surveyed(Message):
        """This computer was looked at."""

        def __init__(self, survey: Survey) -> None:
            super().__init__()
            self.survey = survey

    def __init__(
        self,
        options: Options,
        survey: Callable[[], Survey] = rows.survey,
        queue: Downloads | None = None,
        closer: Callable[[Survey], Survey] = rows.closer,
    ) -> None:
        """`survey` looks at this computer, `closer` once more where that takes a second."""
        super().__init__(options)
        self._survey, self._closer = survey, closer
        self._seen = Survey()
        self._found: tuple[Found, ...] = ()
        self._downloads = queue or Downloads(limit=options.download_limit)
        self._done = 0
        """Downloads that were over at the last look."""
        self._damage = ""
        """Of the person's own catalogue, as it was said."""

    def on_mount(self) -> None:
        self.fill()
        self.look()
        self.set_interval(_TICK, self._tick)

    def on_unmount(self) -> None:
        self._downloads.close()
        self.dialogues.close()

    def on_resize(self) -> None:
        self.fill()

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
            self.prepare()
            self.post_message(self.Surveyed(self._closer(seen)))

        threading.Thread(target=work, daemon=True, name="survey").start()

    def prepare(self) -> None:
        """On that thread, once this computer was looked at: what will be needed next."""

    @on(Surveyed)
    def _surveyed(self, message: Surveyed) -> None:
        news, self._seen = message.survey.missed and not self._seen.missed, message.survey
        self.query_one("#machine", Static).update(Content(self._seen.machine))
        self.fill()
        self.seen(self._seen, self._seen.missed if news else "")

    def seen(self, survey: Survey, missed: str) -> None:
        """This computer was looked at; `missed`: what it could do and does not, said first now."""

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
        words = words or pairs.lesson(field.wanted)
        teach = self.query_one("#teach", Static)
        teach.update(Content(words))
        teach.display = bool(words)
        self.call_after_refresh(pairs.scroll_to_highlight)  # it may have taken room from the list
        own = self._options.keymap
        now = {"home.unfilter": "back"} if field.display else {}
        does = "enter ask the hub" if field.has_focus else rows.doing(row, own)
        keys = "  ".join(filter(None, (does, footer(own, "home", "app", now=now))))
        self.query_one("#hints", Static).update(Content(fitting(keys, self.size.width - 2)))

    def _note(self, row: Row) -> str:
        n = self.dialogues.turns(row.choice) if row.choice else 0
        return f"{n} turn{'s' * (n != 1)} in this chat" if n else row.note

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
