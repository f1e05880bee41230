"""What the wizard works on: the catalogue, what is here, this computer, and what the hub says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError
from localspec.fit import exact, subject
from localspec.fit.report import Fit, Place
from localspec.fit.speed import Use
from localspec.fit.subject import Subject
from localspec.launch import Choice
from localspec.models import wanted
from localspec.models.catalog import Catalogue, Pair
from localspec.tui.wizard.shortlist import Suggesting, suggested
from localspec.tui.wizard.whatif import WhatIf

if TYPE_CHECKING:
    from localspec.models.hub.errand import Stop
    from localspec.models.remote import Hub

Refine = Callable[[Pair], Subject | None]
"""The headers of a pair's files, or None where nobody can tell; called on a thread."""


def unasked(_: Pair) -> Subject | None:
    """Of who asks nobody."""
    return None


def no_disk() -> int | None:
    return None


Confirm = Callable[[Fit, Subject, Place, Use], Fit]
"""The same settings with llama.cpp's own sums, or as they were; called on a thread."""


def as_it_was(fit: Fit, _subject: Subject, _place: Place, _use: Use) -> Fit:
    return fit


@dataclass(frozen=True, slots=True)
class Stock:
    """Given by Home; slow things are asked on threads."""

    catalogue: Catalogue
    here: Callable[[], Place]
    ready: Mapping[str, Choice] = field(default_factory=dict)
    """Pairs whose files are here."""
    refine: Refine = unasked
    suggest: Suggesting = suggested
    confirm: Confirm = as_it_was
    disk: Callable[[], int | None] = no_disk
    """Bytes free where files will be."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """How the wizard ended: a pair to open, or one that is being downloaded."""

    what: WhatIf
    choice: Choice | None = None
    pair: Pair | None = None


class Reader:
    """Headers from the disk, or from the hub where it can be asked."""

    def __init__(self, hub: Callable[[], Hub]) -> None:
        self._hub = hub
        self._stop: Stop | None = None

    def __call__(self, pair: Pair) -> Subject | None:
        from localspec.models.hub.errand import Stop, Stopped  # noqa: PLC0415  200 ms, when needed
        from localspec.models.plan import Planner  # noqa: PLC0415

        self._stop = stop = Stop()
        try:
            planner = Planner(self._hub(), stop, fresh=False)
            return subject.look(wanted.read(pair.id), None, planner)
        except (LocalspecError, Stopped):
            return None

    def stop(self) -> None:
        """Nobody waits any more."""
        if self._stop is not None:
            self._stop.set()


def by_llama(fit: Fit, subject: Subject, place: Place, use: Use) -> Fit:
    """Asked in a child that ends with the answer: about a second."""
    from localspec.machine.probe import Probe  # noqa: PLC0415  not before it is needed

    with Probe() as probe:
        return exact.confirmed(fit, subject, place, probe, use)


def free_disk() -> int | None:
    """On the disk of the hub's cache."""
    from localspec.models import plan  # noqa: PLC0415  200 ms, not before it is needed
    from localspec.models.hub import hubcache  # noqa: PLC0415

    try:
        return plan.free(hubcache.root())
    except OSError:
        return None
