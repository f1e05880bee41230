"""Preferences: config.toml on one screen, each value with its words and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable

from textual import on
from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, Label, Static

from localspec import config
from localspec.config import SETTINGS, EffectiveConfig, EffectiveSetting, toml_file
from localspec.config.schema import TABLES
from localspec.errors import LocalspecError
from localspec.sanitize import sanitize
from localspec.tui import key_bindings
from localspec.tui.app_options import AppOptions
from localspec.tui.centered import CenteredLayout
from localspec.tui.key_bindings import bindings_for, fit_footer, format_footer
from localspec.tui.screens.key_editor import KeyEditorScreen
from localspec.tui.text.wrapping import fit_to_width

# --- One setting in a line: its words, its value to be changed in place, and where it comes from.


class PreferenceChanged(Message):
    """A person wrote or chose a value; empty text: as it comes."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__()
        self.key, self.text = key, text


class PreferenceCycle(Static, can_focus=True):
    """A few words in turns.  One that the file does not decide now only shows its value."""

    BINDINGS = [  # noqa: RUF012
        Binding("right,space,enter", "turn(1)", "Next value"),
        Binding("left", "turn(-1)", "Value before"),
    ]

    def __init__(self, setting: EffectiveSetting) -> None:
        super().__init__(markup=False, name=setting.definition.key)
        self.set_setting(setting)

    def set_setting(self, setting: EffectiveSetting) -> None:
        self._setting = setting
        self._draw()

    def watch_has_focus(self, focused: bool) -> None:
        super().watch_has_focus(focused)
        self._draw()

    def _draw(self) -> None:
        word = self._setting.definition.display(self._setting.current)
        turning = self.has_focus and not self._setting.is_overridden
        self.update(Content(f"‹ {word} ›" if turning else word))

    def action_turn(self, by: int) -> None:
        if self._setting.is_overridden:
            return
        kind = self._setting.definition.value_type
        words = kind.choices
        at = words.index(kind.format(self._setting.current))
        self.post_message(
            PreferenceChanged(self._setting.definition.key, words[(at + by) % len(words)])
        )


class PreferenceInput(Input):
    """A text, taken over with enter or where one leaves it."""

    def __init__(self, setting: EffectiveSetting) -> None:
        super().__init__(
            name=setting.definition.key,
            placeholder=setting.definition.display(setting.definition.default),
            compact=True,
            select_on_focus=True,
        )
        self.cursor_blink = False
        self.set_setting(setting)

    def set_setting(self, setting: EffectiveSetting) -> None:
        """What holds; not while somebody writes something else."""
        self._saved_text = setting.definition.value_type.format(setting.current)
        if not self.has_focus:
            self.value = self._saved_text

    def on_blur(self) -> None:
        self.commit()

    def on_input_submitted(self) -> None:
        self.commit()

    @property
    def is_edited(self) -> bool:
        """Whether something else stands here than what holds."""
        return self.value.strip() != self._saved_text

    def commit(self) -> None:
        if self.is_edited and self.name:
            self.post_message(PreferenceChanged(self.name, self.value))


class PreferenceLink(Static, can_focus=True):
    """Leads to a screen of its own."""

    BINDINGS = [Binding("enter,space,right", "open", "Open")]  # noqa: RUF012

    def __init__(self, action: str, name: str) -> None:
        super().__init__(markup=False, name=name)
        self._action = action

    async def action_open(self) -> None:
        await self.screen.run_action(self._action)


class PreferenceRow(Horizontal):
    """The line."""

    def __init__(self, setting: EffectiveSetting) -> None:
        super().__init__(classes="preference")
        self.setting = setting
        writes = not setting.definition.value_type.choices and not setting.is_overridden
        self.field = PreferenceInput(setting) if writes else PreferenceCycle(setting)

    def compose(self) -> ComposeResult:
        yield Label(self.setting.definition.label, markup=False)
        yield self.field
        yield Static(Content(self.setting.origin_text), classes="origin", markup=False)

    def set_setting(self, setting: EffectiveSetting) -> None:
        """Its value changed, here or elsewhere."""
        self.setting = setting
        self.field.set_setting(setting)
        self.query_one(".origin", Static).update(Content(setting.origin_text))


# --- Preferences: config.toml on one screen, each value with its words and where it comes from.

_KEYS_LABEL = "keys of the app"
_KEYS_HELP = "Every key can be another one. Enter lists them."
_CHANGE_HINT = "←→ change"


def read_config(options: AppOptions) -> EffectiveConfig:
    """As it is now, in the file and around it."""
    return config.resolve(flags=options.flags, key_ids=frozenset(key_bindings.BINDINGS_BY_ID))


class PreferencesScreen(CenteredLayout, Screen[None]):
    """What is wrong is said below, and not taken over; what is right is in the file at once."""

    BINDINGS = [  # noqa: RUF012
        *bindings_for("preferences"),
        # Before the field sees them: what is typed next belongs to the next field already.
        Binding("tab,down", "app.focus_next", "Next", priority=True),
        Binding("shift+tab,up", "app.focus_previous", "Previous", priority=True),
    ]

    def __init__(
        self, options: AppOptions, apply_config: Callable[[EffectiveConfig], None]
    ) -> None:
        """`changed` puts what holds now to use."""
        super().__init__()
        self._options = options
        self._apply_config = apply_config
        self._view = read_config(options)
        self._value_errors: dict[str, str] = {}
        """By key: why what stands in its field is not taken over."""

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("Preferences", id="brand", markup=False)
        with VerticalScroll(id="values", can_focus=False):
            yield Static("", id="trouble", markup=False)
            for table, heading in TABLES.items():
                if heading:
                    yield Static(heading, classes="heading", markup=False)
                for held in self._view.settings.values():
                    if held.definition.table == table:
                        yield PreferenceRow(held)
            with Horizontal(classes="preference"):
                yield Label(_KEYS_LABEL, markup=False)
                yield PreferenceLink("keyboard", name="keys")
                yield Static("", classes="origin", markup=False)
        with Vertical(id="foot"):
            yield Static("", id="said", markup=False)
            yield Static("", id="where", markup=False)
            yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self._draw()
        self.set_focus(next(iter(self.query(PreferenceRow))).field)

    def on_resize(self) -> None:
        self._update_help()

    # --- what holds -----------------------------------------------------------------------

    def reload_config(self) -> None:
        """The file was changed: here, with another screen, or in an editor."""
        self._view = read_config(self._options)
        self._apply_config(self._view)
        for line in self.query(PreferenceRow):
            line.set_setting(self._view.settings[line.setting.definition.key])
        self._draw()

    def _draw(self) -> None:
        trouble = self.query_one("#trouble", Static)
        trouble.update(Content("\n".join(self._options.settings_errors)))
        trouble.display = bool(self._options.settings_errors)
        own = len(self._options.keymap)
        self.query_one(PreferenceLink).update(
            Content(f"{own} of your own" if own else "as they come")
        )
        self._update_help()

    def _update_help(self) -> None:
        """Of the value one stands on: what it does, or what is wrong; its place in the file."""
        held = self._focused_value
        key = held.definition.key if held else "keys"
        wrong = self._value_errors.get(key) or next(iter(self._value_errors.values()), "")
        said = self.query_one("#said", Static)
        said.update(Content(wrong or (_help_text(held) if held else _KEYS_HELP)))
        said.set_class(bool(wrong), "-wrong")
        wide = min(self.size.width - 4, 100)
        line = _config_line(held) if held else "[keys]"
        path = _shorten_path(
            sanitize(str(self._view.file.path), multiline=False), wide - len(line) - 3
        )
        self.query_one("#where", Static).update(Content(f"{line}{path.rjust(wide - len(line))}"))
        keys = f"{_CHANGE_HINT}  {format_footer(self._options.keymap, 'preferences')}"
        self.query_one("#hints", Static).update(Content(fit_footer(keys, wide)))

    @property
    def _focused_value(self) -> EffectiveSetting | None:
        """The value one stands on."""
        return self._view.settings.get(str(getattr(self.focused, "name", None)))

    def on_descendant_focus(self) -> None:
        self._update_help()

    # --- changes --------------------------------------------------------------------------

    @on(Input.Changed)
    def _check_input(self, event: Input.Changed) -> None:
        """Whether what stands there so far could be taken over."""
        value, text = SETTINGS[event.input.name or ""], event.value
        self._value_errors.pop(value.key, None)
        try:
            if text.strip():
                value.value_type.parse(text)
        except ValueError:
            self._value_errors[value.key] = f"{value.key} must be {value.value_type.expects}."
        event.input.set_class(value.key in self._value_errors, "-wrong")
        self._update_help()

    @on(Input.Submitted)
    def _go_to_next_field(self) -> None:
        self.focus_next()

    @on(PreferenceChanged)
    def _save_value(self, message: PreferenceChanged) -> None:
        """Into the file, and into use."""
        value = SETTINGS[message.key]
        try:
            new = toml_file.parse_value(value, message.text) if message.text.strip() else None
            toml_file.set_value(value.key, new)
        except LocalspecError as error:
            hint = error.hint if self._view.file.error is None else ""  # it is said above
            self._show_error(value.key, f"{error.message} {hint}")
        else:
            self._value_errors.pop(value.key, None)
            self.reload_config()
        for field in self.query(PreferenceInput):
            field.set_class(field.name in self._value_errors, "-wrong")

    def _show_error(self, key: str, reason: str) -> None:
        self._value_errors[key] = sanitize(reason, multiline=False)
        self._update_help()

    # --- keys -----------------------------------------------------------------------------

    def action_reset(self) -> None:
        """As it comes: the value goes out of the file."""
        held = self._focused_value
        if held is not None:
            self._value_errors.pop(held.definition.key, None)
            self._save_value(PreferenceChanged(held.definition.key, ""))
            if isinstance(self.focused, PreferenceInput):
                self.focused.value = held.definition.value_type.format(
                    self._view.get(held.definition.key)
                )

    def action_keyboard(self) -> None:
        def on_dismiss(_: None) -> None:
            self.reload_config()

        self.app.push_screen(KeyEditorScreen(self._options, self._apply_config), on_dismiss)

    def action_edit(self) -> None:
        """In the person's own editor; what is wrong with the file afterwards is said."""
        try:
            with self.app.suspend():
                toml_file.open_in_editor()
        except SuspendNotSupported:
            self.notify("On the command line: localspec config edit", markup=False)
        except LocalspecError as error:
            words = sanitize(f"{error.message} {error.hint}", multiline=False)
            self.notify(words, severity="warning", markup=False)
        self.reload_config()

    def action_back(self) -> None:
        """What was written last is taken over before, or it is said that it is not."""
        field = self.focused
        if isinstance(field, PreferenceInput) and field.is_edited:
            self._save_value(PreferenceChanged(str(field.name), field.value))
        for why in self._value_errors.values():
            self.notify(f"Not taken over: {why}", severity="warning", markup=False)
        self.dismiss()


def _help_text(held: EffectiveSetting) -> str:
    """Its help, and from when a change counts."""
    if held.is_overridden:
        what = "option was given" if held.origin == "command line" else "variable is set"
        return (
            f"{held.definition.help} {held.origin_text} "
            f"goes before the file, as long as the {what}."
        )
    when = f" Changes count {held.definition.takes_effect}." if held.definition.takes_effect else ""
    return f"{held.definition.help}{when}"


def _config_line(held: EffectiveSetting) -> str:
    """How it stands in the file, or would."""
    if held.current is None:
        return f"{held.definition.key} = …"
    return fit_to_width(
        f"{held.definition.key} = {json.dumps(held.current, ensure_ascii=False)}", 44, "…"
    )


def _shorten_path(path: str, width: int) -> str:
    """Of a path that is too long, its end."""
    if len(path) <= width:
        return path
    return f"…{path[1 - width :]}" if width > 12 else ""
