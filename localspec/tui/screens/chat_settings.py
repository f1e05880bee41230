"""The settings sheet of a chat: sampling, limits and system prompt for the next answer."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static, TextArea

from localspec.chat.settings import CHAT_SETTING_FIELDS
from localspec.errors import UsageError
from localspec.sanitize import sanitize
from localspec.tui.chat_session import ChatSession


class ChatSettingsScreen(ModalScreen[None]):
    """Valid values apply at once; invalid ones are explained at the bottom and not applied."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape,f4", "close", "Close"),
        # Priority bindings: fast typing after the key must go to the next field.
        Binding("tab", "app.focus_next", "Next", priority=True),
        Binding("shift+tab", "app.focus_previous", "Previous", priority=True),
        Binding("down", "go(1)", "Next", priority=True),
        Binding("up", "go(-1)", "Previous", priority=True),
    ]

    def __init__(self, session: ChatSession) -> None:
        super().__init__()
        self._session = session
        self._field_errors: dict[str, str] = {}
        """By field: why the typed value is invalid."""

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="sheet", can_focus=False):
            yield Static("Settings for the next answer", classes="heading", markup=False)
            for field in CHAT_SETTING_FIELDS.values():
                with Horizontal(classes="setting"):
                    yield Label(field.label, markup=False)
                    yield Input(
                        self._session.settings.format_value(field.name),
                        name=field.name,
                        compact=True,
                        select_on_focus=True,
                    )
            yield Static("System prompt", classes="heading", markup=False)
            system_prompt = TextArea(
                sanitize(self._session.conversation.system), id="system", compact=True
            )
            system_prompt.cursor_blink = False
            yield system_prompt
            with Vertical(id="foot"):  # stays visible in short terminals
                yield Static("", id="wrong", markup=False)
                yield Static("enter, tab next   esc done", classes="hint", markup=False)

    def on_mount(self) -> None:
        for field in self.query(Input):
            field.cursor_blink = False
        self.set_focus(self.query(Input).first())  # at once: a paste may follow immediately

    @on(Input.Changed)
    def _apply_value(self, event: Input.Changed) -> None:
        name = event.input.name or ""
        try:
            self._session.settings = self._session.changed(name, event.value)
        except UsageError as error:
            self._field_errors[name] = f"{error.message} {error.hint}"
        else:
            self._field_errors.pop(name, None)
        event.input.set_class(name in self._field_errors, "-wrong")
        self._update_hint()

    @on(Input.Submitted)
    def _go_to_next_field(self) -> None:
        self.focus_next()

    def on_descendant_focus(self) -> None:
        self._update_hint()

    def _update_hint(self) -> None:
        """The error of the focused field, or of another; otherwise the field's hint."""
        name = str(getattr(self.focused, "name", None))
        hint = (
            CHAT_SETTING_FIELDS[name].hint
            if name in CHAT_SETTING_FIELDS
            else "instructions that the model reads first"
        )
        error = self._field_errors.get(name) or next(iter(self._field_errors.values()), "")
        self.query_one("#wrong", Static).update(Content(error or hint))

    @on(TextArea.Changed, "#system")
    def _apply_system_prompt(self, event: TextArea.Changed) -> None:
        self._session.conversation.system = event.text_area.text.strip("\n")

    def action_go(self, by: int) -> None:
        """Moves between fields; inside the system prompt, between its lines first."""
        field = self.focused
        if isinstance(field, TextArea):
            before = field.cursor_location
            (field.action_cursor_down if by > 0 else field.action_cursor_up)()
            if field.cursor_location != before:
                return
        (self.focus_next if by > 0 else self.focus_previous)()

    def action_close(self) -> None:
        self.dismiss()
