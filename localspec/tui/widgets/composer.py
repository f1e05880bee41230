"""The message field, its list of completions, and the files attached to the message."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from textual import events, on
from textual.app import SuspendNotSupported
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static, TextArea
from textual.widgets.option_list import Option

from localspec.chat import slash_commands, tab_completion
from localspec.chat.conversation import Attachment
from localspec.chat.session import ChatSession
from localspec.config import toml_file
from localspec.config.key_table import keys_for
from localspec.errors import LocalspecError
from localspec.sanitize import sanitize
from localspec.temporary_files import TemporaryFolder
from localspec.tui.notices import problem_text
from localspec.tui.scheduling import run_on_thread
from localspec.tui.terminal import lend_terminal
from localspec.tui.text.turn_text import format_attachment
from localspec.tui.text.wrapping import one_line, slice_text
from localspec.tui.widgets.pointer_list import MarkedList
from localspec.units import short_count

_DIRECTION_CONTROLS = re.compile("([\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])")
_MAX_LISTED = 200
_MAX_FIELD_BYTES = 20_000
"""Longer text is attached as a file: the field wraps all of its text at each key."""
_MAX_FIELD_LINES = 400


class CompletionList(MarkedList, can_focus=False):
    """What a command can be completed to; hidden if there is nothing.

    The message field passes its keys on.
    """

    def __init__(self, take: Callable[[str], None]) -> None:
        """`take` receives the chosen line."""
        super().__init__(id_="completions")
        self.display = False
        self._take_line = take
        self._choices: list[str] = []
        self._completed_text = ""
        self._is_chosen = False  # Whether the user has moved the highlight.

    def show_for(self, typed: str) -> None:
        if typed == self._completed_text:
            return
        self._completed_text = typed
        self._is_chosen = False
        self._choices = tab_completion.complete(typed)[:_MAX_LISTED]
        if self._choices == [typed]:
            self._choices = []
        self.display = bool(self._choices)
        self.clear_options()
        for line in self._choices:
            about = tab_completion.usage(line) if " " not in line else ""
            shown = one_line(line)
            self.add_option(Option(Content.assemble(shown, (f"  {about}", "$muted"))))
        self.highlighted = 0 if self._choices else None

    def take_key(self, key: str, typed: str) -> bool:
        """Whether the key was for the list. `typed`: the text before the key."""
        self.show_for(typed)
        if not self.display:
            return False
        if key == "escape":
            self.display = False  # until the text changes
        elif key == "up":
            self._is_chosen = True
            self.action_cursor_up()
        elif key == "down":
            self._is_chosen = True
            self.action_cursor_down()
        elif key == "tab" or (
            key == "enter" and (self._is_chosen or not self._is_whole(typed))
        ):
            self._take(self.highlighted or 0)
        else:
            return False
        return True

    def _is_whole(self, typed: str) -> bool:
        """Whether enter sends the text as it is."""
        is_listed = typed in self._choices or f"{typed}/" in self._choices  # a folder
        return is_listed or tab_completion.is_final(typed)

    @on(OptionList.OptionSelected)
    def _take_clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._take(event.option_index)

    def _take(self, index: int) -> None:
        line = self._choices[index]
        if tab_completion.takes_argument(line):
            line += " "
        self._take_line(line)


class MessageComposer(TextArea):
    """A multi-line editor; up recalls earlier texts, and pasted line ends never send."""

    @dataclass(eq=False)
    class Submitted(Message):
        text: str

    class TextAttached(Message):
        """A text that was too long for the field is among the session's files."""

    def __init__(self, keymap: Mapping[str, str], session: ChatSession) -> None:
        """Up recalls the session's earlier texts; those that leave the field join them."""
        super().__init__(id="composer", compact=True, highlight_cursor_line=False)
        self._keymap = keymap
        self._session = session
        self.cursor_blink = False
        self.completions = CompletionList(self.replace_text)
        """Belongs above this field; the screen places it."""
        session.typed_texts[:] = filter(fits_in_field, session.typed_texts)
        self._typed_texts = session.typed_texts  # To recall, the latest last.
        self._recall_index = len(session.typed_texts)
        """Position in `_typed_texts`; its length: the message being written."""
        self._loaded_text = ""  # An earlier question, put into the field to be edited.
        self._n_attaching = 0  # Texts that a thread still prepares as files.
        self._shown_size = Content("")
        # When something was typed last, as `time.monotonic`.
        self.typed_at = float("-inf")

    async def _on_key(self, event: events.Key) -> None:
        """Not bindings, because those would run before letters that were typed earlier."""
        if event.key != "escape":
            self.typed_at = time.monotonic()
        if self.completions.take_key(event.key, self._typed_line):
            pass
        elif event.key in keys_for("chat.send", self._keymap):
            self._submit()
        elif event.key in keys_for("chat.newline", self._keymap):
            self.insert("\n")
        else:
            return
        event.prevent_default()
        event.stop()

    def _submit(self) -> None:
        if self._n_attaching:
            self.notify("Wait: the pasted text is still being attached.", markup=False)
            return
        text = self.text
        self._remember_text()
        # at once: the next letters may follow before the screen reacts
        self.text = ""
        self.post_message(self.Submitted(text))

    @property
    def _typed_line(self) -> str:
        """What can be completed: not a text that was recalled."""
        return "" if self._can_recall else self.text

    @on(TextArea.Changed)
    def _update_completions(self) -> None:
        self.completions.show_for(self._typed_line)
        self.show_size()

    def show_size(self) -> None:
        """The size of the message and its files, against what is left of the context."""
        text = self.text
        if text == "/" or slash_commands.parse(text) is not None:
            text = ""  # A command is not sent to the model.
        size = self._session.estimate_tokens(text)
        left = self._session.tokens_left
        shown = Content("")
        if size and left is not None:
            tokens = "1 token" if size == 1 else f"{short_count(size)} tokens"
            label = f"about {tokens}, {short_count(max(0, left))} left"
            style = self.app.theme_variables["warning"] if size > left else ""
            shown = Content.styled(label, style)
        # Textual would draw the field again, whatever the new value is.
        if not shown.is_same(self._shown_size):
            self._shown_size = shown
            self.border_subtitle = Content.assemble(shown)

    def _remember_text(self) -> None:
        if self.text.strip() and self._typed_texts[-1:] != [self.text]:
            self._typed_texts.append(self.text)
        self._recall_index = len(self._typed_texts)

    def restore_text(self, text: str) -> None:
        """Puts a message that was not sent before the text typed since then."""
        self.replace_text("\n".join(filter(None, (text, self.text))))

    def edit_text(self, text: str) -> None:
        """Puts a text to edit in place of the typed one, which up brings back."""
        self._remember_text()
        self._loaded_text = text
        self.replace_text(text)

    def replace_text(self, text: str) -> None:
        """Replaces all text, which can be undone, and moves the cursor to the end.

        A text that is too long for the field is attached, and the field is empty.
        """
        if not fits_in_field(text):
            self._attach_text(text, "message")
            text = ""
        self.history.checkpoint()
        self.replace(text, self.document.start, self.document.end)
        self.history.checkpoint()
        self.move_cursor(self.document.end)

    def action_editor(self) -> None:
        try:
            with TemporaryFolder("message") as folder:
                text = self._edit_in(folder / "message.md")
        except SuspendNotSupported:
            self.notify("This terminal cannot be handed to an editor.", markup=False)
        except LocalspecError as error:
            self.notify(problem_text(error), severity="warning", markup=False)
        except OSError as error:
            self.notify(
                f"The message cannot be edited: {error.strerror}.", markup=False
            )
        else:
            self.replace_text("".join(_clean_typed(text.rstrip("\n"))))

    def _edit_in(self, path: Path) -> str:
        """The message after the user's editor has changed it in this file."""
        path.write_text(self.text, encoding="utf-8", errors="replace")
        with lend_terminal(self.app):
            toml_file.run_editor(path)
        return path.read_text(encoding="utf-8", errors="replace")

    def action_cursor_up(self, select: bool = False) -> None:
        can_recall = not select and self._can_recall and self.cursor_at_first_line
        if can_recall and self._recall_index > 0:
            self._recall(self._recall_index - 1)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        can_recall = not select and self._can_recall and self.cursor_at_last_line
        if can_recall and self._recall_index < len(self._typed_texts):
            self._recall(self._recall_index + 1)
        else:
            super().action_cursor_down(select)

    @property
    def _can_recall(self) -> bool:
        """Whether up and down recall texts: only if no typed text would be lost."""
        recalled = self._typed_texts[self._recall_index : self._recall_index + 1]
        return self.text in ("", self._loaded_text, *recalled)

    def _recall(self, index: int) -> None:
        self._recall_index = index
        text = ""
        if index < len(self._typed_texts):
            text = self._typed_texts[index]
        self.replace_text(text)

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.typed_at = time.monotonic()
        self._paste(event.text)

    def action_paste(self) -> None:
        """Pastes what was copied within the app."""
        self._paste(self.app.clipboard)

    def _paste(self, text: str) -> None:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not fits_in_field(self.text + text):
            self._attach_text(text, "pasted")
            return
        result = self.replace("".join(_clean_typed(text)), *self.selection)
        self.move_cursor(result.end_location)

    # --- texts that are too long
    # ----------------------------------------------------------------------------

    def _attach_text(self, text: str, name: str) -> None:
        """Attaches a text as a file; a thread cleans it."""
        self._n_attaching += 1

        def work() -> None:
            self.call_later(self._add_file, "".join(_clean_typed(text)), name)

        run_on_thread(self, "paste", work, failed=self._attaching_failed)

    def _attaching_failed(self, error: LocalspecError) -> None:
        self._n_attaching -= 1
        self.notify(problem_text(error), severity="error", markup=False)

    def _add_file(self, text: str, name: str) -> None:
        self._n_attaching -= 1
        names = {file.name for file in self._session.pending_attachments}
        number = 1
        while f"{name}-{number}.txt" in names:
            number += 1
        file = Attachment(f"{name}-{number}.txt", text)
        self._session.add_attachment(file)
        self.notify(
            f"The text is long: attached as {file.name}. /read - removes it.",
            markup=False,
        )
        self.show_size()
        self.post_message(self.TextAttached())


def fits_in_field(text: str) -> bool:
    if len(text) > _MAX_FIELD_BYTES or text.count("\n") >= _MAX_FIELD_LINES:
        return False
    return len(text.encode("utf-8", "replace")) <= _MAX_FIELD_BYTES


def _clean_typed(text: str) -> Iterator[str]:
    """The text in pieces, without control characters.

    Direction controls are sent as typed; the screen has none.
    """
    for piece in slice_text(text):
        # Every second part is a direction control.
        parts = _DIRECTION_CONTROLS.split(piece)
        for index in range(0, len(parts), 2):
            parts[index] = sanitize(parts[index])
        yield "".join(parts)


class AttachedFiles(Static):
    """The files that go with the next message, above the message field."""

    def __init__(self) -> None:
        super().__init__(id="attached", markup=False)

    def draw(self, files: Sequence[Attachment]) -> None:
        self.display = bool(files)
        if files:
            names = "   ".join(map(format_attachment, files))
            self.update(Content(f"{names}   /read - removes them"))
