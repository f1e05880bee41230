"""machine/cpu_and_ram.py: limits of containers, kinds of cores, and this computer."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import psutil
import pytest

from localspec.machine import cpu_and_ram
from localspec.machine.cpu_and_ram import (
    CpuCores,
    HostMemory,
    limit_cores,
    read_cpu_cores,
)

GIB = 1 << 30


def grow(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = "memory/memory.{}_in_bytes"


EIGHT = f"{8 * GIB}\n"
STAT = f"anon 1\ninactive_file {2 * GIB}\nactive_file 3\n"


@pytest.mark.parametrize(
    ("files", "available", "total"),
    [
        (
            {
                "memory.max": EIGHT,
                "memory.current": f"{5 * GIB}\n",
                "memory.stat": STAT,
            },
            5,
            8,
        ),
        ({V1.format("limit"): EIGHT, V1.format("usage"): f"{GIB}\n"}, 7, 8),
        ({}, 20, 32),
        ({"memory.max": "max\n", "memory.current": "1\n"}, 20, 32),
        ({"memory.max": f"{1 << 62}\n", "memory.current": "1\n"}, 20, 32),
    ],
)
def test_a_limit_is_all(
    tmp_path: Path, files: dict[str, str], available: int, total: int
) -> None:
    whole = HostMemory(20 * GIB, 32 * GIB)
    found = cpu_and_ram.apply_cgroup_limit(whole, grow(tmp_path, files))
    assert (found.available, found.total) == (available * GIB, total * GIB)
    assert ("container" in found.note) == (total < 32)


def linux_cpus(
    folder: Path, siblings: list[str], capacities: list[int] | None = None
) -> Path:
    files = {
        f"cpu{n}/topology/thread_siblings_list": text for n, text in enumerate(siblings)
    }
    for n, capacity in enumerate(capacities or ()):
        files[f"cpu{n}/cpu_capacity"] = f"{capacity}\n"
    return grow(folder, files)


def test_cores_of_the_highest_capacity(tmp_path: Path) -> None:
    cpus = linux_cpus(tmp_path, ["0", "1", "2", "3"], [380, 380, 1024, 1024])
    assert cpu_and_ram._count_linux_performance_cores(cpus, tmp_path / "none") == 2


def test_intels_performance_cores_count_once_for_two_threads(tmp_path: Path) -> None:
    cpus = linux_cpus(tmp_path, ["0-1", "0-1", "2-3", "2-3", "4", "5"])
    for listed, n in (("0-3\n", 2), ("0-1,2-3\n", 2), ("0-3,5\n", 3)):
        (tmp_path / "list").write_text(listed)
        assert cpu_and_ram._count_linux_performance_cores(cpus, tmp_path / "list") == n
    assert cpu_and_ram._count_linux_performance_cores(cpus, tmp_path / "none") == 0


def test_windows_efficiency_classes() -> None:
    def record(efficiency: int) -> bytes:
        return bytes(4) + (16).to_bytes(4, "little") + bytes([0, efficiency] + [0] * 6)

    assert cpu_and_ram._count_highest_class(record(0) * 4 + record(1) * 2) == 2
    assert cpu_and_ram._count_highest_class(record(0) * 4) == 4
    assert cpu_and_ram._count_highest_class(b"") == 0


def test_a_container_may_limit_its_cpus(tmp_path: Path) -> None:
    grow(tmp_path, {"limited": "150000 100000\n", "unlimited": "max 100000\n"})

    assert cpu_and_ram._cgroup_cpus(tmp_path / "limited") == 2
    assert cpu_and_ram._cgroup_cpus(tmp_path / "unlimited") > 1000


def test_cores_that_may_not_be_used_do_not_count() -> None:
    unlimited = limit_cores(physical=8, logical=16, performance=0, usable=16)
    limited = limit_cores(physical=8, logical=16, performance=4, usable=2)

    assert unlimited == CpuCores(physical=8, logical=16, performance=8)
    assert limited == CpuCores(physical=2, logical=2, performance=2)


def test_numbers_of_threads_that_are_worth_comparing() -> None:
    hybrid = CpuCores(physical=8, logical=16, performance=4)
    single = CpuCores(physical=1, logical=1, performance=1)

    assert hybrid.thread_counts() == (4, 8, 7, 16)
    assert single.thread_counts() == (1,)


class Times(NamedTuple):
    user: float
    idle: float
    guest: float = 0.0  # contained in `user`


@pytest.mark.load
def test_load_is_what_no_own_process_used(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {"computer": Times(0, 0), "own": 0.0}
    monkeypatch.setattr(psutil, "cpu_times", lambda: known["computer"])
    own = SimpleNamespace(
        cpu_times=lambda: SimpleNamespace(user=known["own"], system=0.0)
    )
    monkeypatch.setattr(psutil, "Process", lambda pid: own)
    load = cpu_and_ram.OtherCpuLoad(1)
    assert load.read() is None, "not started"
    load.start()
    known |= {"computer": Times(30, 70, 5), "own": 10.0}
    assert load.read() == pytest.approx(0.2)
    assert load.read() is None, "too short a time"
    known |= {"computer": Times(130, 70, 5), "own": 110.0}
    assert load.read() == 0.0


def test_this_computer() -> None:
    memory = cpu_and_ram.read_host_memory()
    cores = read_cpu_cores()
    n_cpus = psutil.cpu_count() or 1
    assert 0 < memory.available <= memory.total
    assert 1 <= cores.performance <= cores.physical <= cores.logical <= n_cpus
    if hasattr(os, "sched_getaffinity"):
        assert cores.logical <= len(os.sched_getaffinity(0))
