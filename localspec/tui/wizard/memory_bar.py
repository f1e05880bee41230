"""A bar of a device's memory: what each part of a pair uses, and what stays free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from textual.content import Content

from localspec.fit.report import DeviceFit
from localspec.tui.glyphs import Glyphs
from localspec.tui.wizard.fit_text import gib_text

PART_STYLES = ("$accent", "$bonus", "$accepted", "$muted")
"""In the order of `MemoryParts`."""
_PART_LABELS = ("target", "draft", "KV", "compute buffers")
_SHORT_LABELS = ("target", "draft", "KV", "buf.")


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """In bytes."""

    target: int
    draft: int
    kv: int
    buffers: int

    @classmethod
    def from_device_fit(cls, device_fit: DeviceFit) -> MemoryParts:
        """`buffers` includes the runtime's overhead and the safety margin."""
        buffers = (
            device_fit.target.compute
            + device_fit.draft.compute
            + device_fit.output
            + device_fit.overhead
        )
        return cls(
            device_fit.target.weights,
            device_fit.draft.weights,
            device_fit.target.kv + device_fit.draft.kv,
            buffers,
        )

    def __iter__(self) -> Iterator[int]:
        return iter((self.target, self.draft, self.kv, self.buffers))


def render_bar(device_fit: DeviceFit, width: int, glyphs: Glyphs) -> Content:
    """Memory of other programs is at the end; missing memory is red."""
    total = _bar_total(device_fit)
    cells = _cell_counts(tuple(MemoryParts.from_device_fit(device_fit)), total, width)
    free = (
        width if device_fit.device.free is None else round(device_fit.device.free * width / total)
    )
    segments: list[tuple[str, str]] = []
    start = 0
    for sign, style, n_cells in zip(glyphs.memory_segments, PART_STYLES, cells, strict=True):
        n_fitting = max(0, min(n_cells, free - start))
        segments += [(sign * n_fitting, style), (sign * (n_cells - n_fitting), "$error")]
        start += n_cells
    segments.append((glyphs.memory_free * max(0, free - start), "$muted"))
    segments.append((glyphs.memory_other * (width - max(free, start)), "$muted"))
    return Content.assemble(*(segment for segment in segments if segment[0]))


def _bar_total(device_fit: DeviceFit) -> int:
    """Bytes for the full width: the device's memory, or what is needed if that is more."""
    return max(device_fit.device.total or device_fit.device.free or 0, device_fit.total, 1)


def _cell_counts(parts: tuple[int, ...], total: int, width: int) -> list[int]:
    """Cells of each part. A non-empty part gets at least one cell, taken from the largest."""
    cells = [max(1, round(part * width / total)) if part else 0 for part in parts]
    while sum(cells) > width:
        cells[cells.index(max(cells))] -= 1
    return cells


def render_scale(device_fit: DeviceFit, width: int) -> str:
    """Above the bar: zero, free memory, and total memory."""
    device = device_fit.device
    total = _bar_total(device_fit)
    total_text = gib_text(device.total or total) if total == device.total else ""
    free = f"{gib_text(device.free)} free" if device.free is not None else ""
    free_column = min(round((device.free or 0) * width / total), width)
    if total_text and free_column > width - len(total_text) - 1:  # both labels would overlap
        free = f"{gib_text(device.free or 0)} free of {total_text}"
        total_text = ""
        free_column = width
    line = "0 GiB"
    if free:
        line = f"{line}{free.rjust(max(len(free) + 1, free_column - len(line)))}"
    return f"{line}{total_text.rjust(max(0, width - len(line)))}" if total_text else line


def render_legend(device_fit: DeviceFit, glyphs: Glyphs, width: int) -> Content:
    """Sign, name and GiB of each part."""
    parts = [(n, part) for n, part in enumerate(MemoryParts.from_device_fit(device_fit)) if part]
    for names in (_PART_LABELS, _SHORT_LABELS):
        labels = [f" {names[n]} {gib_text(part)}" for n, part in parts]
        remaining = width - sum(len(label) + 1 for label in labels)
        if remaining >= len(labels) - 1:
            break
    gap = " " * max(0, min(3, remaining // max(1, len(labels) - 1)))
    pieces: list[tuple[str, str]] = []
    for (n, _), label in zip(parts, labels, strict=True):
        pieces += [
            (f"{gap if pieces else ''}{glyphs.memory_segments[n]}", PART_STYLES[n]),
            (label, ""),
        ]
    return Content.assemble(*pieces)
