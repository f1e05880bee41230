"""What the engine wrote, and what went wrong inside of us: the ends of both files, as they grow."""

from __future__ import annotations

from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from localspec import paths
from localspec.sanitize import sanitize
from localspec.tui import clipboard
from localspec.tui.app_options import AppOptions
from localspec.tui.key_bindings import bindings_for, fit_footer, format_footer
from localspec.tui.widgets.log_view import LogView

_TAIL_BYTES = 512 * 1024
"""Bytes that are shown: some thousand lines."""
_POLL_SECONDS = 0.5
"""Seconds from one look at the file to the next."""
LOGS = ("engine.log", "engine.log.1", "crash.log")
_EMPTY_TEXTS = {
    "engine.log": "Nothing yet. What llama.cpp says while a model loads and runs is kept here.",
    "engine.log.1": "Nothing yet. When engine.log has grown large, the older half is kept here.",
    "crash.log": "Nothing: localspec itself never failed here. If it does, this says where.",
}


class LogScreen(ModalScreen[None]):
    """One file at a time; empty, it says what would be here."""

    BINDINGS = bindings_for("log")
    AUTO_FOCUS = "LogView"

    def __init__(self, options: AppOptions) -> None:
        super().__init__()
        self._options = options
        self._file_name = LOGS[0]
        self._last_stat: tuple[int, int] | None = None
        """Of the file when it was read: which it was, and how large."""

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            with Horizontal(id="which"):
                yield Static("", id="logs", markup=False)
                yield Static("", id="told", markup=False)
            yield LogView()
            yield Static("", id="empty", markup=False)
            field = Input(placeholder="find", id="find")
            field.display, field.cursor_blink = False, False
            yield field
            yield Static("", id="where", markup=False)
            yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self._show_file()
        self.set_interval(_POLL_SECONDS, self._poll_file)

    def on_resize(self) -> None:
        self._update_labels()

    @property
    def _tail(self) -> LogView:
        return self.query_one(LogView)

    @property
    def _path(self) -> Path:
        return paths.data_dir() / self._file_name

    # --- what there is --------------------------------------------------------------------

    def _show_file(self) -> None:
        """Another file, from its end."""
        self._last_stat = None
        self._tail.following = True
        self._poll_file()
        self._update_labels()

    def _poll_file(self) -> None:
        """Read it where it is another or has grown; what is there stays where it went."""
        try:
            about = self._path.stat()
        except OSError:
            now = (0, 0)
        else:
            now = (about.st_ino, about.st_size)
        if now == self._last_stat:
            return
        self._last_stat = now
        self._tail.set_lines(_read_tail(self._path))
        empty = not self._tail.lines
        self._tail.display, self.query_one("#empty").display = not empty, empty
        self.query_one("#empty", Static).update(Content(_EMPTY_TEXTS[self._file_name]))
        self._update_counts()

    def _update_counts(self, position: int = 0) -> None:
        """How much there is, or how much was found."""
        tail, wanted = self._tail, self.query_one("#find", Input).value
        words = f"{len(tail.lines):,} lines" if tail.lines else ""
        if self._last_stat is not None and self._last_stat[1] > _TAIL_BYTES:
            words += f", the last {_TAIL_BYTES // 1024} KiB"
        if wanted and tail.matches:
            words = f"{position or len(tail.matches)} of {len(tail.matches)} lines"
        elif wanted:
            words = "found nowhere"
        self.query_one("#told", Static).update(Content(words))

    def _update_labels(self) -> None:
        """Which logs there are, where this one lies, and the keys."""
        parts: list[tuple[str, str] | str] = []
        for name in LOGS:
            parts += [(name, "bold" if name == self._file_name else "$muted"), "   "]
        self.query_one("#logs", Static).update(Content.assemble(*parts[:-1]))
        where = sanitize(str(self._path), multiline=False)
        self.query_one("#where", Static).update(Content(where))
        keys = format_footer(self._options.keymap, "log")
        room = min(self.size.width, 120) - 4
        self.query_one("#hints", Static).update(Content(fit_footer(keys, room)))

    # --- keys -----------------------------------------------------------------------------

    def action_other(self) -> None:
        self._file_name = LOGS[(LOGS.index(self._file_name) + 1) % len(LOGS)]
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
        lines = self._tail.lines
        said = clipboard.copy(self.app, "\n".join(lines)) if lines else "There is nothing to copy."
        self.notify(said, markup=False)

    def action_back(self) -> None:
        """First out of the field, and what was looked for is forgotten."""
        field = self.query_one("#find", Input)
        if not field.display:
            self.dismiss()
            return
        field.value, field.display = "", False
        self.set_focus(self._tail)
        self._tail.follow_end()


def _read_tail(path: Path) -> list[str]:
    """The last lines, harmless; a line that is cut in two by where we begin is left out."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            said = file.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    lines = sanitize(said).split("\n")
    if size > _TAIL_BYTES:
        lines = lines[1:]
    return lines[:-1] if lines and not lines[-1] else lines
