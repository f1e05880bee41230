"""machine/gpu_drivers.py and cpu_and_ram.py, with trees of files as in sysfs and cgroups."""

from __future__ import annotations

from pathlib import Path

from localspec.machine import cpu_and_ram, gpu_drivers
from localspec.machine.cpu_and_ram import HostMemory

GIB = 1 << 30


def grow(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def amd(card: str, slot: str, total: int, used: int) -> dict[str, str]:
    return {
        f"{card}/device/vendor": "0x1002\n",
        f"{card}/device/uevent": f"DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_SLOT_NAME={slot}\n",
        f"{card}/device/mem_info_vram_total": f"{total}\n",
        f"{card}/device/mem_info_vram_used": f"{used}\n",
        f"{card}/device/mem_info_gtt_total": f"{16 * GIB}\n",
    }


def test_amds_memory_its_driver_and_its_screen(tmp_path: Path) -> None:
    files = amd("card1", "0000:03:00.0", 24 * GIB, 3 * GIB)
    files |= {"card1/card1-DP-1/status": "connected\n", "card1/card1-DP-2/status": "disconnected\n"}
    files |= {"card1-DP-1/status": "connected\n", "renderD128/device/vendor": "0x1002\n"}
    (card,) = gpu_drivers.read_sysfs(grow(tmp_path, files))
    assert (card.id, card.driver) == ("0000:03:00.0", "amdgpu")
    assert (card.total, card.used, card.free) == (24 * GIB, 3 * GIB, 21 * GIB)
    assert card.drives_display is True


def test_a_card_without_a_screen_draws_none(tmp_path: Path) -> None:
    files = amd("card0", "0000:03:00.0", GIB, 2 * GIB)
    (card,) = gpu_drivers.read_sysfs(
        grow(tmp_path, files | {"card0/card0-DP-1/status": "disconnected"})
    )
    assert card.drives_display is False
    assert card.free == 0  # never below nothing


def test_a_headless_card_has_no_sockets_and_may_draw_or_not(tmp_path: Path) -> None:
    (card,) = gpu_drivers.read_sysfs(grow(tmp_path, amd("card0", "0000:03:00.0", GIB, 0)))
    assert card.drives_display is None


def test_intels_use_is_unknown_and_never_guessed(tmp_path: Path) -> None:
    files = {
        "card0/device/vendor": "0x8086\n",
        "card0/device/uevent": "DRIVER=i915\nPCI_SLOT_NAME=0000:00:02.0\n",
        "card0/lmem_total_bytes": f"{12 * GIB}\n",
    }
    (card,) = gpu_drivers.read_sysfs(grow(tmp_path, files))
    assert (card.total, card.free, card.used) == (12 * GIB, None, None)


def test_a_virtual_screen_and_a_folder_that_is_not_there_are_no_cards(tmp_path: Path) -> None:
    assert gpu_drivers.read_sysfs(grow(tmp_path, {"card0/device/vendor": "0x1af4\n"})) == ()
    assert gpu_drivers.read_sysfs(tmp_path / "nowhere") == ()


def test_a_damaged_number_is_unknown(tmp_path: Path) -> None:
    files = amd("card0", "0000:03:00.0", GIB, 0)
    (card,) = gpu_drivers.read_sysfs(
        grow(tmp_path, files | {"card0/device/mem_info_vram_used": "many"})
    )
    assert (card.total, card.free) == (GIB, None)


def test_a_containers_limit_is_all_the_memory_there_is(tmp_path: Path) -> None:
    files = {
        "memory.max": f"{8 * GIB}\n",
        "memory.current": f"{5 * GIB}\n",
        "memory.stat": f"anon 1\ninactive_file {2 * GIB}\nactive_file 3\n",
    }
    found = cpu_and_ram.apply_cgroup_limit(HostMemory(20 * GIB, 32 * GIB), grow(tmp_path, files))
    assert (found.total, found.available) == (8 * GIB, 5 * GIB)
    assert "container" in found.note


def test_the_older_form_of_a_containers_limit(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": f"{8 * GIB}\n",
        "memory/memory.usage_in_bytes": f"{GIB}\n",
    }
    found = cpu_and_ram.apply_cgroup_limit(HostMemory(4 * GIB, 32 * GIB), grow(tmp_path, files))
    assert (found.total, found.available) == (8 * GIB, 4 * GIB)


def test_no_limit_leaves_the_computers_memory(tmp_path: Path) -> None:
    whole = HostMemory(20 * GIB, 32 * GIB)
    assert cpu_and_ram.apply_cgroup_limit(whole, tmp_path) == whole
    grow(tmp_path, {"memory.max": "max\n", "memory.current": "1\n"})
    assert cpu_and_ram.apply_cgroup_limit(whole, tmp_path) == whole
    grow(tmp_path, {"memory.max": f"{1 << 62}\n"})
    assert cpu_and_ram.apply_cgroup_limit(whole, tmp_path) == whole


def test_this_computer_has_memory() -> None:
    here = cpu_and_ram.read_host_memory()
    assert 0 < here.available <= here.total
