"""machine/gpu_catalog.py: lookup by names of people and drivers; the GPUs' numbers."""

import re
from collections.abc import Sequence
from itertools import permutations

import pytest

from localspec.errors import NotFoundError, UsageError
from localspec.machine import gpu_catalog
from localspec.machine.device import Device
from localspec.machine.gpu_catalog import GpuSpec

GIB = 1 << 30


def test_every_card_has_numbers_that_make_sense() -> None:
    known = gpu_catalog.load()
    assert len(known) > 100
    for card in known:
        assert card.vram_gib and all(1 <= size <= 512 for size in card.vram_gib), card
        assert 60 <= card.bandwidth <= 5000, card
        assert card.unconfirmed <= {"bandwidth", "vram"}, card
    listed: list[tuple[str, float]] = []
    for card in known:
        listed += [(card.name, size) for size in card.vram_gib]
    assert len(listed) == len(set(listed))


def test_every_card_is_found_by_each_of_its_names() -> None:
    for card in gpu_catalog.load():
        for size in card.vram_gib:
            recognised = gpu_catalog.match_device(card.as_device(size))
            assert recognised is not None and recognised.name == card.name
            assert recognised.bandwidth == card.bandwidth
            for name in (
                card.name,
                card.name.lower(),
                card.name.replace(" ", ""),
                *card.aliases,
            ):
                found = gpu_catalog.find(f"{name} {size:g}GB")
                assert (found.name, found.vram_gib) == (card.name, (size,))
                assert found.bandwidth == card.bandwidth
                shown = card.as_device(size).description  # as `fit` prints it
                for spelling in (f"{name}, {size:g} GiB", shown):
                    assert gpu_catalog.find(spelling) == found, spelling


def test_a_card_is_found_by_its_words_in_any_order() -> None:
    """With its size, with or without GB, and without the words that people leave out."""
    for card in gpu_catalog.load():
        for name in (card.name, *card.aliases):
            has_size = re.search(r"\d+GB", name) is not None
            for order in list(permutations(name.split()))[:24]:
                assert gpu_catalog.find(" ".join(order)).name == card.name
                if not has_size:
                    check_sizes(card, order)


def check_sizes(card: GpuSpec, words: Sequence[str]) -> None:
    for size in card.vram_gib:
        for text in (f"{size:g}GB", f"{size:g} gb", f"{size:g}"):
            for query in (" ".join((*words, text)), " ".join((text, *words))):
                found = gpu_catalog.find(query)
                assert found.name == card.name, query
                assert found.vram_gib == (size,), query


def test_an_assumed_size_is_said() -> None:
    said = gpu_catalog.describe_assumption("M4 Pro")
    assert "24, 48, 64" in said
    assert "24 is assumed" in said
    assert '--gpu "M4 Pro 64"' in said
    assert gpu_catalog.find("M4 Pro").vram_gib[0] == 24
    for name in ("M4 Pro 48", "M4 Pro 48GB", "RTX 3090", "nonsense"):
        assert gpu_catalog.describe_assumption(name) == ""


def test_a_size_is_assumed_only_of_several_which_are_named_once() -> None:
    for name in gpu_catalog._known_gpus():
        said = gpu_catalog.describe_assumption(name)
        sizes = re.findall(
            r"[\d.]+", said.partition("sold with ")[2].partition(" GB")[0]
        )
        assert len(sizes) == len(set(sizes)), name
        assert bool(said) == (len(sizes) > 1), name


def test_a_card_is_found_by_what_people_type() -> None:
    for query, name, size in [
        ("4060", "RTX 4060", 8),
        ("4060ti 16 GiB", "RTX 4060 Ti", 16),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "RTX 4060 Laptop", 8),
        ("b580", "Arc B580", 12),
        ("m3 max 128gb", "Apple M3 Max", 128),
        ("dgx spark", "GB10", 128),
        ("RTX PRO 6000", "RTX PRO 6000 Blackwell", 96),
        ("M4 Pro 48", "Apple M4 Pro", 48),
        ("laptop 4060", "RTX 4060 Laptop", 8),
        ("Laptop 3070ti", "RTX 3070 Ti Laptop", 8),
        ("7900 xtx 24", "RX 7900 XTX", 24),
        ("4060 ti 16", "RTX 4060 Ti", 16),
        ("3080 ti laptop", "RTX 3080 Ti Laptop", 16),
        ("MI50 32", "Radeon Instinct MI50", 32),
        ("cmp 50hx", "CMP 50HX", 10),
        ("a100 pcie", "A100 PCIe", 40),
    ]:
        card = gpu_catalog.find(query)
        assert (card.name, card.vram_gib[0]) == (name, size)


def test_what_is_not_known_names_the_closest() -> None:
    for name, hint in (("RTX 4061", "RTX 4060"), ("RTX 4060 Ti 12GB", "8, 16 GB")):
        with pytest.raises(NotFoundError) as refusal:
            gpu_catalog.find(name)
        assert hint in refusal.value.hint
    for size in (0, -1, 1e9, float("nan")):
        with pytest.raises(UsageError):
            gpu_catalog.find("4060").as_device(size)
    for name in ("", "rtx", "16 GB", "\x1b[31m" + "x" * 500, "laptop"):
        with pytest.raises(NotFoundError) as refusal:
            gpu_catalog.find(name)
        assert "\x1b" not in refusal.value.message and len(refusal.value.message) < 120


def test_a_pretend_card_shows_what_a_program_would_be_shown() -> None:
    device = gpu_catalog.find("RTX 4090").as_device()
    assert device.simulated and device.total == device.free and device.total is not None
    assert abs(device.total / (1 << 20) - 24077) < 10  # what CUDA says of one
    assert (device.name, device.kind, device.unified) == ("CUDA0", "gpu", False)
    mac = gpu_catalog.find("M4 Max 48GB").as_device()
    assert (mac.name, mac.unified) == ("Metal", True)
    assert mac.total == int(0.78 * 48 * GIB), "as llama.cpp logs it"


@pytest.mark.parametrize(
    ("mac", "megabytes"),
    [
        ("M4 16", 12713.12),
        ("M3 Pro 18", 14302.25),
        ("M4 Pro 24", 19069.67),
        ("M4 32", 26800.60),
        ("M4 Max 36", 30150.67),
        ("M1 Max 64", 55662.79),
        ("M4 Max 128", 115448.73),
    ],
)
def test_a_mac_gives_its_gpu_what_llama_cpp_logs(mac: str, megabytes: float) -> None:
    """recommendedMaxWorkingSetSize in published logs of macOS 15 and 26."""
    total = gpu_catalog.find(mac).as_device().total
    assert total is not None
    assert total / 1e6 == pytest.approx(megabytes, rel=0.001)


def test_each_backend_has_its_own_speed() -> None:
    card = gpu_catalog.find("Arc B580")
    assert (
        card.for_backend("SYCL").layer_ms
        < card.layer_ms
        == (card.for_backend("Vulkan").layer_ms)
    )
    nvidia = gpu_catalog.find("RTX 3090")
    vulkan = nvidia.for_backend("Vulkan")
    assert vulkan.layer_ms > nvidia.layer_ms, "it starts kernels one by one"
    hopper = gpu_catalog.find("H100")
    assert hopper.for_backend("Vulkan") == hopper, "nothing else is known"


def test_a_real_device_is_recognised_or_not_at_all() -> None:
    for description, gib, name in [
        ("NVIDIA GeForce RTX 4060 Laptop GPU", 7.8, "RTX 4060 Laptop"),
        ("NVIDIA GeForce GTX 1060 3GB", 2.9, "GTX 1060"),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", 23.98, "RX 7900 XTX"),
        ("Intel(R) Arc(tm) B580 Graphics (BMG G21)", 11.9, "Arc B580"),
        ("AMD Radeon 8060S Graphics (RADV GFX1151)", 96, "Ryzen AI Max+ 395"),
        (
            "NVIDIA GeForce RTX 2080 Ti",
            21.5,
            "RTX 2080 Ti",
        ),  # rebuilt, with the same bandwidth
        (
            "NVIDIA GeForce RTX 3060",
            15.7,
            None,
        ),  # sold with two bandwidths, not with this size
        ("NVIDIA H100 80GB HBM3", 79.2, "H100"),
        ("NVIDIA H100 PCIe", 79.2, "H100 PCIe"),
        ("NVIDIA RTX 4000 Ada Generation Laptop GPU", 11.7, None),
        (
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            95,
            "RTX PRO 6000 Blackwell",
        ),
        ("AMD Radeon Graphics (RADV RENOIR)", 8, None),
        ("4060", 7.8, None),  # a short name is not a driver name
        ("", 8, None),
    ]:
        device = Device("CUDA0", description, total=int(gib * GIB))
        found = gpu_catalog.match_device(device)
        found_name = found.name if found else None
        assert found_name == name
