"""The memory of a device: the verdict in words, the bar, its scale and its legend."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from localspec.fit.plan import DeviceFit, FitVerdict, Plan
from localspec.report.lines import Line, Role, Span, make_line
from localspec.units import gib

VERDICT_LABELS: dict[FitVerdict, str] = {
    FitVerdict.FITS: "fits",
    FitVerdict.TIGHT: "tight",
    FitVerdict.NO: "too big",
    FitVerdict.UNKNOWN: "unknown",
}
VERDICT_ROLES: dict[FitVerdict, Role] = {
    FitVerdict.FITS: "success",
    FitVerdict.TIGHT: "warning",
    FitVerdict.NO: "error",
    FitVerdict.UNKNOWN: "muted",
}


def describe_fit(plan: Plan) -> str:
    """Whether the pair fits, for the device that decides it."""
    return describe_device_fit(plan.tightest)


_UNKNOWN = "free memory is unknown"


def describe_device_fit(
    device_fit: DeviceFit, *, with_need: bool = False, label: str = ""
) -> str:
    """The verdict on one device, such as `fits, 1.3 GB to spare`.

    `with_need` adds what is needed where the sentence would not say it:
    `fits: needs 6.1 GB, 1.3 GB to spare`.  The first figure of an estimate that
    llama.cpp did not count is "about": `fits, about 1.3 GB to spare`.  `label` replaces
    the first word.
    """
    label = label or VERDICT_LABELS[device_fit.verdict]
    shared = ""
    if device_fit.sharing and with_need:
        shared = " with the GPU's"
    need = f"needs {format_need(device_fit, device_fit.needed)}{shared}"
    headroom = device_fit.headroom
    if headroom is None:
        return f"{need}, {_UNKNOWN}" if with_need else _UNKNOWN
    if not device_fit.verdict.can_load:
        name = "this computer" if device_fit.device.kind == "cpu" else "the GPU"
        return f"{label}: {need}, {gib(device_fit.missing)} more than {name} has free"
    if headroom < 0:
        if with_need:
            used = gib(-headroom)
            return f"{label}: {need}, uses {used} reserved for other programs"
        used = format_need(device_fit, -headroom)
        return f"{label}: uses {used} reserved for other programs"
    if with_need:
        return f"{label}: {need}, {gib(headroom)} to spare"
    return f"{label}, {format_need(device_fit, headroom)} to spare"


def format_need(device_fit: DeviceFit, n_bytes: int) -> str:
    """A figure of this device in GB: `about 6.1 GB` if llama.cpp did not count it."""
    if device_fit.is_coarse:
        return f"about {gib(n_bytes)}"
    return gib(n_bytes)


# --- The bar.

MAX_BAR_WIDTH = 64
_GIB = 1 << 30


class BarPart(Struct, frozen=True):
    sign: str
    role: Role


BAR_PARTS = (
    BarPart("█", "target memory"),
    BarPart("▓", "draft memory"),
    BarPart("▒", "cache memory"),  # KV
    BarPart("▚", "cache memory"),  # recurrent states
    BarPart("▞", "cache memory"),  # window cache
    BarPart("▌", "target memory"),  # projector
    BarPart("░", "buffer memory"),
)
"""In the order of `DeviceFit.memory_parts`."""
_FREE = BarPart("·", "free memory")
_OTHERS = BarPart("╱", "memory of others")


def format_device_memory(
    device_fit: DeviceFit, width: int, *, with_scale: bool = True
) -> Iterator[Line]:
    """The scale, the bar and the legend.

    For 3 GiB of weights and 1 GiB of caches on a card of 8 GiB, of which other programs
    use 2 GiB, in 32 cells:

        0 GB            6.0 free      8.0
        ████████████▒▒▒▒········╱╱╱╱╱╱╱╱
        █ target 3.0   ▒ KV 1.0
    """
    bar_width = min(MAX_BAR_WIDTH, width)
    if with_scale:
        yield make_line(format_scale(device_fit, bar_width), "muted")
    yield format_bar(device_fit, bar_width)
    yield format_legend(device_fit, width)


def format_bar(device_fit: DeviceFit, width: int) -> Line:
    """The whole memory of the device, with what other programs use at the end.

    What exceeds the free memory has a role of its own.
    """
    total = _bar_total(device_fit)
    free_bytes = device_fit.device.free
    free = width if free_bytes is None else round(free_bytes * width / total)
    counts = _count_part_cells(list(device_fit.memory_parts.values()), total, width)
    spans: list[Span] = []
    used = 0
    for part, n_cells in zip(BAR_PARTS, counts, strict=True):
        n_fitting = max(0, min(n_cells, free - used))
        spans.append(Span(part.sign * n_fitting, part.role))
        spans.append(Span(part.sign * (n_cells - n_fitting), "missing memory"))
        used += n_cells
    spans.append(Span(_FREE.sign * max(0, free - used), _FREE.role))
    spans.append(Span(_OTHERS.sign * (width - max(free, used)), _OTHERS.role))
    return tuple(span for span in spans if span.text)


def _bar_total(device_fit: DeviceFit) -> int:
    """Bytes of the full width: the device's memory, or what is needed if that is more."""
    known = device_fit.device.total or device_fit.device.free or 0
    return max(known, device_fit.needed, 1)


def _count_part_cells(sizes: Sequence[int], total: int, width: int) -> list[int]:
    """The cells of each part.

    A part that is not empty gets at least one cell, taken from the largest: in 16 cells
    of 16 GiB, 15.9 GiB of weights and 0.1 GiB of buffers take 15 and 1.
    """
    cells = []
    for size in sizes:
        n_cells = round(size * width / total)
        if size and not n_cells:
            n_cells = 1
        cells.append(n_cells)
    while sum(cells) > width:
        largest = cells.index(max(cells))
        cells[largest] -= 1
    return cells


def format_scale(device_fit: DeviceFit, width: int) -> str:
    """The line above the bar: zero, the free memory at its place, and the whole memory."""
    device = device_fit.device
    total = _bar_total(device_fit)
    start = "0 GB"
    if device.free is None or device.free == device.total:
        return _place_at_end(start, _total_label(device_fit), width)
    total_label = _total_label(device_fit)
    free_label = f"{short_gib(device.free)} free"
    free_column = min(round(device.free * width / total), width)
    if total_label and free_column > width - len(total_label) - 1:
        # Both labels would overlap.
        free_label = f"{free_label} of {total_label}"
        total_label = ""
        free_column = width
    n_free_cells = max(len(free_label) + 1, free_column - len(start))
    return _place_at_end(start + free_label.rjust(n_free_cells), total_label, width)


def _total_label(device_fit: DeviceFit) -> str:
    """Empty if the end of the bar is what is needed, not the device's memory."""
    total = device_fit.device.total
    return short_gib(total) if total == _bar_total(device_fit) else ""


def _place_at_end(line: str, label: str, width: int) -> str:
    if not label:
        return line
    return line + label.rjust(max(0, width - len(line)))


def format_legend(device_fit: DeviceFit, width: int) -> Line:
    """The sign, name and GiB of each part; narrower where the width asks for it."""
    entries = _legend_entries(device_fit, "compute buffers")
    spare = _spare_cells(entries, width)
    if spare < len(entries) - 1:
        entries = _legend_entries(device_fit, "buf.")
        spare = _spare_cells(entries, width)
    gap = " " * max(0, min(3, spare // max(1, len(entries) - 1)))
    spans: list[Span] = []
    for part, label in entries:
        if spans:
            spans.append(Span(gap))
        spans += [Span(part.sign, part.role), Span(label)]
    return tuple(spans)


def _legend_entries(
    device_fit: DeviceFit, buffers_name: str
) -> list[tuple[BarPart, str]]:
    entries = []
    sizes = device_fit.memory_parts.items()
    for part, (name, size) in zip(BAR_PARTS, sizes, strict=True):
        if size:
            shown_name = buffers_name if name == "compute buffers" else name
            entries.append((part, f" {shown_name} {short_gib(size)}"))
    return entries


def _spare_cells(entries: Sequence[tuple[BarPart, str]], width: int) -> int:
    """The cells that are left beside signs and labels."""
    return width - sum(1 + len(label) for _, label in entries)


def describe_parts(device_fit: DeviceFit) -> str:
    """The legend in words, for a screen reader."""
    parts = device_fit.memory_parts.items()
    return ", ".join(f"{name} {gib(size)}" for name, size in parts if size)


def format_plan_share(plan: Plan) -> str:
    """Of all GPUs together; of RAM if there is none, or if they share it."""
    used: Sequence[DeviceFit] = plan.device_fits
    if not used or plan.host.sharing:
        used = (plan.host,)
    total = 0
    for device_fit in used:
        if device_fit.device.total is None:
            return format_share(sum(each.needed for each in used), None)
        total += device_fit.device.total
    return format_share(sum(each.needed for each in used), total)


def format_share(needed: int, total: int | None) -> str:
    """What is needed of a memory: `19.9 of 24 GB`.

    A memory is called by its size as it is sold: 24, though 23.5 are seen.
    """
    if total is None:
        return f"{short_gib(needed)} GB"
    return f"{short_gib(needed)} of {math.ceil(total / _GIB - 0.05)} GB"


def short_gib(n_bytes: float) -> str:
    """GiB without the unit: `4.5`; two digits below 0.1."""
    size = n_bytes / _GIB
    if 0 < size < 0.005:
        return "<0.01"
    if 0 < size < 0.095:
        return f"{size:.2f}"
    return f"{size:.1f}"
