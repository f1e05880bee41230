"""What the wizard needs from outside: catalogue, installed pairs, this computer, and the hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError
from localspec.fit import llama_count, pair_shapes
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.speed_estimate import UseCase
from localspec.fit.verdict import FitReport
from localspec.launch import ResolvedPair
from localspec.lazy_dataclass import dataclass
from localspec.models import model_lookup
from localspec.models.catalog import Catalog, CatalogPair
from localspec.tui.wizard import shortlist
from localspec.tui.wizard.shortlist import Candidate
from localspec.tui.wizard.what_if import WhatIf

if TYPE_CHECKING:
    from localspec.models.hub.cancellation import CancelToken
    from localspec.models.hub.client import HubClient


@dataclass(frozen=True, slots=True)
class WizardResult:
    """The chosen pair: `ready_pair` to open it now, or `pair` if it is being downloaded."""

    what_if: WhatIf
    ready_pair: ResolvedPair | None = None
    pair: CatalogPair | None = None


class WizardServices:
    """The methods may be slow; they are called on threads."""

    def __init__(
        self,
        catalogue: Catalog,
        load_machine_profile: Callable[[], MachineProfile],
        ready_pairs: Mapping[str, ResolvedPair],
        hub: Callable[[], HubClient],
    ) -> None:
        """`ready_pairs`: the installed pairs, by catalogue id."""
        self.catalogue, self.ready_pairs = catalogue, ready_pairs
        self.load_machine_profile = load_machine_profile
        self._hub = hub
        self._stop: CancelToken | None = None

    def suggest(
        self, machine_profile: MachineProfile, use_case: str, what_if: WhatIf
    ) -> tuple[Candidate, ...]:
        return shortlist.suggest_candidates(machine_profile, use_case, what_if, self.catalogue)

    def read_headers(self, pair: CatalogPair) -> PairShapes | None:
        """From the disk, or from the hub if needed and reachable; None if they cannot be read."""
        from localspec.models.hub.cancellation import CancelToken, OperationCancelledError  # noqa: PLC0415  takes 200 ms
        from localspec.models.pull_plan import PullPlanner  # noqa: PLC0415

        self._stop = stop = CancelToken()
        try:
            planner = PullPlanner(self._hub(), stop, refresh=False)
            return pair_shapes.resolve_shapes(model_lookup.resolve(pair.id), None, planner)
        except (LocalspecError, OperationCancelledError):
            return None

    def stop_reading(self) -> None:
        """Cancels a pending request to the hub."""
        if self._stop is not None:
            self._stop.cancel()

    def confirm_fit(
        self, fit: FitReport, headers: PairShapes, machine_profile: MachineProfile, use: UseCase
    ) -> FitReport:
        """The same settings with llama.cpp's own numbers, from a child process; about a second."""
        return llama_count.confirm_fit(fit, headers, machine_profile, use)

    def free_disk(self) -> int | None:
        """Free bytes on the disk of the hub cache."""
        from localspec.models.local_files import hub_cache  # noqa: PLC0415  keeps start-up fast

        try:
            return hub_cache.free_bytes(hub_cache.cache_root())
        except OSError:
            return None
