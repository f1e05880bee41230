"""Suggests catalogue pairs for a machine and a use.  Needs no network.

A pair's memory is estimated from its shape (`fit`); if that is unknown, from its file sizes plus a
fifth for caches and buffers.  Pairs that fit and are fast enough rank by the target's standing (the
catalogue's tier), then by its effective size; the slow ones follow, the fastest first.  Of the
drafts of one target, the one with which an answer takes the least time comes first.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from localspec import draft_kinds
from localspec.errors import NotFoundError
from localspec.fit import pair_shapes
from localspec.fit.advisor import (
    SettingsAdvisor,
    SettingsRequest,
    estimate_tokens_per_second,
    rank_draft,
    with_settings,
)
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.plan import DeviceFit, FitVerdict, Plan, judge
from localspec.fit.speed import UseCase
from localspec.machine import type_speeds
from localspec.machine.device import reserve_bytes
from localspec.machine.type_speeds import TypeSpeed
from localspec.models import catalog, model_lookup
from localspec.models.catalog import Catalog, CatalogModel, CatalogPair, own_id
from localspec.models.catalog_entries import TIERS
from localspec.models.model_lookup import ModelRequest
from localspec.protocol.wire import LoadCommand
from localspec.units import gib, token_rate_range

_OVERHEAD_FACTOR = 1.2  # Memory per byte of files, for pairs of unknown shape.
_COMFORTABLE_TOKENS_PER_SECOND = 10.0  # A slower pair ranks after all faster ones.
_SLOW_TOKENS_PER_SECOND = 4.0  # Slower than a person reads.
_ACTIVE_WEIGHT = 0.4
"""Of a mixture of experts: it is about as good as a dense model of total^0.6 × active^0.4
parameters.  An opinion: it ranks Gemma 4 26B-A4B beside the 12B, as users do.
"""
_BITS_PER_PARAMETER = 4.9  # Of Q4_K_M; for an unknown number of parameters.
_BITS_QUALITY = {"2": 0.5, "3": 0.7, "4": 0.95, "5": 0.98, "6": 0.99}
_TRAINED_QUALITY = 0.99
"""What is left of a model by the bits of its quantisation, as a factor of its effective size; of
one that its makers trained for its type.  An opinion.
"""
# Types that a CPU computes nearly as fast as the fastest, by this ratio.
_SAME_SPEED = 1.1
_UPGRADE_QUALITY = 0.02  # That a file larger than the catalogue's first gains.
_UPGRADE_SPARE = 0.1  # Of the memory, that such a file leaves free.
_UPGRADE_TOKENS_PER_SECOND = 20.0  # That such a file still reaches.


class SuggestionCriteria(Struct, frozen=True):
    """The use to suggest for, None for any, and the settings that the user has chosen."""

    use: str | None = None
    wishes: SettingsRequest = field(default=SettingsRequest(LoadCommand("")))


class PairSuggestion(Struct, frozen=True):
    """A pair, the size of its files, and the reasons for its rank."""

    pair: CatalogPair
    bytes: int
    verdict: FitVerdict
    reasons: tuple[str, ...]
    fit: Plan | None = None
    """None if a shape is unknown: the verdict then comes from the file sizes."""
    draft_reason: str = ""

    @property
    def is_bundled(self) -> bool:
        return self.pair.target.path is not None

    @property
    def used(self) -> tuple[DeviceFit, ...]:
        """The GPUs, or RAM on a computer without one."""
        return (self.fit.device_fits or (self.fit.host,)) if self.fit else ()

    @property
    def is_worse_than_lookup(self) -> bool:
        """Whether the draft loses, or has no room: then `fit` and `run` go without it."""
        if self.fit is None or self.pair.draft_kind == "lookup":
            return False
        return self.fit.loses or self.fit.memory.draft is None

    @property
    def is_upgrade(self) -> bool:
        """Whether it leaves memory free and is fast, as a file larger than usual
        should.
        """
        if self.fit is None:
            return False
        spare = min(
            (each.headroom or 0) / (each.device.free or 1) for each in self.used
        )
        rate = (
            estimate_tokens_per_second(self.fit) if self.fit.speed.plain else math.inf
        )
        is_fast = rate >= _UPGRADE_TOKENS_PER_SECOND  # also if it is unknown
        return is_fast and self.fit.has_long_context and spare >= _UPGRADE_SPARE

    @property
    def needed_bytes(self) -> int:
        """Memory on the devices `used`."""
        if self.fit is None:
            return int(self.bytes * _OVERHEAD_FACTOR)
        return sum(device_fit.total for device_fit in self.used)


def suggest(
    machine: MachineProfile,
    criteria: SuggestionCriteria | None = None,
    target: str | None = None,
    *,
    catalogue: Catalog | None = None,
) -> tuple[PairSuggestion, ...]:
    """The pairs that fit, best first: the best pair of each target, then the second,
    and so on.

    `target` (an id or a part of one) selects that model's pairs, whether they fit or
    not; without it, pairs that would use memory reserved for other programs are left
    out. Raises NotFoundError for an unknown model, UsageError for a damaged catalogue.
    """
    catalogue, criteria = catalogue or catalog.load(), criteria or SuggestionCriteria()
    pairs = _find_pairs(catalogue, target) if target else catalogue.pairs.values()
    assess = partial(
        choose_file, machine=machine, criteria=criteria, searches=bool(target)
    )
    # The bundled pair is always suggested: it runs anywhere, if need be on the CPU.
    shown = [
        each
        for each in filter(None, map(assess, pairs))
        if (target or each.verdict in ("fits", "unknown") or each.is_bundled)
        and (target or not each.is_bundled or each.pair.draft_kind == "model")
    ]
    if not target:  # every target has a pair with prompt lookup, too
        shown = [
            each for each in shown if each.is_bundled or not each.is_worse_than_lookup
        ]
    # Among the drafts of a target, by pair.
    places, n_drafts = (
        dict[str, int](),
        Counter[str](),
    )
    for each in sorted(shown, key=_draft_sort_key):
        target_id = own_id(each.pair.target.id)
        places[each.pair.id] = n_drafts[target_id]
        n_drafts[target_id] += 1
    return tuple(
        sorted(shown, key=lambda each: _sort_key(each, places, criteria.use, machine))
    )


def _find_pairs(catalogue: Catalog, target: str) -> Sequence[CatalogPair]:
    name, _, wanted_type = target.partition(":")
    entry = catalog.find(catalogue, name)
    pairs = (
        (entry,)
        if isinstance(entry, CatalogPair)
        else catalog.pairs_for(catalogue, entry)
    )
    if not pairs:
        raise NotFoundError(
            f"The catalogue has no pair for {entry.title}.",
            "It runs without a draft model, by prompt lookup. Or use: --draft FILE",
        )
    if not wanted_type:
        return pairs
    if (named := pairs[0].target.find_type(wanted_type)) is None:
        raise model_lookup.unknown_type_error(pairs[0].target, wanted_type)
    return [pair.with_target(named) for pair in pairs]


def resolve_best_file(
    text: str, machine: Callable[[], MachineProfile], criteria: SuggestionCriteria
) -> ModelRequest:
    """As `model_lookup.resolve`; if no quantisation is named or here, that of
    `suggest`.

    `machine` may take a second.
    """
    request = model_lookup.resolve(text)
    model = request.target.catalog_model
    if model is None or not model.files or ":" in text or request.target.find_local():
        return request
    pairs = [request.pair] if request.pair else catalog.pairs_for(catalog.load(), model)
    assess = partial(choose_file, machine=machine(), criteria=criteria)
    found = [each for pair in pairs if (each := assess(pair))]
    best = min(found, key=_draft_sort_key, default=None)
    if best is None:
        return request
    return model_lookup.resolve(
        f"{own_id(request.name)}:{best.pair.target.quantization}"
    )


def choose_file(
    pair: CatalogPair,
    machine: MachineProfile,
    criteria: SuggestionCriteria,
    *,
    searches: bool = False,
) -> PairSuggestion | None:
    """As `assess_pair`, with the quantisation of the target that is best for the
    machine.

    The catalogue's first, if it fits whole with a long context; a larger one only if it is still
    fast and leaves memory free; else the largest that fits, with four bits rather wholly.  On a CPU
    whose types were timed, the one that it computes fastest.
    """
    assess = partial(assess_pair, machine=machine, criteria=criteria)
    files = pair.target.files if ":" not in pair.id else ()
    for model in _rank_by_cpu(pair.target, machine) if files else ():
        found = assess(pair.with_target(model))
        if found and found.fit and found.verdict == "fits" and not found.fit.is_full:
            return found
    first = assess(pair)
    if first is None or first.fit is None or not files:
        return assess(pair, searches=searches)
    size, free = (
        _model_size(pair.target) or 0,
        sum(each.device.free or 0 for each in first.used),
    )
    in_order = sorted(files, key=lambda model: -(_model_size(model) or 0))
    sized = [model for model in in_order if (_model_size(model) or 0) < free]
    fit = first.fit
    if first.verdict == "fits" and fit.has_long_context and not fit.is_partly_in_ram:
        for model in sized:
            if _quality(model) - _quality(pair.target) >= _UPGRADE_QUALITY:
                larger = assess(pair.with_target(model))
                if larger is not None and larger.is_upgrade:
                    return larger
        return first
    smaller = (
        pair.with_target(each) for each in sized if (_model_size(each) or 0) < size
    )
    fitting = [
        each
        for each in (first, *map(assess, smaller))
        if each and each.verdict == "fits"
    ]
    return max(fitting, key=_file_sort_key, default=None) or assess(
        pair, searches=searches
    )


def _rank_by_cpu(target: CatalogModel, machine: MachineProfile) -> list[CatalogModel]:
    """Quantisations as good as four bits by how fast this CPU computes them, and of about equal
    ones the best first.  Empty with a GPU, or if the type of `target` was not timed.
    """
    timed = [
        (model, speed)
        for model in (target, *target.files)
        if (speed := _type_speed(model, machine))
    ]
    if not timed or timed[0][0] is not target:
        return []
    least = min(_quality(target), _BITS_QUALITY["4"])
    good = [
        (model, speed.turn_ms) for model, speed in timed if _quality(model) >= least
    ]
    limit = _SAME_SPEED * min(ms for _, ms in good)
    good.sort(
        key=lambda each: (
            max(each[1], limit),
            -_quality(each[0]),
            each[0] is not target,
        )
    )
    return [model for model, _ in good]


def explain_type(chosen: CatalogModel, machine: MachineProfile) -> str:
    """What this CPU gains by a quantisation beside the next larger one; empty if
    little.
    """
    speed = _type_speed(chosen, machine)
    model = catalog.load().models.get(own_id(chosen.id))
    if speed is None or model is None:
        return ""
    others = [(_model_size(each) or 0, each) for each in (model, *model.files)]
    larger = [each for each in others if each[0] > (_model_size(chosen) or 0)]
    for _, other in sorted(larger, key=lambda each: each[0]):
        slower = _type_speed(other, machine)
        if slower and (gain := speed.describe_gain(slower, _SAME_SPEED)):
            return f"{chosen.quantization} {gain} as fast on this CPU as {other.quantization}"
    return ""


def _type_speed(model: CatalogModel, machine: MachineProfile) -> TypeSpeed | None:
    """None with a GPU."""
    if machine.devices:
        return None
    return machine.types.get(type_speeds.weight_type(model.quantization))


def _file_sort_key(suggestion: PairSuggestion) -> tuple[bool, bool, bool, bool, float]:
    """Four bits with a short context are better than three with a long one, but not in
    RAM: only experts may be there.
    """
    quality, fit = _quality(suggestion.pair.target), suggestion.fit
    is_whole = not (fit and fit.is_partly_in_ram)
    is_fast = is_whole or bool(fit and fit.load.target_settings.cpu_moe)
    is_long = bool(fit and fit.has_long_context)
    return is_fast, quality >= _BITS_QUALITY["4"], is_long, is_whole, quality


def assess_pair(
    pair: CatalogPair,
    machine: MachineProfile,
    criteria: SuggestionCriteria,
    *,
    searches: bool = False,
    shapes: PairShapes | None = None,
) -> PairSuggestion | None:
    """None if neither shape nor size is known.  `shapes`: of its files, if they were read.

    The settings are those that `fit` and `run` choose.  `searches`: also if layers, not only
    experts, have to stay in RAM, which takes longer.
    """
    shapes = shapes or pair_shapes.from_catalog(pair)
    sizes = [_model_size(model) for model in (pair.target, pair.draft) if model]
    size = None if None in sizes else sum(filter(None, sizes))
    if shapes is None:
        return (
            None
            if size is None
            else _assess_by_file_size(pair, size, machine, criteria.use)
        )
    name = shapes.draft.name if shapes.draft else None
    load = replace(criteria.wishes.load, target=shapes.target.name, draft=name)
    load = with_settings(load, remote_hosts=machine.remote_hosts)
    # Whether exact mode can be had is said when a model is loaded.
    request = replace(criteria.wishes, load=load, exact=False, can_skip_remote=True)
    use = UseCase(criteria.use or "chat")
    advisor = SettingsAdvisor(*shapes.shapes, machine, use)
    can_be_fast = searches or advisor.can_avoid_layers_in_ram(request)
    default = advisor.default_settings(request)
    fit = advisor.advise(request) if can_be_fast else advisor.estimate(default)
    speed_reasons = _speed_reasons(fit, has_draft=shapes.draft is not None)
    others = explain_type(pair.target, machine), *_other_reasons(pair, criteria.use)
    reasons = (_memory_reason(fit), *speed_reasons, *filter(None, others))
    draft_reason = _draft_reason(pair, fit)
    return PairSuggestion(
        pair, size or fit.total, fit.verdict, reasons, fit, draft_reason
    )


def _assess_by_file_size(
    pair: CatalogPair, size: int, machine: MachineProfile, use: str | None
) -> PairSuggestion:
    devices = machine.devices or (machine.cpu,)
    free = sum(device.free or 0 for device in devices)
    needed = size * _OVERHEAD_FACTOR
    judged = judge(needed, free, sum(map(reserve_bytes, devices)))
    relation = {"fits": "of", "tight": "nearly all of"}.get(judged, "more than")
    is_rounded = any(
        model.about is not None for model in (pair.target, pair.draft) if model
    )
    about, with_caches = "about " * is_rounded, f"{gib(needed)} with caches"
    reasons = [f"{about}{gib(size)} of files, {with_caches}: {relation} {gib(free)}"]
    reasons += _other_reasons(pair, use)
    draft_reason = draft_kinds.describe(pair.draft_kind)
    return PairSuggestion(pair, size, judged, tuple(reasons), draft_reason=draft_reason)


def _memory_reason(fit: Plan) -> str:
    device_fit = fit.device_fits[0] if fit.device_fits else fit.host
    if fit.verdict == "no" or fit.host.sharing:
        device_fit = fit.tightest
    free = (
        gib(device_fit.device.free)
        if device_fit.device.free is not None
        else "the free memory"
    )
    relation = {"tight": ", nearly all of", "no": ", more than"}.get(fit.verdict, " of")
    settings = fit.load.target_settings
    kv = "" if settings.kv_type == "f16" else f" in {settings.kv_type}"
    context = f" with a context of {settings.n_ctx:,}{kv}" if settings.n_ctx else ""
    is_split = fit.device_fits and (settings.cpu_moe or settings.n_gpu_layers >= 0)
    rest = "the other layers" if settings.n_gpu_layers >= 0 else "experts"
    in_ram = f", {rest} in RAM: {gib(fit.host.needed)} more" if is_split else ""
    return f"needs {gib(device_fit.needed)}{relation} {free}{context}{in_ram}"


def _speed_reasons(fit: Plan, *, has_draft: bool) -> Iterator[str]:
    speed = fit.speed
    if speed.plain is None or speed.speculative is None or fit.verdict == "no":
        return
    method = "with the draft" if fit.memory.draft else "with prompt lookup"
    if speed.by_workload:
        yield f"{token_rate_range(speed.plain)}, {token_rate_range(speed.speculative)} {method}"
    else:
        yield f"{token_rate_range(speed.plain)}: {speed.explanation.rpartition('; ')[2]}"
    if fit.loses:
        yield "probably not faster with this draft"
    elif has_draft and not fit.memory.draft:
        yield "no room for the draft"
    if estimate_tokens_per_second(fit) < _SLOW_TOKENS_PER_SECOND:
        yield "slower than reading speed"


def _draft_reason(pair: CatalogPair, fit: Plan) -> str:
    if described := draft_kinds.describe(pair.draft_kind):
        return described
    family = pair.draft.family if pair.draft else ""
    parts = ["same family"] if family and family == pair.target.family else []
    if fit.speed.costs is not None:
        parts.append(f"a draft token costs {fit.speed.costs.c:.0%} of a target pass")
    return " · ".join(parts)


def _other_reasons(pair: CatalogPair, use: str | None) -> Iterator[str]:
    made = "made" if pair.use == (use,) else "good" if use in pair.use else "not made"
    is_dense_draft = pair.target.active and pair.draft and pair.draft_kind == "model"
    reasons = (
        f"{made} for {use}" if use else "",
        pair.why,
        draft_kinds.describe(pair.draft_kind),
        "mixture of experts: a draft gains less" if is_dense_draft else "",
        f"reported: {pair.source}" if pair.status == "reported" else "",
        pair.target.note,
        pair.note,
    )
    return filter(None, reasons)


def _sort_key(
    suggestion: PairSuggestion,
    places: Mapping[str, int],
    use: str | None,
    machine: MachineProfile,
) -> tuple[bool | int | float, ...]:
    """The best suggestion sorts first."""
    pair, fit = suggestion.pair, suggestion.fit
    tokens_per_second = _tokens_per_second(suggestion, machine)
    is_slow = tokens_per_second < _COMFORTABLE_TOKENS_PER_SECOND
    settings, in_ram = (
        (fit.load.target_settings, fit.is_partly_in_ram) if fit else (None, False)
    )
    return (
        suggestion.verdict == "no" and not suggestion.is_bundled,
        suggestion.verdict == "tight",
        suggestion.is_bundled,  # only a demonstration
        bool(use) and use not in pair.use,
        is_slow,
        places[pair.id],
        bool(fit and fit.is_full),
        TIERS.index(pair.target.tier),
        bool(machine.devices) and fit is not None and not fit.has_long_context,
        not is_slow
        and (in_ram or (settings is not None and settings.kv_type != "f16")),
        -(tokens_per_second if is_slow else _effective_size(pair.target)),
        -suggestion.bytes,
    )


def _effective_size(model: CatalogModel) -> float:
    """Parameters of a dense model, without quantisation, that is about as good."""
    total = model.parameters or (_model_size(model) or 0) * 8 / _BITS_PER_PARAMETER
    active = model.active or total
    return _quality(model) * math.exp(
        (1 - _ACTIVE_WEIGHT) * math.log(total or 1)
        + _ACTIVE_WEIGHT * math.log(active or 1)
    )


def _quality(model: CatalogModel) -> float:
    if "qat" in f"{model.repo}/{model.file}".lower() or "MXFP4" in model.quantization:
        return _TRAINED_QUALITY
    bits = re.search("[2-8]", model.quantization)
    return _BITS_QUALITY.get(bits[0], 1.0) if bits else 1.0


def _tokens_per_second(suggestion: PairSuggestion, machine: MachineProfile) -> float:
    """The middle of the estimate; if unknown, infinite on a GPU and none on a CPU."""
    if suggestion.fit is not None and suggestion.fit.speed.plain is not None:
        return estimate_tokens_per_second(suggestion.fit)
    return math.inf if machine.devices else 0.0


def _draft_sort_key(suggestion: PairSuggestion) -> tuple[bool | float, ...]:
    """The shortest time first, as if all files were of one size, unless the draft costs
    quality of the target, the long context or the last memory; if the time is unknown,
    by kind.
    """
    pair, fit = suggestion.pair, suggestion.fit
    unknown = suggestion.verdict == "no", True, False, False, math.inf
    does_not_fit, is_short, is_full, _, seconds = rank_draft(fit) if fit else unknown
    quality = min(_quality(pair.target), _BITS_QUALITY["4"])
    seconds /= _model_size(pair.target) or 1
    last = (
        suggestion.is_worse_than_lookup,
        seconds,
        draft_kinds.kinds()[pair.draft_kind].preference,
    )
    return does_not_fit, -quality, is_short, is_full, *last


def _model_size(model: CatalogModel) -> int | None:
    if model.path is None:
        return model.size
    with suppress(OSError):
        return model.path.stat().st_size
    return None
