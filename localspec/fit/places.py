"""Where a pair may run: this computer as it is, or with a card that is not here."""

from __future__ import annotations

from dataclasses import replace

from localspec import paths
from localspec.fit import calibration, hardware
from localspec.fit.hardware import TYPICAL_CPU
from localspec.fit.report import Place
from localspec.machine import cards, devices, measured
from localspec.machine.device import Device
from localspec.machine.ledger import HOST
from localspec.units import gib

_GIB = 1 << 30


def here(refresh: bool = False) -> Place:
    """This computer, with what it has run."""
    found = devices.look(refresh)
    return _place(found.devices, found.cpu, learnt=True)


def with_card(name: str, vram_gib: float | None = None) -> Place:
    """This computer, had it that card instead of its own.  Raises NotFoundError."""
    return _place((cards.find(name).device(vram_gib),), devices.look().cpu)


def with_memory(vram_gib: float) -> Place:
    """This computer, had it a card of so many GiB of which nothing else is known."""
    size = int(vram_gib * _GIB)
    card = Device("GPU0", f"a card of {gib(size)}", "gpu", size, size, "CUDA", pretend=True)
    return _place((card,), devices.look().cpu)


def _place(cards_: tuple[Device, ...], cpu: Device, learnt: bool = False) -> Place:
    known = hardware.of(cards_, TYPICAL_CPU)
    shown = measured.Store(paths.state() / "measured.sqlite").all()
    known = calibration.learn(known, shown)
    if not learnt:  # what the card that is here has shown says nothing of another
        kept = {where: rate for where, rate in known.learnt.items() if where[0] == HOST}
        known = replace(known, learnt=kept)
    return Place(cards_, cpu, known)
