"""What the wizard needs from outside: catalogue, installed pairs, this computer, and the hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError
from localspec.fit import exact_fit, pair_headers
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_headers import PairHeaders
from localspec.fit.report import FitReport
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
"""The headers of a pair's files, or None if they cannot be read. Called on a thread."""


def no_headers(_: CatalogPair) -> PairHeaders | None:
    return None


def unknown_free_disk() -> int | None:
    return None


ConfirmFit = Callable[[FitReport, PairHeaders, MachineProfile, UseCase], FitReport]
"""The same settings with llama.cpp's own numbers, or the given report. Called on a thread."""


def keep_estimate(
    fit: FitReport, _subject: PairHeaders, _place: MachineProfile, _use: UseCase
) -> FitReport:
    return fit


@dataclass(frozen=True, slots=True)
class WizardServices:
    """Callables that may be slow are called on threads."""

    catalogue: Catalog
    load_machine_profile: Callable[[], MachineProfile]
    ready_choices: Mapping[str, ResolvedPair] = field(default_factory=dict)
    """Installed pairs, by catalogue id."""
    read_headers: ReadHeaders = no_headers
    suggest: SuggestCandidates = suggest_candidates
    confirm_fit: ConfirmFit = keep_estimate
    free_disk: Callable[[], int | None] = unknown_free_disk
    """Free bytes on the download disk."""


@dataclass(frozen=True, slots=True)
class WizardResult:
    """The chosen pair: `choice` to open it now, or `pair` if it is being downloaded."""

    what_if: WhatIf
    choice: ResolvedPair | None = None
    pair: CatalogPair | None = None


class HeaderReader:
    """Reads a pair's headers from the disk, or from the hub if needed and reachable."""

    def __init__(self, hub: Callable[[], HubClient]) -> None:
        self._hub = hub
        self._stop: CancelToken | None = None

    def __call__(self, pair: CatalogPair) -> PairHeaders | None:
        from localspec.models.hub.cancellation import CancelToken, OperationCancelledError  # noqa: PLC0415  takes 200 ms
        from localspec.models.pull_plan import PullPlanner  # noqa: PLC0415

        self._stop = stop = CancelToken()
        try:
            planner = PullPlanner(self._hub(), stop, refresh=False)
            return pair_headers.resolve_headers(resolver.resolve(pair.id), None, planner)
        except (LocalspecError, OperationCancelledError):
            return None

    def stop(self) -> None:
        """Cancels a pending request."""
        if self._stop is not None:
            self._stop.cancel()


def confirm_by_probe(
    fit: FitReport, subject: PairHeaders, machine_profile: MachineProfile, use: UseCase
) -> FitReport:
    """Runs llama.cpp's own memory calculation in a child process; about a second."""
    from localspec.machine.probe import MemoryProbe  # noqa: PLC0415  keeps start-up fast

    with MemoryProbe() as probe:
        return exact_fit.confirm_fit(fit, subject, machine_profile, probe, use)


def measure_free_disk() -> int | None:
    """On the disk of the hub cache."""
    from localspec.models import pull_plan  # noqa: PLC0415  takes 200 ms
    from localspec.models.hub import hub_cache  # noqa: PLC0415

    try:
        return pull_plan.free_bytes(hub_cache.cache_root())
    except OSError:
        return None
