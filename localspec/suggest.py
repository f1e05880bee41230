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
from localspec.fit import advisor, pair_headers, report
from localspec.fit.advisor import SettingsAdvisor, SettingsRequest, estimate_tokens_per_second
from localspec.fit.pair_headers import PairHeaders
from localspec.fit.report import FitReport, MachineProfile
from localspec.fit.speed_estimate import UseCase
from localspec.models import catalog, draft_heads
from localspec.models.catalog import Catalog, CatalogModel, CatalogPair
from localspec.protocol.wire import KvType, LoadCommand
from localspec.units import gib, token_rate_range

_OVERHEAD_FACTOR = 1.2
"""Of a pair's bytes, where nothing is known but its files."""
_TIGHT_SHARE = 0.9
_DEFAULT_DRAFT_KINDS = ("model", "lookup")
"""Who is suggested unasked; heads, whose shapes the catalogue lacks, where one model's pairs are
asked for."""
_SLOW_TOKENS_PER_SECOND = 4.0
"""Tokens a second: slower than one reads."""
_SLOW_BYTES_PER_TOKEN = 8 * 10**9
"""Bytes read for every token: beyond, a computer without a GPU gives about 3 a second."""
_NO_DRAFT_WEIGHT = 0.75
"""What a target without a draft is worth: where little repeats, nothing gets faster."""
_TIGHT_WEIGHT = 0.9
"""What one is worth that leaves no room."""
_BITS_PER_PARAMETER = 4.9
"""For one parameter in Q4_K_M: where their number is unknown."""
_STATUS_ORDER = ("verified", "reported", "untested")

FitVerdict = Literal["fits", "tight", "no"]


@dataclass(frozen=True, slots=True)
class SuggestionCriteria:
    """What for, and with what settings; None is open."""

    use: str | None = None
    context: int | None = None
    kv: KvType | None = None


@dataclass(frozen=True, slots=True)
class PairSuggestion:
    """A pair, the bytes of its files, and why it stands where it stands."""

    pair: CatalogPair
    bytes: int
    verdict: FitVerdict
    reasons: tuple[str, ...]
    fit: FitReport | None = None
    """None: a shape is unknown, and it is judged by its files."""
    draft_reason: str = ""

    @property
    def needed_bytes(self) -> int:
        """Memory where models are put: of the cards, or of the computer without one."""
        if self.fit is None:
            return int(self.bytes * _OVERHEAD_FACTOR)
        rooms = self.fit.device_fits or (self.fit.host,)
        return sum(room.total for room in rooms)


def suggest(
    machine: MachineProfile,
    criteria: SuggestionCriteria | None = None,
    target: str | None = None,
    *,
    catalogue: Catalog | None = None,
) -> tuple[PairSuggestion, ...]:
    """The pairs that fit, the best first: one for every target, then its other drafts.

    `target` (an id or a part of one) asks for that model's pairs, whether they fit or not.
    Raises NotFoundError where there is no such model, UsageError where the catalogue is damaged.
    """
    known, criteria = catalogue or catalog.load(), criteria or SuggestionCriteria()
    pairs = _pairs_for_target(known, target) if target else tuple(known.pairs.values())
    runs = (*_DEFAULT_DRAFT_KINDS, *draft_heads.SUPPORTED_KINDS) if target else _DEFAULT_DRAFT_KINDS
    shown = [assess_pair(pair, machine, criteria) for pair in pairs if pair.draft_kind in runs]
    found = [one for one in shown if one and (target or _is_suggested(one))]
    return tuple(sorted(found, key=lambda one: _sort_key(one, found, criteria.use, machine)))


def assess_pair(
    pair: CatalogPair, machine: MachineProfile, criteria: SuggestionCriteria
) -> PairSuggestion | None:
    """None where neither shape nor size is known: nothing true can be said of it."""
    about = pair_headers.from_catalog(pair)
    size = _pair_size(pair)
    if about is None:
        return None if size is None else _assess_by_file_size(pair, size, machine, criteria.use)
    fit = _estimate_fit(about, machine, criteria)
    verdict: FitVerdict = "fits" if fit.verdict == "unknown" else fit.verdict
    if verdict == "tight" and (fit.tightest.headroom or 0) < 0:
        verdict = "no"  # into what others need: nobody is told to get that
    draft = _draft_reason(pair, fit)
    reasons = (_memory_reason(fit), *_speed_reasons(fit), *_other_reasons(pair, criteria.use))
    return PairSuggestion(pair, size or fit.total, verdict, reasons, fit, draft)


def _is_suggested(one: PairSuggestion) -> bool:
    """What comes along runs anywhere, if need be without a card."""
    return one.verdict != "no" or one.pair.target.path is not None


def _pairs_for_target(known: Catalog, target: str) -> tuple[CatalogPair, ...]:
    entry = catalog.find(known, target)
    if isinstance(entry, CatalogPair):
        return (entry,)
    pairs = catalog.pairs_for(known, entry)
    if not pairs:
        raise NotFoundError(
            f"The catalogue has no pair for {entry.title}.",
            "It runs alone: text that repeats is copied. A draft of yours: --draft FILE",
        )
    return pairs


# --- what it takes ------------------------------------------------------------------------


def _estimate_fit(
    subject_headers: PairHeaders, machine: MachineProfile, criteria: SuggestionCriteria
) -> FitReport:
    use = UseCase(criteria.use or "chat")
    load = LoadCommand(
        subject_headers.target.name, subject_headers.draft.name if subject_headers.draft else None
    )
    return SettingsAdvisor(*subject_headers.headers, machine, use).quick_fit(
        SettingsRequest(load, criteria.context, criteria.kv)
    )


def _assess_by_file_size(
    pair: CatalogPair, size: int, machine: MachineProfile, use: str | None
) -> PairSuggestion:
    free = report.usable_bytes(machine.devices or (machine.cpu,))
    needed = size * _OVERHEAD_FACTOR
    verdict: FitVerdict = (
        "no" if needed > free else "tight" if needed > free * _TIGHT_SHARE else "fits"
    )
    words = {"fits": "of", "tight": "nearly all of", "no": "more than"}[verdict]
    memory = (
        f"{_about_prefix(pair)}{gib(size)} of files, {gib(needed)} with caches: {words} {gib(free)}"
    )
    slow: tuple[str, ...] = ()
    if not machine.devices and _bytes_per_token(pair.target) > _SLOW_BYTES_PER_TOKEN:
        slow = (f"reads {gib(_bytes_per_token(pair.target))} for every token: slow without a GPU",)
    reasons = (memory, *slow, *_other_reasons(pair, use))
    return PairSuggestion(
        pair, size, verdict, reasons, draft_reason=advisor.describe_head(pair.draft_kind)
    )


def _memory_reason(fit: FitReport) -> str:
    room = fit.tightest if fit.verdict == "no" or not fit.device_fits else fit.device_fits[0]
    free = gib(room.device.free) if room.device.free is not None else "what is free"
    if fit.verdict == "tight" and (room.headroom or 0) < 0:
        free = f"{gib((room.device.free or 0) - room.reserve)} that may be used of {free}"
    near = ", nearly all of" if (room.headroom or 0) >= 0 else ", more than the"
    words = {"fits": " of", "tight": near, "no": ", more than", "unknown": " of"}
    settings = fit.load.target_settings
    kv = "" if settings.kv_type == "f16" else f" in {settings.kv_type}"
    context = f" with a context of {settings.n_ctx:,}{kv}" if settings.n_ctx else ""
    return f"takes {gib(room.total)}{words[fit.verdict]} {free}{context}"


def _speed_reasons(fit: FitReport) -> Iterable[str]:
    speed = fit.speed
    if speed.plain is None or speed.speculative is None:
        return
    how = "with the draft" if fit.load.draft else "copying what repeats"
    yield f"{token_rate_range(speed.plain)}, {token_rate_range(speed.speculative)} {how}"
    if estimate_tokens_per_second(fit) < _SLOW_TOKENS_PER_SECOND:
        yield "slower than one reads"


def _draft_reason(pair: CatalogPair, fit: FitReport) -> str:
    """Why this draft, in a line."""
    if pair.draft is None:
        return "no draft: what the text repeats is copied"
    if head := advisor.describe_head(pair.draft_kind):
        return head
    family = pair.target.family
    parts = ["same family"] if family and family == pair.draft.family else []
    if fit.speed.costs is not None:
        parts.append(f"{fit.speed.costs.c:.0%} of the target's work per guess")
    return " · ".join(parts)


# --- why, and in what order ---------------------------------------------------------------


def _other_reasons(pair: CatalogPair, use: str | None) -> Iterable[str]:
    if use and use in pair.use:
        yield f"made for {use}" if pair.use == (use,) else f"good for {use}"
    if use and use not in pair.use:
        yield f"not made for {use}"
    if pair.why:
        yield pair.why
    if head := advisor.describe_head(pair.draft_kind):
        yield head
    if pair.target.active and pair.draft and pair.draft_kind == "model":
        yield "reads a part of itself for every token: a draft gains less"
    if pair.draft is None:
        yield "no draft: copies what the text repeats"
    if pair.status == "reported":
        yield f"reported: {pair.source}"
    if pair.target.note:
        yield pair.target.note
    if pair.note:
        yield pair.note


def _sort_key(
    one: PairSuggestion, suggestions: list[PairSuggestion], use: str | None, machine: MachineProfile
) -> tuple[bool, bool, bool, bool, float, int]:
    """Small is good."""
    pair = one.pair
    others = [other.pair for other in suggestions if other.pair.target.id == pair.target.id]
    return (
        pair.target.path is not None,  # what comes along only shows how it works
        bool(use) and use not in pair.use,
        _is_slow(one, machine),
        pair is not min(others, key=_draft_sort_key),
        -_score(one),
        -one.bytes,
    )


def _is_slow(one: PairSuggestion, machine: MachineProfile) -> bool:
    if one.fit is not None and one.fit.speed.plain is not None:
        return estimate_tokens_per_second(one.fit) < _SLOW_TOKENS_PER_SECOND
    return not machine.devices and _bytes_per_token(one.pair.target) > _SLOW_BYTES_PER_TOKEN


def _score(one: PairSuggestion) -> float:
    target = one.pair.target
    parameters = target.parameters or (_model_size(target) or 0) * 8 / _BITS_PER_PARAMETER
    alone = _NO_DRAFT_WEIGHT if one.pair.draft is None else 1.0
    return parameters * alone * (_TIGHT_WEIGHT if one.verdict == "tight" else 1.0)


def _draft_sort_key(pair: CatalogPair) -> tuple[int, int]:
    """A draft before none; then what is known to run, then the smaller."""
    if pair.draft is None:
        return len(_STATUS_ORDER), 0
    return _STATUS_ORDER.index(pair.status), _model_size(pair.draft) or 0


def _bytes_per_token(model: CatalogModel) -> float:
    """Bytes of weights for one token: a mixture of experts reads a part."""
    size = _model_size(model) or 0
    return size * model.active / model.parameters if model.active and model.parameters else size


def _pair_size(pair: CatalogPair) -> int | None:
    sizes = [_model_size(model) for model in (pair.target, pair.draft) if model]
    return None if None in sizes else sum(size for size in sizes if size)


def _model_size(model: CatalogModel) -> int | None:
    if model.path is None:
        return model.size
    try:
        return model.path.stat().st_size
    except OSError:
        return None


def _about_prefix(pair: CatalogPair) -> str:
    exact = all(model.about is None for model in (pair.target, pair.draft) if model)
    return "" if exact else "about "
