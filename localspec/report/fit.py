"""The report of `localspec fit`: lines, and the document of `--json`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from localspec import draft_kinds
from localspec.fit.advisor import MemorySaving
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.plan import DeviceFit, Plan, is_in_system_memory
from localspec.report.lines import EMPTY_LINE, Line, Span, make_line
from localspec.report.memory import (
    VERDICT_LABELS,
    VERDICT_ROLES,
    describe_device_fit,
    describe_parts,
    format_device_memory,
)
from localspec.report.pair_text import (
    describe_speed_basis,
    format_speed,
    format_speeds,
)
from localspec.units import gib

_SOURCE_TEXT = {
    "file": "the installed files",
    "hub": "the file headers on the hub",
    "shape": "the model shapes in the catalogue",
}
_MAX_SAVINGS = 6
_INDENT = "  "


class FitAnswer(Struct, frozen=True):
    """What `fit` has found out."""

    subject: PairShapes
    plan: Plan
    savings: Sequence[MemorySaving]
    use_case: str


def format_fit(answer: FitAnswer, width: int, *, plain: bool = False) -> Iterator[Line]:
    """The lines of the report; `plain`: in words, without bars, for a screen reader."""
    plan = answer.plan
    draft = answer.subject.draft
    yield make_line(answer.subject.name, "heading")
    for device_fit in plan.all_fits:
        if device_fit.needed:
            yield EMPTY_LINE
            yield from _format_device(device_fit, width, plain=plain)
    yield EMPTY_LINE
    yield from _format_speed(answer, width, separator=", " if plain else " · ")
    head_kind = draft.shape.head_kind if draft else ""
    head = draft_kinds.describe(head_kind)
    if plan.load.draft and head:
        yield make_line(f"Draft: {head}.")
    if plan.skipped_draft:
        yield make_line(plan.skipped_draft)
    yield make_line(f"With {plan.explanation}.")
    yield make_line(f"Memory estimate: {_describe_method(plan, answer.subject)}.")
    if plan.verdict in ("tight", "no") and answer.savings:
        yield make_line("To save memory:")
        for saving in answer.savings[:_MAX_SAVINGS]:
            yield _format_saving(saving)
    if plan.verdict == "no":
        yield make_line("Find a smaller model: localspec pair suggest")


def _format_device(device_fit: DeviceFit, width: int, *, plain: bool) -> Iterator[Line]:
    device = device_fit.device
    total = device.total or device.free or device_fit.needed
    free = total if device.free is None else device.free
    reserve = f"{gib(device_fit.reserve)} reserved for other programs"
    if is_in_system_memory(device) and device.kind != "cpu":
        reserve = "shared with this computer"
    name = device.description or device.name
    yield make_line(f"{name}: {gib(free)} free of {gib(total)}, {reserve}")
    if plain:
        yield make_line(_INDENT + describe_parts(device_fit))
    else:
        for line in format_device_memory(device_fit, width - len(_INDENT)):
            yield (Span(_INDENT), *line)
    verdict = describe_device_fit(device_fit, with_need=True)
    yield (Span(_INDENT), Span(verdict, VERDICT_ROLES[device_fit.verdict]))


def _format_speed(answer: FitAnswer, width: int, *, separator: str) -> Iterator[Line]:
    fit = answer.plan
    if fit.verdict == "no":
        yield make_line("Speed: none, because it does not fit.")
        return
    yield from format_speeds(fit.speed, answer.use_case, width, separator=separator)
    yield describe_speed_basis(fit.speed)


def _format_saving(saving: MemorySaving) -> Line:
    verdict = saving.fit.verdict
    speed = saving.fit.speed.speculative
    rate = f"; {format_speed(speed)}" if speed else ""
    return (
        Span(f"  {saving.change:36} saves {gib(saving.saved_bytes):>9}   "),
        Span(VERDICT_LABELS[verdict], VERDICT_ROLES[verdict]),
        Span(f"{rate}  {saving.flags}".rstrip()),
    )


def _describe_method(fit: Plan, subject: PairShapes) -> str:
    memory = fit.memory
    parts = [subject.target, subject.draft] if subject.draft else [subject.target]
    sources = " and ".join(dict.fromkeys(_SOURCE_TEXT[part.source] for part in parts))
    method = "calculated by localspec"
    if memory.method == "exact":
        method = "counted by llama.cpp"
    error = f", ± {gib(fit.error)}" if fit.error else ""
    note = f" ({memory.note})" if memory.note else ""
    return f"{method} from {sources}{error}{note}"


# --- The document of --json.


def fit_to_json(answer: FitAnswer) -> dict[str, Any]:
    """Sizes in bytes, speeds in tokens per second."""
    subject = answer.subject
    fit = answer.plan
    target_settings = fit.load.target_settings
    return {
        "target": subject.target.name,
        "draft": subject.draft.name if subject.draft and fit.load.draft else None,
        "source": subject.target.source,
        "verdict": fit.verdict,
        "why": answer.plan.explanation,
        "settings": {
            "ctx": target_settings.n_ctx,
            "kv": target_settings.kv_type,
            "gpu_layers": target_settings.n_gpu_layers,
            "draft_gpu_layers": fit.load.draft_settings.n_gpu_layers,
            "cpu_moe": target_settings.cpu_moe,
        },
        "devices": [_device_to_json(device_fit) for device_fit in fit.device_fits],
        "host": _device_to_json(fit.host),
        "method": fit.memory.method,
        "error": fit.error,
        "speed": {
            "plain": fit.speed.plain,
            "speculative": fit.speed.speculative,
            "calibrated": fit.speed.calibrated,
            "why": fit.speed.explanation,
        },
        "advice": [_saving_to_json(saving) for saving in answer.savings],
    }


def _saving_to_json(saving: MemorySaving) -> dict[str, Any]:
    return {
        "change": saving.change,
        "flags": saving.flags,
        "saves": saving.saved_bytes,
        "costs": saving.drawback,
        "speed": saving.fit.speed.speculative,
        "fits": saving.fit.verdict != "no",
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
        "overhead": device_fit.overhead,
        "total": device_fit.total,
        "shared": device_fit.needed - device_fit.total,
        "verdict": device_fit.verdict,
    }
