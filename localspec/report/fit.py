"""The report of `localspec fit`: lines, and the document of `--json`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, field, to_builtins

from localspec import draft_kinds
from localspec.fit.advisor import MemorySaving
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.plan import DeviceFit, Plan, ProjectorFit, is_in_system_memory
from localspec.fit.suggestions import PairSuggestion
from localspec.models import model_names
from localspec.models.catalog import CatalogPair
from localspec.models.projectors import Senses
from localspec.report.lines import EMPTY_LINE, Line, Span, make_line
from localspec.report.memory import (
    VERDICT_LABELS,
    VERDICT_ROLES,
    describe_device_fit,
    describe_parts,
    format_device_memory,
)
from localspec.report.model_details import describe_senses
from localspec.report.pair_text import (
    describe_speed_basis,
    format_speed,
    format_speeds,
)
from localspec.units import about_rate, gib, middle

_SOURCE_TEXT = {
    "file": "the installed files",
    "hub": "the headers of the files on the hub",
    "shape": "the catalogue's numbers",
}
_MAX_SAVINGS = 6
_INDENT = "  "
_NOTABLE_WINDOW_BYTES = 2 << 30
"""From this `window_saving` on, the report explains why more memory needs more."""


class FitAnswer(Struct, frozen=True):
    """What `fit` has found out."""

    subject: PairShapes
    plan: Plan
    savings: Sequence[MemorySaving]
    use_case: str
    pair: CatalogPair | None = None  # None if the catalogue does not have it.
    missing: str = ""  # The reference to pull; empty if all its files are here.
    instead: PairSuggestion | None = None
    """What to take instead, if it does not fit or is too slow."""
    is_too_slow: bool = False
    """It fits, but its answers would take too long."""
    window_saving: int = 0
    """Bytes that a cache cut to the sliding window would save."""
    senses: Senses = field(default=Senses())  # What the target sees and hears.

    @property
    def name(self) -> str:
        if self.subject.draft is None or not self.plan.load.draft:
            return self.subject.target.name
        return self.pair.name if self.pair else self.subject.name


def format_fit(answer: FitAnswer, width: int, *, plain: bool = False) -> Iterator[Line]:
    """The lines of the report; `plain`: in words, without bars, for a screen reader."""
    plan = answer.plan
    yield make_line(answer.name, "heading")
    yield from _format_advice(answer)
    for device_fit in plan.all_fits:
        if device_fit.needed and not _is_hardly_used_ram(device_fit, plan):
            yield EMPTY_LINE
            yield from _format_device(device_fit, answer, width, plain=plain)
    yield EMPTY_LINE
    separator = ", " if plain else " · "
    yield from _format_speed(answer, width, separator=separator)
    draft = _describe_draft(answer)
    if draft:
        yield make_line(f"Draft: {draft}.")
    if plan.skipped_draft:
        yield make_line(plan.skipped_draft)
    projector = describe_projector(plan, answer.senses)
    if projector:
        yield make_line(f"{projector[0].upper()}{projector[1:]}.")
    settings = plan.chosen
    if plan.shortage:
        settings += f"; {plan.shortage}"
    yield make_line(f"Settings: {settings}.")
    if answer.window_saving >= _NOTABLE_WINDOW_BYTES:
        less = gib(answer.window_saving)
        yield make_line(
            "Its KV cache keeps what its sliding window has passed, so that going back "
            f"is exact. Where memory is short it does not, and needs {less} less."
        )
    yield make_line(f"Memory: {_describe_method(plan, answer.subject)}.")
    if not plan.has_room and answer.savings:
        yield make_line("To save memory:")
        for saving in answer.savings[:_MAX_SAVINGS]:
            yield _format_saving(saving)
    if not plan.verdict.can_load and answer.instead is None:
        yield make_line("Find a smaller model: localspec pair suggest")
    elif answer.instead is not None:
        yield make_line(f"Get that: localspec pull {answer.instead.pair.name}")
    elif answer.missing:
        yield make_line(f"Get it: localspec pull {answer.missing}")


def _format_advice(answer: FitAnswer) -> Iterator[Line]:
    """What to take instead, if it does not fit or is too slow."""
    plan = answer.plan
    instead = answer.instead
    if instead is None:
        return
    rate = about_rate(instead.tokens_per_second)
    name = model_names.name_model(instead.pair.target)
    take = f"take {name} ({rate} tok/s)"
    if not plan.verdict.can_load:
        yield make_line(f"does not fit: {take}", "error")
        return
    source = " from RAM" if plan.is_partly_in_ram else ""
    slow = about_rate(middle(plan.speed.speculative or plan.speed.plain))
    yield make_line(f"too slow{source} ({slow} tok/s): {take}", "warning")


def _is_hardly_used_ram(device_fit: DeviceFit, plan: Plan) -> bool:
    """Whether it is the RAM, and the model is on the GPU: then it says little."""
    if device_fit is not plan.host or not plan.device_fits or device_fit.sharing:
        return False
    is_small = 4 * device_fit.needed < plan.total
    return is_small and device_fit.verdict.has_room and not plan.is_partly_in_ram


def _format_device(
    device_fit: DeviceFit, answer: FitAnswer, width: int, *, plain: bool
) -> Iterator[Line]:
    device = device_fit.device
    total = device.total or device.free or device_fit.needed
    free = total if device.free is None else device.free
    if is_in_system_memory(device) and device.kind != "cpu":
        note = "shared with this computer"
    else:
        note = f"{gib(device_fit.reserve)} reserved for other programs"
    name = device.description or device.name
    memory = f"{gib(free)} free of {gib(total)}"
    if free == total:
        memory = f"{gib(free)} free"
    yield make_line(f"{name}: {memory}, {note}")
    if plain:
        yield make_line(_INDENT + describe_parts(device_fit))
    else:
        for line in format_device_memory(device_fit, width - len(_INDENT)):
            yield (Span(_INDENT), *line)
    role = VERDICT_ROLES[device_fit.verdict]
    label = ""
    if answer.is_too_slow and device_fit.verdict.has_room:
        # "fits" would say that it can be used.
        label = "too slow"
        role = "warning"
    verdict = describe_device_fit(device_fit, with_need=True, label=label)
    yield (Span(_INDENT), Span(verdict, role))


def _describe_draft(answer: FitAnswer) -> str:
    """Such as `the model's own MTP layer`; empty without a draft."""
    draft = answer.subject.draft
    if draft is None or not answer.plan.load.draft:
        return ""
    if draft.name == answer.subject.target.name:
        return "the model's own MTP layer"
    if answer.pair is not None and answer.pair.draft is not None:
        return answer.pair.draft.title
    head = draft_kinds.head_title(draft.shape.head_kind)
    return f"{draft.name}, a head of the kind {head}" if head else draft.name


def describe_projector(plan: Plan, senses: Senses) -> str:
    """What the target sees, and where its projector is, with what it takes there.

    Such as `sees images: its projector takes 1.2 GB of NVIDIA RTX 3090`; empty for a
    model that neither sees nor hears.
    """
    if not senses.word:
        return ""
    said = describe_senses(senses)
    if not plan.verdict.can_load:
        return said
    projector = plan.projector
    if projector is None:
        return f"{said}: its projector, whose size is not known, takes more memory"
    about = "about " if projector.is_coarse else ""
    size = f"{about}{gib(plan.projector_bytes)}"
    if not projector.device:
        return f"{said}, but has no room for its projector ({size}) here"
    text = f"{said}: its projector takes {size} of {projector.title}"
    if plan.device_fits and not projector.on_gpu:
        text += ", as the GPU has no room: the CPU reads pictures, which takes longer"
    return text


def _format_speed(answer: FitAnswer, width: int, *, separator: str) -> Iterator[Line]:
    plan = answer.plan
    if not plan.verdict.can_load:
        yield make_line("Speed: none, because it does not fit.")
        return
    yield from format_speeds(plan.speed, answer.use_case, width, separator=separator)
    yield describe_speed_basis(plan.speed)


def _format_saving(saving: MemorySaving) -> Line:
    verdict = saving.plan.verdict
    speed = saving.plan.speed.speculative
    rest = f"  {saving.flags}"
    if speed and verdict.can_load:
        rest = f"; {format_speed(speed)}{rest}"
    return (
        Span(f"  {saving.change:36} saves {gib(saving.saved_bytes):>9}   "),
        Span(VERDICT_LABELS[verdict], VERDICT_ROLES[verdict]),
        Span(rest.rstrip()),
    )


def _describe_method(plan: Plan, subject: PairShapes) -> str:
    """Such as `estimated from the installed files, ± 0.20 GB`."""
    memory = plan.memory
    sources = [_SOURCE_TEXT[subject.target.source]]
    if subject.draft:
        draft_source = _SOURCE_TEXT[subject.draft.source]
        if draft_source not in sources:
            sources.append(draft_source)
    method = "estimated"
    if not memory.is_coarse:
        method = "counted by llama.cpp"
    text = f"{method} from {' and '.join(sources)}"
    if plan.error:
        text += f", ± {gib(plan.error)}"
    if memory.note:
        text += f" ({memory.note})"
    return text


# --- The document of --json.


def fit_to_json(answer: FitAnswer) -> dict[str, Any]:
    """Sizes in bytes, speeds in tokens per second."""
    subject = answer.subject
    plan = answer.plan
    draft_name = None
    if subject.draft and plan.load.draft:
        draft_name = subject.draft.name
    target_settings = plan.load.target_settings
    return {
        "name": answer.name,
        "target": subject.target.name,
        "draft": draft_name,
        "source": subject.target.source,
        "verdict": plan.verdict,
        "why": plan.explanation,
        "settings": {
            "ctx": target_settings.n_ctx,
            "kv": target_settings.kv_type,
            "gpu_layers": target_settings.n_gpu_layers,
            "draft_gpu_layers": plan.load.draft_settings.n_gpu_layers,
            "cpu_moe": target_settings.cpu_moe,
            "draft_max": plan.load.draft_max,
        },
        "devices": [_device_to_json(device_fit) for device_fit in plan.device_fits],
        "host": _device_to_json(plan.host),
        "method": plan.memory.method,
        "error": plan.error,
        "speed": {
            "plain": plan.speed.plain,
            "speculative": plan.speed.speculative,
            "calibrated": plan.speed.calibrated,
            "why": plan.speed.explanation,
        },
        "too_slow": answer.is_too_slow,
        "instead": answer.instead.pair.name if answer.instead else None,
        "advice": [_saving_to_json(saving) for saving in answer.savings],
        "sees": answer.senses.sees,
        "hears": answer.senses.hears,
        "projector": _projector_to_json(plan.projector),
    }


def _projector_to_json(projector: ProjectorFit | None) -> dict[str, Any] | None:
    """`device`: its name; null where no memory has room for it."""
    if projector is None:
        return None
    return {
        "device": projector.device or None,
        "weights": projector.weights,
        "compute": projector.compute,
        "decoding": projector.decoding,
        "rows": projector.rows or None,
        "about": projector.is_coarse,
    }


def _saving_to_json(saving: MemorySaving) -> dict[str, Any]:
    """`speed`: null of a plan that does not fit, as it does not run."""
    speed = None
    if saving.plan.verdict.can_load:
        speed = saving.plan.speed.speculative
    return {
        "change": saving.change,
        "flags": saving.flags,
        "saves": saving.saved_bytes,
        "costs": saving.drawback,
        "speed": speed,
        "fits": saving.plan.verdict.can_load,
    }


def _device_to_json(device_fit: DeviceFit) -> dict[str, Any]:
    device = device_fit.device
    return {
        "name": device.name,
        "description": device.description,
        "free": device.free,
        "total_memory": device.total,
        "reserve": device_fit.reserve,
        "target": to_builtins(device_fit.target),
        "draft": to_builtins(device_fit.draft),
        "output": device_fit.output,
        "projector": device_fit.projector,
        "overhead": device_fit.overhead,
        "total": device_fit.total,
        "shared": device_fit.needed - device_fit.total,
        "verdict": device_fit.verdict,
    }
