"""Speeds as bars: plain against guessing, on one line or on two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from textual.content import Content

from localspec.tui.glyphs import Glyphs
from localspec.tui.measuring.standing import Line
from localspec.units import per_second, percent

_NAME, _SPEED, _GAIN, _KEPT = 12, 11, 6, 6
_LEAST_BAR = 10
_GAINS, _LOSES = 1.03, 0.97


def table(lines: Sequence[Line], width: int, height: int, glyphs: Glyphs) -> Iterator[Content]:
    """Every workload under its temperature; two lines for each where there is room for them."""
    groups = [(t, list(rows)) for t, rows in groupby(lines, lambda line: line.temperature)]
    roomy = 2 * len(lines) + 2 * len(groups) <= height and width >= 74
    most = max((v for line in lines for v in (line.plain, line.guessing) if v), default=1.0)
    airy = roomy and 3 * len(lines) + 2 * len(groups) <= height
    for number, (temperature, rows) in enumerate(groups):
        if number:
            yield Content("")
        yield _heading(temperature, width, roomy=roomy)
        for row in rows:
            if roomy:
                yield from _two(row, most, width, glyphs)
                yield from [Content("")] * (airy and row is not rows[-1])
            else:
                yield _one(row, most, width, glyphs)


def _heading(temperature: float, width: int, *, roomy: bool) -> Content:
    line = f"  temperature {temperature:g}"
    if not roomy:
        shows_plain, room = _columns(width)
        at = 2 + _NAME + _SPEED
        titles = [("plain", at)] if shows_plain else []
        at += (_SPEED + 2) * shows_plain
        gain = at + 2 + room + 2 + _GAIN
        titles += [("guesses", at), ("speed-up", gain), ("kept", gain + _KEPT)]
        for title, end in titles:
            line += title.rjust(end - len(line))
    return Content.styled(line, "$muted")


def _columns(width: int) -> tuple[bool, int]:
    """Whether the plain speed has a column, and the cells of the bar."""
    rest = width - 2 - _NAME - (_SPEED + 2) - (2 + _GAIN + _KEPT)
    wide = rest - (_SPEED + 2) - 2
    return (True, wide) if wide >= _LEAST_BAR else (False, max(rest - 2, 0))


def _one(line: Line, most: float, width: int, glyphs: Glyphs) -> Content:
    """One bar, of the speed with guesses; a tick in it stands where plain decoding is."""
    shows_plain, room = _columns(width)
    plain = f"{_speed(line.plain)}  " if shows_plain else ""
    return Content.assemble(
        _name(line, glyphs),
        (plain, "$muted"),
        f"{_speed(line.guessing)}  ",
        *_ticked(line, most, room, glyphs),
        "  ",
        _gain(line),
        (f"{_kept(line):>{_KEPT}}", "$muted"),
    )


def _ticked(line: Line, most: float, room: int, glyphs: Glyphs) -> Iterator[tuple[str, str]]:
    bar = glyphs.stroke((line.guessing or 0.0) / most, room).ljust(room)
    if not line.plain or not room:
        yield bar, "$accent"
        return
    at = min(round(line.plain / most * room), room - 1)
    yield bar[:at], "$accent"
    yield glyphs.tick, "$foreground"
    yield bar[at + 1 :], "$accent"


def _two(line: Line, most: float, width: int, glyphs: Glyphs) -> Iterator[Content]:
    right = 2 + _GAIN + 2 + len("100 % of guesses kept")
    room = width - 2 - _NAME - 9 - 2 - _SPEED - right
    kept = f"{_kept(line):>5} of guesses kept" if line.kept is not None else ""
    yield Content.assemble(
        _name(line, glyphs),
        ("plain    ", "$muted"),
        (glyphs.stroke((line.plain or 0.0) / most, room).ljust(room), "$muted"),
        f"  {_speed(line.plain)}",
    )
    yield Content.assemble(
        " " * (2 + _NAME),
        ("guesses  ", "$muted"),
        (glyphs.stroke((line.guessing or 0.0) / most, room).ljust(room), "$accent"),
        f"  {_speed(line.guessing)}  ",
        _gain(line),
        (f"  {kept}", "$muted"),
    )


def _name(line: Line, glyphs: Glyphs) -> Content:
    pointer = glyphs.pointer if line.current else " "
    name = line.name + ("" if line.counted else " *")
    return Content.assemble((f"{pointer} ", "$accent"), f"{name:<{_NAME}}")


def _speed(rate: float | None) -> str:
    return f"{'' if rate is None else per_second(rate):>{_SPEED}}"


def _kept(line: Line) -> str:
    return "" if line.kept is None else percent(line.kept)


def _gain(line: Line) -> Content:
    if line.gain is None:
        return Content(" " * _GAIN)
    style = "$success" if line.gain >= _GAINS else "$warning" if line.gain < _LOSES else ""
    said = f"{line.gain:.2f}×" if line.gain < 100 else f"{line.gain:.0f}×"
    return Content.styled(f"{said:>{_GAIN}}", f"{style} bold".strip())
