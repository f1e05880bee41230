"""The log viewer: the ends of the engine log and the crash log, updated as they grow."""

from __future__ import annotations

from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from localspec import data_files
from localspec.paths import DataFile
from localspec.sanitize import sanitize
from localspec.tui.app_options import AppOptions
from localspec.tui.key_bindings import bindings_for, format_footer
from localspec.tui.notices import copy_text
from localspec.tui.text.wrapping import one_line
from localspec.tui.widgets.log_view import LogView
from localspec.tui.widgets.screen_frame import KeyLine
from localspec.units import gb

_TAIL_BYTES = 512 * 1024  # Shown at the end of a file: some thousand lines.
_POLL_SECONDS = 0.5
LOGS = (DataFile.ENGINE_LOG, DataFile.OLDER_ENGINE_LOG, DataFile.CRASH_LOG)
_EMPTY_TEXTS = {
    DataFile.ENGINE_LOG: "Empty. llama.cpp's messages while a model loads and runs appear here.",
    DataFile.OLDER_ENGINE_LOG: "Empty. When engine.log becomes large, its older half is moved here.",
    DataFile.CRASH_LOG: "Empty: localspec has not crashed. If it does, the details appear here.",
}


class LogScreen(ModalScreen[None]):
    BINDINGS = bindings_for("log")
    AUTO_FOCUS = "LogView"

    def __init__(self, options: AppOptions) -> None:
        super().__init__()
        self._options = options
        self._file = LOGS[0]
        self._last_stat: tuple[int, int] | None = None
        """Inode and size of the file when it was read."""

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            with Horizontal(id="which"):
                yield Static("", id="logs", markup=False)
                yield Static("", id="counts", markup=False)
            yield LogView()
            yield Static("", id="empty", markup=False)
            field = Input(placeholder="find", id="find")
            field.display = False
            field.cursor_blink = False
            yield field
            yield Static("", id="where", markup=False)
            yield KeyLine()

    def on_mount(self) -> None:
        self._show_file()
        self.set_interval(_POLL_SECONDS, self._poll_file)

    @property
    def _tail(self) -> LogView:
        return self.query_one(LogView)

    @property
    def _path(self) -> Path:
        return self._file.path

    def _show_file(self) -> None:
        self._last_stat = None
        self._tail.following = True
        self._poll_file()
        names = []
        for name in LOGS:
            style = "bold" if name == self._file else "$muted"
            names.append(Content.styled(name, style))
        self.query_one("#logs", Static).update(Content("   ").join(names))
        path = one_line(str(self._path))
        self.query_one("#where", Static).update(Content(path))
        self.query_one(KeyLine).show_keys(format_footer(self._options.keymap, "log"))

    def _poll_file(self) -> None:
        """Reads the file again if it was replaced or has grown."""
        try:
            stat = self._path.stat()
            current_stat = (stat.st_ino, stat.st_size)
        except OSError:
            current_stat = (0, 0)
        if current_stat == self._last_stat:
            return
        self._last_stat = current_stat
        self._tail.set_lines(_read_tail(self._path))
        is_empty = not self._tail.lines
        self._tail.display = not is_empty
        hint = self.query_one("#empty", Static)
        hint.display = is_empty
        hint.update(Content(_EMPTY_TEXTS[self._file]))
        self._update_counts()

    def _update_counts(self, position: int = 0) -> None:
        """`position`: the number of the match that is shown; 0: the last."""
        counts = self._describe_lines()
        n_matches = len(self._tail.matches)
        if self.query_one("#find", Input).value:
            counts = "no matches"
            if n_matches:
                counts = f"{position or n_matches} of {n_matches} matches"
        self.query_one("#counts", Static).update(Content(counts))

    def _describe_lines(self) -> str:
        n_lines = len(self._tail.lines)
        text = ""
        if n_lines:
            text = "1 line" if n_lines == 1 else f"{n_lines:,} lines"
        if self._last_stat is not None:
            _, size = self._last_stat
            if size > _TAIL_BYTES:
                text += f", the last {gb(_TAIL_BYTES)}"
        return text

    def action_other(self) -> None:
        index = LOGS.index(self._file) + 1
        self._file = LOGS[index % len(LOGS)]
        self._show_file()

    def action_find(self) -> None:
        field = self.query_one("#find", Input)
        field.display = True
        self.set_focus(field)

    @on(Input.Changed, "#find")
    def _search_changed(self, message: Input.Changed) -> None:
        self._tail.find_text(message.value)
        self._update_counts()

    @on(Input.Submitted, "#find")
    def _search_submitted(self) -> None:
        self.set_focus(self._tail)

    def action_leap(self, by: int) -> None:
        self._update_counts(self._tail.go_to_match(by))

    def action_end(self) -> None:
        self._tail.follow_end()

    def action_copy(self) -> None:
        if self._tail.lines:
            lines = tuple(self._tail.lines)
            copy_text(self.app, lambda: "\n".join(lines))
        else:
            self.notify("Nothing to copy.", markup=False)

    def action_back(self) -> None:
        """Closes the search first, then the screen."""
        field = self.query_one("#find", Input)
        if not field.display:
            self.dismiss()
            return
        field.value = ""
        field.display = False
        self.set_focus(self._tail)
        self._tail.follow_end()


def _read_tail(path: Path) -> list[str]:
    """The last lines, sanitised; a first line that is cut in two is left out."""
    try:
        with data_files.open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    if not text:
        return []
    lines = sanitize(text).removesuffix("\n").split("\n")
    if size > _TAIL_BYTES:
        return lines[1:]
    return lines
