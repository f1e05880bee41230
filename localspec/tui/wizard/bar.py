"""The memory of a device as a bar: what each part of a pair takes of it, and what stays free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from textual.content import Content

from localspec.fit.report import Room
from localspec.tui.glyphs import Glyphs
from localspec.tui.wizard.words import size

STYLES = ("$accent", "$bonus", "$kept", "$muted")
"""Of the parts, in their order."""
_WORDS = ("target", "draft", "KV", "work")


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes."""

    target: int
    draft: int
    kv: int
    work: int

    @classmethod
    def of(cls, room: Room) -> Parts:
        """Buffers, the runtime and what is added for safety are all `work`."""
        work = room.target.compute + room.draft.compute + room.output + room.overhead
        return cls(room.target.weights, room.draft.weights, room.target.kv + room.draft.kv, work)

    def __iter__(self) -> Iterator[int]:
        return iter((self.target, self.draft, self.kv, self.work))


def bar(room: Room, width: int, glyphs: Glyphs) -> Content:
    """In so many cells; what others have stands at the end, what is missing is red."""
    total = _whole(room)
    cells = _cells(tuple(Parts.of(room)), total, width)
    free = width if room.device.free is None else round(room.device.free * width / total)
    pieces: list[tuple[str, str]] = []
    at = 0
    for sign, style, n in zip(glyphs.parts, STYLES, cells, strict=True):
        fitting = max(0, min(n, free - at))
        pieces += [(sign * fitting, style), (sign * (n - fitting), "$error")]
        at += n
    pieces.append((glyphs.room * max(0, free - at), "$muted"))
    pieces.append((glyphs.others * (width - max(free, at)), "$muted"))
    return Content.assemble(*(piece for piece in pieces if piece[0]))


def _whole(room: Room) -> int:
    """What the bar's length stands for: all there is, or all that is needed."""
    return max(room.device.total or room.device.free or 0, room.total, 1)


def _cells(parts: tuple[int, ...], total: int, width: int) -> list[int]:
    """For each part; whatever there is is seen, at the cost of the largest."""
    cells = [max(1, round(part * width / total)) if part else 0 for part in parts]
    while sum(cells) > width:
        cells[cells.index(max(cells))] -= 1
    return cells


def scale(room: Room, width: int) -> str:
    """Above the bar: nothing, what is free, and all there is."""
    device = room.device
    total = _whole(room)
    end = size(device.total or total) if total == device.total else ""
    free = f"{size(device.free)} free" if device.free is not None else ""
    at = min(round((device.free or 0) * width / total), width)
    if end and at > width - len(end) - 1:  # both would stand in one place
        free, end, at = f"{size(device.free or 0)} free of {end}", "", width
    line = "0 GiB"
    if free:
        line = f"{line}{free.rjust(max(len(free) + 1, at - len(line)))}"
    return f"{line}{end.rjust(max(0, width - len(line)))}" if end else line


def legend(room: Room, glyphs: Glyphs, width: int) -> Content:
    """Each part's sign, name and GiB, as far apart as there is room for."""
    parts = [(n, part) for n, part in enumerate(Parts.of(room)) if part]
    words = [f" {_WORDS[n]} {size(part)}" for n, part in parts]
    room_left = width - sum(len(word) + 1 for word in words)
    gap = " " * max(0, min(3, room_left // max(1, len(words) - 1)))
    pieces: list[tuple[str, str]] = []
    for (n, _), word in zip(parts, words, strict=True):
        pieces += [(f"{gap if pieces else ''}{glyphs.parts[n]}", STYLES[n]), (word, "")]
    return Content.assemble(*pieces)
