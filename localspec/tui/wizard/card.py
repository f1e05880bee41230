"""One pair on one place: memory, speed, why this draft, and what is checked before a download."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from textual.content import Content

from localspec.clean import clean
from localspec.fit.report import Fit, Room
from localspec.models.catalog import Pair
from localspec.tui.glyphs import Glyphs
from localspec.tui.wizard import bar, words
from localspec.tui.wizard.checks import Check
from localspec.tui.wizard.listing import VERDICT_STYLES
from localspec.tui.wizard.shortlist import Candidate
from localspec.units import gb, gib

_LABEL = 12
_WIDEST = 64
"""Cells of the bar."""
_WORKLOADS = {"chat": "chat", "code": "code", "writing": "stories", "documents": "documents"}


@dataclass(frozen=True, slots=True)
class Page:
    """What the card is made from."""

    candidate: Candidate
    use: str
    checks: tuple[Check, ...]
    here: bool = False
    """Both files are."""
    disk: int | None = None
    """Bytes free where the files will be."""
    basis: str = ""
    """How sure the memory is: read from headers, or drawn from the catalogue."""

    @property
    def pair(self) -> Pair:
        return self.candidate.pair


def lines(page: Page, width: int, height: int, glyphs: Glyphs) -> list[Content]:
    """Everything, or in few lines what fits them."""
    airy = height >= 19
    gap = [Content("")] if airy else []
    blocks = [
        list(_title(page, width)),
        list(_memory(page, width, glyphs, short=height < 16, tall=height >= 24)),
        list(_speed(page, width, short=height < 16)),
        list(_why(page, width, 4 if airy else 2)),
        list(_checks(page, width, glyphs)),
    ]
    found: list[Content] = []
    for block in blocks:
        found += [*(gap if found and block else []), *block]
    return found


def _title(page: Page, width: int) -> Iterator[Content]:
    pair = page.pair
    beside = f"  with  {words.quantised(pair.draft)}" if pair.draft else "  copying, no draft"
    name = Content.assemble(
        (words.quantised(pair.target), "bold"),
        (beside[:8] if pair.draft else beside, "$muted"),
        (beside[8:] if pair.draft else "", "bold"),
    )
    size = _amount(page)
    disk = f"{gb(page.disk)} free" if page.disk is not None and not page.here else ""
    facts = " · ".join(filter(None, (words.licences(pair, "licence on its page"), size, disk)))
    room = width - name.cell_length - len(facts)
    if room >= 2:
        yield Content.assemble(name, " " * room, (facts, "$muted"))
        return
    yield name.truncate(width, ellipsis=True)
    yield Content.styled(facts[:width], "$muted")


def _amount(page: Page) -> str:
    """How much must come."""
    return "here already" if page.here else f"{gb(page.candidate.bytes)} to download"


def _row(label: str, *parts: Content | tuple[str, str] | str) -> Content:
    return Content.assemble((f"{label:<{_LABEL}}", "$muted"), *parts)


# --- memory -----------------------------------------------------------------------------


def _memory(
    page: Page, width: int, glyphs: Glyphs, *, short: bool, tall: bool
) -> Iterator[Content]:
    fit = page.candidate.fit
    if fit is None:
        yield _row("Memory", page.candidate.unknown or "…")
        return
    wide = min(_WIDEST, width - _LABEL)
    shown = _shown(fit)
    for n, room in enumerate(shown):
        label = "Memory" if n == 0 else ""
        if len(shown) > 1:
            yield _row(label, (clean(room.device.description, multiline=False)[:wide], "$muted"))
            label = ""
        if not short:
            yield _row(label, (bar.scale(room, wide), "$muted"))
            label = ""
        yield _row(label, bar.bar(room, wide, glyphs))
        yield _row("", bar.legend(room, glyphs, width - _LABEL))
    yield from _verdict(page, fit, width)
    if tall and (beside := _beside(fit)):
        yield _row("", (beside, "$muted"))


def _verdict(page: Page, fit: Fit, width: int) -> Iterator[Content]:
    """Whether it fits; and how that is known, where there is room for it."""
    style = f"bold {VERDICT_STYLES[fit.verdict]}"
    *lines, last = words.wrapped(words.verdict(fit), width - _LABEL)
    yield from (_row("", (line, style)) for line in lines)
    basis = f" · {page.basis}"
    is_room = width >= 70 and len(last) + len(basis) <= width - _LABEL
    yield _row("", (last, style), (basis if is_room else "", "$muted"))


def _shown(fit: Fit) -> list[Room]:
    """The devices that take something, three at most; without any the computer's memory."""
    used = [room for room in fit.rooms if room.target.total or room.draft.total]
    return used[:3] or [fit.host]


def _beside(fit: Fit) -> str:
    """What a card's pair takes of the computer's own memory."""
    if not _on_cards(fit) or not fit.host.total:
        return ""
    free = f", {gib(fit.host.device.free)} free" if fit.host.device.free else ""
    return f"and {gib(fit.host.total)} of this computer's memory{free}"


def _on_cards(fit: Fit) -> bool:
    return any(room.target.total or room.draft.total for room in fit.rooms)


# --- speed ------------------------------------------------------------------------------


def _speed(page: Page, width: int, *, short: bool) -> Iterator[Content]:
    fit = page.candidate.fit
    if fit is None:
        return
    speed = fit.speed
    if speed.plain is None:
        yield _row("Speed", ("unknown: ", ""), clean(speed.why, multiline=False))
        return
    with_ = "with draft   " if page.pair.draft else "with copying "
    gains = _gains(page, width - _LABEL - len(with_) - 20)
    yield _row("Speed", ("without draft  ", "$muted"), words.rate(speed.plain))
    yield _row(
        "",
        (f"{with_}  ", "$muted"),
        (f"{words.rate(speed.speculative):<14}", "bold"),
        (f"{'  ' if width >= 70 else ' '}{gains}", "$muted"),
    )
    if not short:
        rests = f"rests on {speed.why}"
        yield from (_row("", (text, "$muted")) for text in words.wrapped(rests, width - _LABEL))


def _gains(page: Page, room: int) -> str:
    """2.0–2.4× for what was asked for, then for the rest as far as there is room."""
    fit = page.candidate.fit
    assert fit is not None
    first = words.times(words.gain(fit.speed, page.use))
    said = f"{first} {_WORKLOADS.get(page.use, page.use)}" if first else ""
    for use, word in _WORKLOADS.items():
        more = f" · {words.times(words.gain(fit.speed, use))} {word}"
        if use != page.use and len(said) + len(more) <= room:
            said += more
    return said


# --- reasons and checks -----------------------------------------------------------------


def _why(page: Page, width: int, most: int) -> Iterator[Content]:
    one = page.candidate
    said = " · ".join(filter(None, (one.why_draft, *one.reasons)))
    if not said:
        return
    label = "This draft" if page.pair.draft else "This pair"
    for n, text in enumerate(words.wrapped(said, width - _LABEL)[:most]):
        yield _row(label if n == 0 else "", text)


def _checks(page: Page, width: int, glyphs: Glyphs) -> Iterator[Content]:
    """As many to a line as fit."""
    signs = {True: (glyphs.good, "$success"), False: (glyphs.bad, "$error"), None: (" ", "$muted")}
    rows: list[list[Content]] = [[]]
    filled = 0
    for check in page.checks:
        sign, style = signs[check.good]
        text = clean(check.words, multiline=False)
        text = text if len(text) <= width - _LABEL - 4 else text[: width - _LABEL - 5] + glyphs.more
        cell = Content.assemble((f"{sign} ", style), (text, "" if check.good else style), "   ")
        if filled and filled + cell.cell_length - 3 > width - _LABEL:
            rows.append([])
            filled = 0
        rows[-1].append(cell)
        filled += cell.cell_length
    for n, row in enumerate(rows):
        yield _row("Checked" if n == 0 else "", *row)
