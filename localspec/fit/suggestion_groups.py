"""The suggestions as advice: the three best models first, then the others by kind.

`pair suggest`, the wizard, Home and the welcome screen show these groups. Each model
has one row, with the draft and the quantisation that suit the machine best.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from localspec.fit.machine_profile import MachineProfile
from localspec.fit.suggestions import (
    PairSuggestion,
    SuggestionCriteria,
    suggest_with_projectors,
)
from localspec.models import catalog, model_names
from localspec.models.catalog import Catalog, CatalogModel, own_id
from localspec.models.catalog_entries import TIERS
from localspec.units import about_rate, gib

_N_BEST = 3
_FASTER = 1.5  # Times the speed of the best model: a person notices that.
_SAME_CLASS = 2.0  # The sizes of two models of one class differ by a smaller factor.


class AdviceGroup(StrEnum):
    """The groups, in the order in which they are shown."""

    BEST = "best"
    FASTER = "faster"
    LARGER = "larger"  # The pair is larger than the GPU's memory: partly in RAM.
    OTHER = "other"
    OLDER = "older"
    TOO_SLOW = "too slow"


class AdvisedPair(Struct, frozen=True):
    """A suggestion with its group, and one short reason for it."""

    suggestion: PairSuggestion
    group: AdviceGroup
    reason: str

    @property
    def name(self) -> str:
        return self.suggestion.pair.name


class Advice(Struct, frozen=True):
    """The pairs that a machine can run, by group; within it the best first."""

    pairs: tuple[AdvisedPair, ...]
    titles: Mapping[AdviceGroup, str]

    @property
    def best(self) -> AdvisedPair | None:
        """The first one to try; None if nothing fits."""
        if not self.pairs:
            return None
        return self.pairs[0]

    def by_group(self) -> Iterator[tuple[str, tuple[AdvisedPair, ...]]]:
        """The title and the pairs of each group that has any."""
        for group, title in self.titles.items():
            members = tuple(each for each in self.pairs if each.group is group)
            if members:
                yield title, members


def advise(
    machine: MachineProfile,
    criteria: SuggestionCriteria | None = None,
    *,
    catalogue: Catalog | None = None,
) -> Advice:
    """The advice for a machine. It takes about a second: call it on a thread.

    The pair that comes with localspec is left out. Raises UsageError for a damaged
    catalogue.
    """
    catalogue = catalogue or catalog.load()
    criteria = criteria or SuggestionCriteria()
    found = suggest_with_projectors(machine, criteria, catalogue=catalogue)
    return group_suggestions(found, machine, criteria)


def group_suggestions(
    suggestions: Iterable[PairSuggestion],
    machine: MachineProfile,
    criteria: SuggestionCriteria,
) -> Advice:
    """The advice of a list of suggestions, the best first."""
    best_of_target: dict[str, PairSuggestion] = {}
    for suggestion in suggestions:
        if not suggestion.is_bundled:
            best_of_target.setdefault(own_id(suggestion.pair.target.id), suggestion)
    listed = tuple(best_of_target.values())
    grouping = _Grouping(listed, criteria.use)
    order = list(AdviceGroup)
    pairs = [grouping.advise(each) for each in listed]
    pairs.sort(key=lambda each: order.index(each.group))  # Stable: the rank stays.
    return Advice(tuple(pairs), _titles(machine))


def _titles(machine: MachineProfile) -> dict[AdviceGroup, str]:
    place = "computer"
    if any(not device.unified for device in machine.devices):
        place = "card"
    return {
        AdviceGroup.BEST: f"Best for this {place}",
        AdviceGroup.FASTER: "Faster",
        AdviceGroup.LARGER: "Larger, partly in RAM",
        AdviceGroup.OTHER: "Others",
        AdviceGroup.OLDER: "Older",
        AdviceGroup.TOO_SLOW: "Too slow here",
    }


class _Grouping:
    """The groups of one list: each depends on what the best are."""

    def __init__(self, listed: Sequence[PairSuggestion], use: str | None) -> None:
        """`listed`: one suggestion for each model, the best answers first."""
        self.use = use
        self.newer = find_newer_models([each.pair.target for each in listed])
        whole = [each for each in listed if self._may_be_best(each)]
        if not whole:  # A small card: what is partly in RAM is the best that there is.
            whole = [each for each in listed if self._may_be_best(each, in_ram=True)]
        self.best = whole[:_N_BEST]

    def _may_be_best(self, suggestion: PairSuggestion, *, in_ram: bool = False) -> bool:
        if suggestion.is_partly_in_ram and not in_ram:
            return False
        if self._is_older(suggestion) or suggestion.is_too_slow:
            return False
        return self._suits(suggestion)

    def _is_older(self, suggestion: PairSuggestion) -> bool:
        target = suggestion.pair.target
        return target.tier == "old" or own_id(target.id) in self.newer

    def _suits(self, suggestion: PairSuggestion) -> bool:
        """Whether it is good for the use; without one, for a chat."""
        return (self.use or "chat") in suggestion.pair.use

    def advise(self, suggestion: PairSuggestion) -> AdvisedPair:
        group = self._choose_group(suggestion)
        return AdvisedPair(suggestion, group, self._reason(suggestion, group))

    def _choose_group(self, suggestion: PairSuggestion) -> AdviceGroup:
        if suggestion in self.best:
            return AdviceGroup.BEST
        if suggestion.is_too_slow:
            return AdviceGroup.TOO_SLOW
        if self._is_older(suggestion):
            return AdviceGroup.OLDER
        if suggestion.is_partly_in_ram:
            return AdviceGroup.LARGER
        if self._suits(suggestion) and self._times_as_fast(suggestion) >= _FASTER:
            return AdviceGroup.FASTER
        return AdviceGroup.OTHER

    def _times_as_fast(self, suggestion: PairSuggestion) -> float:
        """Its speed divided by the best one's; 1 if either is unknown."""
        rate = suggestion.tokens_per_second
        if not self.best:
            return 1.0
        best_rate = self.best[0].tokens_per_second
        if not rate or not best_rate:
            return 1.0
        return rate / best_rate

    def _reason(self, suggestion: PairSuggestion, group: AdviceGroup) -> str:
        match group:
            case AdviceGroup.BEST:
                return self._why_best(suggestion)
            case AdviceGroup.FASTER:
                first = self.best[0].pair.target
                factor = self._times_as_fast(suggestion)
                return f"{factor:.1f}× as fast as {model_names.name_model(first)}"
            case AdviceGroup.LARGER:
                return describe_ram(suggestion)
            case AdviceGroup.OLDER:
                newer = self.newer.get(own_id(suggestion.pair.target.id))
                if newer is None:
                    return ""
                return f"{model_names.name_model(newer)} is newer"
            case AdviceGroup.TOO_SLOW:
                if not self.best:
                    return describe_slow(suggestion, instead=None)
                return describe_slow(suggestion, instead=self.best[0])
            case AdviceGroup.OTHER:
                if not self._suits(suggestion) and self.use:
                    return f"not made for {self.use}"
                return _describe_strength(suggestion)

    def _why_best(self, suggestion: PairSuggestion) -> str:
        """The first strength that is not the reason of a better one already.

        If the second and the third are `good for chat and code`, and the third has a
        longer context too, the reason of the third is `longer context: 64k`.
        """
        reason = ""
        said: set[str] = set()
        for each in self.best:
            strengths = list(self._strengths(each))
            unsaid = [strength for strength in strengths if strength not in said]
            reason = strengths[0]
            if unsaid:
                reason = unsaid[0]
            said.add(reason)
            if each is suggestion:
                break
        return reason

    def _strengths(self, suggestion: PairSuggestion) -> Iterator[str]:
        """What speaks for one of the best, what says most first; at least one."""
        first = self.best[0]
        is_made_for_use = suggestion.pair.use == (self.use,)
        if suggestion is first:
            if is_made_for_use:
                yield f"made for {self.use}: the best answers that fit"
            else:
                yield "the best answers that fit"
            return
        factor = self._times_as_fast(suggestion)
        if factor >= _FASTER:
            yield f"{factor:.1f}× as fast as the first"
        context = _n_ctx(suggestion)
        if context >= 2 * _n_ctx(first) > 0:
            yield f"longer context: {context // 1024}k"
        if is_made_for_use:
            yield f"made for {self.use}"
        yield _describe_strength(suggestion)


def _n_ctx(suggestion: PairSuggestion) -> int:
    if suggestion.plan is None:
        return 0
    return suggestion.plan.load.target_settings.n_ctx or 0


def _describe_strength(suggestion: PairSuggestion) -> str:
    """What tells a model from the others of its rank."""
    model = suggestion.pair.target
    if model.thinks:
        return "thinks before it answers"
    best_uses = model.use[:2]
    if best_uses:
        return f"good for {' and '.join(best_uses)}"
    if model.released:
        return f"released {model.released}"
    return ""


def describe_ram(suggestion: PairSuggestion) -> str:
    """The layers or experts of a pair that are in RAM beside a GPU, if any."""
    plan = suggestion.plan
    if plan is None or not plan.is_partly_in_ram:
        return ""
    size = gib(plan.host.needed)
    if plan.has_layers_in_ram:
        n_layers = len(plan.memory.target.placement.layer_backends)
        n_on_gpu = plan.load.target_settings.n_gpu_layers
        return f"{n_layers - n_on_gpu} of {n_layers} layers in RAM, {size}"
    return f"experts in RAM, {size}"


def describe_slow(suggestion: PairSuggestion, instead: PairSuggestion | None) -> str:
    """The reason, such as `too slow from RAM (≈ 2 tok/s): take Qwen3.8 27B (≈ 54)`."""
    what = "too slow"
    if suggestion.is_partly_in_ram:
        what = "too slow from RAM"
    text = f"{what} ({about_rate(suggestion.tokens_per_second)} tok/s)"
    if instead is None or instead.is_too_slow:
        return text
    rate = about_rate(instead.tokens_per_second)
    return f"{text}: take {model_names.name_model(instead.pair.target)} ({rate})"


# --- What a newer model replaces.


class _Version(NamedTuple):
    number: tuple[int, ...]
    released: str


def find_newer_models(
    models: Sequence[CatalogModel],
) -> dict[str, CatalogModel]:
    """The newer model of the same makers and class, by the id of the one it replaces.

    A model that lists of late 2026 still choose (the tier `current`) is not replaced.
    An old one may have no successor among `models`; then a current one of its class is
    named, whoever made it. Example: qwen3.6-27b is replaced by qwen3.8-27b,
    gemma-3-27b by gemma-4-31b, and mistral-7b by the current model that is nearest in
    size.
    """
    current = [model for model in models if model.tier == "current"]
    newer: dict[str, CatalogModel] = {}
    for model in models:
        if model.tier == "current":
            continue
        found = [each for each in models if _replaces(each, model)]
        if not found and model.tier == "old":
            found = [each for each in current if _is_same_class(each, model)]
        if found:
            nearest = partial(_distance, model)
            newer[own_id(model.id)] = min(found, key=nearest)
    return newer


def _distance(model: CatalogModel, other: CatalogModel) -> float:
    """How much the sizes of two models of one class differ: 0 if they are equal."""
    return abs(math.log(_size(model) / _size(other)))


def _replaces(newer: CatalogModel, model: CatalogModel) -> bool:
    """Whether it is newer, no worse, and of the same makers, class and use."""
    if _makers(newer.id) != _makers(model.id) or not _is_same_class(newer, model):
        return False
    if TIERS.index(newer.tier) > TIERS.index(model.tier):
        return False
    is_for_same_use = set(model.use[:1]) <= set(newer.use)
    return _version(newer) > _version(model) and is_for_same_use


def _makers(id_: str) -> str:
    """The letters that an id begins with: `qwen` of qwen3.8-27b."""
    match = re.match("[a-z]+", id_)
    if match is None:
        return id_
    return match[0]


def _version(model: CatalogModel) -> _Version:
    """Its number and its date: 3 and 8 for qwen3.8-27b, 4 for gemma-4-31b."""
    match = re.match(r"[a-z]+-?(?:[a-z]+-)*(\d+(?:\.\d+)*)", model.id)
    number: tuple[int, ...] = ()
    if match:
        number = tuple(int(part) for part in match[1].split("."))
    return _Version(number, model.released)


def _is_same_class(one: CatalogModel, other: CatalogModel) -> bool:
    """Whether both are dense or both are mixtures, of known and similar sizes."""
    if bool(one.active) != bool(other.active):
        return False
    size = _size(one)
    other_size = _size(other)
    if not size or not other_size:
        return False
    return 1 / _SAME_CLASS < size / other_size < _SAME_CLASS


def _size(model: CatalogModel) -> int:
    """Parameters, or bytes if only these are known; 0 if neither is."""
    return model.parameters or model.size or 0
