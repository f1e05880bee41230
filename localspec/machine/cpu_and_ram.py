"""System memory and its limits (containers, Apple GPUs); the CPU: its name, cores and
load.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

from localspec.sanitize import sanitize

CGROUP_DIR = Path("/sys/fs/cgroup")
# cgroup v2, then v1: limit, usage, statistics, the key of evictable cache
_CGROUP_FILES = (
    "memory.max memory.current memory.stat inactive_file",
    "memory/memory.limit_in_bytes memory/memory.usage_in_bytes memory/memory.stat "
    "total_inactive_file",
)
_MIN_LOAD_SECONDS = 0.05  # CPU times advance in steps of a hundredth of a second.


class HostMemory(Struct, frozen=True):
    """In bytes."""

    available: int  # Available to new programs without swapping.
    total: int
    note: str = ""


def read_host_memory(root: Path = CGROUP_DIR) -> HostMemory:
    """Memory of this computer, or of the container it runs in."""
    import psutil  # noqa: PLC0415  not needed for --help

    memory = psutil.virtual_memory()
    return apply_cgroup_limit(HostMemory(memory.available, memory.total), root)


def apply_cgroup_limit(host: HostMemory, root: Path) -> HostMemory:
    for limit_file, used_file, stat_file, evictable in map(str.split, _CGROUP_FILES):
        limit, used = _read_int(root / limit_file), _read_int(root / used_file)
        if limit is None or used is None or not 0 < limit < host.total:
            continue
        cached = _read_stat(root / stat_file, evictable)
        free = max(0, min(host.available, limit - max(0, used - cached)))
        return HostMemory(free, limit, "limited by the container")
    return host


def read_wired_limit() -> int | None:
    """Bytes a Mac's GPU may use (iogpu.wired_limit_mb); None if it is the default."""
    megabytes = _sysctl("iogpu.wired_limit_mb")
    return int(megabytes) << 20 or None if megabytes.isdecimal() else None


def _read_int(path: Path) -> int | None:
    with suppress(OSError, ValueError):  # "max" means no limit
        return int(path.read_text(encoding="ascii").strip())
    return None


def _read_stat(path: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        lines = path.read_text(encoding="ascii").splitlines()
        return next(
            (int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0
        )
    return 0


def read_cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """From /proc/cpuinfo or sysctl, else from the platform; may be empty."""
    name = ""
    with suppress(OSError):
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^model name\s*:(.*)", text, re.MULTILINE):
            name = found[1].strip()
    name = name or _sysctl("machdep.cpu.brand_string") or platform.processor()
    return sanitize(name or platform.machine(), multiline=False)


_RAM_BY_CPU = (
    ("Threadripper|Xeon.* (E5|W-[23])", "four channels", 95.0),
    (
        "Ryzen AI|Core.* Ultra|Ryzen [3579] (PRO )?[789][0-9]{3}",
        "dual-channel DDR5",
        90.0,
    ),
    (
        "Ryzen [3579] (PRO )?[1-6][0-9]{3}|i[3579]-([4-9]|1[01])[0-9]{3}",
        "dual-channel DDR4",
        51.0,
    ),
)
"""The memory that CPUs are usually sold with, by name: what it is, and its peak in
GB/s.
"""


def typical_ram(cpu_name: str) -> tuple[str, float]:
    """The kind of memory and GB/s.

    Published splits reach 39 to 47 GB/s on ordinary PCs, 71 with fast DDR5, 72 with
    four channels.
    """
    matches = (each[1:] for each in _RAM_BY_CPU if re.search(each[0], cpu_name))
    return next(matches, ("dual-channel memory", 60.0))


def _sysctl(name: str) -> str:
    """A value of macOS; empty elsewhere, and if it is unknown."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", name]
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=5, check=True
            )
            return done.stdout.strip()
    return ""


# Of a CPU: a thread gets on with the rest if other programs use less of it.
_SHARED_CPU = 0.45
MAX_OTHER_LOAD = 1 / 8
"""A measurement is trusted if other programs used at most this share of all CPUs
meanwhile.
"""


def count_free_cpus(other_load: float | None) -> int:
    """CPUs that other programs leave, at least one; unlimited if their load is not
    known.
    """
    if other_load is None:
        return sys.maxsize
    return max(1, math.floor((1 - other_load) * (os.cpu_count() or 1) + _SHARED_CPU))


class OtherCpuLoad:
    """CPU time of programs other than the given processes, from `start` or the last
    `read`.

    A time too short to be measured counts with the next one.
    """

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._before: tuple[float, float] | None = None
        self._other = self._total = 0.0

    def start(self) -> None:
        self._before = self._read_seconds()

    def read(self) -> float | None:
        """The share of all CPUs, 0 to 1; None if the time was too short or a process
        has ended.
        """
        before, now = self._before, self._read_seconds()
        if before is None or now is None:
            return None
        self._before = now
        self._other += now[0] - before[0]
        self._total += now[1] - before[1]
        if self._total < _MIN_LOAD_SECONDS:
            return None
        share = min(1.0, max(0.0, self._other / self._total))
        self._other = self._total = 0.0
        return share

    def _read_seconds(self) -> tuple[float, float] | None:
        """Seconds of other programs, and of all CPUs, since the system started."""
        import psutil  # noqa: PLC0415  not needed for --help

        times = psutil.cpu_times()._asdict()
        # `user` contains the time of guests.
        total = sum(
            time for name, time in times.items() if not name.startswith("guest")
        )
        idle = times["idle"] + times.get("iowait", 0.0)
        try:
            own = [psutil.Process(pid).cpu_times() for pid in self._pids]
        except psutil.Error:
            return None
        return total - idle - sum(each.user + each.system for each in own), total


_MAX_THREADS_PER_CPU = 4


class CpuCores(Struct, frozen=True):
    """Numbers of cores; `performance` equals `physical` where all are alike or it is
    unknown.
    """

    physical: int
    logical: int
    performance: int

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
        performance = int(_sysctl("hw.perflevel0.physicalcpu") or 0)
    else:
        performance = _count_windows_performance_cores()
    usable = (
        min(len(os.sched_getaffinity(0)), _cgroup_cpus())
        if sys.platform == "linux"
        else None
    )
    return limit_cores(physical, logical, performance, usable or logical)


def choose_n_threads(requested: int | None = None) -> int:
    """Threads of a model: those requested, within reason, or one per performance core.

    That is what a model starts with; a slow core would delay all others.  Which of
    `CpuCores.thread_counts` is best is measured when the computer is idle.
    """
    if requested is None:
        return read_cpu_cores().performance
    most = _MAX_THREADS_PER_CPU * (os.cpu_count() or 1)
    return max(1, min(requested, most))


def limit_cores(physical: int, logical: int, performance: int, usable: int) -> CpuCores:
    """The cores of a process that may use `usable` CPUs; `performance` is 0 if it is
    unknown.
    """
    logical = max(1, min(logical, usable))
    physical = max(1, min(physical, logical))
    return CpuCores(physical, logical, min(performance or physical, physical))


def _cgroup_cpus(limit: Path = CGROUP_DIR / "cpu.max") -> int:
    """CPUs that a container may use; a large number if it has no limit."""
    with suppress(OSError, ValueError):
        quota, period = limit.read_text(encoding="ascii").split()
        return max(1, math.ceil(int(quota) / int(period)))
    return sys.maxsize


def _count_linux_performance_cores(
    cpus: Path = Path("/sys/devices/system/cpu"),
    intel: Path = Path("/sys/devices/cpu_core/cpus"),
) -> int:
    """Cores of the highest capacity (ARM), or of Intel's performance kind; 0 if all are
    alike.
    """
    try:
        spans = [
            span.split("-")
            for span in intel.read_text(encoding="ascii").strip().split(",")
        ]
        fast = {cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)}
    except (OSError, ValueError):
        capacities: dict[int, int] = {}
        for path in cpus.glob("cpu[0-9]*/cpu_capacity"):
            with suppress(OSError, ValueError):
                capacity = int(path.read_text(encoding="ascii"))
                capacities[int(path.parent.name.removeprefix("cpu"))] = capacity
        highest = max(capacities.values(), default=0)
        fast = {cpu for cpu, capacity in capacities.items() if capacity == highest}
    cores = {str(cpu): str(cpu) for cpu in fast}
    for cpu in cores:  # the logical CPUs of a core have the same siblings
        with suppress(OSError):
            siblings = cpus / f"cpu{cpu}/topology/thread_siblings_list"
            cores[cpu] = siblings.read_text(encoding="ascii")
    return len(set(cores.values()))


def _count_windows_performance_cores() -> int:
    """Cores of the highest efficiency class; 0 if it is unknown."""
    with suppress(OSError, AttributeError):
        query = ctypes.WinDLL("kernel32").GetLogicalProcessorInformationEx  # type: ignore[attr-defined,unused-ignore]
        size = ctypes.c_ulong(0)  # 0: RelationProcessorCore
        query(0, None, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        if query(0, buffer, ctypes.byref(size)):
            return _count_highest_class(buffer.raw[: size.value])
    return 0


def _count_highest_class(records: bytes) -> int:
    """From SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX records: relation, size, flags,
    class, …
    """
    classes, at = [], 0
    while at + 10 <= len(records):
        classes.append(records[at + 9])
        at += max(10, int.from_bytes(records[at + 4 : at + 8], sys.byteorder))
    return classes.count(max(classes, default=0))
