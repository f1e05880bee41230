"""All keys of the app, to be changed: enter on one, then the new key."""

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

_HINT = "enter another key"
_MAX_WIDTH = 100


class KeyCaptureScreen(ModalScreen[str | None]):
    """Waits for one key, whatever it does elsewhere; esc leaves everything as it is."""

    def __init__(self, key: KeyBinding) -> None:
        super().__init__()
        self._key = key

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static(f"The new key for: {self._key.description}", markup=False)
            yield Static("press it   esc leave it as it is", classes="hint", markup=False)

    async def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.dismiss(None if event.key == "escape" else event.key)


class KeyEditorScreen(CenteredLayout, Screen[None]):
    """One that is another's already in the same place is refused, and that is said."""

    BINDINGS = bindings_for("preferences")
    AUTO_FOCUS = "#keyboard"

    def __init__(
        self, options: AppOptions, apply_config: Callable[[EffectiveConfig], None]
    ) -> None:
        super().__init__()
        self._options = options
        self._apply_config = apply_config
        self._listed_keys: list[KeyBinding | None] = []
        """By lines; None is a heading."""
        self._error_text = ""

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("Preferences · keys", id="brand", markup=False)
        yield OptionList(id="keyboard", compact=True, markup=False)
        with Vertical(id="foot"):
            yield Static("", id="said", markup=False)
            yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self._fill_list(1)

    def on_resize(self) -> None:
        self._fill_list(self._list.highlighted or 1)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The file is opened from the screen before."""
        return action != "edit"

    # --- what there is --------------------------------------------------------------------

    @property
    def _list(self) -> OptionList:
        return self.query_one("#keyboard", OptionList)

    @property
    def _highlighted_key(self) -> KeyBinding | None:
        at = self._list.highlighted
        return self._listed_keys[at] if at is not None and at < len(self._listed_keys) else None

    def _fill_list(self, index: int) -> None:
        self._listed_keys, lines = [], []
        for place, words in KEY_CONTEXT_HEADINGS.items():
            keys = [key for key in KEY_BINDINGS if key.context == place]
            if keys:
                self._listed_keys += [None, *keys]
                lines += [Option(Content.styled(words, "bold $muted"), disabled=True)]
                lines += [Option(self._key_line(key)) for key in keys]
        self._list.clear_options()
        self._list.add_options(lines)
        self._list.highlighted = min(index, len(lines) - 1)

    def _key_line(self, key: KeyBinding) -> Content:
        own = self._options.keymap.get(key.id)
        wide = min(self.size.width - 6, _MAX_WIDTH)
        origin = ("config.toml" if own else "as it comes") if wide >= 70 else "own" if own else ""
        keys = ", ".join(format_key(one) for one in (own or key.keys).split(","))
        room = max(1, wide - 24 - (13 if wide >= 70 else 5))
        more = self._options.glyphs.ellipsis
        return Content.assemble(
            f"  {fit_to_width(key.description, room, more):<{room}}  ",
            (f"{fit_to_width(keys, 20, more):<20}", "$accent" if own else ""),
            (f"  {origin:>{max(0, wide - room - 24)}}", "$muted"),
        )

    @on(OptionList.OptionHighlighted)
    def _update_hints(self) -> None:
        said = self.query_one("#said", Static)
        said.update(Content(self._error_text or self._config_line()))
        said.set_class(bool(self._error_text), "-wrong")
        self._error_text = ""
        own = format_footer(
            self._options.keymap, "preferences", label_overrides={"preferences.edit": ""}
        )
        keys = f"{_HINT}  {own}"
        self.query_one("#hints", Static).update(Content(fit_footer(keys, self.size.width - 4)))

    def _config_line(self) -> str:
        """How it stands in the file, or would; and how it comes."""
        key = self._highlighted_key
        if key is None:
            return ""
        own = self._options.keymap.get(key.id)
        usual = ", ".join(format_key(one) for one in key.keys.split(","))
        return f'[keys] "{key.id}" = "{own or key.keys}"' + (f"  comes with {usual}" if own else "")

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
        wrong = key_bindings.check_keys(key.id, new_keys, self._options.keymap)
        if wrong:
            self._show_error(wrong)
        else:
            self._save_keys(key, new_keys)

    def action_reset(self) -> None:
        """As it comes, unless another has taken that key since."""
        key = self._highlighted_key
        if key is None or key.id not in self._options.keymap:
            return
        wrong = key_bindings.check_keys(key.id, key.keys, self._options.keymap)
        if wrong:
            self._show_error(wrong)
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
