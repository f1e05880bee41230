"""What the slash commands need of the front end that shows a chat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from localspec.chat.pictures import PictureLoader
from localspec.chat.session import ChatSession
from localspec.documents.reading import FileRequest
from localspec.launch import ResolvedPair


class CommandResult(Struct, frozen=True):
    """What a command did to a chat session."""

    message: str  # One line of sanitized text.
    # A question to put into the input field, to be edited.
    input_text: str | None = None


class PickerRow(Struct, frozen=True):
    word: str  # The choice, as it is typed.
    name: str = ""  # What is read in its place.
    about: str = ""

    @property
    def text(self) -> str:
        """What a search finds."""
        return f"{self.name} {self.word}"


class PickerChoices(Struct, frozen=True):
    """What a picker asks for: one of some names, or a text."""

    heading: str
    placeholder: str
    load: Callable[[], Sequence[PickerRow]] = tuple
    """Called on a thread."""
    find_current: Callable[[ResolvedPair], str] = lambda _: ""
    """The word that means the chat's pair, or ""; called on a thread, after `load`."""
    takes_text: bool = True  # Whether a text that is no such word can be chosen.


class ChatFrontEnd(Protocol):
    """The app's chat screen, or the linear chat.

    After each command the front end loads the pair again if `ChatSession.load_key` has
    changed.
    """

    @property
    def session(self) -> ChatSession: ...

    def warn_if_busy(self) -> bool:
        """Whether the turns are in use, which the user is then told."""
        ...

    def show_message(self, message: str) -> None: ...

    def show_result(self, result: CommandResult, *, turns_changed: bool) -> None:
        """Show what a command did to the session.

        `turns_changed`: the command may have selected other turns.
        """
        ...

    def pick(self, command: str, choices: PickerChoices) -> None:
        """Offer the choices; the chosen one means `/command CHOICE`."""
        ...

    def regenerate(self) -> None:
        """Answer the last question again, with the session's pair."""
        ...

    def edit_last(self, question: str) -> None:
        """Ask `question` in place of the last one; if it is empty, let the user edit."""
        ...

    def copy_text(self, select: Callable[[], str]) -> None:
        """Copy the text that `select` returns; the app calls it on a thread."""
        ...

    def run_long(self, work: Callable[[], str]) -> None:
        """Do work that takes as long as the chat, and show the line that it returns.

        The app does it on a thread, where the session may change meanwhile: the work
        uses a snapshot. An error of it is shown.
        """
        ...

    def read_document(self, request: FileRequest) -> None:
        """Read a file, and attach it to the next question.

        If it is too long, or if the request asks for it, the user chooses parts first.
        The app reads on a thread.
        """
        ...

    def remove_attachments(self) -> None:
        """Send the next question without files."""
        ...

    def attach_pictures(self, *loaders: PictureLoader) -> None:
        """Attach the pictures that the loaders return to the next question.

        They wait for a disk or another program, so the app calls them on a thread. What
        can be read is attached, and the errors of the others are shown.
        """
        ...

    def mark_tokens(self, *, marked: bool) -> None: ...

    def load_anyway(self) -> None:
        """Load a pair that was refused because it may not fit in memory."""
        ...

    def start_benchmark(self) -> None: ...

    def show_commands(self) -> None: ...

    def show_keys(self) -> None: ...

    def show_turns(self) -> None: ...

    def show_settings(self) -> None: ...

    def show_statistics(self) -> None: ...

    def show_tools(self) -> None:
        """Show the tools of the chat, and which of them are on."""
        ...

    def show_tool_call(self, number: int) -> None:
        """Show a call of the chat with all of its result; the first has number 1.

        Raises UsageError if there is no such call.
        """
        ...

    def show_engine_log(self) -> None: ...

    def quit(self) -> None: ...
