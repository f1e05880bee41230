"""Preferences: config.toml on one screen, each value with its words and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable

from textual import on
from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, Label, Static

from localspec import config
from localspec.clean import clean
from localspec.config import VALUES, Held, View, editor, writing
from localspec.config.table import TABLES
from localspec.errors import LocalspecError
from localspec.tui import rebinding
from localspec.tui.keys import bindings, fitting, footer
from localspec.tui.middle import Middle
from localspec.tui.options import Options
from localspec.tui.screens.keyboard import KeyboardScreen
from localspec.tui.text.wrapping import fitted
from localspec.tui.widgets.preference import Opener, Preference, Wanted, Written

_KEYS = "keys of the app"
_ABOUT_KEYS = "Every key can be another one. Enter lists them."
_CHANGE = "←→ change"


def look(options: Options) -> View:
    """As it is now, in the file and around it."""
    return config.look(flags=options.flags, ids=frozenset(rebinding.BY_ID))


class PreferencesScreen(Middle, Screen[None]):
    """What is wrong is said below, and not taken over; what is right is in the file at once."""

    BINDINGS = [  # noqa: RUF012
        *bindings("preferences"),
        # Before the field sees them: what is typed next belongs to the next field already.
        Binding("tab,down", "app.focus_next", "Next", priority=True),
        Binding("shift+tab,up", "app.focus_previous", "Previous", priority=True),
    ]

    def __init__(self, options: Options, changed: Callable[[View], None]) -> None:
        """`changed` puts what holds now to use."""
        super().__init__()
        self._options = options
        self._changed = changed
        self._view = look(options)
        self._wrong: dict[str, str] = {}
        """By key: why what stands in its field is not taken over."""

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("Preferences", id="brand", markup=False)
        with VerticalScroll(id="values", can_focus=False):
            yield Static("", id="trouble", markup=False)
            for table, heading in TABLES.items():
                if heading:
                    yield Static(heading, classes="heading", markup=False)
                for held in self._view.held.values():
                    if held.value.table == table:
                        yield Preference(held)
            with Horizontal(classes="preference"):
                yield Label(_KEYS, markup=False)
                yield Opener("keyboard", name="keys")
                yield Static("", classes="origin", markup=False)
        with Vertical(id="foot"):
            yield Static("", id="said", markup=False)
            yield Static("", id="where", markup=False)
            yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self._draw()
        self.set_focus(next(iter(self.query(Preference))).field)

    def on_resize(self) -> None:
        self._explain()

    # --- what holds -----------------------------------------------------------------------

    def renew(self) -> None:
        """The file was changed: here, with another screen, or in an editor."""
        self._view = look(self._options)
        self._changed(self._view)
        for line in self.query(Preference):
            line.show(self._view.held[line.held.value.key])
        self._draw()

    def _draw(self) -> None:
        trouble = self.query_one("#trouble", Static)
        trouble.update(Content("\n".join(self._options.trouble)))
        trouble.display = bool(self._options.trouble)
        own = len(self._options.keymap)
        self.query_one(Opener).update(Content(f"{own} of your own" if own else "as they come"))
        self._explain()

    def _explain(self) -> None:
        """Of the value one stands on: what it does, or what is wrong; its place in the file."""
        held = self._held
        key = held.value.key if held else "keys"
        wrong = self._wrong.get(key) or next(iter(self._wrong.values()), "")
        said = self.query_one("#said", Static)
        said.update(Content(wrong or (_about(held) if held else _ABOUT_KEYS)))
        said.set_class(bool(wrong), "-wrong")
        wide = min(self.size.width - 4, 100)
        line = _line(held) if held else "[keys]"
        path = _end(clean(str(self._view.contents.path), multiline=False), wide - len(line) - 3)
        self.query_one("#where", Static).update(Content(f"{line}{path.rjust(wide - len(line))}"))
        keys = f"{_CHANGE}  {footer(self._options.keymap, 'preferences')}"
        self.query_one("#hints", Static).update(Content(fitting(keys, wide)))

    @property
    def _held(self) -> Held | None:
        """The value one stands on."""
        return self._view.held.get(str(getattr(self.focused, "name", None)))

    def on_descendant_focus(self) -> None:
        self._explain()

    # --- changes --------------------------------------------------------------------------

    @on(Input.Changed)
    def _typing(self, event: Input.Changed) -> None:
        """Whether what stands there so far could be taken over."""
        value, text = VALUES[event.input.name or ""], event.value
        self._wrong.pop(value.key, None)
        try:
            if text.strip():
                value.kind.typed(text)
        except ValueError:
            self._wrong[value.key] = f"{value.key} must be {value.kind.expects}."
        event.input.set_class(value.key in self._wrong, "-wrong")
        self._explain()

    @on(Input.Submitted)
    def _entered(self) -> None:
        self.focus_next()

    @on(Wanted)
    def _wanted(self, message: Wanted) -> None:
        """Into the file, and into use."""
        value = VALUES[message.key]
        try:
            new = writing.typed(value, message.text) if message.text.strip() else None
            writing.put(value.key, new)
        except LocalspecError as error:
            hint = error.hint if self._view.contents.damage is None else ""  # it is said above
            self._refuse(value.key, f"{error.message} {hint}")
        else:
            self._wrong.pop(value.key, None)
            self.renew()
        for field in self.query(Written):
            field.set_class(field.name in self._wrong, "-wrong")

    def _refuse(self, key: str, why: str) -> None:
        self._wrong[key] = clean(why, multiline=False)
        self._explain()

    # --- keys -----------------------------------------------------------------------------

    def action_reset(self) -> None:
        """As it comes: the value goes out of the file."""
        held = self._held
        if held is not None:
            self._wrong.pop(held.value.key, None)
            self._wanted(Wanted(held.value.key, ""))
            if isinstance(self.focused, Written):
                self.focused.value = held.value.kind.shown(self._view.now(held.value.key))

    def action_keyboard(self) -> None:
        def left(_: None) -> None:
            self.renew()

        self.app.push_screen(KeyboardScreen(self._options, self._changed), left)

    def action_edit(self) -> None:
        """In the person's own editor; what is wrong with the file afterwards is said."""
        try:
            with self.app.suspend():
                editor.edit()
        except SuspendNotSupported:
            self.notify("On the command line: localspec config edit", markup=False)
        except LocalspecError as error:
            words = clean(f"{error.message} {error.hint}", multiline=False)
            self.notify(words, severity="warning", markup=False)
        self.renew()

    def action_back(self) -> None:
        """What was written last is taken over before, or it is said that it is not."""
        field = self.focused
        if isinstance(field, Written) and field.changed:
            self._wanted(Wanted(str(field.name), field.value))
        for why in self._wrong.values():
            self.notify(f"Not taken over: {why}", severity="warning", markup=False)
        self.dismiss()


def _about(held: Held) -> str:
    """Its help, and from when a change counts."""
    if held.locked:
        what = "option was given" if held.origin == "command line" else "variable is set"
        return f"{held.value.about} {held.where} goes before the file, as long as the {what}."
    when = f" Changes count {held.value.when}." if held.value.when else ""
    return f"{held.value.about}{when}"


def _line(held: Held) -> str:
    """How it stands in the file, or would."""
    if held.now is None:
        return f"{held.value.key} = …"
    return fitted(f"{held.value.key} = {json.dumps(held.now, ensure_ascii=False)}", 44, "…")


def _end(path: str, room: int) -> str:
    """Of a path that is too long, its end."""
    if len(path) <= room:
        return path
    return f"…{path[1 - room :]}" if room > 12 else ""
