"""What the first screen does with chats that are kept: listed, searched, opened, deleted."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime

from textual import on
from textual.message import Message
from textual.screen import Screen

from localspec import flags
from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.launch import Choice
from localspec.tui import chats
from localspec.tui.dialogues import Dialogues
from localspec.tui.middle import Middle
from localspec.tui.options import Options
from localspec.tui.rows import Section
from localspec.tui.screens.confirm import ConfirmScreen
from localspec.tui.widgets.finder import Finder
from localspec.tui.widgets.pairs import Pairs
from localspec.tui.wizard.latest import Latest


class KeptScreen(Middle, Screen[None]):
    """The list and the field above it are composed by whoever has more to list."""

    class FoundInChats(Message):
        """The chats in which something is said."""

        def __init__(self, wanted: str, section: Section) -> None:
            super().__init__()
            self.wanted, self.section = wanted, section

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options
        self.dialogues = Dialogues(options)
        self._searches = Latest("chats")
        self.in_chats = Section("In your chats", ())
        """Where what is looked for was found."""

    @property
    def finder(self) -> Finder:
        return self.query_one(Finder)

    def fill(self) -> None:
        """The list anew, the pointer where it was."""
        raise NotImplementedError

    def open(self, choice: Choice) -> None:
        """Show the chat of a pair; it loads while one looks."""
        raise NotImplementedError

    def warn(self, error: LocalspecError) -> None:
        words = clean(f"{error.message} {flags.in_words(error.hint)}", multiline=False)
        self.notify(words, severity="error", markup=False)

    # --- chats ----------------------------------------------------------------------------

    def chats(self, seen: bool) -> Section:
        """The last few, or those in which something was found; `seen`: the first picture is."""
        known = self._options.chats
        history = known.history if known is not None and seen else None
        for notice in known.notices() if known else ():
            words = clean(f"{notice.message} {notice.hint}", multiline=False)
            self.notify(words, severity="warning", markup=False, timeout=10)
        if self.finder.wanted:
            return self.in_chats
        return chats.recent(history, datetime.now().astimezone())

    def look_in_chats(self) -> None:
        """On a thread, and beside whoever writes; what was typed since is what counts."""
        wanted, history = self.finder.wanted, self.dialogues.history
        if history is None:
            return

        def work() -> None:
            with closing(history.beside()) as beside:
                found = chats.holding(beside, wanted, datetime.now().astimezone())
            self.post_message(self.FoundInChats(wanted, found))

        self._searches.ask(work)

    @on(FoundInChats)
    def _found_in_chats(self, message: FoundInChats) -> None:
        if message.wanted == self.finder.wanted:
            self.in_chats = message.section
            self.fill()

    def go_on(self, chat: int) -> None:
        try:
            dialogue = self.dialogues.go_on(chat)
        except LocalspecError as error:
            self.warn(error)
            return
        if dialogue.keeper.refusal is not None:
            self.warn(dialogue.keeper.refusal)
        self.open(dialogue.choice)

    def action_remove(self) -> None:
        row = self.query_one(Pairs).row
        if row is None or row.chat is None:
            return
        chat = row.chat

        def answered(yes: bool | None) -> None:
            if yes:
                try:
                    self.dialogues.remove(chat)
                except LocalspecError as error:
                    self.warn(error)
                self.fill()

        question = f"Delete “{row.name[:60]}”? Nothing of it will be left."
        self.app.push_screen(ConfirmScreen(question, "delete"), answered)
