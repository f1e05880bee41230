"""The editor for keyboard shortcuts: select one, then press the new key."""

from __future__ import annotations

from collections.abc import Callable

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec import config
from localspec.config import EffectiveConfig, toml_file
from localspec.errors import LocalspecError
from localspec.sanitize import sanitize
from localspec.tui import key_bindings
from localspec.tui.app_options import AppOptions
from localspec.tui.centered import CenteredLayout
from localspec.tui.key_bindings import (
    KEY_BINDINGS,
    KeyBinding,
    bindings_for,
    fit_footer,
    format_footer,
    format_key,
)
from localspec.tui.screens.help import KEY_CONTEXT_HEADINGS
from localspec.tui.text.wrapping import fit_to_width

_HINT = "enter change"
_MAX_WIDTH = 100


class KeyCaptureScreen(ModalScreen[str | None]):
    """Waits for one key of any kind; esc cancels."""

    def __init__(self, key: KeyBinding) -> None:
        super().__init__()
        self._key = key

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static(f"New key for: {self._key.description}", markup=False)
            yield Static("press the key   esc cancel", classes="hint", markup=False)

    async def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.dismiss(None if event.key == "escape" else event.key)


class KeyEditorScreen(CenteredLayout, Screen[None]):
    """A key that is already used in the same context is refused."""

    BINDINGS = bindings_for("preferences")
    AUTO_FOCUS = "#keyboard"

    def __init__(
        self, options: AppOptions, apply_config: Callable[[EffectiveConfig], None]
    ) -> None:
        super().__init__()
        self._options = options
        self._apply_config = apply_config
        self._listed_keys: list[KeyBinding | None] = []
        """By row; None is a heading."""
        self._error_text = ""

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("Preferences · keyboard shortcuts", id="brand", markup=False)
        yield OptionList(id="keyboard", compact=True, markup=False)
        with Vertical(id="foot"):
            yield Static("", id="help-line", markup=False)
            yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self._fill_list(1)

    def on_resize(self) -> None:
        self._fill_list(self._list.highlighted or 1)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The file is edited from the preferences screen only."""
        return action != "edit"

    # --- the list -------------------------------------------------------------------------

    @property
    def _list(self) -> OptionList:
        return self.query_one("#keyboard", OptionList)

    @property
    def _highlighted_key(self) -> KeyBinding | None:
        index = self._list.highlighted
        return (
            self._listed_keys[index]
            if index is not None and index < len(self._listed_keys)
            else None
        )

    def _fill_list(self, index: int) -> None:
        self._listed_keys, options = [], []
        for context, heading in KEY_CONTEXT_HEADINGS.items():
            keys = [key for key in KEY_BINDINGS if key.context == context]
            if keys:
                self._listed_keys += [None, *keys]
                options += [Option(Content.styled(heading, "bold $muted"), disabled=True)]
                options += [Option(self._key_line(key)) for key in keys]
        self._list.clear_options()
        self._list.add_options(options)
        self._list.highlighted = min(index, len(options) - 1)

    def _key_line(self, key: KeyBinding) -> Content:
        custom = self._options.keymap.get(key.id)
        width = min(self.size.width - 6, _MAX_WIDTH)
        origin = (
            ("config.toml" if custom else "default") if width >= 70 else "user" if custom else ""
        )
        keys = ", ".join(format_key(k) for k in (custom or key.keys).split(","))
        name_width = max(1, width - 24 - (13 if width >= 70 else 5))
        ellipsis = self._options.glyphs.ellipsis
        return Content.assemble(
            f"  {fit_to_width(key.description, name_width, ellipsis):<{name_width}}  ",
            (f"{fit_to_width(keys, 20, ellipsis):<20}", "$accent" if custom else ""),
            (f"  {origin:>{max(0, width - name_width - 24)}}", "$muted"),
        )

    @on(OptionList.OptionHighlighted)
    def _update_hints(self) -> None:
        line = self.query_one("#help-line", Static)
        line.update(Content(self._error_text or self._config_line()))
        line.set_class(bool(self._error_text), "-wrong")
        self._error_text = ""
        footer = format_footer(
            self._options.keymap, "preferences", label_overrides={"preferences.edit": ""}
        )
        keys = f"{_HINT}  {footer}"
        self.query_one("#hints", Static).update(Content(fit_footer(keys, self.size.width - 4)))

    def _config_line(self) -> str:
        """The shortcut as written in the file, with its default."""
        key = self._highlighted_key
        if key is None:
            return ""
        custom = self._options.keymap.get(key.id)
        default = ", ".join(format_key(k) for k in key.keys.split(","))
        return f'[keys] "{key.id}" = "{custom or key.keys}"' + (
            f"  default {default}" if custom else ""
        )

    # --- changes --------------------------------------------------------------------------

    @on(OptionList.OptionSelected)
    def _capture_key(self) -> None:
        key = self._highlighted_key
        if key is None:
            return

        def on_dismiss(new_keys: str | None) -> None:
            if new_keys is not None:
                self._rebind(key, new_keys)

        self.app.push_screen(KeyCaptureScreen(key), on_dismiss)

    def _rebind(self, key: KeyBinding, new_keys: str) -> None:
        error = key_bindings.check_keys(key.id, new_keys, self._options.keymap)
        if error:
            self._show_error(error)
        else:
            self._save_keys(key, new_keys)

    def action_reset(self) -> None:
        """Restores the default, unless another action uses that key now."""
        key = self._highlighted_key
        if key is None or key.id not in self._options.keymap:
            return
        error = key_bindings.check_keys(key.id, key.keys, self._options.keymap)
        if error:
            self._show_error(error)
        else:
            self._save_keys(key, None)

    def _save_keys(self, key: KeyBinding, new_keys: str | None) -> None:
        try:
            toml_file.set_value(f"keys.{key.id}", new_keys)
        except LocalspecError as error:
            self._show_error(f"{error.message} {error.hint}")
            return
        ids = frozenset(key_bindings.BINDINGS_BY_ID)
        self._apply_config(config.resolve(flags=self._options.flags, key_ids=ids))
        self._fill_list(self._list.highlighted or 1)

    def _show_error(self, reason: str) -> None:
        self._error_text = sanitize(reason, multiline=False)
        self._update_hints()

    def action_back(self) -> None:
        self.dismiss()
