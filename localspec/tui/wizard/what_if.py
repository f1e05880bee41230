"""What if: another card, another context, another type of keys and values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from textual.content import Content

from localspec.fit import device_speed
from localspec.fit.device_speed import TYPICAL_CPU_SPEED
from localspec.fit.report import FitReport, MachineProfile
from localspec.machine import gpu_catalog
from localspec.machine.gpu_catalog import GpuSpec
from localspec.machine.memory_by_device import HOST
from localspec.models.catalog import CatalogPair
from localspec.protocol.wire import KvType
from localspec.sanitize import sanitize
from localspec.tui.key_bindings import fit_footer, format_footer
from localspec.tui.text.wrapping import fit_to_width
from localspec.tui.wizard import fit_text

Dial = Literal["card", "context", "kv"]
DIALS: tuple[Dial, ...] = ("card", "context", "kv")
CONTEXT_SIZES = (None, *(1 << n for n in range(11, 18)))
KV_TYPES: tuple[KvType | None, ...] = (None, "f16", "q8_0", "q4_0")
THIS_COMPUTER = "this computer"
_MAX_NAME_WIDTH = 28
"""Cells of a card's name."""
_One = TypeVar("_One")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """None is: as it is here, and what suits it best."""

    gpu: GpuSpec | None = None
    """With the one size that is meant."""
    ctx: int | None = None
    kv: KvType | None = None

    def turn_dial(self, dial: Dial, by: int) -> WhatIf:
        """The next choice of one dial, round and round."""
        if dial == "card":
            return replace(self, gpu=_next_choice((None, *list_gpus()), self.gpu, by))
        if dial == "context":
            return replace(self, ctx=_next_choice(CONTEXT_SIZES, self.ctx, by))
        return replace(self, kv=_next_choice(KV_TYPES, self.kv, by))


class MachineProfiles:
    """The place of each card, made once."""

    def __init__(self, load_machine_profile: Callable[[], MachineProfile]) -> None:
        self._load_machine_profile = load_machine_profile
        self._this_machine: MachineProfile | None = None
        self._by_card: dict[GpuSpec, MachineProfile] = {}

    def load(self, card: GpuSpec | None) -> MachineProfile:
        """Looks at this computer at first, which takes a second."""
        if self._this_machine is None:
            self._this_machine = self._load_machine_profile()
        if card is None:
            return self._this_machine
        if card not in self._by_card:
            self._by_card[card] = _replace_gpu(self._this_machine, card)
        return self._by_card[card]

    def get_loaded(self, card: GpuSpec | None) -> MachineProfile | None:
        """Without waiting; None: this computer was not looked at yet."""
        return None if self._this_machine is None else self.load(card)


def _replace_gpu(here: MachineProfile, card: GpuSpec) -> MachineProfile:
    """This computer with that card instead of its own: only what its processor has shown stays."""
    device = card.as_device()
    shown = {key: rate for key, rate in here.hardware.measured_speeds.items() if key[0] == HOST}
    known = device_speed.from_devices(
        (device,), here.hardware.nominal_speeds.get(HOST, TYPICAL_CPU_SPEED)
    )
    return replace(here, devices=(device,), hardware=replace(known, measured_speeds=shown))


@functools.cache
def list_gpus() -> tuple[GpuSpec, ...]:
    """Each with one size, in the file's order."""
    return tuple(
        replace(card, vram_gib=(size,)) for card in gpu_catalog.load() for size in card.vram_gib
    )


def gpu_name(card: GpuSpec | None) -> str:
    return (
        sanitize(f"{card.name}, {card.vram_gib[0]:g} GiB", multiline=False)
        if card
        else THIS_COMPUTER
    )


def _next_choice(choices: tuple[_One, ...], current: _One, by: int) -> _One:
    at = choices.index(current) if current in choices else 0
    return choices[(at + by) % len(choices)]


def dials_line(what_if: WhatIf, dial: Dial, fit: FitReport | None, width: int) -> Content:
    """The three dials in so many cells, the one that the arrows turn between ‹ and ›."""
    wide = width >= 74
    said = {
        "card": fit_to_width(gpu_name(what_if.gpu), _MAX_NAME_WIDTH, "…").rstrip(),
        "context": f"{'context ' if width >= 48 else ''}{_context_text(what_if, fit)}",
        "kv": f"{'KV ' if width >= 48 else ''}{_kv_text(what_if, fit)}",
    }
    parts: list[Content] = [Content.styled("what if  ", "$muted")] if wide else []
    for name in DIALS:
        text = f"‹ {said[name]} ›" if name == dial else f"  {said[name]}  " if wide else said[name]
        parts += [Content.styled(text, "bold $accent" if name == dial else "$muted"), Content(" ")]
    return Content.assemble(*parts[:-1])


def _context_text(what_if: WhatIf, fit: FitReport | None) -> str:
    chosen = fit.load.target_settings.n_ctx if fit else None
    return fit_text.context_text(what_if.ctx or chosen)


def _kv_text(what_if: WhatIf, fit: FitReport | None) -> str:
    return what_if.kv or (fit.load.target_settings.kv_type if fit else "auto")


# --- What stands around the wizard's steps: the title with its dials, and the keys of the moment.

USE_CASES = {
    "chat": "questions, ideas, conversation",
    "code": "programs: writing, explaining, mending",
    "writing": "stories, letters, a text of one's own",
    "documents": "long texts: summaries, what they say of something",
}
SEARCHING_TEXT = "Looking at this computer and the catalogue …"
NO_CANDIDATE_TEXT = (
    "Nothing in the catalogue fits here.  tab and the arrows try another context or type of keys "
    "and values, g another card.  o opens files of your own."
)
_HIDDEN_KEYS = {
    1: ("less", "more", "dial", "card", "draft", "target", "settings"),
    2: ("draft", "target", "settings"),
    3: ("dial", "card"),
}
"""Keys that a step does without in its last line."""


def use_case_line(n: int, use_case: str) -> Content:
    """A choice of the first step."""
    return Content.assemble(
        (f" {n}  ", "$accent"), (f"{use_case:<12}", "bold"), (USE_CASES[use_case], "$muted")
    )


def first_step_title(width: int) -> Content:
    """The title of the first step, which asks."""
    return Content.assemble((_step_title(1, width), "bold"), ("   What for?", "$muted"))


def step_header(
    step: int, what_if: WhatIf, dial: Dial, fit: FitReport | None, width: int
) -> Content:
    """The title, and the dials at the line's end; `fit`: what was chosen where a dial is open."""
    title = _step_title(step, width)
    dials = dials_line(what_if, dial, fit, width - len(title) - 2)
    between = " " * max(2, width - len(title) - dials.cell_length)
    return Content.assemble((title, "bold"), between, dials)


def _step_title(step: int, width: int) -> str:
    return f"New pair · {step} of 3" if width >= 70 else f"{step} of 3"


def key_hints(step: int, take_hint: str, keymap: Mapping[str, str], width: int) -> str:
    """The keys of a step; `taking`: what enter does on the last."""
    does = {1: "enter choose", 2: "enter look closer", 3: take_hint}[step]
    now = {f"wizard.{name}": "" for name in _HIDDEN_KEYS[step]}
    return fit_footer(
        f"{does}  {format_footer(keymap, 'wizard', 'app', label_overrides=now)}", width
    )


def take_action_hint(pair: CatalogPair | None, ready: Collection[str]) -> str:
    """What enter does with a pair."""
    if pair is not None and pair.id in ready:
        return "enter chat"
    return f"enter download {'both ' if pair is not None and pair.draft else ''}and chat"
