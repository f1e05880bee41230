"""The wizard's what-if dials (GPU, context size, KV type), titles and key hints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from textual.content import Content

from localspec.fit import machine_profile
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.plan import Plan
from localspec.machine import gpu_catalog
from localspec.machine.gpu_catalog import GpuSpec
from localspec.protocol.wire import KvType
from localspec.report import pair_text
from localspec.sanitize import sanitize
from localspec.tui.key_bindings import format_footer
from localspec.tui.text.wrapping import fit_to_width

Dial = Literal["gpu", "context", "kv"]
DIALS: tuple[Dial, ...] = ("gpu", "context", "kv")
CONTEXT_SIZES = (None, *(1 << n for n in range(11, 18)))
KV_TYPES: tuple[KvType | None, ...] = (None, "f16", "q8_0", "q4_0")
THIS_COMPUTER = "this computer"
_MAX_NAME_WIDTH = 28
_ChoiceT = TypeVar("_ChoiceT")


class WhatIf(Struct, frozen=True):
    """None stands for this computer, or for automatic."""

    gpu: GpuSpec | None = None  # With exactly one memory size.
    ctx: int | None = None
    kv: KvType | None = None

    def turn_dial(self, dial: Dial, by: int) -> WhatIf:
        if dial == "gpu":
            return replace(self, gpu=_next_choice((None, *list_gpus()), self.gpu, by))
        if dial == "context":
            return replace(self, ctx=_next_choice(CONTEXT_SIZES, self.ctx, by))
        return replace(self, kv=_next_choice(KV_TYPES, self.kv, by))


class MachineProfiles:
    def __init__(self, load_machine_profile: Callable[[], MachineProfile]) -> None:
        self._load_machine_profile = load_machine_profile
        self._this_machine: MachineProfile | None = None
        self._by_gpu: dict[GpuSpec, MachineProfile] = {}

    def load(self, gpu: GpuSpec | None) -> MachineProfile:
        """The first call probes this computer, which takes a second."""
        if self._this_machine is None:
            self._this_machine = self._load_machine_profile()
        if gpu is None:
            return self._this_machine
        if gpu not in self._by_gpu:
            self._by_gpu[gpu] = machine_profile.with_catalog_gpu(
                self._this_machine, gpu
            )
        return self._by_gpu[gpu]

    def get_loaded(self, gpu: GpuSpec | None) -> MachineProfile | None:
        """Does not block; None until this computer has been probed."""
        return None if self._this_machine is None else self.load(gpu)


@functools.cache
def list_gpus() -> tuple[GpuSpec, ...]:
    """One entry per memory size, in the file's order."""
    gpus = gpu_catalog.load()
    return tuple(
        replace(gpu, vram_gib=(size,)) for gpu in gpus for size in gpu.vram_gib
    )


def gpu_name(gpu: GpuSpec | None) -> str:
    name = f"{gpu.name}, {gpu.vram_gib[0]:g} GiB" if gpu else THIS_COMPUTER
    return sanitize(name, multiline=False)


def _next_choice(choices: tuple[_ChoiceT, ...], current: _ChoiceT, by: int) -> _ChoiceT:
    index = choices.index(current) if current in choices else 0
    return choices[(index + by) % len(choices)]


def dials_line(what_if: WhatIf, dial: Dial, fit: Plan | None, width: int) -> Content:
    """The three dials; the active one is between ‹ and ›.

    `fit` provides the automatic values.
    """
    settings = fit.load.target_settings if fit else None
    context = pair_text.format_context(
        what_if.ctx or (settings.n_ctx if settings else None)
    )
    kv = what_if.kv or (settings.kv_type if settings else "auto")
    is_labelled, is_wide = width >= 48, width >= 74
    values: dict[Dial, str] = {
        "gpu": fit_to_width(gpu_name(what_if.gpu), _MAX_NAME_WIDTH).rstrip(),
        "context": f"context {context}" if is_labelled else context,
        "kv": f"KV {kv}" if is_labelled else kv,
    }
    parts: list[Content] = [Content.styled("what if  ", "$muted")] if is_wide else []
    for name, value in values.items():
        if name == dial:
            parts.append(Content.styled(f"‹ {value} ›", "bold $accent"))
        else:
            parts.append(Content.styled(f"  {value}  " if is_wide else value, "$muted"))
        parts.append(Content(" "))
    return Content.assemble(*parts[:-1])


USE_CASES = {
    "chat": "questions, ideas, conversation",
    "code": "programs: writing, explaining, fixing",
    "writing": "stories, letters, your own texts",
    "documents": "long texts: summaries and questions",
}
SEARCHING_TEXT = "Checking this computer and the catalogue …"
NO_CANDIDATE_TEXT = (
    "Nothing in the catalogue fits.  Press tab and the arrow keys to try another context or KV "
    "type, g for another GPU, o to open your own files."
)
_HIDDEN_KEYS = {
    1: ("less", "more", "dial", "card", "draft", "target", "settings"),
    2: ("draft", "target", "settings"),
    3: ("dial", "card"),
}
"""Keys that are not shown in a step's footer."""


def use_case_line(n: int, use_case: str) -> Content:
    name, about = (f"{use_case:<12}", "bold"), (USE_CASES[use_case], "$muted")
    return Content.assemble((f" {n}  ", "$accent"), name, about)


def step_header(
    step: int, what_if: WhatIf, dial: Dial, fit: Plan | None, width: int
) -> Content:
    """The step's title; at the right the dials, if the step has any."""
    title = f"New pair · {step} of 3" if width >= 70 else f"{step} of 3"
    if step == 1:
        return Content.assemble(
            (title, "bold"), ("   What will you use it for?", "$muted")
        )
    dials = dials_line(what_if, dial, fit, width - len(title) - 2)
    gap = " " * max(2, width - len(title) - dials.cell_length)
    return Content.assemble((title, "bold"), gap, dials)


def key_hints(step: int, take_hint: str, keymap: Mapping[str, str]) -> str:
    """The keys of a step; `take_hint` is the enter key's hint on the last step."""
    enter_hint = {1: "enter select", 2: "enter details", 3: take_hint}[step]
    labels = {f"wizard.{name}": "" for name in _HIDDEN_KEYS[step]}
    return f"{enter_hint}  {format_footer(keymap, 'wizard', 'app', label_overrides=labels)}"
