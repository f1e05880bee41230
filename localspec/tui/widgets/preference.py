"""One setting in a line: its words, its value to be changed in place, and where it comes from."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Label, Static

from localspec.config import Held


class Wanted(Message):
    """A person wrote or chose a value; empty text: as it comes."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__()
        self.key, self.text = key, text


class Cycle(Static, can_focus=True):
    """A few words in turns.  One that the file does not decide now only shows its value."""

    BINDINGS = [  # noqa: RUF012
        Binding("right,space,enter", "turn(1)", "Next value"),
        Binding("left", "turn(-1)", "Value before"),
    ]

    def __init__(self, held: Held) -> None:
        super().__init__(markup=False, name=held.value.key)
        self.show(held)

    def show(self, held: Held) -> None:
        self._held = held
        self._draw()

    def watch_has_focus(self, focused: bool) -> None:
        super().watch_has_focus(focused)
        self._draw()

    def _draw(self) -> None:
        word = self._held.value.words(self._held.now)
        turning = self.has_focus and not self._held.locked
        self.update(Content(f"‹ {word} ›" if turning else word))

    def action_turn(self, by: int) -> None:
        if self._held.locked:
            return
        kind = self._held.value.kind
        words = kind.words
        at = words.index(kind.shown(self._held.now))
        self.post_message(Wanted(self._held.value.key, words[(at + by) % len(words)]))


class Written(Input):
    """A text, taken over with enter or where one leaves it."""

    def __init__(self, held: Held) -> None:
        super().__init__(
            name=held.value.key,
            placeholder=held.value.words(held.value.default),
            compact=True,
            select_on_focus=True,
        )
        self.cursor_blink = False
        self.show(held)

    def show(self, held: Held) -> None:
        """What holds; not while somebody writes something else."""
        self._before = held.value.kind.shown(held.now)
        if not self.has_focus:
            self.value = self._before

    def on_blur(self) -> None:
        self.take()

    def on_input_submitted(self) -> None:
        self.take()

    @property
    def changed(self) -> bool:
        """Whether something else stands here than what holds."""
        return self.value.strip() != self._before

    def take(self) -> None:
        if self.changed and self.name:
            self.post_message(Wanted(self.name, self.value))


class Opener(Static, can_focus=True):
    """Leads to a screen of its own."""

    BINDINGS = [Binding("enter,space,right", "open", "Open")]  # noqa: RUF012

    def __init__(self, action: str, name: str) -> None:
        super().__init__(markup=False, name=name)
        self._action = action

    async def action_open(self) -> None:
        await self.screen.run_action(self._action)


class Preference(Horizontal):
    """The line."""

    def __init__(self, held: Held) -> None:
        super().__init__(classes="preference")
        self.held = held
        writes = not held.value.kind.words and not held.locked
        self.field = Written(held) if writes else Cycle(held)

    def compose(self) -> ComposeResult:
        yield Label(self.held.value.label, markup=False)
        yield self.field
        yield Static(Content(self.held.where), classes="origin", markup=False)

    def show(self, held: Held) -> None:
        """Its value changed, here or elsewhere."""
        self.held = held
        self.field.show(held)
        self.query_one(".origin", Static).update(Content(held.where))
