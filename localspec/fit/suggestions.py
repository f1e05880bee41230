"""Suggests catalogue pairs for a machine and a use.  Needs no network.

A pair's memory is estimated from its shape; if that is unknown, from its file sizes
plus a fifth for caches and buffers.  What counts is the memory that the machine has
when other programs are closed, so that the advice does not move with a browser;
`bytes_to_free` says what they hold too much of now.

Pairs that fit and are fast enough rank by the target's standing (the catalogue's tier),
then by its effective size, reduced where an answer takes long; the slow ones follow,
the fastest first.  Of the drafts of one target, the one with which an answer takes the
least time comes first.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from localspec import draft_kinds
from localspec.errors import NotFoundError
from localspec.fit import machine_profile, pair_shapes
from localspec.fit.advisor import (
    DraftRank,
    SettingsAdvisor,
    SettingsRequest,
    estimate_tokens_per_second,
    rank_draft,
    with_settings,
)
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.plan import DeviceFit, FitVerdict, Plan, judge, with_unused_memory
from localspec.fit.speed import LONG_CONTEXT, UseCase
from localspec.machine import type_speeds
from localspec.machine.device import reserve_bytes
from localspec.machine.llama_params import is_quantized
from localspec.machine.type_speeds import TypeSpeed
from localspec.models import catalog, model_lookup, projector_shape
from localspec.models.catalog import Catalog, CatalogModel, CatalogPair, own_id
from localspec.models.catalog_entries import TIERS
from localspec.models.model_lookup import ModelRequest
from localspec.protocol.wire import LoadCommand
from localspec.units import gib, middle, token_rate_range

_OVERHEAD_FACTOR = 1.2  # Memory per byte of files, for pairs of unknown shape.
_ANSWER_TOKENS = 700  # Of an answer with a few paragraphs or some code.
_THINKING_TOKENS = 350  # That a model that thinks writes before it, at least.
_COMFORTABLE_RATE = 12.0  # Tokens per second; a slower model is tiresome to read.
_COMFORTABLE_THINKING_RATE = 25.0  # Of a model that thinks, which makes one wait.
_PLENTY_RATE = 60.0  # Nobody reads so fast: what is beyond counts little.
_SPEED_WEIGHT = 0.75
"""How much speed counts beside size: their product is size × rate^0.75.

An opinion.  Three times the speed is worth 2.3 times the size, so that a mixture that
runs three times as fast as a dense model of its standing comes first.
"""
_YEARLY_PROGRESS = 1.1
"""What a later year of release is worth between models of one standing.  An opinion."""
_PLENTY_WEIGHT = 0.15  # How much of `_SPEED_WEIGHT` is left beyond `_PLENTY_RATE`.
_LONGEST_SECONDS = 90.0  # For an answer; a slower model ranks after all faster ones.
_N_BEST_USES = 3
_SECONDARY_USE = 0.5
"""What is left of a model for a use that is not among its first three.

An opinion.  It ranks Qwen 3.8 27B before Gemma 4 31B for code, and Gemma for writing.
"""
_SHORT_CONTEXT = 0.85
"""What is left of a model for code without room for 32,768 tokens, on a GPU."""
_SLOW_TOKENS_PER_SECOND = 4.0  # Slower than a person reads.
_ACTIVE_WEIGHT = 0.4
"""The weight of the active parameters of a mixture of experts.

It is about as good as a dense model of total^0.6 × active^0.4 parameters.  An opinion:
it ranks Gemma 4 26B-A4B beside the 12B, as users do.
"""
_BITS_PER_PARAMETER = 4.9  # Of Q4_K_M; for an unknown number of parameters.
_BITS_QUALITY = {"2": 0.5, "3": 0.7, "4": 0.95, "5": 0.98, "6": 0.99}
"""What is left of a model's effective size by the bits of its quantisation."""
_TRAINED_QUALITY = 0.99
"""The same of a model that its makers trained for its type.

An opinion, like the others.
"""
_SAME_SPEED = 1.1
"""Types that a CPU computes nearly as fast as the fastest, by this ratio."""
_UPGRADE_QUALITY = 0.02  # That a file larger than the catalogue's first gains.
_UPGRADE_SPARE = 0.1  # Of the memory, that such a file leaves free.
_UPGRADE_TOKENS_PER_SECOND = 20.0  # That such a file still reaches.


class SuggestionCriteria(Struct, frozen=True):
    """The use to suggest for, None for any, and the user's settings."""

    use: str | None = None
    wishes: SettingsRequest = field(default=SettingsRequest(LoadCommand("")))

    sees: bool = False  # Only models that see pictures.
    least_rate: float | None = None
    """Tokens per second below which a model is too slow; None: by `least_useful_rate`."""

    def is_too_slow(self, rate: float, model: CatalogModel | None) -> bool:
        """Whether answers at this rate take longer than a person waits for them."""
        least = self.least_rate
        if least is None:
            least = least_useful_rate(model)
        return rate < least

    @property
    def ranked_use(self) -> str:
        """The use by which pairs are ranked: a chat, unless another one is named."""
        return self.use or "chat"


class PairSuggestion(Struct, frozen=True):
    """A pair, the size of its files, and the reasons for its rank."""

    pair: CatalogPair
    bytes: int
    verdict: FitVerdict
    reasons: tuple[str, ...]
    plan: Plan | None = None
    """None if a shape is unknown: the verdict then comes from the file sizes."""
    draft_reason: str = ""
    needs_layers_in_ram: bool = False
    """Whether no settings keep all layers on the GPU: a whole list leaves it out."""
    bytes_to_free: int = 0
    """What other programs hold now of the memory that the plan needs, on any device."""
    is_too_slow: bool = False
    """Whether its answers take longer than a person waits."""

    @property
    def tokens_per_second(self) -> float | None:
        """Estimated with its draft; None if unknown, or if it cannot run."""
        if self.plan is None or not self.plan.verdict.can_load:
            return None
        return middle(self.plan.speed.speculative or self.plan.speed.plain)

    @property
    def plain_tokens_per_second(self) -> float | None:
        """The same without the draft."""
        if self.plan is None or not self.plan.verdict.can_load:
            return None
        return middle(self.plan.speed.plain)

    @property
    def is_partly_in_ram(self) -> bool:
        return self.plan is not None and self.plan.is_partly_in_ram

    @property
    def has_room(self) -> bool:
        """Whether the reserve for other programs stays free, as far as known."""
        if self.plan is None:
            return self.verdict.has_room
        return self.plan.has_room

    @property
    def is_bundled(self) -> bool:
        return self.pair.target.path is not None

    @property
    def used(self) -> tuple[DeviceFit, ...]:
        """The GPUs, or RAM on a computer without one."""
        if self.plan is None:
            return ()
        return self.plan.device_fits or (self.plan.host,)

    @property
    def is_worse_than_lookup(self) -> bool:
        """Whether the draft loses or has no room, so that `run` goes without it."""
        if self.plan is None or self.pair.draft_kind == "lookup":
            return False
        return self.plan.loses or self.plan.memory.draft is None

    @property
    def is_upgrade(self) -> bool:
        """Whether it leaves memory free and is fast, as a larger file should.

        One of unknown speed counts as fast.
        """
        if self.plan is None or not self.plan.has_long_context:
            return False
        if self.plan.speed.plain:
            rate = estimate_tokens_per_second(self.plan)
            if rate < _UPGRADE_TOKENS_PER_SECOND:
                return False
        for each in self.used:
            if each.headroom is None or not each.device.free:
                return False
            if each.headroom / each.device.free < _UPGRADE_SPARE:
                return False
        return True

    @property
    def memory_bytes(self) -> int | None:
        """The memory of the devices `used`; None if unknown."""
        totals = [each.device.total for each in self.used]
        known = [total for total in totals if total is not None]
        if not known or len(known) < len(totals):
            return None
        return sum(known)

    @property
    def needed_bytes(self) -> int:
        """Memory on the devices `used`."""
        if self.plan is None:
            return int(self.bytes * _OVERHEAD_FACTOR)
        return sum(device_fit.total for device_fit in self.used)


def least_useful_rate(model: CatalogModel | None) -> float:
    """Tokens per second below which its answers take too long.

    7.8 for 700 tokens in 90 s; 11.7 for a model that thinks, which writes 1,050.
    """
    return _answer_tokens(model) / _LONGEST_SECONDS


def _answer_tokens(model: CatalogModel | None) -> int:
    if model is not None and model.thinks:
        return _THINKING_TOKENS + _ANSWER_TOKENS
    return _ANSWER_TOKENS


# --- The list.


def suggest(
    machine: MachineProfile,
    criteria: SuggestionCriteria | None = None,
    target: str | None = None,
    *,
    catalogue: Catalog | None = None,
) -> tuple[PairSuggestion, ...]:
    """The pairs that fit, best first.

    The best pair of each target comes first, then the second, and so on.  `target` (an
    id or a part of one) selects that model's pairs, whether they fit or not; without
    it, pairs that would use memory reserved for other programs are left out.  Raises
    NotFoundError for an unknown model, UsageError for a damaged catalogue.
    """
    catalogue = catalogue or catalog.load()
    criteria = criteria or SuggestionCriteria()
    pairs: Iterable[CatalogPair] = catalogue.pairs.values()
    if target:
        pairs = _find_pairs(catalogue, target)
    shown = []
    for pair in pairs:
        if not target and not _is_wanted(pair, criteria):
            continue
        found = choose_file(pair, machine, criteria, searches=bool(target))
        if found is not None and (target or _is_worth_listing(found)):
            shown.append(found)

    # Among the drafts of a target, by pair.
    places: dict[str, int] = {}
    n_drafts: Counter[str] = Counter()
    for each in sorted(shown, key=_draft_sort_key):
        target_id = own_id(each.pair.target.id)
        places[each.pair.id] = n_drafts[target_id]
        n_drafts[target_id] += 1

    def sort_key(suggestion: PairSuggestion) -> _SuggestionRank:
        place = places[suggestion.pair.id]
        return _rank(suggestion, place, criteria, machine)

    return tuple(sorted(shown, key=sort_key))


def suggest_with_projectors(
    machine: MachineProfile,
    criteria: SuggestionCriteria,
    target: str | None = None,
    *,
    catalogue: Catalog | None = None,
) -> tuple[PairSuggestion, ...]:
    """As `suggest`, each with its projector's memory, which the order does not count."""
    found = suggest(machine, criteria, target, catalogue=catalogue)
    return tuple(with_projector(each, machine, criteria) for each in found)


def _is_wanted(pair: CatalogPair, criteria: SuggestionCriteria) -> bool:
    """Whether the target can do what is asked for."""
    if criteria.sees and "image" not in pair.target.sees:
        return False
    return _can_have_context(pair, criteria)


def _can_have_context(pair: CatalogPair, criteria: SuggestionCriteria) -> bool:
    """Whether the target was trained with as long a context as is wished."""
    n_ctx = criteria.wishes.ctx
    if n_ctx is None:
        return True
    shapes = pair_shapes.from_catalog(pair)
    return shapes is None or n_ctx <= (shapes.target.shape.n_ctx_train or n_ctx)


def _is_worth_listing(suggestion: PairSuggestion) -> bool:
    """Whether a list of all targets shows the pair.

    The bundled pair is always shown: it runs anywhere, if need be on the CPU.  A draft
    that is worse than lookup is not: every target has a pair with prompt lookup, too.
    """
    if suggestion.is_bundled:
        return suggestion.pair.draft_kind == "model"
    return suggestion.has_room and not suggestion.is_worse_than_lookup


def _find_pairs(catalogue: Catalog, target: str) -> Sequence[CatalogPair]:
    name, _, wanted_type = target.partition(":")
    entry = catalog.find(catalogue, name)
    pairs: Sequence[CatalogPair]
    if isinstance(entry, CatalogPair):
        pairs = (entry,)
    else:
        pairs = catalog.pairs_for(catalogue, entry)
    if not pairs:
        raise NotFoundError(
            f"The catalogue has no pair for {entry.title}.",
            "It runs without a draft model, by prompt lookup. Or use: --draft FILE",
        )
    if not wanted_type:
        return pairs
    named = pairs[0].target.find_type(wanted_type)
    if named is None:
        raise model_lookup.unknown_type_error(pairs[0].target, wanted_type)
    return [pair.with_target(named) for pair in pairs]


# --- The quantisation of a target.


def resolve_best_file(
    text: str, machine: Callable[[], MachineProfile], criteria: SuggestionCriteria
) -> ModelRequest:
    """As `model_lookup.resolve`, with the quantisation that `suggest` would choose.

    It is the named one, or one that is here, if there is such.  `machine` may take a
    second, and is called only if it is needed.
    """
    request = model_lookup.resolve(text)
    model = request.target.catalog_model
    if model is None or not model.files or ":" in text or request.target.find_local():
        return request
    profile = machine()
    if request.pair:
        best = choose_file(request.pair, profile, criteria)
    else:
        best = best_pair(model, profile, criteria)
    if best is None:
        return request
    quantization = best.pair.target.quantization
    return model_lookup.resolve(f"{own_id(request.name)}:{quantization}")


def best_pair(
    model: CatalogModel,
    machine: MachineProfile,
    criteria: SuggestionCriteria,
    *,
    searches: bool = False,
) -> PairSuggestion | None:
    """The draft and the quantisation with which a model suits the machine best.

    It is the first that `suggest` gives for it, so that every command decides alike.  A
    quantisation that `model` names stays.  None for a model without pairs.
    """
    found = []
    for pair in catalog.pairs_for(catalog.load(), model):
        if ":" in model.id:
            pair = pair.with_target(model)  # noqa: PLW2901
        suggestion = choose_file(pair, machine, criteria, searches=searches)
        if suggestion is not None:
            found.append(suggestion)
    return min(found, key=_draft_sort_key, default=None)


def choose_file(
    pair: CatalogPair,
    machine: MachineProfile,
    criteria: SuggestionCriteria,
    *,
    searches: bool = False,
) -> PairSuggestion | None:
    """As `assess_pair`, with the target's quantisation that suits the machine.

    The catalogue's first, if it fits whole with a long context; a larger one only if it
    is still fast and leaves memory free; else the largest that fits, with four bits
    rather wholly.  On a CPU whose types were timed, the one that it computes fastest.
    """
    assess = partial(assess_pair, machine=machine, criteria=criteria)
    # An id such as qwen3.5-9b+mtp:Q8_0 names the file already.
    if ":" in pair.id or not pair.target.files:
        return assess(pair, searches=searches)

    for model in _rank_by_cpu(pair.target, machine):
        found = assess(pair.with_target(model))
        if found is None or found.plan is None:
            continue
        if found.verdict is FitVerdict.FITS and not found.plan.is_full:
            return found

    first = assess(pair)
    if first is None or first.plan is None:
        return assess(pair, searches=searches)
    free = sum(each.device.free or 0 for each in first.used)
    by_size = sorted(pair.target.files, key=_known_size, reverse=True)
    candidates = [model for model in by_size if _known_size(model) < free]
    is_whole = first.plan.has_long_context and not first.plan.is_partly_in_ram
    if first.verdict is FitVerdict.FITS and is_whole:
        for model in candidates:
            if _quality(model) - _quality(pair.target) >= _UPGRADE_QUALITY:
                larger = assess(pair.with_target(model))
                if larger is not None and larger.is_upgrade:
                    return larger
        return first

    fitting = []
    if _has_enough_memory(first):
        fitting.append(first)
    size = _known_size(pair.target)
    for model in candidates:
        if _known_size(model) < size:
            smaller = assess(pair.with_target(model))
            if smaller is not None and _has_enough_memory(smaller):
                fitting.append(smaller)
    if not fitting:
        return assess(pair, searches=searches)
    return max(fitting, key=_file_sort_key)


def _has_enough_memory(suggestion: PairSuggestion) -> bool:
    """Whether it fits, or leaves other programs what they need although it is tight."""
    plan = suggestion.plan
    is_whole = plan is not None and plan.is_safely_whole
    return is_whole or suggestion.verdict is FitVerdict.FITS


class _TimedFile(NamedTuple):
    model: CatalogModel
    speed: TypeSpeed


def _rank_by_cpu(target: CatalogModel, machine: MachineProfile) -> list[CatalogModel]:
    """Quantisations as good as four bits, the fastest on this CPU first.

    Of about equally fast ones the best comes first.  Empty with a GPU, or if the type
    of `target` was not timed.
    """
    timed = []
    for model in (target, *target.files):
        speed = _type_speed(model, machine)
        if speed is not None:
            timed.append(_TimedFile(model, speed))
    if not timed or timed[0].model is not target:
        return []
    least = min(_quality(target), _BITS_QUALITY["4"])
    good = [each for each in timed if _quality(each.model) >= least]
    limit = _SAME_SPEED * min(each.speed.turn_ms for each in good)

    def sort_key(each: _TimedFile) -> tuple[float, float, bool]:
        ms = max(each.speed.turn_ms, limit)
        return ms, -_quality(each.model), each.model is not target

    return [each.model for each in sorted(good, key=sort_key)]


def explain_type(chosen: CatalogModel, machine: MachineProfile) -> str:
    """What this CPU gains by a quantisation beside the next larger one.

    Empty if it is little, or unknown.
    """
    speed = _type_speed(chosen, machine)
    model = catalog.load().models.get(own_id(chosen.id))
    if speed is None or model is None:
        return ""
    chosen_size = _known_size(chosen)
    by_size = sorted((model, *model.files), key=_known_size)
    for other in by_size:
        slower = _type_speed(other, machine)
        if slower is None or _known_size(other) <= chosen_size:
            continue
        gain = speed.describe_gain(slower, _SAME_SPEED)
        if gain:
            name = other.quantization
            return f"{chosen.quantization} {gain} as fast on this CPU as {name}"
    return ""


def _type_speed(model: CatalogModel, machine: MachineProfile) -> TypeSpeed | None:
    """None with a GPU."""
    if machine.devices:
        return None
    return machine.types.get(type_speeds.weight_type(model.quantization))


class _FileRank(NamedTuple):
    """Ranks the files of one target that fit: the greatest is the best.

    Four bits with a short context are better than three with a long one, but not in
    RAM: only experts may be there.
    """

    is_fast: bool
    has_four_bits: bool
    is_long: bool
    is_whole: bool
    quality: float


def _file_sort_key(suggestion: PairSuggestion) -> _FileRank:
    quality = _quality(suggestion.pair.target)
    plan = suggestion.plan
    is_whole = True
    is_fast = True
    is_long = False
    if plan is not None:
        # One that uses the reserve ranks as if it had left it free: partly in RAM.
        is_whole = plan.has_room and not plan.is_partly_in_ram
        is_mixture = bool(suggestion.pair.target.active)
        is_fast = is_whole or (is_mixture and not plan.has_layers_in_ram)
        is_long = plan.has_long_context
    return _FileRank(
        is_fast=is_fast,
        has_four_bits=quality >= _BITS_QUALITY["4"],
        is_long=is_long,
        is_whole=is_whole,
        quality=quality,
    )


# --- One pair.


def assess_pair(
    pair: CatalogPair,
    machine: MachineProfile,
    criteria: SuggestionCriteria,
    *,
    searches: bool = False,
    shapes: PairShapes | None = None,
) -> PairSuggestion | None:
    """The pair with the settings that `fit` and `run` choose.

    None if neither shape nor size is known.  `shapes`: of its files, if they were read.
    `searches`: also if layers, not only experts, have to stay in RAM, which takes
    longer.
    """
    shapes = shapes or pair_shapes.from_catalog(pair)
    size = _pair_size(pair)
    resting = machine_profile.with_programs_closed(machine)
    if shapes is None:
        if size is None:
            return None
        return _assess_by_file_size(pair, size, resting, criteria.use)

    advisor = _make_advisor(shapes, resting, criteria)
    request = _make_request(shapes, resting, criteria)
    can_avoid_layers_in_ram = advisor.can_avoid_layers_in_ram(request)
    if searches or can_avoid_layers_in_ram:
        plan = advisor.advise(request)
    else:
        plan = advisor.estimate(advisor.default_settings(request))

    reasons = [
        _memory_reason(plan),
        *_speed_reasons(plan, has_draft=shapes.draft is not None),
        explain_type(pair.target, machine),
        *_other_reasons(pair, criteria.use),
    ]
    rate = middle(plan.speed.speculative or plan.speed.plain)
    is_too_slow = False
    if rate is not None and plan.verdict.can_load:
        is_too_slow = criteria.is_too_slow(rate, pair.target)
    return PairSuggestion(
        pair=pair,
        bytes=size or plan.total,
        verdict=plan.verdict,
        reasons=tuple(filter(None, reasons)),
        plan=plan,
        draft_reason=_draft_reason(pair, plan),
        bytes_to_free=_count_bytes_to_free(plan, machine),
        is_too_slow=is_too_slow,
        needs_layers_in_ram=not can_avoid_layers_in_ram,
    )


def with_projector(
    suggestion: PairSuggestion,
    machine: MachineProfile,
    criteria: SuggestionCriteria,
    *,
    shapes: PairShapes | None = None,
) -> PairSuggestion:
    """With the memory of the projector that `pull` takes, as `fit` and `run` load it.

    The choice of a file and the rank do not count it: where the GPU has no room for
    both, it is in RAM.  Example: Gemma 4 E2B needs 3.5 GB of RAM, 4.6 with its
    projector.
    """
    pair = suggestion.pair
    shapes = shapes or pair_shapes.from_catalog(pair)
    if suggestion.plan is None or shapes is None:
        return suggestion
    resting = machine_profile.with_programs_closed(machine)
    advisor = _make_advisor(shapes, resting, criteria)
    request = _make_request(shapes, resting, criteria)
    plan = _with_listed_projector(suggestion.plan, pair.target, advisor, request)
    return replace(
        suggestion,
        verdict=plan.verdict,
        reasons=(_memory_reason(plan), *suggestion.reasons[1:]),
        plan=plan,
        bytes_to_free=_count_bytes_to_free(plan, machine),
    )


def _count_bytes_to_free(plan: Plan, machine: MachineProfile) -> int:
    """What the plan needs beyond what is free now, on all devices.

    Example: 0.9 GiB for a plan that needs 19.9 GiB on a card of 24 GiB, of which other
    programs hold 5.
    """
    if not plan.verdict.can_load:
        return 0
    free_now = {device.name: device.free for device in machine.devices}
    cpu = with_unused_memory(machine.cpu, plan.device_fits)
    free_now[plan.host.device.name] = cpu.free
    n_bytes = 0
    for device_fit in plan.all_fits:
        free = free_now.get(device_fit.device.name)
        if free is not None:
            n_bytes += max(0, device_fit.needed - free)
    return n_bytes


def plan_shapes(
    shapes: PairShapes, machine: MachineProfile, criteria: SuggestionCriteria
) -> Plan:
    """The plan of a pair, whether it is in the catalogue or not."""
    resting = machine_profile.with_programs_closed(machine)
    advisor = _make_advisor(shapes, resting, criteria)
    return advisor.advise(_make_request(shapes, resting, criteria))


def plan_counted(
    shapes: PairShapes,
    machine: MachineProfile,
    criteria: SuggestionCriteria,
    *,
    target: CatalogModel,
) -> Plan:
    """The plan of a pair whose headers were read, with the memory llama.cpp counts.

    As `SettingsAdvisor.advise_counted`, with the request that `assess_pair` makes, and
    with the projector of `target`.
    """
    resting = machine_profile.with_programs_closed(machine)
    advisor = _make_advisor(shapes, resting, criteria)
    request = _make_request(shapes, resting, criteria)
    plan = advisor.advise_counted(request, shapes)
    return _with_listed_projector(plan, target, advisor, request, shapes)


def _with_listed_projector(
    plan: Plan,
    target: CatalogModel,
    advisor: SettingsAdvisor,
    request: SettingsRequest,
    shapes: PairShapes | None = None,
) -> Plan:
    """With the projector that `pull` takes for the target, as `fit` and `run` load it.

    `shapes`: to count a plan again that was counted.
    """
    listed = target.projector
    if listed is None or listed.bytes is None:
        return plan
    shape = projector_shape.from_size(listed.bytes)
    return advisor.with_projector(plan, shape, request, shapes)


def _make_advisor(
    shapes: PairShapes, machine: MachineProfile, criteria: SuggestionCriteria
) -> SettingsAdvisor:
    return SettingsAdvisor(*shapes.shapes, machine, UseCase(criteria.ranked_use))


def _make_request(
    shapes: PairShapes, machine: MachineProfile, criteria: SuggestionCriteria
) -> SettingsRequest:
    draft = None
    if shapes.draft is not None:
        draft = shapes.draft.name
    load = replace(criteria.wishes.load, target=shapes.target.name, draft=draft)
    load = with_settings(load, remote_hosts=machine.remote_hosts)
    # Whether exact mode can be had is said when a model is loaded.
    return replace(criteria.wishes, load=load, exact=False, can_skip_remote=True)


def _models(pair: CatalogPair) -> list[CatalogModel]:
    return [model for model in (pair.target, pair.draft) if model is not None]


def _pair_size(pair: CatalogPair) -> int | None:
    """Bytes of its files; None if that of one is unknown."""
    size = 0
    for model in _models(pair):
        model_size = _model_size(model)
        if model_size is None:
            return None
        size += model_size
    return size


def _assess_by_file_size(
    pair: CatalogPair, size: int, machine: MachineProfile, use: str | None
) -> PairSuggestion:
    devices = machine.devices or (machine.cpu,)
    reserve = sum(reserve_bytes(device) for device in devices)
    needed = size * _OVERHEAD_FACTOR
    known = [device.free for device in devices if device.free is not None]
    free = None
    free_text = "the free memory"
    if len(known) == len(devices):
        free = sum(known)
        free_text = gib(free)
    verdict = judge(needed, free, reserve)
    relation = _describe_relation(verdict)
    about = ""
    if any(model.about is not None for model in _models(pair)):
        about = "about "
    memory = f"{gib(needed)} with caches: {relation} {free_text}"
    reasons = [f"{about}{gib(size)} of files, {memory}", *_other_reasons(pair, use)]
    return PairSuggestion(
        pair=pair,
        bytes=size,
        verdict=verdict,
        reasons=tuple(reasons),
        draft_reason=draft_kinds.describe(pair.draft_kind),
    )


def _describe_relation(verdict: FitVerdict) -> str:
    """What stands between the memory that is needed and that which is free."""
    match verdict:
        case FitVerdict.NO:
            return "more than"
        case FitVerdict.TIGHT:
            return "nearly all of"
        case FitVerdict.UNKNOWN | FitVerdict.FITS:
            return "of"


def _memory_reason(plan: Plan) -> str:
    """Such as `needs 5.2 GB of 7.6 GB with a context of 8,192`."""
    device_fit = plan.host
    if plan.device_fits:
        device_fit = plan.device_fits[0]
    if plan.host.sharing or not plan.verdict.can_load:
        device_fit = plan.tightest
    free = "the free memory"
    if device_fit.device.free is not None:
        free = gib(device_fit.device.free)
    relation = _describe_relation(plan.verdict)
    separator = " " if relation == "of" else ", "
    text = f"needs {gib(device_fit.needed)}{separator}{relation} {free}"

    settings = plan.load.target_settings
    if settings.n_ctx:
        text += f" with a context of {settings.n_ctx:,}"
        if settings.kv_type != "f16":
            text += f" in {settings.kv_type}"
    if plan.is_partly_in_ram:
        rest = "the other layers" if plan.has_layers_in_ram else "experts"
        text += f", {rest} in RAM: {gib(plan.host.needed)} more"
    return text


def _speed_reasons(plan: Plan, *, has_draft: bool) -> Iterator[str]:
    speed = plan.speed
    if speed.plain is None or speed.speculative is None or not plan.verdict.can_load:
        return
    rate = token_rate_range(speed.plain)
    if speed.by_workload:
        method = "with the draft" if plan.memory.draft else "with prompt lookup"
        yield f"{rate}, {token_rate_range(speed.speculative)} {method}"
    else:
        yield f"{rate}: {speed.no_speculation}"
    if plan.loses:
        yield "probably not faster with this draft"
    elif has_draft and not plan.memory.draft:
        yield "no room for the draft"
    if estimate_tokens_per_second(plan) < _SLOW_TOKENS_PER_SECOND:
        yield "slower than reading speed"


def _draft_reason(pair: CatalogPair, plan: Plan) -> str:
    described = draft_kinds.describe(pair.draft_kind)
    if described:
        return described
    parts = []
    if pair.draft and pair.draft.family and pair.draft.family == pair.target.family:
        parts.append("same family")
    if plan.speed.costs is not None:
        parts.append(f"a draft token costs {plan.speed.costs.c:.0%} of a target pass")
    return " · ".join(parts)


def _other_reasons(pair: CatalogPair, use: str | None) -> Iterator[str]:
    reasons = [
        _use_reason(pair, use),
        pair.why,
        draft_kinds.describe(pair.draft_kind),
    ]
    if pair.target.active and pair.draft and pair.draft_kind == "model":
        reasons.append("mixture of experts: a draft gains less")
    if pair.status == "reported":
        reasons.append(f"reported: {pair.source}")
    reasons += [pair.target.note, pair.note]
    return filter(None, reasons)


def _use_reason(pair: CatalogPair, use: str | None) -> str:
    if not use:
        return ""
    if pair.use == (use,):
        return f"made for {use}"
    if use in pair.use:
        return f"good for {use}"
    return f"not made for {use}"


# --- The rank of a pair.


class _SuggestionRank(NamedTuple):
    """The least is the best."""

    does_not_fit: bool
    is_bundled: bool  # It is only a demonstration.
    draft_place: int  # Among the drafts of its target.
    is_tight: bool
    is_for_other_use: bool
    is_slow: bool
    is_full: bool
    tier: int
    is_short: bool  # A GPU has no room for a long context.
    is_reduced: bool  # It is fast, but partly in RAM or with a quantised cache.
    merit: float  # Negative: the speed of a slow pair, the merit of a fast one.
    bytes: int  # Negative.


def _rank(
    suggestion: PairSuggestion,
    draft_place: int,
    criteria: SuggestionCriteria,
    machine: MachineProfile,
) -> _SuggestionRank:
    pair = suggestion.pair
    plan = suggestion.plan
    use = criteria.ranked_use
    rate = _tokens_per_second(suggestion, machine)
    is_slow = criteria.is_too_slow(rate, pair.target)
    merit = rate
    if not is_slow:
        merit = _merit(pair, rate, use)
        if plan is not None and machine.devices and not plan.has_wanted_context:
            merit *= _SHORT_CONTEXT
    is_full = False
    is_short = False
    is_reduced = False
    if plan is not None:
        is_full = plan.is_full
        is_short = bool(machine.devices) and not plan.has_long_context
        has_quantized_cache = is_quantized(plan.load.target_settings.kv_type)
        # A quantised cache that makes room for a program's files is worth it.
        is_cache_worse = has_quantized_cache and plan.long_context <= LONG_CONTEXT
        is_reduced = plan.is_partly_in_ram or is_cache_worse
    return _SuggestionRank(
        does_not_fit=not suggestion.verdict.can_load and not suggestion.is_bundled,
        is_bundled=suggestion.is_bundled,
        draft_place=draft_place,
        is_tight=suggestion.verdict is FitVerdict.TIGHT,
        is_for_other_use=bool(criteria.use) and use not in pair.use,
        is_slow=is_slow,
        is_full=is_full,
        tier=TIERS.index(pair.target.tier),
        is_short=is_short,
        is_reduced=is_reduced and not is_slow,
        merit=-merit,
        bytes=-suggestion.bytes,
    )


def _merit(pair: CatalogPair, rate: float, use: str) -> float:
    """The effective size, by what its speed and its uses are worth."""
    merit = effective_size(pair.target) * _speed_worth(rate, pair.target)
    merit *= math.pow(_YEARLY_PROGRESS, _release_year(pair.target) - 2027)
    if use not in pair.use[:_N_BEST_USES]:
        merit *= _SECONDARY_USE
    return merit


def _release_year(model: CatalogModel) -> int:
    """A model of unknown date counts as one of 2025."""
    year, _, _ = (model.released or "").partition("-")
    return int(year) if year else 2025


def _speed_worth(rate: float, model: CatalogModel) -> float:
    """1 at a comfortable rate of a model that does not think.

    Example: 60 tok/s are worth 3.3, 180 only 3.8.  At 12 tok/s a model that thinks is
    worth 0.48, because 25 would be comfortable.
    """
    counted = min(rate, _PLENTY_RATE)
    worth = math.pow(counted / _COMFORTABLE_RATE, _SPEED_WEIGHT)
    if _PLENTY_RATE < rate < math.inf:
        worth *= math.pow(rate / _PLENTY_RATE, _SPEED_WEIGHT * _PLENTY_WEIGHT)
    comfortable = _COMFORTABLE_RATE
    if model.thinks:
        comfortable = _COMFORTABLE_THINKING_RATE
    return worth * min(1.0, rate / comfortable)


def effective_size(model: CatalogModel) -> float:
    """Parameters of a dense model, without quantisation, that is about as good."""
    total: float | None = model.parameters
    if not total:
        size = _known_size(model)
        total = size * 8 / _BITS_PER_PARAMETER
    active = model.active or total
    log_size = (1 - _ACTIVE_WEIGHT) * math.log(total or 1)
    log_size += _ACTIVE_WEIGHT * math.log(active or 1)
    return _quality(model) * math.exp(log_size)


def _quality(model: CatalogModel) -> float:
    if "qat" in f"{model.repo}/{model.file}".lower() or "MXFP4" in model.quantization:
        return _TRAINED_QUALITY
    bits = re.search("[2-8]", model.quantization)
    if bits is None:
        return 1.0
    return _BITS_QUALITY.get(bits[0], 1.0)


def _tokens_per_second(suggestion: PairSuggestion, machine: MachineProfile) -> float:
    """The middle of the estimate; if unknown, infinite on a GPU and none on a CPU."""
    if suggestion.plan is not None and suggestion.plan.speed.plain is not None:
        return estimate_tokens_per_second(suggestion.plan)
    return math.inf if machine.devices else 0.0


def _draft_sort_key(suggestion: PairSuggestion) -> tuple[bool | float, ...]:
    """The shortest time first, as if all files were of one size.

    Unless the draft costs quality of the target, the long context or the last memory;
    if the time is unknown, by kind.  What a list of all targets leaves out comes last,
    so that a model's name gives the same first pair.
    """
    pair = suggestion.pair
    if suggestion.plan is not None:
        rank = rank_draft(suggestion.plan)
    else:
        rank = DraftRank(
            does_not_fit=not suggestion.verdict.can_load,
            is_tight=suggestion.verdict is FitVerdict.TIGHT,
            is_short=True,
            is_full=False,
            loses=False,
            seconds=math.inf,
        )
    quality = min(_quality(pair.target), _BITS_QUALITY["4"])
    size = _model_size(pair.target) or 1
    return (
        rank.does_not_fit,
        rank.is_tight,
        suggestion.needs_layers_in_ram,
        suggestion.is_worse_than_lookup,
        -quality,
        rank.is_short,
        rank.is_full,
        rank.seconds / size,
        draft_kinds.kinds()[pair.draft_kind].preference,
    )


def _model_size(model: CatalogModel) -> int | None:
    if model.path is None:
        return model.size
    with suppress(OSError):
        return model.path.stat().st_size
    return None


def _known_size(model: CatalogModel) -> int:
    """The size of its file; 0 if it is unknown."""
    return _model_size(model) or 0
