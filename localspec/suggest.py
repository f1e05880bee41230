"""Which pairs of the catalogue suit this memory and this use.  Asks nobody.

What a pair takes is priced from its shape (`fit`); where that is unknown, by its files and a fifth
more for caches and buffers.  Of what fits, the target with the most parameters is taken for the
best.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from localspec.errors import NotFoundError
from localspec.fit import reason, report, subject
from localspec.fit.advisor import Advisor, Wish, pace
from localspec.fit.report import Fit, Place
from localspec.fit.speed import Use
from localspec.fit.subject import Subject
from localspec.models import catalog, heads
from localspec.models.catalog import Catalogue, Model, Pair
from localspec.protocol.wire import KvType, Load
from localspec.units import gib, rate

_BESIDE = 1.2
"""Of a pair's bytes, where nothing is known but its files."""
_TIGHT = 0.9
_RUNS = ("model", "lookup")
"""Who is suggested unasked; heads, whose shapes the catalogue lacks, where one model's pairs are
asked for."""
_SLOW = 4.0
"""Tokens a second: slower than one reads."""
_SLOW_BYTES = 8 * 10**9
"""Bytes read for every token: beyond, a computer without a GPU gives about 3 a second."""
_ALONE = 0.75
"""What a target without a draft is worth: where little repeats, nothing gets faster."""
_SQUEEZED = 0.9
"""What one is worth that leaves no room."""
_BITS = 4.9
"""For one parameter in Q4_K_M: where their number is unknown."""
_STATES = ("verified", "reported", "untested")

Verdict = Literal["fits", "tight", "no"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What for, and with what settings; None is open."""

    use: str | None = None
    context: int | None = None
    kv: KvType | None = None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A pair, the bytes of its files, and why it stands where it stands."""

    pair: Pair
    bytes: int
    verdict: Verdict
    reasons: tuple[str, ...]
    fit: Fit | None = None
    """None: a shape is unknown, and it is judged by its files."""
    why_draft: str = ""

    @property
    def needed(self) -> int:
        """Memory where models are put: of the cards, or of the computer without one."""
        if self.fit is None:
            return int(self.bytes * _BESIDE)
        rooms = self.fit.rooms or (self.fit.host,)
        return sum(room.total for room in rooms)


def suggest(
    place: Place,
    wanted: Wanted | None = None,
    target: str | None = None,
    *,
    catalogue: Catalogue | None = None,
) -> tuple[Suggestion, ...]:
    """The pairs that fit, the best first: one for every target, then its other drafts.

    `target` (an id or a part of one) asks for that model's pairs, whether they fit or not.
    Raises NotFoundError where there is no such model, UsageError where the catalogue is damaged.
    """
    known, wanted = catalogue or catalog.load(), wanted or Wanted()
    pairs = _of(known, target) if target else tuple(known.pairs.values())
    runs = (*_RUNS, *heads.RUN) if target else _RUNS
    shown = [judged(pair, place, wanted) for pair in pairs if pair.kind in runs]
    found = [one for one in shown if one and (target or _shown(one))]
    return tuple(sorted(found, key=lambda one: _rank(one, found, wanted.use, place)))


def judged(pair: Pair, place: Place, wanted: Wanted) -> Suggestion | None:
    """None where neither shape nor size is known: nothing true can be said of it."""
    about = subject.of_pair(pair)
    size = _size(pair)
    if about is None:
        return None if size is None else _by_files(pair, size, place, wanted.use)
    fit = _priced(about, place, wanted)
    verdict: Verdict = "fits" if fit.verdict == "unknown" else fit.verdict
    if verdict == "tight" and (fit.tightest.spare or 0) < 0:
        verdict = "no"  # into what others need: nobody is told to get that
    draft = _why_draft(pair, fit)
    reasons = (_memory(fit), *_speeds(fit), *_reasons(pair, wanted.use))
    return Suggestion(pair, size or fit.total, verdict, reasons, fit, draft)


def _shown(one: Suggestion) -> bool:
    """What comes along runs anywhere, if need be without a card."""
    return one.verdict != "no" or one.pair.target.path is not None


def _of(known: Catalogue, target: str) -> tuple[Pair, ...]:
    entry = catalog.find(known, target)
    if isinstance(entry, Pair):
        return (entry,)
    pairs = catalog.pairs_of(known, entry)
    if not pairs:
        raise NotFoundError(
            f"The catalogue has no pair for {entry.title}.",
            "It runs alone: text that repeats is copied. A draft of yours: --draft FILE",
        )
    return pairs


# --- what it takes ------------------------------------------------------------------------


def _priced(about: Subject, place: Place, wanted: Wanted) -> Fit:
    use = Use(wanted.use or "chat")
    load = Load(about.target.name, about.draft.name if about.draft else None)
    return Advisor(*about.headers, place, use).glance(Wish(load, wanted.context, wanted.kv))


def _by_files(pair: Pair, size: int, place: Place, use: str | None) -> Suggestion:
    free = report.used(place.devices or (place.cpu,))
    needed = size * _BESIDE
    verdict: Verdict = "no" if needed > free else "tight" if needed > free * _TIGHT else "fits"
    words = {"fits": "of", "tight": "nearly all of", "no": "more than"}[verdict]
    memory = f"{_about(pair)}{gib(size)} of files, {gib(needed)} with caches: {words} {gib(free)}"
    slow: tuple[str, ...] = ()
    if not place.devices and _read(pair.target) > _SLOW_BYTES:
        slow = (f"reads {gib(_read(pair.target))} for every token: slow without a GPU",)
    reasons = (memory, *slow, *_reasons(pair, use))
    return Suggestion(pair, size, verdict, reasons, why_draft=reason.of_head(pair.kind))


def _memory(fit: Fit) -> str:
    room = fit.tightest if fit.verdict == "no" or not fit.rooms else fit.rooms[0]
    free = gib(room.device.free) if room.device.free is not None else "what is free"
    if fit.verdict == "tight" and (room.spare or 0) < 0:
        free = f"{gib((room.device.free or 0) - room.reserve)} that may be used of {free}"
    near = ", nearly all of" if (room.spare or 0) >= 0 else ", more than the"
    words = {"fits": " of", "tight": near, "no": ", more than", "unknown": " of"}
    settings = fit.load.target_settings
    kv = "" if settings.kv_type == "f16" else f" in {settings.kv_type}"
    context = f" with a context of {settings.n_ctx:,}{kv}" if settings.n_ctx else ""
    return f"takes {gib(room.total)}{words[fit.verdict]} {free}{context}"


def _speeds(fit: Fit) -> Iterable[str]:
    speed = fit.speed
    if speed.plain is None or speed.speculative is None:
        return
    how = "with the draft" if fit.load.draft else "copying what repeats"
    yield f"{rate(speed.plain)}, {rate(speed.speculative)} {how}"
    if pace(fit) < _SLOW:
        yield "slower than one reads"


def _why_draft(pair: Pair, fit: Fit) -> str:
    """Why this draft, in a line."""
    if pair.draft is None:
        return "no draft: what the text repeats is copied"
    if head := reason.of_head(pair.kind):
        return head
    family = pair.target.family
    parts = ["same family"] if family and family == pair.draft.family else []
    if fit.speed.costs is not None:
        parts.append(f"{fit.speed.costs.c:.0%} of the target's work per guess")
    return " · ".join(parts)


# --- why, and in what order ---------------------------------------------------------------


def _reasons(pair: Pair, use: str | None) -> Iterable[str]:
    if use and use in pair.use:
        yield f"made for {use}" if pair.use == (use,) else f"good for {use}"
    if use and use not in pair.use:
        yield f"not made for {use}"
    if pair.why:
        yield pair.why
    if head := reason.of_head(pair.kind):
        yield head
    if pair.target.active and pair.draft and pair.kind == "model":
        yield "reads a part of itself for every token: a draft gains less"
    if pair.draft is None:
        yield "no draft: copies what the text repeats"
    if pair.status == "reported":
        yield f"reported: {pair.source}"
    if pair.target.note:
        yield pair.target.note
    if pair.note:
        yield pair.note


def _rank(
    one: Suggestion, among: list[Suggestion], use: str | None, place: Place
) -> tuple[bool, bool, bool, bool, float, int]:
    """Small is good."""
    pair = one.pair
    others = [other.pair for other in among if other.pair.target.id == pair.target.id]
    return (
        pair.target.path is not None,  # what comes along only shows how it works
        bool(use) and use not in pair.use,
        _is_slow(one, place),
        pair is not min(others, key=_draft_rank),
        -_worth(one),
        -one.bytes,
    )


def _is_slow(one: Suggestion, place: Place) -> bool:
    if one.fit is not None and one.fit.speed.plain is not None:
        return pace(one.fit) < _SLOW
    return not place.devices and _read(one.pair.target) > _SLOW_BYTES


def _worth(one: Suggestion) -> float:
    target = one.pair.target
    parameters = target.parameters or (_model_size(target) or 0) * 8 / _BITS
    alone = _ALONE if one.pair.draft is None else 1.0
    return parameters * alone * (_SQUEEZED if one.verdict == "tight" else 1.0)


def _draft_rank(pair: Pair) -> tuple[int, int]:
    """A draft before none; then what is known to run, then the smaller."""
    if pair.draft is None:
        return len(_STATES), 0
    return _STATES.index(pair.status), _model_size(pair.draft) or 0


def _read(model: Model) -> float:
    """Bytes of weights for one token: a mixture of experts reads a part."""
    size = _model_size(model) or 0
    return size * model.active / model.parameters if model.active and model.parameters else size


def _size(pair: Pair) -> int | None:
    sizes = [_model_size(model) for model in (pair.target, pair.draft) if model]
    return None if None in sizes else sum(size for size in sizes if size)


def _model_size(model: Model) -> int | None:
    if model.path is None:
        return model.size
    try:
        return model.path.stat().st_size
    except OSError:
        return None


def _about(pair: Pair) -> str:
    exact = all(model.about is None for model in (pair.target, pair.draft) if model)
    return "" if exact else "about "
