"""System memory and its limits; the CPU: its name, cores and load.

Limits are those of containers and of Apple GPUs.
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


class _CgroupFiles(Struct, frozen=True):
    """Where a version of cgroups has the memory of a container."""

    limit: str
    used: str
    statistics: str
    evictable: str  # The name of evictable cache in the statistics.


_CGROUP_VERSIONS = (
    _CgroupFiles(
        limit="memory.max",
        used="memory.current",
        statistics="memory.stat",
        evictable="inactive_file",
    ),
    _CgroupFiles(
        limit="memory/memory.limit_in_bytes",
        used="memory/memory.usage_in_bytes",
        statistics="memory/memory.stat",
        evictable="total_inactive_file",
    ),
)
"""Version 2, and version 1."""
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
    """The memory of a container, or the host's if nothing limits it.

    Evictable cache counts as available: with a limit of 8 GiB, 5 GiB in use and 2 GiB
    of that in evictable cache, 5 GiB are available.
    """
    for files in _CGROUP_VERSIONS:
        limit = _read_int(root / files.limit)
        used = _read_int(root / files.used)
        if limit is None or used is None or not 0 < limit < host.total:
            continue
        evictable = _read_stat(root / files.statistics, files.evictable)
        needed = max(0, used - evictable)
        available = max(0, min(host.available, limit - needed))
        return HostMemory(available, total=limit, note="limited by the container")
    return host


def read_wired_limit() -> int | None:
    """Bytes a Mac's GPU may use (iogpu.wired_limit_mb); None if it is the default."""
    megabytes = _sysctl("iogpu.wired_limit_mb")
    if not megabytes.isdecimal() or int(megabytes) == 0:
        return None
    return int(megabytes) << 20


def _read_int(path: Path) -> int | None:
    with suppress(OSError, ValueError):  # "max" means no limit
        return int(path.read_text(encoding="ascii").strip())
    return None


def _read_stat(path: Path, name: str) -> int:
    """The number after this name in a file of lines "name number"; 0 without one."""
    with suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0


def read_cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """From /proc/cpuinfo or sysctl, else from the platform; may be empty.

    A small computer with an ARM CPU says which computer it is: Raspberry Pi 5 Model B.
    """
    name = ""
    with suppress(OSError):
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^model name\s*:(.*)", text, re.MULTILINE)
        found = found or re.search(r"^Model\s*:(.*)", text, re.MULTILINE)
        if found:
            name = found[1].strip()
    name = (
        name
        or _sysctl("machdep.cpu.brand_string")
        or platform.processor()
        or platform.machine()
    )
    return sanitize(name, multiline=False)


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


_MAX_SHARED_LOAD = 0.45
"""A thread can use a CPU beside other programs that use at most this share of it."""
_MAX_OTHER_LOAD = 1 / 8
"""A measurement is trusted if other programs used at most this share of all CPUs."""


def is_busy(other_load: float | None) -> bool:
    """Whether other programs used too much of the CPUs for times to say much."""
    return other_load is not None and other_load > _MAX_OTHER_LOAD


def count_free_cpus(other_load: float | None) -> int:
    """CPUs that other programs leave, at least one; unlimited if the load is unknown.

    Of 4 CPUs, a load of 0.1 leaves 3.6, and so 4; a load of 0.2 leaves 3.2, and so 3.
    """
    if other_load is None:
        return sys.maxsize
    n_cpus = os.cpu_count() or 1
    free = (1 - other_load) * n_cpus
    return max(1, math.floor(free + _MAX_SHARED_LOAD))


class _CpuSeconds(Struct, frozen=True):
    """CPU time since the system started."""

    other: float  # Of other programs.
    total: float  # Of all CPUs, idle or not.


class OtherCpuLoad:
    """CPU time of programs other than the given processes.

    If none is given, these are this process and all that it has started, also those
    that have ended.

    It is counted from `start` or the last `read`. A time too short to be measured
    counts with the next one.
    """

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._before: _CpuSeconds | None = None
        self._other = 0.0
        self._total = 0.0

    def start(self) -> None:
        self._before = self._read_seconds()

    def read(self) -> float | None:
        """The share of all CPUs, 0 to 1.

        None if the time was too short or a process has ended.
        """
        before = self._before
        now = self._read_seconds()
        if before is None or now is None:
            return None
        self._before = now
        self._other += now.other - before.other
        self._total += now.total - before.total
        if self._total < _MIN_LOAD_SECONDS:
            return None
        share = min(1.0, max(0.0, self._other / self._total))
        self._other = 0.0
        self._total = 0.0
        return share

    def _read_seconds(self) -> _CpuSeconds | None:
        import psutil  # noqa: PLC0415  not needed for --help

        total = 0.0
        times = psutil.cpu_times()._asdict()
        for name, seconds in times.items():
            if not name.startswith("guest"):  # `user` contains the time of guests.
                total += seconds
        idle = times["idle"] + times.get("iowait", 0.0)
        try:
            own = self._read_own_seconds()
        except psutil.Error:
            return None
        return _CpuSeconds(other=total - idle - own, total=total)

    def _read_own_seconds(self) -> float:
        """CPU time of the processes that are not counted. Raises psutil.Error."""
        import psutil  # noqa: PLC0415  as above

        own = 0.0
        for pid in self._pids:
            times = psutil.Process(pid).cpu_times()
            own += times.user + times.system
        if self._pids:
            return own

        this = psutil.Process()
        for process in (this, *this.children(recursive=True)):
            times = process.cpu_times()
            own += times.user + times.system
            # Its children that have ended.
            own += times.children_user + times.children_system
        return own


_MAX_THREADS_PER_CPU = 4


class CpuCores(Struct, frozen=True):
    """Numbers of cores.

    `performance` equals `physical` where all are alike or it is unknown.
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
    usable = logical
    if sys.platform == "linux":
        performance = _count_linux_performance_cores()
        usable = min(len(os.sched_getaffinity(0)), _cgroup_cpus())
    elif sys.platform == "darwin":
        performance = int(_sysctl("hw.perflevel0.physicalcpu") or 0)
    else:
        performance = _count_windows_performance_cores()
    return limit_cores(
        physical=physical, logical=logical, performance=performance, usable=usable
    )


def choose_n_threads(requested: int | None = None) -> int:
    """Threads of a model: those requested, within reason, or one per performance core.

    That is what a model starts with; a slow core would delay all others. Which of
    `CpuCores.thread_counts` is best is measured when the computer is idle.
    """
    if requested is None:
        return read_cpu_cores().performance
    n_cpus = os.cpu_count() or 1
    most = _MAX_THREADS_PER_CPU * n_cpus
    return max(1, min(requested, most))


def limit_cores(
    *, physical: int, logical: int, performance: int, usable: int
) -> CpuCores:
    """The cores of a process that may use `usable` CPUs.

    `performance` is 0 if it is unknown.
    """
    logical = max(1, min(logical, usable))
    physical = max(1, min(physical, logical))
    performance = min(performance or physical, physical)
    return CpuCores(physical=physical, logical=logical, performance=performance)


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
    """Cores of Intel's performance kind, or of the highest capacity (ARM).

    0 if neither file exists: all are alike, or it is unknown.
    """
    try:
        fast_cpus = _parse_cpu_list(intel.read_text(encoding="ascii"))
    except (OSError, ValueError):
        fast_cpus = _read_cpus_of_highest_capacity(cpus)
    cores = set()
    for cpu in fast_cpus:
        # The logical CPUs of a core have the same siblings.
        core = str(cpu)
        with suppress(OSError):
            siblings = cpus / f"cpu{cpu}/topology/thread_siblings_list"
            core = siblings.read_text(encoding="ascii")
        cores.add(core)
    return len(cores)


def _parse_cpu_list(text: str) -> set[int]:
    """The CPUs 0, 1, 2, 3 and 8 of "0-3,8". Raises ValueError."""
    cpus: set[int] = set()
    for span in text.strip().split(","):
        first, _, last = span.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _read_cpus_of_highest_capacity(cpus: Path) -> set[int]:
    capacities: dict[int, int] = {}
    for path in cpus.glob("cpu[0-9]*/cpu_capacity"):
        with suppress(OSError, ValueError):
            capacity = int(path.read_text(encoding="ascii"))
            capacities[int(path.parent.name.removeprefix("cpu"))] = capacity
    highest = max(capacities.values(), default=0)
    return {cpu for cpu, capacity in capacities.items() if capacity == highest}


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
    """The number of SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX records of that class.

    A record has its relation (4 bytes), its size (4), flags (1), its efficiency class
    (1), and more that does not matter here.
    """
    classes = []
    start = 0
    while start + 10 <= len(records):
        classes.append(records[start + 9])
        size = int.from_bytes(records[start + 4 : start + 8], sys.byteorder)
        start += max(10, size)
    return classes.count(max(classes, default=0))
