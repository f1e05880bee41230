"""The preferences screen: every setting of config.toml with its value, help and origin."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, Label, Static

from localspec import config
from localspec.config import (
    SETTINGS,
    EffectiveConfig,
    EffectiveSetting,
    key_table,
    toml_file,
)
from localspec.config.options import TABLES
from localspec.errors import LocalspecError, UsageError
from localspec.tui.app_options import AppOptions
from localspec.tui.key_bindings import bindings_for, format_footer
from localspec.tui.notices import problem_text
from localspec.tui.terminal import lend_terminal
from localspec.tui.text.wrapping import fit_to_width, one_line
from localspec.tui.widgets.pointer_list import FieldRow
from localspec.tui.widgets.screen_frame import (
    CenteredLayout,
    KeyLine,
    RaisedColumn,
    TitleLine,
)


@dataclass(eq=False)
class PreferenceChanged(Message):
    """A value was typed or chosen. Empty text resets it to its default."""

    key: str
    text: str


class PreferenceCycle(Static, can_focus=True):
    """A setting with a few values.

    Read-only while an option or a variable overrides the file.
    """

    BINDINGS = [  # noqa: RUF012
        Binding("right,space,enter", "turn(1)", "Next value"),
        Binding("left", "turn(-1)", "Previous value"),
    ]

    def __init__(self, setting: EffectiveSetting) -> None:
        super().__init__(markup=False, name=setting.option.key)
        self.set_setting(setting)

    def set_setting(self, setting: EffectiveSetting) -> None:
        self._setting = setting
        self.refresh()

    def watch_has_focus(self, focused: bool) -> None:
        super().watch_has_focus(focused)
        self.refresh()

    def render(self) -> Content:
        value = self._setting.option.display(self._setting.current)
        if self.has_focus and not self._setting.is_overridden:
            value = f"‹ {value} ›"
        return Content(value)

    def action_turn(self, by: int) -> None:
        if self._setting.is_overridden:
            return
        option = self._setting.option
        words = list(option.value_type.all_words())
        index = words.index(option.value_type.format(self._setting.current))
        word = words[(index + by) % len(words)]
        self.post_message(PreferenceChanged(option.key, word))


class PreferenceInput(Input):
    def __init__(self, setting: EffectiveSetting) -> None:
        super().__init__(
            name=setting.option.key,
            placeholder=setting.option.display(setting.option.default),
            compact=True,
            select_on_focus=True,
        )
        self.cursor_blink = False
        self.set_setting(setting)

    def set_setting(self, setting: EffectiveSetting) -> None:
        """Shows the saved value, unless the user is typing."""
        self._saved_text = setting.option.value_type.format(setting.current)
        if not self.has_focus:
            self.value = self._saved_text

    @property
    def is_edited(self) -> bool:
        return self.value.strip() != self._saved_text

    @on(Input.Blurred)
    @on(Input.Submitted)
    def commit(self) -> None:
        if self.is_edited and self.name:
            self.post_message(PreferenceChanged(self.name, self.value))


class PreferenceLink(Static, can_focus=True):
    """Opens config.toml, which has the shortcuts, in the user's editor."""

    BINDINGS = [Binding("enter,space,right", "screen.edit", "Open")]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(name="keys", markup=False)


class PreferenceRow(FieldRow):
    def __init__(self, setting: EffectiveSetting) -> None:
        super().__init__(classes="preference")
        self.setting = setting
        self.field: PreferenceInput | PreferenceCycle
        if setting.option.value_type.words or setting.is_overridden:
            self.field = PreferenceCycle(setting)
        else:
            self.field = PreferenceInput(setting)

    def compose(self) -> ComposeResult:
        yield Label(self.setting.option.label, markup=False)
        yield self.field
        yield Static(Content(self.setting.origin_text), classes="origin", markup=False)

    def set_setting(self, setting: EffectiveSetting) -> None:
        self.setting = setting
        self.field.set_setting(setting)
        self.query_one(".origin", Static).update(Content(setting.origin_text))


_KEYS_HELP = (
    "All shortcuts can be changed: enter opens the file in your editor. "
    "`localspec config list --keys` lists the actions."
)


def read_config(options: AppOptions) -> EffectiveConfig:
    return config.resolve(flags=options.flags, key_ids=key_table.BINDINGS_BY_ID)


class PreferencesScreen(CenteredLayout, Screen[None]):
    """Valid values are saved at once; invalid ones are explained at the bottom."""

    BINDINGS = [  # noqa: RUF012
        *bindings_for("preferences"),
        # Priority bindings: fast typing after the key must go to the next field.
        Binding("tab,down", "app.focus_next", "Next", priority=True),
        Binding("shift+tab,up", "app.focus_previous", "Previous", priority=True),
    ]

    def __init__(
        self, options: AppOptions, apply_config: Callable[[EffectiveConfig], None]
    ) -> None:
        super().__init__()
        self._options = options
        self._apply_config = apply_config
        self._view = read_config(options)
        # By key: why the value in its field is invalid.
        self._value_errors: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        yield TitleLine("Preferences")
        with VerticalScroll(id="values", can_focus=False):
            yield Static("", id="trouble", markup=False)
            classes = "heading -first"
            for table, heading in TABLES.items():
                if heading:
                    yield Static(heading, classes=classes, markup=False)
                    classes = "heading"
                for setting in self._view.settings.values():
                    if setting.option.key.startswith(f"{table}."):
                        yield PreferenceRow(setting)
            with FieldRow(classes="preference"):
                yield Label("keyboard shortcuts", markup=False)
                yield PreferenceLink()
                yield Static("", classes="origin", markup=False)
        with RaisedColumn(id="foot"):
            yield Static("", id="help-line", markup=False)
            yield Static("", id="where", markup=False)
            yield KeyLine()

    def on_mount(self) -> None:
        self._draw()
        self.set_focus(next(iter(self.query(PreferenceRow))).field)

    def on_resize(self) -> None:
        self._update_help()

    def reload_config(self) -> None:
        """To call after the file was changed here, by another screen or in an editor."""
        self._view = read_config(self._options)
        self._apply_config(self._view)
        for row in self.query(PreferenceRow):
            row.set_setting(self._view.settings[row.setting.option.key])
        self._draw()

    def _draw(self) -> None:
        errors = self.query_one("#trouble", Static)
        errors.update(Content("\n".join(self._options.settings_errors)))
        errors.display = bool(self._options.settings_errors)
        n_changed = len(self._options.keymap)
        keys = f"{n_changed} changed" if n_changed else "default"
        self.query_one(PreferenceLink).update(Content(keys))
        self._update_help()

    def _update_help(self) -> None:
        """Help or error of the focused setting, and its line in the file."""
        setting = self._focused_value
        key = "keys"
        help_text = _KEYS_HELP
        config_line = "[keys]"
        if setting is not None:
            key = setting.option.key
            help_text = _help_text(setting)
            config_line = _config_line(setting)
        error = self._value_errors.get(key) or next(
            iter(self._value_errors.values()), ""
        )
        help_line = self.query_one("#help-line", Static)
        help_line.update(Content(error or help_text))
        help_line.set_class(bool(error), "-wrong")
        width = min(self.size.width - 4, 100)
        path = _fit_path(str(self._view.file.path), width - len(config_line) - 3)
        where = config_line + path.rjust(width - len(config_line))
        self.query_one("#where", Static).update(Content(where))
        keys = (self._change_hint(), format_footer(self._options.keymap, "preferences"))
        self.query_one(KeyLine).show_keys("  ".join(filter(None, keys)))

    def _change_hint(self) -> str:
        """The keys that change the focused value.

        In a text field the arrows move the cursor.
        """
        if isinstance(self.focused, PreferenceInput):
            return "enter save"
        if isinstance(self.focused, PreferenceLink):
            return "enter edit"
        setting = self._focused_value
        if setting is not None and setting.is_overridden:
            return ""
        return "←→ change"

    @property
    def _focused_value(self) -> EffectiveSetting | None:
        return self._view.settings.get(str(getattr(self.focused, "name", None)))

    def on_descendant_focus(self) -> None:
        self._update_help()

    @on(Input.Changed)
    def _check_input(self, event: Input.Changed) -> None:
        assert event.input.name is not None, "each field has the key of its setting"
        option = SETTINGS[event.input.name]
        self._value_errors.pop(option.key, None)
        try:
            if event.value.strip():
                option.value_type.parse(event.value)
        except (ValueError, UsageError):
            self._value_errors[option.key] = (
                f"{option.key} must be {option.value_type.expects}."
            )
        event.input.set_class(option.key in self._value_errors, "-wrong")
        self._update_help()

    @on(Input.Submitted)
    def _go_to_next_field(self) -> None:
        self.focus_next()

    @on(PreferenceChanged)
    def _save_value(self, message: PreferenceChanged) -> None:
        key = message.key
        text = message.text.strip()
        try:
            value = toml_file.parse_value(SETTINGS[key], text) if text else None
            toml_file.set_value(key, value)
        except LocalspecError as error:
            # The hint of a damaged file is shown at the top already.
            hint = error.hint if not self._view.file.error else ""
            reason = one_line(f"{error.message} {hint}")
            self._value_errors[key] = reason
            self._update_help()
        else:
            self._value_errors.pop(key, None)
            self.reload_config()
        for field in self.query(PreferenceInput):
            field.set_class(field.name in self._value_errors, "-wrong")

    def action_reset(self) -> None:
        setting = self._focused_value
        if setting is None:
            return
        option = setting.option
        self._save_value(PreferenceChanged(option.key, ""))
        if isinstance(self.focused, PreferenceInput):
            default = self._view.get(option.key)
            self.focused.value = option.value_type.format(default)

    def action_edit(self) -> None:
        """Opens the file in the user's editor.

        Keys that are wrong there leave the old ones.
        """
        try:
            with lend_terminal(self.app):
                toml_file.open_in_editor()
        except SuspendNotSupported:
            self.notify("Use the command line: localspec config edit", markup=False)
        except LocalspecError as error:
            text = f"{problem_text(error)} The file is {self._view.file.path}"
            self.notify(one_line(text), severity="warning", markup=False)
        self.reload_config()
        for problem in self._options.settings_errors[:1]:  # the top may be out of sight
            self.notify(problem, severity="warning", markup=False)

    def action_back(self) -> None:
        """Saves the field being edited; notifies about values that were not saved."""
        field = self.focused
        if isinstance(field, PreferenceInput) and field.is_edited:
            self._save_value(PreferenceChanged(str(field.name), field.value))
        for reason in self._value_errors.values():
            self.notify(f"Not saved: {reason}", severity="warning", markup=False)
        self.dismiss()


def _help_text(setting: EffectiveSetting) -> str:
    help_text = setting.option.help
    if setting.is_overridden:
        source = "variable is set"
        if setting.origin == "command line":
            source = "option is given"
        return (
            f"{help_text} {setting.origin_text} overrides the file while the {source}."
        )
    effect = setting.option.setting.takes_effect
    if effect:
        return f"{help_text} Changes take effect {effect}."
    return help_text


def _fit_path(path: str, width: int) -> str:
    """The path, or its end; empty if there is little room."""
    path = one_line(path)
    if len(path) <= width:
        return path
    if width <= 12:
        return ""
    return f"…{path[1 - width :]}"


def _config_line(setting: EffectiveSetting) -> str:
    value = setting.option.value_type.to_toml(setting.current)
    text = "…" if value is None else json.dumps(value, ensure_ascii=False)
    return fit_to_width(f"{setting.option.key} = {text}", 44)
