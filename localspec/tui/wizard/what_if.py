"""The wizard's what-if dials (GPU, context size, KV type), titles and key hints.

The dials ask what would be: "what if this computer had an RTX 3060 with 12 GiB, and the
context were 8k?"
"""

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
from localspec.tui.key_bindings import format_footer
from localspec.tui.text.wrapping import fit_to_width, one_line

Dial = Literal["gpu", "context", "kv"]
DIALS: tuple[Dial, ...] = ("gpu", "context", "kv")
CONTEXT_SIZES = (None, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
KV_TYPES: tuple[KvType | None, ...] = (None, "f16", "q8_0", "q4_0")
THIS_COMPUTER = "this computer"
_MAX_NAME_WIDTH = 28
# Widths of the dials from which there is more than the values.
_LABELLED_WIDTH = 48  # What a value is, such as `context 8k`.
_WIDE_WIDTH = 74  # "what if", and room for ‹ and ›, so that nothing moves.
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
    """This computer as it is, and as it would be with another GPU."""

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
            profile = machine_profile.with_catalog_gpu(self._this_machine, gpu)
            self._by_gpu[gpu] = profile
        return self._by_gpu[gpu]

    def get_loaded(self, gpu: GpuSpec | None) -> MachineProfile | None:
        """Does not block; None until this computer has been probed."""
        return None if self._this_machine is None else self.load(gpu)


@functools.cache
def list_gpus() -> tuple[GpuSpec, ...]:
    """One entry per memory size, in the file's order."""
    gpus: list[GpuSpec] = []
    for gpu in gpu_catalog.load():
        gpus += [replace(gpu, vram_gib=(size,)) for size in gpu.vram_gib]
    return tuple(gpus)


def gpu_name(gpu: GpuSpec | None) -> str:
    if gpu is None:
        return THIS_COMPUTER
    return one_line(f"{gpu.name}, {gpu.vram_gib[0]:g} GiB")


def _next_choice(choices: tuple[_ChoiceT, ...], current: _ChoiceT, by: int) -> _ChoiceT:
    index = choices.index(current) if current in choices else 0
    return choices[(index + by) % len(choices)]


def dials_line(what_if: WhatIf, dial: Dial, plan: Plan | None, width: int) -> Content:
    """The three dials; the active one is between ‹ and ›.

    `plan` provides the automatic values. 80 cells show, for example:

        what if    this computer   ‹ context 16k ›    KV f16
    """
    values = _dial_values(what_if, plan, is_labelled=width >= _LABELLED_WIDTH)
    is_wide = width >= _WIDE_WIDTH
    parts: list[Content] = []
    if is_wide:
        parts.append(Content.styled("what if  ", "$muted"))
    for name, value in values.items():
        if name == dial:
            parts.append(Content.styled(f"‹ {value} ›", "bold $accent"))
        elif is_wide:
            parts.append(Content.styled(f"  {value}  ", "$muted"))
        else:
            parts.append(Content.styled(value, "$muted"))
        parts.append(Content(" "))
    return Content.assemble(*parts[:-1])


def _dial_values(
    what_if: WhatIf, plan: Plan | None, *, is_labelled: bool
) -> dict[Dial, str]:
    n_ctx = what_if.ctx
    kv: str | None = what_if.kv
    if plan is not None:
        settings = plan.load.target_settings
        n_ctx = n_ctx or settings.n_ctx
        kv = kv or settings.kv_type
    context = pair_text.format_context(n_ctx)
    kv = kv or "auto"
    if is_labelled:
        context = f"context {context}"
        kv = f"KV {kv}"
    gpu = fit_to_width(gpu_name(what_if.gpu), _MAX_NAME_WIDTH).rstrip()
    return {"gpu": gpu, "context": context, "kv": kv}


USE_CASES = {
    "chat": "questions, ideas, conversation",
    "code": "programs: writing, explaining, fixing",
    "writing": "stories, letters, your own texts",
    "documents": "long texts: summaries and questions",
}
SEARCHING_TEXT = "Checking this computer and the catalogue …"
NO_CANDIDATE_TEXT = (
    "Nothing in the catalogue fits.  Press tab and the arrow keys to try another "
    "context or KV type, g for another GPU, o to open your own files."
)
_HIDDEN_KEYS = {
    1: ("less", "more", "dial", "card", "draft", "target", "settings"),
    2: ("draft", "target", "settings"),
    3: ("dial", "card"),
}
"""Keys that are not shown in a step's footer."""


def use_case_line(n: int, use_case: str) -> Content:
    number = (f"{n}  ", "$accent")
    name = (use_case.ljust(12), "bold")
    about = (USE_CASES[use_case], "$muted")
    return Content.assemble(number, name, about)


def step_header(
    step: int, what_if: WhatIf, *, dial: Dial, plan: Plan | None, width: int
) -> Content:
    """The step's title; at the right the dials, if the step has any."""
    title = f"New pair · {step} of 3" if width >= 70 else f"{step} of 3"
    if step == 1:
        question = ("   What will you use it for?", "$muted")
        return Content.assemble((title, "bold"), question)
    dials = dials_line(what_if, dial, plan, width - len(title) - 2)
    gap = " " * max(2, width - len(title) - dials.cell_length)
    return Content.assemble((title, "bold"), gap, dials)


def key_hints(step: int, take_hint: str, keymap: Mapping[str, str]) -> str:
    """The keys of a step; `take_hint` is the enter key's hint on the last step."""
    enter_hints = {1: "enter select", 2: "enter details", 3: take_hint}
    hidden = {f"wizard.{name}": "" for name in _HIDDEN_KEYS[step]}
    footer = format_footer(keymap, "wizard", "app", label_overrides=hidden)
    return f"{enter_hints[step]}  {footer}"
