"""The welcome screen of the first run: what localspec does, what this computer can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from localspec import data_files, paths
from localspec.fit.machine_profile import MachineProfile
from localspec.machine.device import Device
from localspec.models import catalog, model_lookup, model_names
from localspec.paths import DataFile
from localspec.report import pair_text
from localspec.tui.app_options import AppOptions
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.key_bindings import bindings_for, key_label
from localspec.tui.navigation import FirstChoice
from localspec.tui.text.wrapping import one_line
from localspec.tui.wizard.shortlist import Candidate, describe_bytes_to_free
from localspec.units import gb, gib

_INTRO = (
    "Chat with models that run on this computer: private, offline, and fast.",
    "A small model drafts, a large one verifies: its own words, often faster.",
)
_SURVEY_RUNNING = "Checking this computer …"


class WelcomeScreen(Screen[FirstChoice | None]):
    """On top of the home screen, which passes its survey on."""

    BINDINGS = bindings_for("welcome")

    def __init__(
        self, options: AppOptions, load_survey: Callable[[], MachineSurvey]
    ) -> None:
        """`load_survey` returns what is known so far."""
        super().__init__()
        self._options = options
        self._survey = load_survey()
        catalogue = catalog.load(paths.catalog_file())
        pair = catalogue.pairs.get(model_lookup.default_pair_id(catalogue))
        self._first_choice = ("the demo", "installed: see speculation at work")
        if pair is not None and pair.target.package:
            self._first_choice = (model_names.name_model(pair.target), pair.title)

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
        self._survey = survey
        if self.is_mounted:
            self._draw()

    def _draw(self) -> None:
        first = _SURVEY_RUNNING
        others = ["", ""]
        if self._survey.machine_profile is not None:
            first, *others = _capability_lines(self._survey)
        muted = [Content.styled(line, "$muted") for line in others]
        capabilities = Content("\n").join([Content(first), *muted])
        self.query_one("#can", Static).update(capabilities)
        choices = [
            self._choice_line("welcome.demo", *self._first_choice),
            self._choice_line("welcome.wizard", "find a model", "for this computer"),
            self._choice_line("welcome.skip", "skip", "to the list of models"),
        ]
        self.query_one("#keys", Static).update(Content("\n").join(choices))

    def _choice_line(self, binding_id: str, label: str, description: str) -> Content:
        key = key_label(binding_id, self._options.keymap)
        return Content.assemble(
            (f"{key:<6} ", "bold $accent"), f"{label:<13} ", (description, "$muted")
        )

    def action_open(self) -> None:
        self.dismiss("chat")

    def action_wizard(self) -> None:
        self.dismiss("wizard")

    def action_skip(self) -> None:
        self.dismiss(None)


def _capability_lines(survey: MachineSurvey) -> Iterator[str]:
    """Always three lines, so that the layout does not move."""
    assert survey.machine_profile is not None
    yield _hardware_line(survey.machine_profile)
    best = _best_downloadable(survey)
    if best is None:
        yield "Little memory is free: only the demo and very small models will run."
    else:
        yield f"Runs {_size_text(best)}: {model_names.name_model(best.pair.target)}"
    if survey.unused_gpu_hint:
        yield "This llama.cpp build cannot use your GPU: f9 fixes that."
    elif best is not None and best.bytes_to_free:
        yield f"{describe_bytes_to_free(best).capitalize()}."
    elif best is not None:
        yield _speed_text(best)
    else:
        yield ""


def _best_downloadable(survey: MachineSurvey) -> Candidate | None:
    for candidate in survey.candidates:
        if candidate.pair.target.repo is not None:
            return candidate
    return None


def _size_text(best: Candidate) -> str:
    if not best.pair.target.parameters:  # the catalogue does not have it
        return f"models of about {gb(best.total_bytes)}"
    billions = best.pair.target.parameters / 1e9
    if billions < 2:
        return "small models"
    return f"models of about {billions:.0f} billion parameters"


def _hardware_line(machine_profile: MachineProfile) -> str:
    gpus = [device for device in machine_profile.devices if device.kind != "cpu"]
    if not gpus:
        total = machine_profile.cpu.total
        memory = gib(total) if total else "an unknown amount"
        return f"No GPU: models run on the CPU, {memory} of memory"
    first = one_line(gpus[0].description or gpus[0].name)
    if len(gpus) == 1:
        return f"{first}, {_memory_text(gpus)}"
    name = f"{len(gpus)} × {first}"
    if len({device.description for device in gpus}) > 1:
        name = f"{first} and {len(gpus) - 1} more"
    return f"{name}, together {_memory_text(gpus)}"


def _memory_text(gpus: list[Device]) -> str:
    if any(gpu.total is None or gpu.free is None for gpu in gpus):
        return "memory unknown"
    total = sum(gpu.total or 0 for gpu in gpus)
    free = sum(gpu.free or 0 for gpu in gpus)
    return f"{gib(total)}, {gib(free)} free"


def _speed_text(best: Candidate) -> str:
    rates = ""
    if best.plan is not None:
        has_draft = best.plain_rate is not None
        rates = pair_text.describe_rates(best.plan.speed, has_draft=has_draft)
    if not rates:
        return "Its speed is known after the first run."
    return f"Estimated speed: {rates}"


def is_first_run() -> bool:
    """False if the data folder has traces of an earlier run. Never raises."""
    traces = (
        DataFile.WELCOMED,
        DataFile.CHATS,
        DataFile.OPENED_PAIRS,
        DataFile.LAST_RUN,
        DataFile.MEASUREMENTS,
    )
    try:
        return not any(trace.path.exists() for trace in traces)
    except OSError:
        return False


def mark_welcomed() -> None:
    """If the file cannot be written, the screen is shown again next time."""
    data_files.write_mark(DataFile.WELCOMED.path, "The first screen was shown.")
