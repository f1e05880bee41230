"""The memory of a device as a bar: what each part of a pair takes of it, and what stays free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from textual.content import Content

from localspec.fit.report import DeviceFit
from localspec.tui.glyphs import Glyphs
from localspec.tui.wizard.fit_text import gib_text

PART_STYLES = ("$accent", "$bonus", "$kept", "$muted")
"""Of the parts, in their order."""
_PART_LABELS = ("target", "draft", "KV", "work")


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes."""

    target: int
    draft: int
    kv: int
    overhead: int

    @classmethod
    def from_device_fit(cls, device_fit: DeviceFit) -> MemoryParts:
        """Buffers, the runtime and what is added for safety are all `work`."""
        work = (
            device_fit.target.compute
            + device_fit.draft.compute
            + device_fit.output
            + device_fit.overhead
        )
        return cls(
            device_fit.target.weights,
            device_fit.draft.weights,
            device_fit.target.kv + device_fit.draft.kv,
            work,
        )

    def __iter__(self) -> Iterator[int]:
        return iter((self.target, self.draft, self.kv, self.overhead))


def render_bar(device_fit: DeviceFit, width: int, glyphs: Glyphs) -> Content:
    """In so many cells; what others have stands at the end, what is missing is red."""
    total = _bar_total(device_fit)
    cells = _cell_counts(tuple(MemoryParts.from_device_fit(device_fit)), total, width)
    free = (
        width if device_fit.device.free is None else round(device_fit.device.free * width / total)
    )
    pieces: list[tuple[str, str]] = []
    at = 0
    for sign, style, n in zip(glyphs.memory_segments, PART_STYLES, cells, strict=True):
        fitting = max(0, min(n, free - at))
        pieces += [(sign * fitting, style), (sign * (n - fitting), "$error")]
        at += n
    pieces.append((glyphs.memory_free * max(0, free - at), "$muted"))
    pieces.append((glyphs.memory_other * (width - max(free, at)), "$muted"))
    return Content.assemble(*(piece for piece in pieces if piece[0]))


def _bar_total(device_fit: DeviceFit) -> int:
    """What the bar's length stands for: all there is, or all that is needed."""
    return max(device_fit.device.total or device_fit.device.free or 0, device_fit.total, 1)


def _cell_counts(parts: tuple[int, ...], total: int, width: int) -> list[int]:
    """For each part; whatever there is is seen, at the cost of the largest."""
    cells = [max(1, round(part * width / total)) if part else 0 for part in parts]
    while sum(cells) > width:
        cells[cells.index(max(cells))] -= 1
    return cells


def render_scale(device_fit: DeviceFit, width: int) -> str:
    """Above the bar: nothing, what is free, and all there is."""
    device = device_fit.device
    total = _bar_total(device_fit)
    end = gib_text(device.total or total) if total == device.total else ""
    free = f"{gib_text(device.free)} free" if device.free is not None else ""
    at = min(round((device.free or 0) * width / total), width)
    if end and at > width - len(end) - 1:  # both would stand in one place
        free, end, at = f"{gib_text(device.free or 0)} free of {end}", "", width
    line = "0 GiB"
    if free:
        line = f"{line}{free.rjust(max(len(free) + 1, at - len(line)))}"
    return f"{line}{end.rjust(max(0, width - len(line)))}" if end else line


def render_legend(device_fit: DeviceFit, glyphs: Glyphs, width: int) -> Content:
    """Each part's sign, name and GiB, as far apart as there is room for."""
    parts = [(n, part) for n, part in enumerate(MemoryParts.from_device_fit(device_fit)) if part]
    words = [f" {_PART_LABELS[n]} {gib_text(part)}" for n, part in parts]
    room_left = width - sum(len(word) + 1 for word in words)
    gap = " " * max(0, min(3, room_left // max(1, len(words) - 1)))
    pieces: list[tuple[str, str]] = []
    for (n, _), word in zip(parts, words, strict=True):
        pieces += [
            (f"{gap if pieces else ''}{glyphs.memory_segments[n]}", PART_STYLES[n]),
            (word, ""),
        ]
    return Content.assemble(*pieces)
