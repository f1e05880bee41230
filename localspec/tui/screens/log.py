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
from localspec.clean import clean
from localspec.tui import clipping
from localspec.tui.keys import bindings, fitting, footer
from localspec.tui.options import Options
from localspec.tui.widgets.tail import Tail

_LAST = 512 * 1024
"""Bytes that are shown: some thousand lines."""
_PERIOD = 0.5
"""Seconds from one look at the file to the next."""
LOGS = ("engine.log", "engine.log.1", "crash.log")
_EMPTY = {
    "engine.log": "Nothing yet. What llama.cpp says while a model loads and runs is kept here.",
    "engine.log.1": "Nothing yet. When engine.log has grown large, the older half is kept here.",
    "crash.log": "Nothing: localspec itself never failed here. If it does, this says where.",
}


class LogScreen(ModalScreen[None]):
    """One file at a time; empty, it says what would be here."""

    BINDINGS = bindings("log")
    AUTO_FOCUS = "Tail"

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options
        self._log = LOGS[0]
        self._seen: tuple[int, int] | None = None
        """Of the file when it was read: which it was, and how large."""

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            with Horizontal(id="which"):
                yield Static("", id="logs", markup=False)
                yield Static("", id="told", markup=False)
            yield Tail()
            yield Static("", id="empty", markup=False)
            field = Input(placeholder="find", id="find")
            field.display, field.cursor_blink = False, False
            yield field
            yield Static("", id="where", markup=False)
            yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self._show()
        self.set_interval(_PERIOD, self._look)

    def on_resize(self) -> None:
        self._explain()

    @property
    def _tail(self) -> Tail:
        return self.query_one(Tail)

    @property
    def _path(self) -> Path:
        return paths.state() / self._log

    # --- what there is --------------------------------------------------------------------

    def _show(self) -> None:
        """Another file, from its end."""
        self._seen = None
        self._tail.following = True
        self._look()
        self._explain()

    def _look(self) -> None:
        """Read it where it is another or has grown; what is there stays where it went."""
        try:
            about = self._path.stat()
        except OSError:
            now = (0, 0)
        else:
            now = (about.st_ino, about.st_size)
        if now == self._seen:
            return
        self._seen = now
        self._tail.put(_end(self._path))
        empty = not self._tail.lines
        self._tail.display, self.query_one("#empty").display = not empty, empty
        self.query_one("#empty", Static).update(Content(_EMPTY[self._log]))
        self._tell()

    def _tell(self, place: int = 0) -> None:
        """How much there is, or how much was found."""
        tail, wanted = self._tail, self.query_one("#find", Input).value
        words = f"{len(tail.lines):,} lines" if tail.lines else ""
        if self._seen is not None and self._seen[1] > _LAST:
            words += f", the last {_LAST // 1024} KiB"
        if wanted and tail.found:
            words = f"{place or len(tail.found)} of {len(tail.found)} lines"
        elif wanted:
            words = "found nowhere"
        self.query_one("#told", Static).update(Content(words))

    def _explain(self) -> None:
        """Which logs there are, where this one lies, and the keys."""
        parts: list[tuple[str, str] | str] = []
        for name in LOGS:
            parts += [(name, "bold" if name == self._log else "$muted"), "   "]
        self.query_one("#logs", Static).update(Content.assemble(*parts[:-1]))
        where = clean(str(self._path), multiline=False)
        self.query_one("#where", Static).update(Content(where))
        keys = footer(self._options.keymap, "log")
        room = min(self.size.width, 120) - 4
        self.query_one("#hints", Static).update(Content(fitting(keys, room)))

    # --- keys -----------------------------------------------------------------------------

    def action_other(self) -> None:
        self._log = LOGS[(LOGS.index(self._log) + 1) % len(LOGS)]
        self._show()

    def action_find(self) -> None:
        field = self.query_one("#find", Input)
        field.display = True
        self.set_focus(field)

    @on(Input.Changed, "#find")
    def _changed(self, message: Input.Changed) -> None:
        self._tail.find(message.value)
        self._tell()

    @on(Input.Submitted, "#find")
    def _submitted(self) -> None:
        self.set_focus(self._tail)

    def action_leap(self, by: int) -> None:
        self._tell(self._tail.leap(by))

    def action_end(self) -> None:
        self._tail.follow()

    def action_copy(self) -> None:
        lines = self._tail.lines
        said = clipping.copy(self.app, "\n".join(lines)) if lines else "There is nothing to copy."
        self.notify(said, markup=False)

    def action_back(self) -> None:
        """First out of the field, and what was looked for is forgotten."""
        field = self.query_one("#find", Input)
        if not field.display:
            self.dismiss()
            return
        field.value, field.display = "", False
        self.set_focus(self._tail)
        self._tail.follow()


def _end(path: Path) -> list[str]:
    """The last lines, harmless; a line that is cut in two by where we begin is left out."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LAST))
            said = file.read(_LAST).decode("utf-8", "replace")
    except OSError:
        return []
    lines = clean(said).split("\n")
    if size > _LAST:
        lines = lines[1:]
    return lines[:-1] if lines and not lines[-1] else lines
