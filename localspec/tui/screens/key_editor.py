"""The editor for keyboard shortcuts: select one, then press the new key."""

from __future__ import annotations

from collections.abc import Callable

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import OptionList, Static

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
    format_footer,
    format_key,
)
from localspec.tui.problem_text import problem_text
from localspec.tui.screens.help import KEY_CONTEXT_HEADINGS
from localspec.tui.text.wrapping import fit_to_width
from localspec.tui.widgets.pointer_list import PointerList
from localspec.tui.widgets.screen_frame import KeyLine, TitleLine

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
        self._list = PointerList[KeyBinding]("keyboard", lambda key: key.id, self._draw_key)
        self._error_text = ""

    def compose(self) -> ComposeResult:
        yield TitleLine("Preferences · keyboard shortcuts")
        yield self._list
        with Vertical(id="foot"):
            yield Static("", id="help-line", markup=False)
            yield KeyLine()

    def on_mount(self) -> None:
        self._fill_list()

    def on_resize(self) -> None:
        self._fill_list()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The file is edited from the preferences screen only."""
        return action != "edit"

    # --- the list -------------------------------------------------------------------------

    def _fill_list(self) -> None:
        by_context = {
            heading: [key for key in KEY_BINDINGS if key.context == context]
            for context, heading in KEY_CONTEXT_HEADINGS.items()
        }
        self._list.set_sections(
            [
                (Content.styled(heading, "bold $muted"), keys)
                for heading, keys in by_context.items()
            ],
            spaced=False,
        )

    def _draw_key(self, key: KeyBinding, _: bool) -> Content:
        custom = self._options.keymap.get(key.id)
        width = min(self.size.width - 6, _MAX_WIDTH)
        is_wide, ellipsis = width >= 70, self._options.glyphs.ellipsis
        origin = ("config.toml" if custom else "default") if is_wide else "user" if custom else ""
        keys = ", ".join(format_key(k) for k in (custom or key.keys).split(","))
        name_width = max(1, width - 24 - (13 if is_wide else 5))
        return Content.assemble(
            f"  {fit_to_width(key.description, name_width, ellipsis)}  ",
            (fit_to_width(keys, 20, ellipsis), "$accent" if custom else ""),
            (f"  {origin:>{max(0, width - name_width - 24)}}", "$muted"),
        )

    @on(OptionList.OptionHighlighted)
    def _update_hints(self) -> None:
        line = self.query_one("#help-line", Static)
        line.update(Content(self._error_text or self._config_line()))
        line.set_class(bool(self._error_text), "-wrong")
        self._error_text = ""
        labels = {"preferences.edit": ""}
        keys = format_footer(self._options.keymap, "preferences", label_overrides=labels)
        self.query_one(KeyLine).show_keys(f"enter change  {keys}")

    def _config_line(self) -> str:
        """The shortcut as written in the file, with its default."""
        key = self._list.highlighted_row
        if key is None:
            return ""
        custom = self._options.keymap.get(key.id)
        default = ", ".join(format_key(k) for k in key.keys.split(","))
        line = f'[keys] "{key.id}" = "{custom or key.keys}"'
        return f"{line}  default {default}" if custom else line

    # --- changes --------------------------------------------------------------------------

    @on(OptionList.OptionSelected)
    def _capture_key(self) -> None:
        key = self._list.highlighted_row
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
            self._save_keys(key, None if new_keys == key.keys else new_keys)

    def action_reset(self) -> None:
        """Restores the default, unless another action uses that key now."""
        key = self._list.highlighted_row
        if key is not None and key.id in self._options.keymap:
            self._rebind(key, key.keys)

    def _save_keys(self, key: KeyBinding, new_keys: str | None) -> None:
        try:
            toml_file.set_value(f"keys.{key.id}", new_keys)
        except LocalspecError as error:
            self._show_error(problem_text(error))
            return
        ids = key_bindings.KNOWN_IDS
        self._apply_config(config.resolve(flags=self._options.flags, key_ids=ids))
        self._fill_list()

    def _show_error(self, reason: str) -> None:
        self._error_text = sanitize(reason, multiline=False)
        self._update_hints()

    def action_back(self) -> None:
        self.dismiss()
