"""machine/device_detection.py, with recorded device lists of ggml and of drivers."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from localspec.machine import device_detection, installed_llama_cpp, memory_probe
from localspec.machine.cpu_and_ram import HostMemory
from localspec.machine.device import Device, reserve_bytes
from localspec.machine.device_detection import DriverGpu, MachineDevices

MIB, GIB = 1 << 20, 1 << 30
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
VULKAN = ggml_device("Vulkan0", "NVIDIA GeForce RTX 4090", 23.9, 23.9, id="0000:c1:00.0")
IGPU = ggml_device("Vulkan1", "AMD Radeon Graphics (RADV RENOIR)", 15, 16, type="igpu")


def reconcile(
    *listed: dict[str, Any], drivers: tuple[DriverGpu, ...] = (), ram: HostMemory = RAM
) -> MachineDevices:
    return device_detection.reconcile([*listed, CPU], ram, drivers)


def nvml(free: float, **other: Any) -> DriverGpu:
    facts: dict[str, Any] = {"id": "0000:c1:00.0", "total": 24 * GIB, "used": GIB}
    facts |= {"name": "NVIDIA GeForce RTX 4090", "driver": "570.86.15", "drives_display": True}
    return DriverGpu("NVML", free=int(free * GIB), **(facts | other))


def test_a_card_is_what_ggml_says_and_the_driver_adds() -> None:
    (card,) = reconcile(CUDA, drivers=(nvml(22.5),)).devices
    assert (card.name, card.description) == ("CUDA0", "NVIDIA GeForce RTX 4090")
    assert (card.free, card.total) == (22 * GIB, int(23.5 * GIB))
    assert (card.driver, card.drives_display, card.used_by_others) == ("570.86.15", True, GIB)
    assert (card.note, card.unified, card.simulated) == ("", False, False)


def test_the_cpu_has_the_systems_memory_not_ggmls() -> None:
    here = reconcile(CUDA)
    assert (here.cpu.free, here.cpu.total, here.cpu.used_by_others) == (24 * GIB, 32 * GIB, 8 * GIB)
    assert here.cpu.description == "AMD Ryzen 7 5800X"


def test_where_sources_disagree_the_less_is_believed_and_said() -> None:
    (card,) = reconcile(CUDA, drivers=(nvml(5),)).devices
    assert card.free == 5 * GIB
    assert "NVML 5.00 GiB" in card.note
    (card,) = reconcile({**CUDA, "free": 4 * GIB}, drivers=(nvml(20),)).devices
    assert card.free == 4 * GIB
    assert card.note


def test_a_driver_is_matched_by_name_only_where_one_card_has_it() -> None:
    nameless = {**CUDA, "id": None}
    (card,) = reconcile(nameless, drivers=(nvml(5),)).devices
    assert card.free == 5 * GIB
    (card,) = reconcile(nameless, drivers=(nvml(5), nvml(5, id="0000:02:00.0"))).devices
    assert (card.free, card.driver) == (22 * GIB, None)


def test_another_cards_driver_says_nothing_of_this_one() -> None:
    (card,) = reconcile(CUDA, drivers=(nvml(5, id="0000:01:00.0"),)).devices
    assert (card.free, card.driver) == (22 * GIB, None)


def test_free_is_never_more_than_there_is() -> None:
    (card,) = reconcile(ggml_device("Vulkan0", "Intel(R) Arc(tm) B580 Graphics", 14, 12)).devices
    assert card.free == card.total == 12 * GIB


def test_nothing_of_nothing_is_unknown_not_full() -> None:
    (card,) = reconcile(ggml_device("CUDA0", "NVIDIA GeForce RTX 4090", 0, 0)).devices
    assert (card.free, card.total) == (None, None)
    (card,) = reconcile(ggml_device("CUDA0", "x", 0, 8)).devices
    assert (card.free, card.total) == (0, 8 * GIB)  # a full card


def test_a_driver_knows_what_ggml_does_not() -> None:
    (card,) = reconcile({**CUDA, "free": 0, "total": 0}, drivers=(nvml(22),)).devices
    assert (card.free, card.total) == (22 * GIB, 24 * GIB)
    assert "NVML" in card.note


def test_two_backends_of_one_card_count_once() -> None:
    for order in ((CUDA, VULKAN), (VULKAN, CUDA)):
        assert [one.name for one in reconcile(*order).devices] == ["CUDA0"]
    nameless = [{**one, "id": None} for one in (CUDA, VULKAN)]
    assert [one.name for one in reconcile(*nameless).devices] == ["CUDA0"]


def test_two_cards_of_a_kind_are_two() -> None:
    second = {**CUDA, "name": "CUDA1", "id": "0000:c2:00.0"}
    vulkan = {**VULKAN, "name": "Vulkan1", "id": "0000:c2:00.0"}
    found = reconcile(CUDA, second, VULKAN, vulkan).devices
    assert [one.name for one in found] == ["CUDA0", "CUDA1"]


def test_the_largest_card_comes_first() -> None:
    small = ggml_device("CUDA0", "NVIDIA GeForce RTX 3060", 11, 11.8, id="0000:01:00.0")
    large = {**CUDA, "name": "CUDA1"}
    assert [one.name for one in reconcile(small, large).devices] == ["CUDA1", "CUDA0"]


def test_an_integrated_gpu_counts_only_where_it_is_alone() -> None:
    assert [one.name for one in reconcile(CUDA, IGPU).devices] == ["CUDA0"]
    (alone,) = reconcile(IGPU).devices
    assert (alone.kind, alone.unified) == ("igpu", True)


def test_a_gpu_without_memory_of_its_own_gets_most_of_what_is_available() -> None:
    (card,) = reconcile(IGPU, ram=HostMemory(8 * GIB, 32 * GIB)).devices
    assert card.free == 6 * GIB
    (card,) = reconcile(IGPU, ram=HostMemory(32 * GIB, 32 * GIB)).devices
    assert card.free == 15 * GIB
    apple = ggml_device("MTL0", "Apple M4 Pro", 16, 16, backend="MTL")
    (card,) = reconcile(apple, ram=HostMemory(10 * GIB, 24 * GIB)).devices
    assert (card.backend, card.unified, card.free) == ("Metal", True, int(7.5 * GIB))


def test_a_driver_that_computes_on_the_cpu_shares_its_memory_and_says_so() -> None:
    software = ggml_device("Vulkan0", "llvmpipe (LLVM 15.0.6, 256 bits)", 23, 23.5)
    (device,) = reconcile(software, ram=HostMemory(8 * GIB, 32 * GIB)).devices
    assert (device.unified, device.free) == (True, 6 * GIB)
    assert "for tests only" in device.note


def test_what_others_use_comes_from_the_backend_without_nvml() -> None:
    radeon = ggml_device("ROCm0", "AMD Radeon RX 7900 XTX", 20, 24, id="0000:03:00.0")
    display = DriverGpu("sysfs", id="0000:03:00.0", drives_display=True)
    (card,) = reconcile(radeon, drivers=(display,)).devices
    assert (card.free, card.used_by_others, card.drives_display) == (20 * GIB, 4 * GIB, True)
    assert card.note == ""


def test_what_is_no_card_is_none() -> None:
    blas = ggml_device("BLAS", "OpenBLAS", 0, 0, type="accel")
    meta = ggml_device("Meta", "Meta", 0, 0, type="meta")
    assert reconcile(blas, meta).devices == ()


def test_a_name_is_harmless_in_a_terminal() -> None:
    (card,) = reconcile(ggml_device("CUDA0", "\x1b[31mGPU\n", 1, 2)).devices
    assert card.description == "GPU"


# The reserve.


RESERVES = [
    (Device("CUDA0", total=8 * GIB), 512 * MIB),
    (Device("CUDA0", total=24 * GIB), 24 * GIB // 20),
    (Device("CUDA0", total=8 * GIB, drives_display=True), GIB),
    (Device("CUDA0", total=None), 512 * MIB),
    (Device("CPU", kind="cpu", total=8 * GIB), GIB),
    (Device("CPU", kind="cpu", total=64 * GIB), 64 * GIB // 20),
]


def test_memory_is_reserved_for_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    for device, left in RESERVES:
        monkeypatch.setattr(sys, "platform", "linux")
        assert reserve_bytes(device) == left


def test_windows_needs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    here = Device("CUDA0", total=8 * GIB)
    assert reserve_bytes(here) == GIB
    assert reserve_bytes(replace(here, simulated=True)) == 512 * MIB


# Detection.


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, restored after the test."""
    monkeypatch.setattr(device_detection, "_cached", [])
    monkeypatch.setattr(installed_llama_cpp, "find_gpu_backends", lambda: ("cuda",))


def test_detection_never_raises(uncached: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> memory_probe.LlamaCppInfo:
        raise OSError("no child\x1b[2J today")

    monkeypatch.setattr(memory_probe, "query_llama_cpp", broken)
    here = device_detection.detect_devices()
    assert here.devices == ()
    assert here.note == "llama.cpp does not list its devices: no child today"
    assert here.cpu.total


def test_a_driver_that_breaks_says_nothing(uncached: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> tuple[DriverGpu, ...]:
        raise ValueError

    monkeypatch.setattr(device_detection, "read_nvml", broken)
    monkeypatch.setattr(
        memory_probe, "query_llama_cpp", lambda: memory_probe.LlamaCppInfo((CUDA, CPU), True)
    )
    assert device_detection.detect_devices().note == ""


@pytest.mark.parametrize(("visible", "noted"), [(None, True), ("7", True), ("", False)])
def test_a_gpu_build_that_finds_no_gpu_says_so_unless_they_are_hidden(
    uncached: None, monkeypatch: pytest.MonkeyPatch, visible: str | None, noted: bool
) -> None:
    for name in device_detection.VISIBLE_DEVICES_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if visible is not None:
        monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(
        memory_probe, "query_llama_cpp", lambda: memory_probe.LlamaCppInfo((CPU,), False)
    )
    note = device_detection.detect_devices().note
    assert note == ("llama.cpp is built for cuda, but finds no such device" if noted else "")


def test_detection_is_cached_until_refreshed(
    uncached: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def count() -> memory_probe.LlamaCppInfo:
        asked.append(1)
        return memory_probe.LlamaCppInfo((CPU,), False)

    monkeypatch.setattr(memory_probe, "query_llama_cpp", count)
    assert device_detection.detect_devices() is device_detection.detect_devices()
    assert len(asked) == 1
    device_detection.detect_devices(refresh=True)
    assert len(asked) == 2


def test_a_build_for_the_cpu_alone_is_not_asked(
    uncached: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never() -> memory_probe.LlamaCppInfo:
        raise AssertionError

    monkeypatch.setattr(installed_llama_cpp, "find_gpu_backends", lambda: ())
    monkeypatch.setattr(memory_probe, "query_llama_cpp", never)
    assert device_detection.detect_devices().devices == ()
    assert device_detection.detect_devices().cpu.free


def test_detection_of_this_computer(uncached: None) -> None:
    here = device_detection.detect_devices(refresh=True)
    assert here.note == ""
    assert here.cpu.name == "CPU"
    assert here.cpu.total and here.cpu.free
    assert all(one.kind != "cpu" for one in here.devices)
    assert memory_probe.query_llama_cpp().library_path
    assert "=" in memory_probe.query_llama_cpp().features
