"""The first screen of all, once: what this is, what this computer can do, and the demo by enter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from localspec import paths
from localspec.fit.report import MachineProfile
from localspec.machine.device import Device
from localspec.sanitize import sanitize
from localspec.tui.app_options import AppOptions
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.key_bindings import bindings_for, format_key, keys_for
from localspec.tui.wizard import fit_text
from localspec.tui.wizard.shortlist import Candidate
from localspec.units import gib

WelcomeChoice = Literal["demo", "wizard"]

_INTRO = (
    "Chat with models that run on this computer: private, offline, and fast.",
    "A small model guesses ahead, the large one checks: the same text, sooner.",
)
_SURVEY_RUNNING = "Looking at this computer …"
_USE_CASE = "chat"


class WelcomeScreen(Screen[WelcomeChoice | None]):
    """Above Home, which tells it what was found out; any of its keys leads on."""

    BINDINGS = bindings_for("first")

    def __init__(self, options: AppOptions) -> None:
        super().__init__()
        self._options = options
        self._survey = MachineSurvey()

    def compose(self) -> ComposeResult:
        with Vertical(id="page"):
            yield Static("localspec", classes="heading", markup=False)
            yield Static(Content("\n".join(_INTRO)), markup=False)
            yield Static("", id="can", markup=False)
            yield Static("", id="keys", markup=False)

    def on_mount(self) -> None:
        mark_welcomed()
        self._draw()

    def show_survey(self, survey: MachineSurvey) -> None:
        """What is known by now."""
        self._survey = survey
        if self.is_mounted:
            self._draw()

    def _draw(self) -> None:
        lines = (
            list(_capability_lines(self._survey))
            if self._survey.machine_profile is not None
            else [_SURVEY_RUNNING, "", ""]
        )
        first, *rest = lines
        told = Content("\n").join([Content(first), *(_muted(line) for line in rest)])
        self.query_one("#can", Static).update(told)
        self.query_one("#keys", Static).update(self._key_lines())

    def _key_lines(self) -> Content:
        own = self._options.keymap
        ways = (
            ("first.demo", "the demo", "already here: watch it guess"),
            ("first.wizard", "find a model", "that suits this computer"),
            ("first.skip", "skip", "to the list of models"),
        )
        lines = [
            Content.assemble(
                (f"{format_key(keys_for(key, own)[0]):<6} ", "bold $accent"),
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


def _capability_lines(survey: MachineSurvey) -> Iterator[str]:
    """The computer, what fits it, and how fast that is: three lines, so that nothing moves."""
    assert survey.machine_profile is not None, "somebody has looked"
    yield _hardware_line(survey.machine_profile)
    best = next((one for one in survey.candidates if one.pair.target.repo is not None), None)
    if best is None:
        yield "Little memory is free: the demo runs, and tiny models of your own."
    else:
        yield f"Fits {_model_size_text(best)}: {sanitize(best.pair.id, multiline=False)}"
    if survey.unused_gpu_hint:
        yield "A card is here that this llama.cpp cannot use: f9 mends that."
    else:
        yield _speed_text(best) if best is not None else ""


def _hardware_line(machine_profile: MachineProfile) -> str:
    cards = [one for one in machine_profile.devices if one.kind != "cpu"]
    if not cards:
        memory = gib(machine_profile.cpu.total) if machine_profile.cpu.total else "some"
        return f"No GPU: small models on the processor, {memory} of memory"
    first = sanitize(cards[0].description or cards[0].name, multiline=False)
    if len(cards) == 1:
        return f"{first}, {_memory_text(cards)}"
    others = {one.description for one in cards} != {cards[0].description}
    named = f"{first} and {len(cards) - 1} more" if others else f"{len(cards)} × {first}"
    return f"{named}, together {_memory_text(cards)}"


def _memory_text(gpus: list[Device]) -> str:
    if any(one.total is None or one.free is None for one in gpus):
        return "memory unknown"
    total, free = sum(one.total or 0 for one in gpus), sum(one.free or 0 for one in gpus)
    return f"{gib(total)}, {gib(free)} free"


def _model_size_text(best: Candidate) -> str:
    """Models as people speak of them: by their parameters."""
    parameters = best.pair.target.parameters
    if not parameters:
        return f"models of about {gib(best.total_bytes)}"
    billions = parameters / 1e9
    return f"models of about {billions:.0f} billion parameters" if billions >= 2 else "small models"


def _speed_text(best: Candidate) -> str:
    speed = best.fit.speed if best.fit is not None else None
    if speed is None or speed.plain is None or speed.speculative is None:
        return "How fast that is will be known when it has run."
    gained = fit_text.speedup_range(speed, _USE_CASE)
    told = f"It would write {fit_text.speed_text(speed.speculative)}"
    return f"{told}, {fit_text.speedup_text(gained)} plain" if gained and gained[1] > 1.05 else told


# --- Whether the first screen of all is due: once ever, and not where somebody has been before.

_EARLIER_RUN_FILES = ("recent.json", "last.json", "measured.sqlite")
"""Left by pairs that were opened."""


def is_first_run() -> bool:
    """Nothing in the data folder tells of an earlier time.  Never raises."""
    try:
        names = ("welcomed", *_EARLIER_RUN_FILES)
        return not (
            paths.chats_file().exists() or any((paths.data_dir() / n).exists() for n in names)
        )
    except OSError:
        return False


def mark_welcomed() -> None:
    """Remember it; where nothing can be written, it is shown again."""
    with suppress(OSError):
        file = _welcomed_file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text("The first screen was shown.\n", encoding="utf-8")


def _welcomed_file() -> Path:
    return paths.data_dir() / "welcomed"
