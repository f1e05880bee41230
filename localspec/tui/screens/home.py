"""The first screen: what can be opened now."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec import paths
from localspec.chat import recent
from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.launch import Choice
from localspec.models import catalog, header
from localspec.tui.dialogue import Dialogue
from localspec.tui.keys import bindings, footer
from localspec.tui.options import Options
from localspec.tui.runner import Runner
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.opening import OpeningScreen
from localspec.units import gib


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the list."""

    choice: Choice
    name: str
    about: str
    size: str
    note: str = ""


def machine() -> str:
    """This computer, on half a line."""
    import psutil  # noqa: PLC0415  not before the first picture

    memory = psutil.virtual_memory()
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return f"{cores} cores · {gib(memory.total)}, {gib(memory.available)} free"


class HomeScreen(Screen[None]):
    """Pairs ready to run; enter opens the chat."""

    BINDINGS = bindings("home")

    def __init__(
        self, runner: Runner, options: Options, machine: Callable[[], str] = machine
    ) -> None:
        super().__init__()
        self._runner = runner
        self._options = options
        self._machine = machine
        self._rows: list[Row] = []
        self._dialogues: dict[Choice, Dialogue] = {}
        """Chats of this session: leaving one does not lose it."""

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("localspec", id="brand", markup=False)
            yield Static("", id="machine", markup=False)
        yield OptionList(id="pairs", compact=True, markup=False)
        yield Static("", id="teach", markup=False)
        keys = footer(self._options.keymap, "home", "app")
        yield Static(Content(f"enter open  {keys}"), id="hints", markup=False)

    def on_mount(self) -> None:
        self._fill()
        self._look_at_machine()

    def on_resize(self) -> None:
        self._fill()

    def _fill(self) -> None:
        pairs = self.query_one("#pairs", OptionList)
        before = pairs.highlighted
        ready, lately = self._catalogued(), _lately()
        self._rows = [*ready, *lately]
        options: list[Option | None] = [_heading("Ready to run")]
        options += [self._option(i, row) for i, row in enumerate(ready)]
        if lately:
            options += [Option("", disabled=True), _heading("Opened lately")]
            options += [self._option(i, row) for i, row in enumerate(lately, start=len(ready))]
        pairs.clear_options()
        pairs.add_options(options)
        pairs.highlighted = before if before is not None else 1
        pairs.focus()
        self.query_one("#teach", Static).update(Content(_TEACH if not lately else ""))

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """The pointer moves along: a bar of colour alone would not show everywhere."""
        pairs = event.option_list
        for number, row in enumerate(self._rows):
            here = event.option.id == f"row-{number}"
            pairs.replace_option_prompt(f"row-{number}", self._line(row, pointed=here))

    def _catalogued(self) -> list[Row]:
        """Where the person's own catalogue is damaged, ours, and a word about it."""
        try:
            return _bundled(catalog.load())
        except LocalspecError as error:
            words = clean(f"{error.message} {error.hint}", multiline=False)
            self.notify(words, severity="error", markup=False)
            return _bundled(catalog.load(paths.catalogue()))

    def _option(self, number: int, row: Row) -> Option:
        return Option(self._line(row), id=f"row-{number}")

    def _line(self, row: Row, *, pointed: bool = False) -> Content:
        wide = self.size.width or 80
        name, about = (26, 34) if wide >= 90 else (22, 32) if wide >= 76 else (24, 0)
        note = (self._turns(row.choice) or row.note) if wide >= 100 else ""
        more = self._options.glyphs.more
        about_it = _fitting(row.about, about, more) if about else ""
        sign = self._options.glyphs.pointer if pointed else " "
        return Content.assemble(
            (f"{sign} ", "$accent"),
            f"{_fitting(row.name, name, more)} ",
            (about_it, "$muted"),
            f"{row.size:>10}  ",
            (note, "$muted"),
        )

    def _turns(self, choice: Choice) -> str:
        known = self._dialogues.get(choice)
        n = len(known.conversation.turns) if known else 0
        return f"{n} turn{'s' * (n != 1)} in this chat" if n else ""

    @work(exclusive=True, group="machine")
    async def _look_at_machine(self) -> None:
        """After the first picture: psutil takes a while to import."""
        self.query_one("#machine", Static).update(Content(self._machine()))

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        if event.option.id is not None:
            self.open(self._rows[int(event.option.id.removeprefix("row-"))].choice)

    def open(self, choice: Choice) -> None:
        """Show the chat of a pair; it loads while one looks."""
        try:
            for file in (choice.target, choice.draft):
                if file is not None:
                    header.check(file)
        except LocalspecError as error:
            words = clean(f"{error.message} {error.hint}", multiline=False)
            self.notify(words, severity="error", markup=False)
            return

        if choice not in self._dialogues:
            self._dialogues[choice] = Dialogue(choice, self._options.seed)

        def left(_: None) -> None:
            self._runner.close()
            self._fill()

        self.app.push_screen(ChatScreen(self._dialogues[choice], self._runner, self._options), left)

    def action_open_files(self) -> None:
        def chosen(choice: Choice | None) -> None:
            if choice is not None:
                self.open(choice)

        self.app.push_screen(OpeningScreen(self._runner, self._options), chosen)

    def action_open_recording(self) -> None:
        self.notify("On the command line: localspec replay FILE", markup=False)


_TEACH = (
    "Your own models would be listed here. o opens a target and a draft by their paths: "
    "any two GGUF files that share a vocabulary."
)


def _heading(text: str) -> Option:
    return Option(Content.styled(f" {text}", "$muted bold"), disabled=True)


def _bundled(known: catalog.Catalogue) -> list[Row]:
    """The pairs that come with localspec; the others are a matter of the wizard."""
    rows = []
    for pair in known.pairs.values():
        if (target := pair.target.path) is not None:
            draft = pair.draft.path if pair.draft else None
            choice = Choice(target, draft, pair.spec, pair.why)
            rows.append(
                Row(choice, pair.id, f"{pair.title} · bundled", _size(choice), "try it now")
            )
    return rows


def _lately() -> list[Row]:
    rows = []
    for choice in recent.read():
        name = _stem(choice.target)
        draft = f"+ {_stem(choice.draft)}" if choice.draft else "no draft: copying"
        where = clean(str(choice.target.parent), multiline=False)
        rows.append(Row(choice, name, draft, _size(choice), where))
    return rows


def _stem(path: Path) -> str:
    return clean(path.name.removesuffix(".gguf"), multiline=False)


def _fitting(text: str, width: int, more: str) -> str:
    """Exactly so many cells: a name in Chinese has half as many letters."""
    if cell_len(text) > width:
        text = set_cell_size(text, width - len(more)).rstrip() + more
    return set_cell_size(text, width)


def _size(choice: Choice) -> str:
    files = (choice.target, choice.draft)
    try:
        return gib(sum(file.stat().st_size for file in files if file is not None))
    except OSError:
        return "gone"
