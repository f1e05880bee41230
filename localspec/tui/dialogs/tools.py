"""The dialog of the tools of a chat: servers, their state, and which tools are on."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static

from localspec.errors import LocalspecError
from localspec.report.tool_calls import (
    describe_claims,
    describe_description,
    shorten_name,
)
from localspec.tools import folder_tools
from localspec.tools.background_connections import ServerState
from localspec.tools.tool_types import ToolDefinition
from localspec.tui.chat_tools import ChatTools
from localspec.tui.notices import problem_text
from localspec.tui.text.wrapping import one_line
from localspec.tui.widgets.pointer_list import PointerList

_POLL_SECONDS = 0.5
_EMPTY = (
    "This chat has no tools.\n\n"
    "/folder DIR lets the model read the files of a folder.\n"
    "localspec tools add NAME COMMAND adds a server, for all chats.\n\n"
    "The model asks before each call."
)
_KEY_HINTS = "space on or off   s all of its server   a ask again   esc done"


class ToolRow(Struct, frozen=True):
    """A tool as the list shows it."""

    tool: ToolDefinition
    is_enabled: bool
    is_always_allowed: bool


class ToolsScreen(ModalScreen[None]):
    """Space turns a tool on or off for this chat."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape,q", "dismiss", "Done"),
        Binding("space", "switch", "On or off"),
        Binding("s", "switch_server", "All tools of the server"),
        Binding("a", "ask_again", "Ask again"),
    ]
    AUTO_FOCUS = "#tools"

    def __init__(self, tools: ChatTools) -> None:
        super().__init__()
        self._tools = tools
        self._drawn: tuple[object, ...] = ()
        """What the list shows: it is filled again only if that has changed."""

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static("Tools of this chat", classes="heading", markup=False)
            yield PointerList("tools", lambda row: row.tool.full_name, _draw_row)
            yield Static(_EMPTY, id="no-tools", markup=False)
            yield Static(id="tool-about", markup=False)
            yield Static(_KEY_HINTS, classes="hint", markup=False)

    def on_mount(self) -> None:
        self._fill_list()
        self.set_interval(_POLL_SECONDS, self._fill_list)

    @property
    def _list(self) -> PointerList[ToolRow]:
        return self.query_one("#tools", PointerList)

    def _read_rows(self) -> list[ToolRow]:
        toolbox = self._tools.toolbox
        saved = self._tools.session.approvals.allowed_always()
        allowed = {each.tool: each.fingerprint for each in saved}
        rows: list[ToolRow] = []
        for tool in toolbox.all_definitions():
            # A fingerprint is computed of a whole schema.
            known = allowed.get(tool.full_name)
            row = ToolRow(
                tool,
                is_enabled=toolbox.is_enabled(tool.full_name),
                is_always_allowed=known is not None and known == tool.fingerprint,
            )
            rows.append(row)
        return rows

    def _fill_list(self) -> None:
        """Servers may connect, or change their tools, while the dialog is open."""
        rows = self._read_rows()
        servers = self._tools.connections.states
        shown = (rows, servers)
        if shown == self._drawn:
            return
        self._drawn = shown
        self._list.set_sections(_make_sections(rows, servers))
        is_empty = not rows and not servers
        self._list.display = not is_empty
        self.query_one("#no-tools").display = is_empty
        self._show_about()

    @on(OptionList.OptionHighlighted)
    def _show_about(self) -> None:
        row = self._list.highlighted_row
        text = ""
        if row is not None:
            parts = [describe_description(row.tool), describe_claims(row.tool)]
            text = " ".join(part for part in parts if part)
        self.query_one("#tool-about", Static).update(Content(text))

    @on(OptionList.OptionSelected)
    def _toggle_selected(self) -> None:
        self.action_switch()

    def action_switch(self) -> None:
        row = self._list.highlighted_row
        if row is not None:
            self._set_enabled(row.tool.full_name, enabled=not row.is_enabled)

    def action_switch_server(self) -> None:
        row = self._list.highlighted_row
        if row is not None:
            self._set_enabled(row.tool.provider, enabled=not row.is_enabled)

    def _set_enabled(self, name: str, *, enabled: bool) -> None:
        try:
            self._tools.toolbox.set_enabled(name, enabled)
        except LocalspecError as error:  # the server has just taken it away
            self.notify(problem_text(error), severity="warning", markup=False)
        self._fill_list()

    def action_ask_again(self) -> None:
        """Takes back what was allowed."""
        row = self._list.highlighted_row
        if row is None:
            return
        tool = row.tool
        try:
            self._tools.session.approvals.forget(tool.full_name)
        except LocalspecError as error:
            self.notify(problem_text(error), severity="warning", markup=False)
        else:
            name = shorten_name(tool.full_name)
            self.notify(f"{name} is asked for at its next call.", markup=False)
        self._fill_list()


def _draw_row(row: ToolRow) -> Content:
    mark = " "
    style = "$muted"
    state = "off"
    if row.is_enabled:
        mark = "•"
        style = ""
        state = "on"
        if row.is_always_allowed:
            state = "on, always allowed"
    name = shorten_name(row.tool.name)
    return Content.assemble((f"{mark} {name}", style), (f"  {state}", "$muted"))


def _make_sections(
    rows: Sequence[ToolRow], servers: Sequence[ServerState]
) -> list[tuple[Content, list[ToolRow]]]:
    """The folder first, then the servers in the order of the settings."""
    sections: list[tuple[Content, list[ToolRow]]] = []
    names = [folder_tools.PROVIDER, *(server.name for server in servers)]
    for name in dict.fromkeys([*names, *(row.tool.provider for row in rows)]):
        own_rows = [row for row in rows if row.tool.provider == name]
        states = [server for server in servers if server.name == name]
        if own_rows or states:
            sections.append((_draw_heading(name, own_rows, states), own_rows))
    return sections


def _draw_heading(
    name: str, rows: Sequence[ToolRow], states: Sequence[ServerState]
) -> Content:
    about = ""
    if states:
        state = states[0]
        about = f"{state.phase} · {state.settings.address}"
        if state.error is not None:
            about = f"{state.phase} · {problem_text(state.error)}"
    elif rows:
        about = rows[0].tool.origin
    return Content.assemble(
        (shorten_name(name), "bold"), (f"  {one_line(about)}", "$muted")
    )
