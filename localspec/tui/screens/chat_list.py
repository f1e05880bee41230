"""The list of all saved chats: by date, with a search of their titles and words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import datetime

from msgspec import Struct
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.events import DescendantFocus
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static

from localspec.chat.history import SearchHit
from localspec.errors import LocalspecError
from localspec.tui import home_rows, saved_chats
from localspec.tui.app_options import AppOptions
from localspec.tui.chat_actions import ChatAction, SavedChatActions
from localspec.tui.home_rows import HomeRow, HomeSection
from localspec.tui.key_bindings import bindings_for, format_footer
from localspec.tui.notices import problem_text
from localspec.tui.saved_chats import ChatSessions
from localspec.tui.scheduling import LatestOnlyWorker
from localspec.tui.text.wrapping import fit_to_width
from localspec.tui.widgets.pointer_list import PointerList
from localspec.tui.widgets.screen_frame import (
    PAGE_WIDTH,
    CenteredLayout,
    HintLine,
    KeyLine,
    TitleLine,
)
from localspec.units import count

_PAGE_ROWS = 100
"""Rows that are drawn at a time: 10,000 would hold the keyboard for a second."""
_ROWS_AHEAD = 20  # The next page is added this far before the last row.
_MARGINS = 4  # Columns at both sides of a row.
_DAY_WIDTH = 12  # Of `format_day`, with a gap.
_TURNS_WIDTH = 10
_MODEL_WIDTH = 20
_SHORT_MODEL_WIDTH = 14  # Where a title would get less than half of the row.
_WIDE_WIDTH = 90
_NARROW_WIDTH = 60  # Narrower rows have no model and no number of turns.
_KEYS_OF_A_CHAT = ("chats.remove", "chats.rename", "chats.pin", "chats.export")
_NO_CHATS = "No chats yet. Each chat is listed here once its first message is sent."
_NOT_SAVED = "Chats are not saved: there is no list of them."
_NO_MATCH = "No chat has all of these words. esc clears the search."


def draw_chat(row: HomeRow, width: int) -> Content:
    """Title, model, turns and day; a search match has its words in place of the model."""
    day = row.note.rjust(_DAY_WIDTH)
    if width < _NARROW_WIDTH:
        name = fit_to_width(row.name, max(1, width - len(day) - 2))
        return Content.assemble(name, "  ", (day, "$muted"))
    turns = row.size.rjust(_TURNS_WIDTH)
    left = width - len(turns) - len(day)
    description_width = _MODEL_WIDTH
    if row.found is not None:
        description_width = left // 2
    elif width < _WIDE_WIDTH:
        description_width = _SHORT_MODEL_WIDTH
    description = fit_to_width(row.description, description_width)
    name = fit_to_width(row.name, max(1, left - description_width - 2))
    return Content.assemble(name, "  ", (f"{description}{turns}{day}", "$muted"))


class ChatChoice(Struct, frozen=True):
    """A chat to open, and a match to show first."""

    chat_id: int
    found: SearchHit | None = None


class ChatListScreen(CenteredLayout, Screen[ChatChoice | None]):
    """The screen's result is the chat that is chosen; None if there is none."""

    BINDINGS = [  # noqa: RUF012
        *bindings_for("chats"),
        Binding("up", "move_pointer(-1)", show=False),
        Binding("down", "move_pointer(1)", show=False),
    ]
    KEY_CONTEXTS = ("chats",)
    AUTO_FOCUS = "#pairs"

    def __init__(self, sessions: ChatSessions, options: AppOptions) -> None:
        super().__init__()
        self._sessions = sessions
        self._options = options
        self._sections: Sequence[HomeSection] = ()
        self._n_shown = _PAGE_ROWS
        self._is_loaded = False
        self._chats: tuple[HomeRow, ...] = ()  # All of them, once they are loaded.
        # Matches of the search.
        self._by_title: tuple[HomeRow, ...] = ()
        self._by_turn: tuple[HomeRow, ...] = ()
        self._loader = LatestOnlyWorker(self, "chats")
        self._searcher = LatestOnlyWorker(self, "search")
        self._list = PointerList[HomeRow]("pairs", lambda row: row.key, self._draw_row)
        self._actions = SavedChatActions(
            self,
            sessions,
            find_selected=lambda: self._list.highlighted_row,
            on_change=self._load,
        )

    def compose(self) -> ComposeResult:
        yield TitleLine("Chats")
        field = Input(placeholder="/ searches titles and words", id="filter")
        field.cursor_blink = False
        yield field
        yield self._list
        yield HintLine(id="teach")
        yield KeyLine()

    def on_mount(self) -> None:
        self._load()

    def on_resize(self) -> None:
        self._draw()

    @property
    def _field(self) -> Input:
        return self.query_one("#filter", Input)

    @property
    def _search_text(self) -> str:
        return self._field.value.strip()

    # --- loading
    # ------------------------------------------------------------------------

    def _load(self) -> None:
        """On a thread, with its own database connection: the first page, then all."""
        history = self._sessions.history
        if history is None:
            self._show_chats((), is_all=True)
            return

        def work() -> None:
            now = datetime.now().astimezone()
            with closing(history.open_again()) as connection:
                if not self._is_loaded:
                    first = saved_chats.all_rows(connection, now, _PAGE_ROWS)
                    self.call_later(self._show_chats, first)  # thread-safe
                rows = saved_chats.all_rows(connection, now)
            self.call_later(self._show_chats, rows, is_all=True)

        self._loader.submit(work, failed=self._show_failure)

    def _show_failure(self, error: LocalspecError) -> None:
        self.notify(problem_text(error), severity="error", markup=False)

    def _show_chats(self, rows: tuple[HomeRow, ...], *, is_all: bool = False) -> None:
        self._is_loaded = self._is_loaded or is_all
        self._chats = rows
        self._find_titles()
        self._arrange()

    @on(Input.Changed)
    def _search(self) -> None:
        """Titles are compared at once, the words of chats on a thread."""
        self._by_turn = ()
        self._find_titles()
        self._arrange()
        text = self._search_text
        history = self._sessions.history
        if history is None or not text:
            return

        def work() -> None:
            now = datetime.now().astimezone()
            with closing(history.open_again()) as connection:
                rows = saved_chats.turn_rows(connection, text, now)
            self.call_later(self._show_matches, text, rows)  # thread-safe

        self._searcher.submit(work, failed=self._show_failure)

    def _show_matches(self, text: str, rows: tuple[HomeRow, ...]) -> None:
        if text == self._search_text and rows:
            self._by_turn = rows
            self._arrange()

    def _find_titles(self) -> None:
        text = self._search_text
        found: list[HomeRow] = []
        if text:
            found = [
                row for row in self._chats if home_rows.has_all_words(row.name, text)
            ]
        self._by_title = tuple(found)

    def _arrange(self) -> None:
        if self._search_text:
            listed = {row.chat_id for row in self._by_title}
            by_turn = [row for row in self._by_turn if row.chat_id not in listed]
            sections = (
                HomeSection("In the title", self._by_title),
                HomeSection("In the chat", tuple(by_turn)),
            )
            self._sections = [section for section in sections if section.rows]
        else:
            self._sections = saved_chats.group_by_period(self._chats)
        n_needed = 0  # Rows up to the selected one, which stays on a page.
        if self._list.highlighted_index is not None:
            n_needed = self._list.highlighted_index + 1
        self._n_shown = max(_PAGE_ROWS, n_needed)
        self._draw()

    # --- drawing
    # ------------------------------------------------------------------------

    def _draw(self) -> None:
        width = self.app.size.width
        keymap = self._options.keymap
        shown = []
        n_left = self._n_shown
        for section in self._sections:
            rows = section.rows[:n_left]
            if rows:
                heading = home_rows.draw_heading(section, width, keymap)
                shown.append((heading, rows))
            n_left -= len(rows)
        self._list.set_sections(shown)
        n_chats = self._n_listed
        status = ""
        if self._is_loaded:
            noun = "match" if self._search_text else "chat"
            status = count(n_chats, noun)
        self.query_one(TitleLine).show_status(status)
        self._show_hint(n_chats)
        self._update_keys()

    @property
    def _n_listed(self) -> int:
        """Rows of all pages."""
        return sum(len(section.rows) for section in self._sections)

    def _show_hint(self, n_chats: int) -> None:
        text = ""
        if self._sessions.history is None:
            text = _NOT_SAVED
        elif self._is_loaded and n_chats == 0:
            text = _NO_MATCH if self._search_text else _NO_CHATS
        hint = self.query_one("#teach", Static)
        hint.update(Content(text))
        hint.display = bool(text)

    def _draw_row(self, row: HomeRow) -> Content:
        return draw_chat(row, min(self.app.size.width, PAGE_WIDTH) - _MARGINS)

    @on(DescendantFocus)
    def _update_keys(self) -> None:
        keymap = self._options.keymap
        if self._field.has_focus:
            keys = f"enter open  ↑↓ select  esc back  {format_footer(keymap, 'app')}"
        else:
            row = self._list.highlighted_row
            labels = dict.fromkeys(_KEYS_OF_A_CHAT, "")
            enter = ""
            if row is not None:
                labels = {"chats.pin": "unpin"} if row.is_pinned else {}
                enter = "enter open  "
            others = format_footer(keymap, "chats", "app", label_overrides=labels)
            keys = f"{enter}{others}"
        self.query_one(KeyLine).show_keys(keys)

    @on(OptionList.OptionHighlighted)
    def _pointer_moved(self) -> None:
        """Adds the next page when the pointer comes near the end."""
        index = self._list.highlighted_index or 0
        is_near_end = index >= self._n_shown - _ROWS_AHEAD
        if is_near_end and self._n_shown < self._n_listed:
            self._n_shown += _PAGE_ROWS
            self._draw()
        self._update_keys()

    # --- keys
    # ---------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the search field, letters are text."""
        is_letter_key = action in ("find", "act")
        return not is_letter_key or not self._field.has_focus

    def action_find(self) -> None:
        self.set_focus(self._field)  # at once: the next letters may follow immediately

    def action_move_pointer(self, by: int) -> None:
        """The arrows work in the list while the search field has the focus."""
        if by > 0:
            self._list.action_cursor_down()
        else:
            self._list.action_cursor_up()

    def action_act(self, action: ChatAction) -> None:
        self._actions.run(action)

    def action_back(self) -> None:
        """Clears a search, else closes the list."""
        if self._field.has_focus or self._search_text:
            self._field.value = ""
            self._list.focus()
        else:
            self.dismiss(None)

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def _open_selected(self) -> None:
        row = self._list.highlighted_row
        if row is not None and row.chat_id is not None:
            self.dismiss(ChatChoice(row.chat_id, row.found))
