"""CPU cores: kinds of cores as systems describe them, and limits of containers."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from localspec.machine import cpu_and_ram
from localspec.machine.cpu_and_ram import CpuCores, limit_cores, read_cpu_cores


def linux_cpus(folder: Path, siblings: list[str], capacities: list[int] | None = None) -> Path:
    for cpu, text in enumerate(siblings):
        topology = folder / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(text)
        if capacities:
            (folder / f"cpu{cpu}" / "cpu_capacity").write_text(f"{capacities[cpu]}\n")
    return folder


def test_this_computer() -> None:
    cores = read_cpu_cores()
    assert 1 <= cores.performance <= cores.physical <= cores.logical <= (psutil.cpu_count() or 1)
    assert cores.default_threads >= 1
    if hasattr(os, "sched_getaffinity"):
        assert cores.logical <= len(os.sched_getaffinity(0))


def test_cores_of_the_highest_capacity(tmp_path: Path) -> None:
    cpus = linux_cpus(tmp_path, ["0", "1", "2", "3"], [380, 380, 1024, 1024])
    assert cpu_and_ram._count_linux_performance_cores(cpus, tmp_path / "none") == 2


def test_intels_performance_cores_count_once_for_two_threads(tmp_path: Path) -> None:
    cpus = linux_cpus(tmp_path, ["0-1", "0-1", "2-3", "2-3", "4", "5"])
    (tmp_path / "list").write_text("0-3\n")
    assert cpu_and_ram._count_linux_performance_cores(cpus, tmp_path / "list") == 2
    assert cpu_and_ram._count_linux_performance_cores(cpus, tmp_path / "none") == 0


def test_windows_efficiency_classes() -> None:
    def record(efficiency: int) -> bytes:
        return (
            (0).to_bytes(4, "little")
            + (16).to_bytes(4, "little")
            + bytes([0, efficiency] + [0] * 6)
        )

    assert cpu_and_ram._count_highest_class(record(0) * 4 + record(1) * 2) == 2
    assert cpu_and_ram._count_highest_class(record(0) * 4) == 4
    assert cpu_and_ram._count_highest_class(b"") == 0


def test_limits_of_a_container(tmp_path: Path) -> None:
    (tmp_path / "limited").write_text("150000 100000\n")
    (tmp_path / "unlimited").write_text("max 100000\n")
    assert cpu_and_ram._cgroup_cpus(tmp_path / "limited") == 2
    assert cpu_and_ram._cgroup_cpus(tmp_path / "unlimited") > 1000
    assert limit_cores(8, 16, 0, 16) == CpuCores(8, 16, 8)
    assert limit_cores(8, 16, 4, 2) == CpuCores(2, 2, 2)


def test_counts_worth_comparing() -> None:
    assert CpuCores(8, 16, 4).thread_counts() == (4, 8, 7, 16)
    assert CpuCores(2, 2, 2).thread_counts() == (2, 1)
    assert CpuCores(1, 1, 1).thread_counts() == (1,)
