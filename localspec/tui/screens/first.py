"""The first screen of all, once: what this is, what this computer can do, and the demo by enter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from localspec.clean import clean
from localspec.fit.report import Place
from localspec.machine.device import Device
from localspec.tui import welcome
from localspec.tui.keys import bindings, keys_of, name
from localspec.tui.options import Options
from localspec.tui.rows import Survey
from localspec.tui.wizard import words
from localspec.tui.wizard.shortlist import Candidate
from localspec.units import gib

Next = Literal["demo", "wizard"]

_WHAT = (
    "Chat with models that run on this computer: private, offline, and fast.",
    "A small model guesses ahead, the large one checks: the same text, sooner.",
)
_LOOKING = "Looking at this computer …"
_USE = "chat"


class FirstScreen(Screen[Next | None]):
    """Above Home, which tells it what was found out; any of its keys leads on."""

    BINDINGS = bindings("first")

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options
        self._seen = Survey()

    def compose(self) -> ComposeResult:
        with Vertical(id="page"):
            yield Static("localspec", classes="heading", markup=False)
            yield Static(Content("\n".join(_WHAT)), markup=False)
            yield Static("", id="can", markup=False)
            yield Static("", id="keys", markup=False)

    def on_mount(self) -> None:
        welcome.shown()
        self._draw()

    def tell(self, seen: Survey) -> None:
        """What is known by now."""
        self._seen = seen
        if self.is_mounted:
            self._draw()

    def _draw(self) -> None:
        lines = list(_can(self._seen)) if self._seen.place is not None else [_LOOKING, "", ""]
        first, *rest = lines
        told = Content("\n").join([Content(first), *(_muted(line) for line in rest)])
        self.query_one("#can", Static).update(told)
        self.query_one("#keys", Static).update(self._keys())

    def _keys(self) -> Content:
        own = self._options.keymap
        ways = (
            ("first.demo", "the demo", "already here: watch it guess"),
            ("first.wizard", "find a model", "that suits this computer"),
            ("first.skip", "skip", "to the list of models"),
        )
        lines = [
            Content.assemble(
                (f"{name(keys_of(key, own)[0]):<6} ", "bold $accent"),
                f"{what:<13} ",
                (about, "$muted"),
            )
            for key, what, about in ways
        ]
        return Content("\n").join(lines)

    def action_demo(self) -> None:
        self.dismiss("demo")

    def action_wizard(self) -> None:
        self.dismiss("wizard")

    def action_skip(self) -> None:
        self.dismiss(None)


def _muted(line: str) -> Content:
    return Content.styled(line, "$muted")


# --- what this computer can do ------------------------------------------------------------


def _can(seen: Survey) -> Iterator[str]:
    """The computer, what fits it, and how fast that is: three lines, so that nothing moves."""
    assert seen.place is not None, "somebody has looked"
    yield _computer(seen.place)
    best = next((one for one in seen.suggested if one.pair.target.repo is not None), None)
    if best is None:
        yield "Little memory is free: the demo runs, and tiny models of your own."
    else:
        yield f"Fits {_size(best)}: {clean(best.pair.id, multiline=False)}"
    if seen.missed:
        yield "A card is here that this llama.cpp cannot use: f9 mends that."
    else:
        yield _pace(best) if best is not None else ""


def _computer(place: Place) -> str:
    cards = [one for one in place.devices if one.kind != "cpu"]
    if not cards:
        memory = gib(place.cpu.total) if place.cpu.total else "some"
        return f"No GPU: small models on the processor, {memory} of memory"
    first = clean(cards[0].description or cards[0].name, multiline=False)
    if len(cards) == 1:
        return f"{first}, {_memory(cards)}"
    others = {one.description for one in cards} != {cards[0].description}
    named = f"{first} and {len(cards) - 1} more" if others else f"{len(cards)} × {first}"
    return f"{named}, together {_memory(cards)}"


def _memory(cards: list[Device]) -> str:
    if any(one.total is None or one.free is None for one in cards):
        return "memory unknown"
    total, free = sum(one.total or 0 for one in cards), sum(one.free or 0 for one in cards)
    return f"{gib(total)}, {gib(free)} free"


def _size(best: Candidate) -> str:
    """Models as people speak of them: by their parameters."""
    parameters = best.pair.target.parameters
    if not parameters:
        return f"models of about {gib(best.bytes)}"
    billions = parameters / 1e9
    return f"models of about {billions:.0f} billion parameters" if billions >= 2 else "small models"


def _pace(best: Candidate) -> str:
    speed = best.fit.speed if best.fit is not None else None
    if speed is None or speed.plain is None or speed.speculative is None:
        return "How fast that is will be known when it has run."
    gained = words.gain(speed, _USE)
    told = f"It would write {words.rate(speed.speculative)}"
    return f"{told}, {words.times(gained)} plain" if gained and gained[1] > 1.05 else told
