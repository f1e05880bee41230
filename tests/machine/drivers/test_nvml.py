"""machine/device_detection.py: NVML, with a fake of its package."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from localspec.machine import device_detection
from localspec.machine.device_detection import DriverGpu, parse_pci_address

MIB = 1 << 20


class NVMLError(Exception):
    pass


@dataclass
class Card:
    """One GPU of the fake package; None is not supported."""

    bus: str | None = "00000000:C1:00.0"
    free: int | None = 20000 * MIB
    display: int | None = 1


class Package:
    """Functions of pynvml, by its names."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 2  # noqa: N815

    def __init__(self, *cards: Card, starts: bool = True) -> None:
        self.cards, self.starts, self.n_open = cards, starts, 0

    def nvmlInit(self) -> None:  # noqa: N802
        _supported(self.starts or None)
        self.n_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.n_open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        return self.cards[index]

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.86.15"

    def nvmlDeviceGetName(self, card: Card) -> str:  # noqa: N802
        return "NVIDIA GeForce RTX 4090"

    def nvmlDeviceGetPciInfo(self, card: Card) -> Any:  # noqa: N802
        return SimpleNamespace(busId=_supported(card.bus))

    def nvmlDeviceGetDisplayActive(self, card: Card) -> int:  # noqa: N802
        return int(_supported(card.display))

    def nvmlDeviceGetMemoryInfo(self, card: Card, version: int) -> Any:  # noqa: N802
        free = _supported(card.free if version == self.nvmlMemory_v2 else None)
        return SimpleNamespace(total=24564 * MIB, reserved=430 * MIB, free=free)


def _supported(value: Any) -> Any:
    if value is None:
        raise NVMLError
    return value


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    def read_with(package: Package) -> list[DriverGpu]:
        monkeypatch.setitem(sys.modules, "pynvml", package)
        return [*device_detection.read_nvml()]

    return read_with


def test_a_card_is_told_with_all_that_nvml_knows(read: Any) -> None:
    package = Package(Card())
    (card,) = read(package)
    assert (card.source, card.name) == ("NVML", "NVIDIA GeForce RTX 4090")
    assert card.id == "0000:c1:00.0"
    assert (card.total, card.free) == (24564 * MIB, 20000 * MIB)
    assert card.used == (24564 - 20000 - 430) * MIB  # without memory reserved by the driver
    assert (card.driver, card.drives_display) == ("570.86.15", True)
    assert package.n_open == 0


def test_what_a_card_does_not_say_is_none(read: Any) -> None:
    """An old driver leaves the memory to ggml."""
    (card,) = read(Package(Card(free=None, display=None, bus=None)))
    assert (card.total, card.free, card.used) == (None, None, None)
    assert (card.drives_display, card.id) == (None, None)


def test_every_card_is_told(read: Any) -> None:
    cards = read(Package(Card("00000000:01:00.0"), Card("00000000:02:00.0")))
    assert [card.id for card in cards] == ["0000:01:00.0", "0000:02:00.0"]


def test_a_driver_that_does_not_start_says_nothing(read: Any) -> None:
    with pytest.raises(NVMLError):
        read(Package(Card(), starts=False))


ADDRESSES = [
    ("00000000:C1:00.0", "0000:c1:00.0"),
    ("0000:c1:00.0", "0000:c1:00.0"),
    ("c1:00.0", "0000:c1:00.0"),
    ("00010000:01:00.0", "10000:01:00.0"),
    ("", None),
    (None, None),
    ("PCI", None),
]


def test_addresses_have_one_form() -> None:
    for text, found in ADDRESSES:
        assert parse_pci_address(text) == found
