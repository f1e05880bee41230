"""What the wizard works on: the catalogue, what is here, this computer, and what the hub says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError
from localspec.fit import exact_fit, pair_headers
from localspec.fit.pair_headers import PairHeaders
from localspec.fit.report import FitReport, MachineProfile
from localspec.fit.speed_estimate import UseCase
from localspec.launch import ResolvedPair
from localspec.models import resolver
from localspec.models.catalog import Catalog, CatalogPair
from localspec.tui.wizard.shortlist import SuggestCandidates, suggest_candidates
from localspec.tui.wizard.what_if import WhatIf

if TYPE_CHECKING:
    from localspec.models.hub.cancellation import CancelToken
    from localspec.models.hub.client import HubClient

ReadHeaders = Callable[[CatalogPair], PairHeaders | None]
"""The headers of a pair's files, or None where nobody can tell; called on a thread."""


def no_headers(_: CatalogPair) -> PairHeaders | None:
    """Of who asks nobody."""
    return None


def unknown_free_disk() -> int | None:
    return None


ConfirmFit = Callable[[FitReport, PairHeaders, MachineProfile, UseCase], FitReport]
"""The same settings with llama.cpp's own sums, or as they were; called on a thread."""


def keep_estimate(
    fit: FitReport, _subject: PairHeaders, _place: MachineProfile, _use: UseCase
) -> FitReport:
    return fit


@dataclass(frozen=True, slots=True)
class WizardServices:
    """Given by Home; slow things are asked on threads."""

    catalogue: Catalog
    load_machine_profile: Callable[[], MachineProfile]
    ready_choices: Mapping[str, ResolvedPair] = field(default_factory=dict)
    """Pairs whose files are here."""
    read_headers: ReadHeaders = no_headers
    suggest: SuggestCandidates = suggest_candidates
    confirm_fit: ConfirmFit = keep_estimate
    free_disk: Callable[[], int | None] = unknown_free_disk
    """Bytes free where files will be."""


@dataclass(frozen=True, slots=True)
class WizardResult:
    """How the wizard ended: a pair to open, or one that is being downloaded."""

    what_if: WhatIf
    choice: ResolvedPair | None = None
    pair: CatalogPair | None = None


class HeaderReader:
    """Headers from the disk, or from the hub where it can be asked."""

    def __init__(self, hub: Callable[[], HubClient]) -> None:
        self._hub = hub
        self._stop: CancelToken | None = None

    def __call__(self, pair: CatalogPair) -> PairHeaders | None:
        from localspec.models.hub.cancellation import CancelToken, OperationCancelledError  # noqa: PLC0415  200 ms, when needed
        from localspec.models.pull_plan import PullPlanner  # noqa: PLC0415

        self._stop = stop = CancelToken()
        try:
            planner = PullPlanner(self._hub(), stop, refresh=False)
            return pair_headers.resolve_headers(resolver.resolve(pair.id), None, planner)
        except (LocalspecError, OperationCancelledError):
            return None

    def stop(self) -> None:
        """Nobody waits any more."""
        if self._stop is not None:
            self._stop.cancel()


def confirm_by_probe(
    fit: FitReport, subject: PairHeaders, machine_profile: MachineProfile, use: UseCase
) -> FitReport:
    """Asked in a child that ends with the answer: about a second."""
    from localspec.machine.probe import MemoryProbe  # noqa: PLC0415  not before it is needed

    with MemoryProbe() as probe:
        return exact_fit.confirm_fit(fit, subject, machine_profile, probe, use)


def measure_free_disk() -> int | None:
    """On the disk of the hub's cache."""
    from localspec.models import pull_plan  # noqa: PLC0415  200 ms, not before it is needed
    from localspec.models.hub import hub_cache  # noqa: PLC0415

    try:
        return pull_plan.free_bytes(hub_cache.cache_root())
    except OSError:
        return None
