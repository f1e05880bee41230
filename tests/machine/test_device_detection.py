"""machine/device_detection.py, with recorded device lists of ggml and of drivers."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.machine import device_detection, installed_llama_cpp, memory_probe
from localspec.machine.cpu_and_ram import HostMemory
from localspec.machine.device import Device, least_reserve_bytes, reserve_bytes
from localspec.machine.device_detection import (
    DriverGpu,
    MachineDevices,
    parse_pci_address,
)
from tests.machine.test_cpu_and_ram import grow

MIB = 1 << 20
GIB = 1 << 30
RAM = HostMemory(24 * GIB, 32 * GIB)


def ggml_device(
    name: str, description: str, free: float, total: float, **other: Any
) -> dict[str, Any]:
    """One device as ggml lists it; sizes in GiB."""
    backend = name.rstrip("0123456789")
    sizes = {"free": int(free * GIB), "total": int(total * GIB)}
    properties = {"name": name, "description": description, "type": "gpu", "id": None}
    return properties | {"backend": backend} | sizes | other


CPU = ggml_device("CPU", "AMD Ryzen 7 5800X", 32, 32, type="cpu")
CUDA = ggml_device("CUDA0", "NVIDIA GeForce RTX 4090", 22, 23.5, id="0000:c1:00.0")
VULKAN = ggml_device(
    "Vulkan0", "NVIDIA GeForce RTX 4090", 23.9, 23.9, id="0000:c1:00.0"
)
IGPU = ggml_device("Vulkan1", "AMD Radeon Graphics (RADV RENOIR)", 15, 16, type="igpu")
NAMELESS = {**CUDA, "id": None}


def reconcile(
    *listed: dict[str, Any], drivers: tuple[DriverGpu, ...] = (), ram: HostMemory = RAM
) -> MachineDevices:
    return device_detection.reconcile([*listed, CPU], ram, drivers)


def nvml(free: float, **other: Any) -> DriverGpu:
    facts: dict[str, Any] = {"id": "0000:c1:00.0", "total": 24 * GIB, "used": GIB}
    facts |= {
        "name": "NVIDIA GeForce RTX 4090",
        "driver": "570.86.15",
        "drives_display": True,
    }
    return DriverGpu("NVML", free=int(free * GIB), **(facts | other))


def test_a_card_is_what_ggml_says_and_the_driver_adds() -> None:
    here = reconcile(CUDA, drivers=(nvml(22.5),))
    (card,) = here.devices
    assert (card.name, card.description) == ("CUDA0", "NVIDIA GeForce RTX 4090")
    assert (card.free, card.total) == (22 * GIB, int(23.5 * GIB))
    assert (card.driver, card.drives_display) == ("570.86.15", True)
    assert card.used_by_others == GIB
    assert (card.note, card.unified, card.simulated) == ("", False, False)
    # The CPU has the system's memory, not ggml's.
    assert (here.cpu.free, here.cpu.total) == (24 * GIB, 32 * GIB)
    assert here.cpu.used_by_others == 8 * GIB
    assert here.cpu.description == "AMD Ryzen 7 5800X"


def test_free_memory_is_never_more_than_any_source_says() -> None:
    for listed, drivers, free, note in [
        # where they disagree, the less is believed
        (CUDA, [nvml(5)], 5, "NVML 5.0 GB"),
        ({**CUDA, "free": 4 * GIB}, [nvml(20)], 4, "lower value"),
        (NAMELESS, [nvml(5)], 5, "NVML"),  # matched by a name that only one GPU has
        (NAMELESS, [nvml(5), nvml(5, id="0000:02:00.0")], 22, ""),
        (CUDA, [nvml(5, id="0000:01:00.0")], 22, ""),  # another card's
        ({**CUDA, "free": 0, "total": 0}, [nvml(22)], 22, "NVML"),  # ggml does not know
    ]:
        (card,) = reconcile(listed, drivers=tuple(drivers)).devices
        assert card.free == free * GIB
        assert note in card.note and bool(note) == bool(card.note)


def test_free_memory_of_a_card_without_any_is_unknown() -> None:
    (card,) = reconcile(ggml_device("CUDA0", "x", 0, 0)).devices
    assert card.free is None and card.note == ""


def test_each_card_counts_once() -> None:
    for listed, names in [
        ([CUDA, VULKAN], ["CUDA0"]),  # two backends of one card
        ([NAMELESS, {**VULKAN, "id": None}], ["CUDA0"]),
        (
            [
                CUDA,
                {**CUDA, "name": "CUDA1", "id": "0000:c2:00.0"},
                VULKAN,
                {**VULKAN, "name": "Vulkan1", "id": "0000:c2:00.0"},
            ],
            ["CUDA0", "CUDA1"],  # two cards of a kind
        ),
        (
            [ggml_device("CUDA0", "RTX 3060", 11, 11.8), {**CUDA, "name": "CUDA1"}],
            ["CUDA1", "CUDA0"],  # the largest first
        ),
        ([CUDA, IGPU], ["CUDA0"]),  # an integrated GPU only where it is alone
        (
            [
                ggml_device("BLAS", "x", 0, 0, type="accel"),
                ggml_device("M", "", 0, 0, type="m"),
            ],
            [],
        ),
    ]:
        assert [device.name for device in reconcile(*listed).devices] == names


def test_a_gpu_without_memory_of_its_own_gets_most_of_what_is_available() -> None:
    for listed, available, free in [
        (IGPU, 8, 6),
        (ggml_device("MTL0", "Apple M4 Pro", 16, 16, backend="MTL"), 10, 7.5),
        (ggml_device("Vulkan0", "llvmpipe (LLVM 15.0.6, 256 bits)", 23, 23.5), 8, 6),
    ]:
        (card,) = reconcile(listed, ram=HostMemory(available * GIB, 32 * GIB)).devices
        assert (card.unified, card.free) == (True, int(free * GIB))
        assert ("for tests only" in card.note) == ("llvmpipe" in card.description)
        assert card.backend in ("Vulkan", "Metal")


RESERVES = [
    (Device("CUDA0", total=8 * GIB), 512 * MIB),
    (Device("CUDA0", total=8 * GIB, drives_display=True), GIB),
    (Device("CUDA0", total=None), 512 * MIB), (Device("CPU", kind="cpu", total=8 * GIB), GIB),
]  # fmt: skip


def test_memory_is_reserved_for_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for device, left in RESERVES:
        assert reserve_bytes(device) == left
    monkeypatch.setattr(sys, "platform", "win32")
    assert reserve_bytes(RESERVES[0][0]) == GIB
    assert reserve_bytes(replace(RESERVES[0][0], simulated=True)) == 512 * MIB


def test_other_programs_need_no_more_of_a_larger_card() -> None:
    for total in (8 * GIB, 80 * GIB):
        assert least_reserve_bytes(Device("CUDA0", total=total)) == 512 * MIB
        with_display = Device("CUDA0", total=total, drives_display=True)
        assert least_reserve_bytes(with_display) == GIB


def fake_pynvml(*cards: dict[str, Any]) -> SimpleNamespace:
    """Functions of pynvml, by its names. What a card lacks is not supported."""
    opened: list[int] = []

    def read(name: str) -> Callable[..., Any]:
        return lambda card, version=2: {2: card}[version][name]

    return SimpleNamespace(
        NVMLError=KeyError,
        nvmlMemory_v2=2,
        nvmlInit=lambda: opened.append(1),
        nvmlShutdown=opened.pop,
        nvmlDeviceGetCount=lambda: len(cards),
        nvmlDeviceGetHandleByIndex=cards.__getitem__,
        nvmlSystemGetDriverVersion=lambda: "570.86.15",
        nvmlDeviceGetName=read("name"),
        nvmlDeviceGetPciInfo=read("bus"),
        nvmlDeviceGetDisplayActive=read("display"),
        nvmlDeviceGetMemoryInfo=read("memory"),
        opened=opened,
    )


def test_nvml_says_what_it_knows_else_none(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(total=24564 * MIB, reserved=430 * MIB, free=20000 * MIB)
    name = {"name": "NVIDIA GeForce RTX 4090"}
    bus = SimpleNamespace(busId="00000000:C1:00.0")
    package = fake_pynvml(name | {"memory": memory, "bus": bus, "display": 1}, name)
    monkeypatch.setitem(sys.modules, "pynvml", package)
    known, old = device_detection.read_nvml()
    used = (24564 - 20000 - 430) * MIB  # without memory reserved by the driver
    assert known == DriverGpu(
        "NVML",
        name=name["name"],
        id="0000:c1:00.0",
        free=20000 * MIB,
        total=24564 * MIB,
        used=used,
        driver="570.86.15",
        drives_display=True,
    )
    assert (old.total, old.free, old.used, old.drives_display, old.id) == (None,) * 5
    assert not package.opened
    monkeypatch.setattr(package, "nvmlInit", lambda: name["no driver"])
    with pytest.raises(KeyError):
        list(device_detection.read_nvml())


def test_the_card_with_a_screen_is_known(tmp_path: Path) -> None:
    """A card without sockets may draw or not."""
    for text in ("00000000:C1:00.0", "0000:c1:00.0", "c1:00.0"):
        assert parse_pci_address(text) == "0000:c1:00.0"
    assert {parse_pci_address(text) for text in ("", None, "PCI")} == {None}
    files = {
        "card1-DP-1/status": "connected\n",
        "renderD128/device/uevent": "DRIVER=amdgpu\n",
        "card3/card3-Virtual-1/status": "connected",
        "card3/device/uevent": "DRIVER=x",
    }
    sockets = {0: ["disconnected"], 1: ["disconnected", "connected"], 2: []}
    for n, states in sockets.items():
        uevent = f"DRIVER=amdgpu\nPCI_SLOT_NAME=0000:0{n}:00.0\n"
        files[f"card{n}/device/uevent"] = uevent
        for i, state in enumerate(states):
            files[f"card{n}/card{n}-DP-{i}/status"] = f"{state}\n"
    found = device_detection.read_displays(grow(tmp_path, files))
    screens = {each.id: each.drives_display for each in found}
    assert screens == {"0000:00:00.0": False, "0000:01:00.0": True}
    assert [*device_detection.read_displays(tmp_path / "nowhere")] == []


def list_devices(
    monkeypatch: pytest.MonkeyPatch,
    *devices: dict[str, Any],
    error: Exception | None = None,
) -> None:
    """Sets what llama.cpp, built for CUDA, lists."""

    def query() -> memory_probe.LlamaCppInfo:
        if error:
            raise error
        return memory_probe.LlamaCppInfo(devices, bool(devices))

    monkeypatch.setattr(installed_llama_cpp, "find_gpu_backends", lambda: ("cuda",))
    monkeypatch.setattr(memory_probe, "query_llama_cpp", query)


def test_detection_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_detection, "_cached", [])
    list_devices(monkeypatch, error=OSError("no child\x1b[2J today"))
    here = device_detection.detect_devices()
    assert here.devices == () and here.cpu.total
    assert here.note == "llama.cpp does not list its devices: no child today"

    def broken() -> tuple[DriverGpu, ...]:
        raise ValueError

    monkeypatch.setattr(device_detection, "read_nvml", broken)
    list_devices(monkeypatch, CUDA, CPU)
    assert device_detection.detect_devices() is here, "cached"
    assert device_detection.detect_devices(refresh=True).note == ""


@pytest.mark.parametrize(("visible", "noted"), [(None, True), ("7", True), ("", False)])
def test_a_gpu_build_that_finds_no_gpu_says_so_unless_they_are_hidden(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, noted: bool
) -> None:
    for name in device_detection.VISIBLE_DEVICES_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if visible is not None:
        monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(device_detection, "_cached", [])
    list_devices(monkeypatch, CPU)
    expected = ""
    if noted:
        expected = "llama.cpp is built for cuda, but finds no such device"
    assert device_detection.detect_devices().note == expected
