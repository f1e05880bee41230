"""The settings sheet of a chat: the system prompt, then settings in groups."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Label, Static, TextArea

from localspec.chat.session import ChatSession
from localspec.chat.settings import CHAT_SETTING_FIELDS, group_setting_fields
from localspec.config.option_types import Option
from localspec.errors import UsageError
from localspec.sanitize import sanitize
from localspec.tui.notices import problem_text
from localspec.tui.widgets.pointer_list import FieldRow

_SYSTEM_HINT = "instructions that the model reads first"


class ChatSettingsScreen(ModalScreen[None]):
    """A valid value applies when its field is left; an invalid one changes nothing."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape,f4", "close", "Close"),
        # Priority bindings: fast typing after the key must go to the next field.
        Binding("tab", "go(1)", "Next", priority=True),
        Binding("shift+tab", "go(-1)", "Previous", priority=True),
        Binding("down", "go_vertically(1)", "Next", priority=True),
        Binding("up", "go_vertically(-1)", "Previous", priority=True),
    ]

    def __init__(self, session: ChatSession, first_field: str = "") -> None:
        """`first_field`: the name of the setting that gets the focus."""
        super().__init__()
        self._session = session
        self._first_field = first_field
        self._error = ""  # Why the value that was typed last is invalid.

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="sheet", can_focus=False):
            yield Static(
                "Settings for the next answer", classes="heading", markup=False
            )
            yield Static(Content(self._describe_model()), id="model", markup=False)
            yield Static("System prompt", classes="group", markup=False)
            text = sanitize(self._session.conversation.system)
            system_prompt = TextArea(
                text, id="system", compact=True, placeholder=_SYSTEM_HINT
            )
            system_prompt.cursor_blink = False
            yield system_prompt
            for heading, fields in group_setting_fields().items():
                yield Static(heading, classes="group", markup=False)
                for field in fields:
                    yield self._make_row(field)
            with Vertical(id="foot"):  # stays visible in short terminals
                yield Static("", id="wrong", markup=False)
                yield Static("enter, tab next   esc done", classes="hint", markup=False)

    def _make_row(self, field: Option) -> FieldRow:
        return FieldRow(
            Label(field.label, markup=False),
            Input(
                self._session.settings.format_value(field.name),
                name=field.name,
                compact=True,
                select_on_focus=True,
            ),
            Label(
                self._find_source(field.name),
                name=field.name,
                classes="source",
                markup=False,
            ),
            classes="setting",
        )

    def _find_source(self, name: str) -> Content:
        suggested = self._session.pair.suggested_settings
        return Content(self._session.settings.find_source(name, suggested))

    def _describe_model(self) -> str:
        session = self._session
        if session.loaded is None:
            return session.pair_name
        used = f"{session.answer.context_tokens:,} of {session.loaded.n_ctx:,}"
        return f"{session.pair_name}\ncontext: {used} tokens"

    def on_mount(self) -> None:
        fields = {field.name: field for field in self.query(Input)}
        for field in fields.values():
            field.cursor_blink = False
        asked_field = fields.get(self._first_field)
        first = asked_field or next(iter(fields.values()))
        # At once: a paste may follow immediately. Without a field that was asked for,
        # the sheet begins with its first line.
        self.set_focus(first, scroll_visible=asked_field is not None)

    @on(Input.Changed)
    def _check_typed_value(self, event: Input.Changed) -> None:
        self._error = self._find_error(event.input)
        event.input.set_class(bool(self._error), "-wrong")
        self._update_hint()

    def _find_error(self, field: Input) -> str:
        try:
            self._session.with_setting(field.name or "", field.value)
        except UsageError as error:
            return problem_text(error)
        return ""

    def _apply_value(self, field: Widget | None) -> bool:
        """Applies a field's value; returns False if it is invalid.

        Then the old value comes back, and the error is shown.
        """
        if not isinstance(field, Input):
            return True
        name = field.name or ""
        self._error = self._find_error(field)
        if not self._error:
            self._session.settings = self._session.with_setting(name, field.value)
        with field.prevent(Input.Changed):
            field.value = self._session.settings.format_value(name)
        for label in self.query(".source").results(Label):
            label.update(self._find_source(label.name or ""))
        field.remove_class("-wrong")
        if self._error:
            field.select_all()
        self._update_hint()
        return not self._error

    @on(Input.Blurred)
    def _apply_on_blur(self, event: Input.Blurred) -> None:
        if self.app.app_focus:  # not when another window comes to the front
            self._apply_value(event.input)

    @on(Input.Submitted)
    def _submit_value(self) -> None:
        self.action_go(1)

    def on_descendant_focus(self) -> None:
        self._update_hint()

    def _update_hint(self) -> None:
        field = CHAT_SETTING_FIELDS.get(str(getattr(self.focused, "name", None)))
        hint = field.hint if field else _SYSTEM_HINT
        line = self.query_one("#wrong", Static)
        line.update(Content(self._error or hint))
        line.set_class(bool(self._error), "-wrong")

    @on(TextArea.Changed, "#system")
    def _apply_system_prompt(self, event: TextArea.Changed) -> None:
        self._session.conversation.system = event.text_area.text.strip("\n")

    def action_go(self, by: int) -> None:
        """Moves between fields, unless the value of this one is invalid."""
        if not self._apply_value(self.focused):
            return
        if by > 0:
            self.focus_next()
        else:
            self.focus_previous()

    def action_go_vertically(self, by: int) -> None:
        """Between the lines of the system prompt first."""
        field = self.focused
        if isinstance(field, TextArea):
            before = field.cursor_location
            if by > 0:
                field.action_cursor_down()
            else:
                field.action_cursor_up()
            if field.cursor_location != before:
                return
        self.action_go(by)

    def action_close(self) -> None:
        if not self._apply_value(self.focused):
            self.notify(f"Not changed: {self._error}", severity="warning", markup=False)
        self.dismiss()
