"""The message field, its list of completions, and the files attached to the message."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.cells import cell_len
from textual import events, on
from textual.app import SuspendNotSupported
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static, TextArea
from textual.widgets.option_list import Option

from localspec.chat import picture_sources, slash_commands, tab_completion
from localspec.chat.conversation import Attachment, PictureAttachment
from localspec.chat.pictures import (
    LoadedPictures,
    PictureCost,
    PictureLoader,
    load_each,
)
from localspec.chat.session import ChatSession
from localspec.config import toml_file
from localspec.config.key_table import keys_for
from localspec.errors import LocalspecError
from localspec.models.audio_files import is_audio_name
from localspec.sanitize import sanitize
from localspec.temporary_files import TemporaryFolder
from localspec.tui.file_finder import FileFinder
from localspec.tui.notices import problem_text
from localspec.tui.scheduling import run_on_thread
from localspec.tui.terminal import lend_terminal
from localspec.tui.text.turn_text import (
    format_pending_attachments,
    format_pending_pictures,
)
from localspec.tui.text.wrapping import one_line, slice_text
from localspec.tui.widgets.pointer_list import MarkedList
from localspec.units import short_count

_DIRECTION_CONTROLS = re.compile("([\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])")
_FILE_QUERY = re.compile(r"""(?:^|[\s("'])@([^\s@]*)$""")
_MAX_LISTED = 200
_MAX_FIELD_BYTES = 20_000
"""Longer text is attached as a file: the field wraps all of its text at each key."""
_MAX_FIELD_LINES = 400


class CompletionList(MarkedList, can_focus=False):
    """What a command can be completed to, or the files after `@`; hidden without any.

    The message field passes its keys on.
    """

    def __init__(
        self, take: Callable[[str], None], take_file: Callable[[str], None]
    ) -> None:
        """`take` receives the chosen line, `take_file` the chosen path."""
        super().__init__(id_="completions")
        self.display = False
        self._take_line = take
        self._take_file = take_file
        self._are_files = False  # What is listed.
        self._choices: list[str] = []
        self._gap = ""  # The last line, which says what the list does not have.
        self._completed_text = ""
        self._is_chosen = False  # Whether the user has moved the highlight.
        self._is_closed = False  # By escape, until the text changes.

    def show_for(self, typed: str) -> None:
        if typed == self._completed_text:
            return
        self._completed_text = typed
        choices = tab_completion.complete(typed)[:_MAX_LISTED]
        self._are_files = False
        self._gap = ""
        if choices == [typed]:
            choices = []
        self._list(choices)

    def show_files(self, query: str, paths: Sequence[str], gap: str = "") -> None:
        """Lists the files for the letters after `@`; there may be more at each call.

        `gap` is what is said of files that are not found.
        """
        is_same_query = self.lists_files_of(query)
        is_same_list = list(paths) == self._choices and gap == self._gap
        if is_same_query and (self._is_closed or is_same_list):
            return
        self._gap = gap
        self._completed_text = f"@{query}"
        pointed = self._choices[self.highlighted or 0 :][:1]
        is_kept = is_same_query and self._is_chosen and pointed
        self._are_files = True
        self._list(list(paths[:_MAX_LISTED]))
        if is_kept and pointed[0] in self._choices:
            self._is_chosen = True
            self.highlighted = self._choices.index(pointed[0])

    def lists_files_of(self, query: str) -> bool:
        """Whether the list is what was found for these letters after `@`."""
        return self._completed_text == f"@{query}"

    def _list(self, choices: list[str]) -> None:
        self._is_chosen = False
        self._is_closed = False
        self._choices = choices
        self.display = bool(choices or self._gap)
        self.clear_options()
        for line in choices:
            about = ""
            if not self._are_files and " " not in line:
                about = tab_completion.usage(line)
            shown = one_line(line)
            self.add_option(Option(Content.assemble(shown, (f"  {about}", "$muted"))))
        if self._gap:
            gap = Content.styled(self._gap, "$muted")
            self.add_option(Option(gap, disabled=True))
        self.highlighted = 0 if choices else None

    def take_key(self, key: str, typed: str) -> bool:
        """Whether the key was for the list. `typed`: the text before the key."""
        self.show_for(typed)
        is_final = self._is_whole(typed)
        return self._take_list_key(key, may_send=is_final)

    def take_file_key(self, key: str) -> bool:
        """The same while the files after `@` are listed: enter always takes one."""
        return self._take_list_key(key, may_send=False)

    def _take_list_key(self, key: str, *, may_send: bool) -> bool:
        """`may_send`: whether enter sends the text, unless another line is highlighted."""
        if not self.display:
            return False
        if key == "escape":
            self.display = False
            self._is_closed = True
        elif not self._choices:
            return False
        elif key == "up":
            self._is_chosen = True
            self.action_cursor_up()
        elif key == "down":
            self._is_chosen = True
            self.action_cursor_down()
        elif key == "tab" or (key == "enter" and (self._is_chosen or not may_send)):
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
        if self._are_files:
            self._take_file(line)
            return
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

    @dataclass(eq=False)
    class FileChosen(Message):
        """A file was chosen after `@`, to be attached."""

        path: str

    class PicturesAttached(Message):
        """Pictures are attached to the session's next question."""

    def __init__(self, keymap: Mapping[str, str], session: ChatSession) -> None:
        """Up recalls the session's earlier texts; those that leave the field join them."""
        super().__init__(id="composer", compact=True, highlight_cursor_line=False)
        self._keymap = keymap
        self._session = session
        self.cursor_blink = False
        self.completions = CompletionList(self.replace_text, self._take_file)
        """Belongs above this field; the screen places it."""
        session.typed_texts[:] = filter(fits_in_field, session.typed_texts)
        self._typed_texts = session.typed_texts  # To recall, the latest last.
        self._recall_index = len(session.typed_texts)
        """Position in `_typed_texts`; its length: the message being written."""
        self._loaded_text = ""  # An earlier question, put into the field to be edited.
        self._files = FileFinder(self, self._show_files)
        self._file_query: str | None = None  # That was searched last.
        self._n_attaching = 0  # Texts and pictures that a thread prepares.
        self._shown_size = Content("")
        # When something was typed last, as `time.monotonic`.
        self.typed_at = float("-inf")

    async def _on_key(self, event: events.Key) -> None:
        """Not bindings, because those would run before letters that were typed earlier."""
        if event.key != "escape":
            self.typed_at = time.monotonic()
        if self._complete_by(event.key):
            pass
        elif event.key in keys_for("chat.send", self._keymap):
            self._submit()
        elif event.key in keys_for("chat.newline", self._keymap):
            self.insert("\n")
        else:
            return
        event.prevent_default()
        event.stop()

    def _complete_by(self, key: str) -> bool:
        """Whether the key was for the list of completions."""
        query = self._find_file_query()
        if query is None:
            return self.completions.take_key(key, self._typed_line)
        if key in ("enter", "tab") and not self.completions.lists_files_of(query):
            # The letters came faster than the search.
            self._show_files(query, self._files.find_now(query))
        return self.completions.take_file_key(key)

    @property
    def is_completing(self) -> bool:
        """Whether tab is meant to complete a command or the name of a file."""
        return self.text.startswith("/") or self._find_file_query() is not None

    def _submit(self) -> None:
        if self._n_attaching:
            self.notify("Wait: a file is still being attached.", markup=False)
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
        self._search_files()
        if self._file_query is None:
            self.completions.show_for(self._typed_line)
        self.show_size()

    def _find_file_query(self) -> str | None:
        """The letters between an `@` and the cursor; None if the cursor is elsewhere."""
        line = self._typed_line
        row, column = self.cursor_location
        if not line or slash_commands.parse(line) is not None:
            return None
        match = _FILE_QUERY.search(self.document.get_line(row)[:column])
        return match[1] if match else None

    def _search_files(self) -> None:
        query = self._find_file_query()
        if query is not None and query != self._file_query:
            self._files.search(query)
        self._file_query = query

    def _show_files(self, query: str, paths: Sequence[str]) -> None:
        if query == self._find_file_query():
            gap = self._files.describe_gap(query)
            self.completions.show_files(query, paths, gap)

    def _take_file(self, path: str) -> None:
        """Puts the path in place of the `@` and what follows it."""
        query = self._find_file_query()
        if query is None:
            return
        row, column = self.cursor_location
        start = (row, column - len(query) - 1)
        if path.endswith("/"):  # Its files are listed next.
            self.replace(f"@{path}", start, (row, column))
            return
        self.replace(f"{path} ", start, (row, column))
        self.post_message(self.FileChosen(path))

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
        if not self.text.startswith("/"):  # A command takes the path as it is.
            dropped = picture_sources.find_dropped_files(text)
            if dropped and self._may_attach(dropped):
                load_any = self._session.pictures.load_any
                self.attach_pictures(*[partial(load_any, [path]) for path in dropped])
                return
        if not fits_in_field(self.text + text):
            self._attach_text(text, "pasted")
            return
        result = self.replace("".join(_clean_typed(text)), *self.selection)
        self.move_cursor(result.end_location)

    # --- pictures, and texts that are too long
    # ----------------------------------------------------------------------------

    def _may_attach(self, paths: Sequence[Path]) -> bool:
        """To a model that does not see, the path of a picture is a text as any other.

        So is that of audio to one that does not hear.
        """
        try:
            for path in paths:
                if is_audio_name(path.name):
                    self._session.require_hearing()
                else:
                    self._session.require_sight()
        except LocalspecError as error:
            self.notify(problem_text(error), markup=False)
            return False
        return True

    def attach_pictures(self, *loaders: PictureLoader) -> None:
        """Attaches the pictures that the loaders return; a thread calls them."""
        self._n_attaching += 1

        def work() -> None:
            self.call_later(self._add_pictures, load_each(loaders))

        run_on_thread(self, "pictures", work, failed=self._attaching_failed)

    def _add_pictures(self, loaded: LoadedPictures) -> None:
        if loaded.problem is not None:
            self._attaching_failed(loaded.problem)
        else:
            self._n_attaching -= 1
        try:
            for picture in loaded.pictures:
                self._session.add_picture(picture)
        except LocalspecError as error:
            self.notify(problem_text(error), severity="warning", markup=False)
        self.show_size()
        self.post_message(self.PicturesAttached())

    def _attach_text(self, text: str, name: str) -> None:
        """Attaches a text as a file; a thread cleans it."""
        self._n_attaching += 1

        def work() -> None:
            self.call_later(self._add_file, "".join(_clean_typed(text)), name)

        run_on_thread(self, "paste", work, failed=self._attaching_failed)

    def _attaching_failed(self, error: LocalspecError) -> None:
        self._n_attaching -= 1
        self.notify(problem_text(error), severity="warning", markup=False, timeout=8)

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
    """The files and pictures that go with the next message, above the message field."""

    def __init__(self) -> None:
        super().__init__(id="attached", markup=False)
        self._names: list[str] = []
        self._hints: list[str] = []

    def draw(
        self,
        files: Sequence[Attachment],
        pictures: Sequence[PictureAttachment],
        costs: Mapping[str, PictureCost],
        read_now: Sequence[str],
    ) -> None:
        """`costs`: of the pictures, by hash, as far as they are known.

        `read_now`: the names of documents that are still being read.
        """
        self._names = format_pending_attachments(files)
        self._names += [f"reading {name} …" for name in read_now]
        self._hints = []
        if self._names:
            self._hints.append("/read - removes them")
        self._names += format_pending_pictures(pictures, costs)
        if any(not each.is_audio for each in pictures):
            self._hints.append("/image - removes them")
        if any(each.is_audio for each in pictures):
            self._hints.append("/audio - removes it")
        self.display = bool(self._names)
        self._arrange()

    def on_resize(self) -> None:
        self._arrange()

    def _arrange(self) -> None:
        """The commands are in the line of the names, or below if they do not fit."""
        names = _GAP.join(self._names)
        hints = _GAP.join(self._hints)
        line = f"{names}{_GAP}{hints}"
        if cell_len(line) > self.size.width > 0:
            line = f"{names}\n{hints}"
        self.update(Content(line))


_GAP = "   "  # Between names, and between commands.
