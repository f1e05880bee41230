"""machine/gpu_drivers.py: NVML, with a fake library."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

from localspec.machine import gpu_drivers
from localspec.machine.gpu_drivers import parse_pci_address

MIB = 1 << 20
OK, NOT_SUPPORTED, UNKNOWN = 0, 3, 999


@dataclass
class Card:
    """One GPU of the fake library; None is not supported."""

    name: bytes = b"NVIDIA GeForce RTX 4090"
    bus: bytes = b"00000000:C1:00.0"
    total: int = 24564 * MIB
    reserved: int = 430 * MIB
    free: int | None = 20000 * MIB
    display: int | None = 1


@dataclass
class Library:
    """NVML's functions as ctypes finds them."""

    cards: list[Card]
    starts: int = OK
    open: int = 0
    old: bool = False
    asked: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        if name == "nvmlDeviceGetMemoryInfo_v2" and not self.old:
            return self.memory2
        raise AttributeError(name)

    def nvmlInit_v2(self) -> int:  # noqa: N802  NVML's own names
        self.open += self.starts == OK
        return self.starts

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.open -= 1
        return OK

    def nvmlSystemGetDriverVersion(self, buffer: Any, length: Any) -> int:  # noqa: N802
        buffer.value = b"570.86.15"
        return OK

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.cards)
        return OK

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index.value + 1
        return OK

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, length: Any) -> int:  # noqa: N802
        buffer.value = self._card(handle).name
        return OK

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, pci: Any) -> int:  # noqa: N802
        pci._obj.bus_id = self._card(handle).bus
        return OK

    def memory2(self, handle: Any, memory: Any) -> int:
        card, info = self._card(handle), memory._obj
        if info.version != ctypes.sizeof(gpu_drivers.NvmlMemoryV2) | 2 << 24 or card.free is None:
            return NOT_SUPPORTED
        info.total, info.reserved, info.free = card.total, card.reserved, card.free
        return OK

    def nvmlDeviceGetDisplayActive(self, handle: Any, active: Any) -> int:  # noqa: N802
        card = self._card(handle)
        if card.display is None:
            return NOT_SUPPORTED
        active._obj.value = card.display
        return OK

    def _card(self, handle: Any) -> Card:
        index: int = handle.value - 1
        return self.cards[index]


def test_a_card_is_told_with_all_that_nvml_knows() -> None:
    library = Library([Card()])
    (card,) = gpu_drivers.read_nvml_gpus(library)
    assert (card.source, card.name) == ("NVML", "NVIDIA GeForce RTX 4090")
    assert card.id == "0000:c1:00.0"
    assert (card.total, card.free) == (24564 * MIB, 20000 * MIB)
    assert card.used == (24564 - 20000 - 430) * MIB  # without memory reserved by the driver
    assert (card.driver, card.drives_display) == ("570.86.15", True)
    assert library.open == 0


def test_an_old_driver_leaves_the_memory_to_ggml() -> None:
    (card,) = gpu_drivers.read_nvml_gpus(Library([Card()], old=True))
    assert (card.id, card.total, card.free, card.used) == ("0000:c1:00.0", None, None, None)


def test_what_a_card_does_not_say_is_none() -> None:
    (card,) = gpu_drivers.read_nvml_gpus(Library([Card(free=None, display=None, bus=b"")]))
    assert (card.total, card.free, card.used) == (None, None, None)
    assert (card.drives_display, card.id) == (None, None)


def test_every_card_is_told() -> None:
    library = Library([Card(bus=b"00000000:01:00.0"), Card(bus=b"00000000:02:00.0")])
    assert [card.id for card in gpu_drivers.read_nvml_gpus(library)] == [
        "0000:01:00.0",
        "0000:02:00.0",
    ]


def test_a_driver_that_does_not_start_says_nothing() -> None:
    assert gpu_drivers.read_nvml_gpus(Library([Card()], starts=UNKNOWN)) == ()


def test_a_library_that_is_none_says_nothing() -> None:
    assert gpu_drivers.read_nvml_gpus(object()) == ()


def test_the_structures_are_nvmls() -> None:
    assert ctypes.sizeof(gpu_drivers.NvmlMemoryV2) == 40
    assert ctypes.sizeof(gpu_drivers.NvmlPciInfo) == 68


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
