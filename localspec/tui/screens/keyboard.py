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
from localspec.clean import clean
from localspec.config import View, writing
from localspec.errors import LocalspecError
from localspec.tui import rebinding
from localspec.tui.keys import KEYS, Key, bindings, fitting, footer, name
from localspec.tui.middle import Middle
from localspec.tui.options import Options
from localspec.tui.screens.help import PLACES
from localspec.tui.text.wrapping import fitted

_HINT = "enter another key"
_WIDEST = 100


class KeyScreen(ModalScreen[str | None]):
    """Waits for one key, whatever it does elsewhere; esc leaves everything as it is."""

    def __init__(self, about: Key) -> None:
        super().__init__()
        self._about = about

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static(f"The new key for: {self._about.words}", markup=False)
            yield Static("press it   esc leave it as it is", classes="hint", markup=False)

    async def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.dismiss(None if event.key == "escape" else event.key)


class KeyboardScreen(Middle, Screen[None]):
    """One that is another's already in the same place is refused, and that is said."""

    BINDINGS = bindings("preferences")
    AUTO_FOCUS = "#keyboard"

    def __init__(self, options: Options, changed: Callable[[View], None]) -> None:
        super().__init__()
        self._options = options
        self._changed = changed
        self._shown: list[Key | None] = []
        """By lines; None is a heading."""
        self._wrong = ""

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("Preferences · keys", id="brand", markup=False)
        yield OptionList(id="keyboard", compact=True, markup=False)
        with Vertical(id="foot"):
            yield Static("", id="said", markup=False)
            yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self._fill(1)

    def on_resize(self) -> None:
        self._fill(self._list.highlighted or 1)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The file is opened from the screen before."""
        return action != "edit"

    # --- what there is --------------------------------------------------------------------

    @property
    def _list(self) -> OptionList:
        return self.query_one("#keyboard", OptionList)

    @property
    def _key(self) -> Key | None:
        at = self._list.highlighted
        return self._shown[at] if at is not None and at < len(self._shown) else None

    def _fill(self, at: int) -> None:
        self._shown, lines = [], []
        for place, words in PLACES.items():
            keys = [key for key in KEYS if key.where == place]
            if keys:
                self._shown += [None, *keys]
                lines += [Option(Content.styled(words, "bold $muted"), disabled=True)]
                lines += [Option(self._line(key)) for key in keys]
        self._list.clear_options()
        self._list.add_options(lines)
        self._list.highlighted = min(at, len(lines) - 1)

    def _line(self, key: Key) -> Content:
        own = self._options.keymap.get(key.id)
        wide = min(self.size.width - 6, _WIDEST)
        origin = ("config.toml" if own else "as it comes") if wide >= 70 else "own" if own else ""
        keys = ", ".join(name(one) for one in (own or key.keys).split(","))
        room = max(1, wide - 24 - (13 if wide >= 70 else 5))
        more = self._options.glyphs.more
        return Content.assemble(
            f"  {fitted(key.words, room, more):<{room}}  ",
            (f"{fitted(keys, 20, more):<20}", "$accent" if own else ""),
            (f"  {origin:>{max(0, wide - room - 24)}}", "$muted"),
        )

    @on(OptionList.OptionHighlighted)
    def _explain(self) -> None:
        said = self.query_one("#said", Static)
        said.update(Content(self._wrong or self._place()))
        said.set_class(bool(self._wrong), "-wrong")
        self._wrong = ""
        own = footer(self._options.keymap, "preferences", now={"preferences.edit": ""})
        keys = f"{_HINT}  {own}"
        self.query_one("#hints", Static).update(Content(fitting(keys, self.size.width - 4)))

    def _place(self) -> str:
        """How it stands in the file, or would; and how it comes."""
        key = self._key
        if key is None:
            return ""
        own = self._options.keymap.get(key.id)
        usual = ", ".join(name(one) for one in key.keys.split(","))
        return f'[keys] "{key.id}" = "{own or key.keys}"' + (f"  comes with {usual}" if own else "")

    # --- changes --------------------------------------------------------------------------

    @on(OptionList.OptionSelected)
    def _selected(self) -> None:
        key = self._key
        if key is None:
            return

        def pressed(new: str | None) -> None:
            if new is not None:
                self._take(key, new)

        self.app.push_screen(KeyScreen(key), pressed)

    def _take(self, key: Key, new: str) -> None:
        wrong = rebinding.fault(key.id, new, self._options.keymap)
        if wrong:
            self._refuse(wrong)
        else:
            self._put(key, new)

    def action_reset(self) -> None:
        """As it comes, unless another has taken that key since."""
        key = self._key
        if key is None or key.id not in self._options.keymap:
            return
        wrong = rebinding.fault(key.id, key.keys, self._options.keymap)
        if wrong:
            self._refuse(wrong)
        else:
            self._put(key, None)

    def _put(self, key: Key, new: str | None) -> None:
        try:
            writing.put(f"keys.{key.id}", new)
        except LocalspecError as error:
            self._refuse(f"{error.message} {error.hint}")
            return
        ids = frozenset(rebinding.BY_ID)
        self._changed(config.look(flags=self._options.flags, ids=ids))
        self._fill(self._list.highlighted or 1)

    def _refuse(self, why: str) -> None:
        self._wrong = clean(why, multiline=False)
        self._explain()

    def action_back(self) -> None:
        self.dismiss()
