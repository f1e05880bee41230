"""Which pairs of the catalogue suit this memory and this use.  Asks nobody.

What a pair needs is its files and a fifth more for caches and buffers; of what fits, the target
with the most parameters is taken for the best.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from localspec.errors import NotFoundError
from localspec.models import catalog
from localspec.models.catalog import Catalogue, Model, Pair
from localspec.units import gib

_BESIDE = 1.2
"""Of a pair's bytes: key-value caches, buffers, the rest of the program."""
_TIGHT = 0.9
_RUNS = ("model", "lookup")
"""Who drafts here; heads are shown when their drafters are built."""
_SLOW = 8 * 10**9
"""Bytes that are read for every token: beyond, a computer without a GPU gives about 3 a second."""
_ALONE = 0.75
"""What a target without a draft is worth: where little repeats, nothing gets faster."""
_SQUEEZED = 0.9
"""What one is worth that leaves no room."""
_BITS = 4.9
"""For one parameter in Q4_K_M: where their number is unknown."""
_STATES = ("verified", "reported", "untested")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A pair, the bytes of its files, and why it stands where it stands."""

    pair: Pair
    bytes: int
    verdict: Literal["fits", "tight", "no"]
    reasons: tuple[str, ...]

    @property
    def needed(self) -> int:
        """Memory, with what comes beside the files."""
        return int(self.bytes * _BESIDE)


def suggest(
    bytes_free: int,
    use: str | None = None,
    target: str | None = None,
    *,
    gpu: bool = True,
    catalogue: Catalogue | None = None,
) -> tuple[Suggestion, ...]:
    """The pairs that fit, the best first: one for every target, then its other drafts.

    `target` (an id or a part of one) asks for that model's pairs, whether they fit or not.
    Raises NotFoundError where there is no such model, UsageError where the catalogue is damaged.
    """
    known = catalogue or catalog.load()
    pairs = _of(known, target) if target else tuple(known.pairs.values())
    shown = [_judged(pair, bytes_free, use, gpu) for pair in pairs if pair.kind in _RUNS]
    found = [one for one in shown if one and (target or one.verdict != "no")]
    return tuple(sorted(found, key=lambda one: _rank(one, found, use, gpu)))


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


def _judged(pair: Pair, free: int, use: str | None, gpu: bool) -> Suggestion | None:
    """None where a size is unknown: nothing true can be said of it."""
    size = _size(pair)
    if size is None:
        return None
    needed = size * _BESIDE
    verdict: Literal["fits", "tight", "no"] = (
        "no" if needed > free else "tight" if needed > free * _TIGHT else "fits"
    )
    words = {"fits": "of", "tight": "nearly all of", "no": "more than"}[verdict]
    memory = f"{_about(pair)}{gib(size)} of files, {gib(needed)} with caches: {words} {gib(free)}"
    return Suggestion(pair, size, verdict, (memory, *_reasons(pair, use, gpu)))


def _reasons(pair: Pair, use: str | None, gpu: bool) -> Iterable[str]:
    if use and use in pair.use:
        yield f"made for {use}" if pair.use == (use,) else f"good for {use}"
    if use and use not in pair.use:
        yield f"not made for {use}"
    if pair.why:
        yield pair.why
    if not gpu and _read(pair.target) > _SLOW:
        yield f"reads {gib(_read(pair.target))} for every token: slow without a GPU"
    if pair.target.active and pair.draft:
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
    one: Suggestion, among: list[Suggestion], use: str | None, gpu: bool
) -> tuple[bool, bool, bool, bool, float, int]:
    """Small is good."""
    pair = one.pair
    others = [other.pair for other in among if other.pair.target.id == pair.target.id]
    return (
        pair.target.path is not None,  # what comes along only shows how it works
        bool(use) and use not in pair.use,
        not gpu and _read(pair.target) > _SLOW,
        pair is not min(others, key=_draft_rank),
        -_worth(one),
        -one.bytes,
    )


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
