"""The shortlist's lines: does it fit, how fast, how much to download."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content

from localspec.clean import clean
from localspec.fit.report import Fit
from localspec.tui.glyphs import Glyphs
from localspec.tui.text.wrapping import fitted
from localspec.tui.wizard import words
from localspec.tui.wizard.shortlist import Candidate
from localspec.units import gb

VERDICT_STYLES = {"fits": "$success", "tight": "$warning", "no": "$error", "unknown": "$muted"}


@dataclass(frozen=True, slots=True)
class Columns:
    """Cells of each; 0: there is no room for it."""

    name: int
    bar: int
    drafted: int
    gain: int
    plain: int
    size: int
    licence: int


def columns(width: int) -> Columns:
    """By the width of the window."""
    if width >= 110:
        rest = min(20, width - 4 - 30 - 18 - 15 - 10 - 15 - 9 - 2)
        return Columns(32, 8, 15, 10, 14, 9, max(0, rest))
    if width >= 78:
        return Columns(26, 6, 15, 9, 0, 9, 0)
    return Columns(max(12, width - 4 - 8 - 15 - 9), 0, 15, 0, 0, 9, 0)


def heading(width: int) -> Content:
    """What the columns are."""
    to = columns(width)
    parts = [f"  {'':<{to.name}} {'fits':<{8 + to.bar + (1 if to.bar else 0)}}"]
    parts.append(f"{'with draft':>{to.drafted}}")
    parts.append(f"{'gain':>{to.gain}}" if to.gain else "")
    parts.append(f"{'without':>{to.plain}}" if to.plain else "")
    parts.append(f"{'download':>{to.size}}")
    parts.append(f"  {'licence':<{to.licence}}" if to.licence else "")
    return Content.styled("".join(parts), "$muted")


def line(
    one: Candidate, use: str, *, here: bool, width: int, glyphs: Glyphs, pointed: bool
) -> Content:
    """One candidate."""
    to = columns(width)
    size = f"{glyphs.good} here" if here else gb(one.bytes)
    licence = fitted(words.licences(one.pair), to.licence, glyphs.more) if to.licence else ""
    return Content.assemble(
        (f"{glyphs.pointer if pointed else ' '} ", "$accent"),
        f"{fitted(clean(one.pair.id, multiline=False), to.name, glyphs.more)} ",
        _fits(one, to, glyphs),
        _speeds(one, use, to),
        f"{size:>{to.size}}",
        (f"  {licence}" if licence else "", "$muted"),
    )


def _fits(one: Candidate, to: Columns, glyphs: Glyphs) -> Content:
    room = 8 + (to.bar + 1 if to.bar else 0)
    if one.fit is None:
        guess = words.VERDICTS.get(one.guessed, "?") if one.unknown else glyphs.more
        return Content.styled(f"{' ' * (room - 8)}{guess:<8}", "$muted")
    verdict = one.fit.verdict
    word = Content.styled(f"{words.VERDICTS[verdict]:<8}", VERDICT_STYLES[verdict])
    if not to.bar:
        return word
    share = filled(one.fit)
    bar = glyphs.bar(share, to.bar)
    dots = glyphs.dot * (to.bar - len(bar))
    style = VERDICT_STYLES[verdict] if verdict != "fits" else "$accent"
    return Content.assemble((bar, style), (dots, "$muted"), " ", word)


def filled(fit: Fit) -> float:
    """How much of what is free it takes, where the least is to spare."""
    room = fit.tightest
    return room.total / room.device.free if room.device.free else 1.0


def _speeds(one: Candidate, use: str, to: Columns) -> Content:
    fit = one.fit
    if fit is None or fit.speed.plain is None:
        empty = "?" if fit is not None else ""
        return Content.styled(f"{empty:>{to.drafted}}{'':>{to.gain + to.plain}}", "$muted")
    speed = fit.speed
    gain = words.times(words.gain(speed, use))
    return Content.assemble(
        f"{words.rate(speed.speculative):>{to.drafted}}",
        f"{gain:>{to.gain}}" if to.gain else "",
        (f"{words.rate(speed.plain):>{to.plain}}" if to.plain else "", "$muted"),
    )


def about(one: Candidate | None, width: int, most: int) -> list[Content]:
    """Below the list: why the one under the pointer stands where it stands."""
    if one is None:
        return []
    said = [one.unknown] if one.unknown else []
    said += [words.verdict(one.fit)] if one.fit else []
    said += one.reasons
    if one.fit and one.fit.speed.why:
        said.append(f"speed: {one.fit.speed.why}")
    text = words.wrapped(" · ".join(said), width)
    return [Content.styled(row, "$muted") for row in text[:most]]
