"""machine/device_detection.py and cpu_and_ram.py, with trees of files as in sysfs and cgroups."""

from __future__ import annotations

from pathlib import Path

from localspec.machine import cpu_and_ram, device_detection
from localspec.machine.cpu_and_ram import HostMemory

GIB = 1 << 30


def grow(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def card(name: str, slot: str, *states: str) -> dict[str, str]:
    files = {f"{name}/device/uevent": f"DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_SLOT_NAME={slot}\n"}
    return files | {f"{name}/{name}-DP-{i}/status": f"{each}\n" for i, each in enumerate(states)}


def test_the_card_with_a_screen_is_known(tmp_path: Path) -> None:
    """A card without sockets may draw or not."""
    files = card("card0", "0000:03:00.0", "disconnected") | card("card2", "0000:05:00.0")
    files |= card("card1", "0000:04:00.0", "disconnected", "connected")
    files |= {"card1-DP-1/status": "connected\n", "renderD128/device/uevent": "DRIVER=amdgpu\n"}
    found = device_detection.read_displays(grow(tmp_path, files))
    assert {each.id: each.drives_display for each in found} == {
        "0000:03:00.0": False,
        "0000:04:00.0": True,
    }


def test_a_virtual_screen_and_a_folder_that_is_not_there_are_no_cards(tmp_path: Path) -> None:
    virtual = {"card0/card0-Virtual-1/status": "connected", "card0/device/uevent": "DRIVER=x"}
    assert [*device_detection.read_displays(grow(tmp_path, virtual))] == []
    assert [*device_detection.read_displays(tmp_path / "nowhere")] == []


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
