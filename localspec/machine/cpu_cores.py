"""CPU cores that this process may use: physical, logical and performance cores."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from localspec.lazy_dataclass import dataclass

_LINUX_CPUS = Path("/sys/devices/system/cpu")
_LINUX_PERFORMANCE_CPUS = Path("/sys/devices/cpu_core/cpus")
"""Of Intel's hybrid CPUs."""
_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_RELATION_PROCESSOR_CORE = 0


@dataclass(frozen=True, slots=True)
class CpuCores:
    """Numbers of cores; `performance` equals `physical` where all are alike or it is unknown."""

    physical: int
    logical: int
    performance: int

    @property
    def default_threads(self) -> int:
        """Threads until they are measured: a slow core would delay all others."""
        return self.performance

    def thread_counts(self) -> tuple[int, ...]:
        """Thread counts worth comparing, the default first."""
        counts = (self.performance, self.physical, self.physical - 1, self.logical)
        return tuple(dict.fromkeys(n for n in counts if n >= 1))


@cache
def read_cpu_cores() -> CpuCores:
    import psutil  # noqa: PLC0415  not needed for --help

    logical = psutil.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    if sys.platform == "linux":
        performance = _count_linux_performance_cores()
    elif sys.platform == "darwin":
        performance = _sysctl("hw.perflevel0.physicalcpu")
    else:
        performance = _count_windows_performance_cores()
    usable = min(len(os.sched_getaffinity(0)), _cgroup_cpus()) if sys.platform == "linux" else None
    return limit_cores(physical, logical, performance, usable or logical)


def limit_cores(physical: int, logical: int, performance: int, usable: int) -> CpuCores:
    """The cores of a process that may use `usable` CPUs; `performance` is 0 if it is unknown."""
    logical = max(1, min(logical, usable))
    physical = max(1, min(physical, logical))
    return CpuCores(physical, logical, min(performance or physical, physical))


def _cgroup_cpus(limit: Path = _CGROUP_LIMIT) -> int:
    """CPUs that a container may use; a large number if it has no limit."""
    with suppress(OSError, ValueError):
        quota, period = limit.read_text(encoding="ascii").split()
        return max(1, math.ceil(int(quota) / int(period)))
    return sys.maxsize


def _count_linux_performance_cores(
    cpus: Path = _LINUX_CPUS, intel: Path = _LINUX_PERFORMANCE_CPUS
) -> int:
    """Cores of the highest capacity (ARM), or of Intel's performance kind; 0 if all are alike."""
    try:
        fast = set(_parse_cpu_list(intel.read_text(encoding="ascii")))
    except (OSError, ValueError):
        capacities: dict[int, int] = {}
        for path in cpus.glob("cpu[0-9]*/cpu_capacity"):
            with suppress(OSError, ValueError):
                capacity = int(path.read_text(encoding="ascii"))
                capacities[int(path.parent.name.removeprefix("cpu"))] = capacity
        highest = max(capacities.values(), default=0)
        fast = {cpu for cpu, capacity in capacities.items() if capacity == highest}
    return len({_read_siblings(cpus, cpu) for cpu in fast})


def _read_siblings(cpus: Path, cpu: int) -> str:
    """The logical CPUs of the same physical core; the CPU itself if they are unknown."""
    with suppress(OSError):
        return (cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    return str(cpu)


def _parse_cpu_list(text: str) -> Iterator[int]:
    """Such as 0-7,16."""
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _sysctl(name: str) -> int:
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        command = ["/usr/sbin/sysctl", "-n", name]
        return int(subprocess.run(command, capture_output=True, timeout=5, check=True).stdout)
    return 0


def _count_windows_performance_cores() -> int:
    """Cores of the highest efficiency class; 0 if it is unknown."""
    with suppress(OSError, AttributeError):
        query = ctypes.WinDLL("kernel32").GetLogicalProcessorInformationEx  # type: ignore[attr-defined,unused-ignore]
        size = ctypes.c_ulong(0)
        query(_RELATION_PROCESSOR_CORE, None, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        if query(_RELATION_PROCESSOR_CORE, buffer, ctypes.byref(size)):
            return _count_highest_class(buffer.raw[: size.value])
    return 0


def _count_highest_class(records: bytes) -> int:
    """From SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX records: relation, size, flags, class, …"""
    classes, at = [], 0
    while at + 10 <= len(records):
        classes.append(records[at + 9])
        at += max(10, int.from_bytes(records[at + 4 : at + 8], sys.byteorder))
    return classes.count(max(classes, default=0))
