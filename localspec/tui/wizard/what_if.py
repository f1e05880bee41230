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
CONTEXT_SIZES = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
KV_TYPES: tuple[KvType, ...] = ("f16", "q8_0", "q4_0")
THIS_COMPUTER = "this computer"
_MAX_NAME_WIDTH = 28
# Widths of the dials from which there is more than the values.
_LABELLED_WIDTH = 48  # What a value is, such as `context 8k`.
_WIDE_WIDTH = 90  # "what if", and room for ‹ and ›, so that nothing moves.
_MARKS_WIDTH = 6  # ‹ and › of the active dial, and a space between two.
_ChoiceT = TypeVar("_ChoiceT")


class WhatIf(Struct, frozen=True):
    """None stands for this computer, or for automatic."""

    gpu: GpuSpec | None = None  # With exactly one memory size.
    ctx: int | None = None
    kv: KvType | None = None

    def turn_dial(self, dial: Dial, by: int, plan: Plan | None = None) -> WhatIf:
        """`plan`: of these dials with this one at auto; it says what auto stands for."""
        if dial == "gpu":
            return replace(self, gpu=_next_choice((None, *list_gpus()), self.gpu, by))
        settings = plan.load.target_settings if plan is not None else None
        if dial == "context":
            automatic = settings.n_ctx if settings is not None else None
            contexts = _insert_auto(CONTEXT_SIZES, automatic)
            ctx = None if self.ctx == automatic else self.ctx
            return replace(self, ctx=_next_choice(contexts, ctx, by))
        automatic_kv = settings.kv_type if settings is not None else None
        types = _insert_auto(KV_TYPES, automatic_kv)
        kv = None if self.kv == automatic_kv else self.kv
        return replace(self, kv=_next_choice(types, kv, by))

    def with_automatic(self, dial: Dial) -> WhatIf:
        match dial:
            case "gpu":
                return replace(self, gpu=None)
            case "context":
                return replace(self, ctx=None)
            case "kv":
                return replace(self, kv=None)


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
    return one_line(f"{gpu.name}, {gpu.vram_gib[0]:g} GB")


def _insert_auto(
    values: tuple[_ChoiceT, ...], automatic: _ChoiceT | None
) -> tuple[_ChoiceT | None, ...]:
    """The positions of a dial: auto (None) is in the place of the value it stands for.

    With an automatic context of 32k: 2k, 4k, 8k, 16k, auto, 64k, 128k.  It is the first
    position while that value is unknown, or none of the dial's.
    """
    if automatic not in values:
        return (None, *values)
    index = values.index(automatic)
    return (*values[:index], None, *values[index + 1 :])


def _next_choice(choices: tuple[_ChoiceT, ...], current: _ChoiceT, by: int) -> _ChoiceT:
    index = choices.index(current) if current in choices else 0
    return choices[(index + by) % len(choices)]


def dials_line(what_if: WhatIf, dial: Dial, plan: Plan | None, width: int) -> Content:
    """The three dials; the active one is between ‹ and ›.

    `plan` provides the automatic values. 80 cells show, for example:

        what if    this computer   ‹ context auto (16k) ›    KV f16
    """
    values = _dial_values(what_if, plan, width)
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


def _dial_values(what_if: WhatIf, plan: Plan | None, width: int) -> dict[Dial, str]:
    """What is automatic is named so, with the value that it has now."""
    context = "auto"
    kv = "auto"
    if plan is not None:
        settings = plan.load.target_settings
        context = f"auto ({pair_text.format_context(settings.n_ctx)})"
        kv = f"auto ({settings.kv_type})"
    if what_if.ctx is not None:
        context = pair_text.format_context(what_if.ctx)
    if what_if.kv is not None:
        kv = what_if.kv
    if width >= _LABELLED_WIDTH:
        context = f"context {context}"
        kv = f"KV {kv}"
    name_width = _MAX_NAME_WIDTH
    if width < _WIDE_WIDTH:
        name_width = min(name_width, width - len(context) - len(kv) - _MARKS_WIDTH)
    gpu = fit_to_width(gpu_name(what_if.gpu), max(4, name_width)).rstrip()
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


def key_hints(step: int, enter_hint: str, keymap: Mapping[str, str]) -> str:
    """The keys of a step; `enter_hint` is that of the enter key."""
    hidden = {f"wizard.{name}": "" for name in _HIDDEN_KEYS[step]}
    footer = format_footer(keymap, "wizard", "app", label_overrides=hidden)
    return f"{enter_hint}  {footer}"
