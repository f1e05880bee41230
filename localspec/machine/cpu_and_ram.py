"""System memory, its limits (containers, Apple GPUs), and the name of the CPU."""

from __future__ import annotations

import ctypes
import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.sanitize import sanitize

CGROUP_DIR = Path("/sys/fs/cgroup")
_CGROUP_FILES = (  # cgroup v2, then v1: limit, usage, statistics, the key of evictable cache
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """In bytes."""

    available: int
    """Available to new programs without swapping."""
    total: int
    note: str = ""


def read_host_memory(root: Path = CGROUP_DIR) -> HostMemory:
    """Memory of this computer, or of the container it runs in."""
    import psutil  # noqa: PLC0415  not needed for --help

    memory = psutil.virtual_memory()
    return apply_cgroup_limit(HostMemory(memory.available, memory.total), root)


def apply_cgroup_limit(host: HostMemory, root: Path) -> HostMemory:
    for limit_file, used_file, stat_file, evictable in _CGROUP_FILES:
        limit, used = _read_int(root / limit_file), _read_int(root / used_file)
        if limit is None or used is None or not 0 < limit < host.total:
            continue
        cached = _read_stat(root / stat_file, evictable)
        free = max(0, min(host.available, limit - max(0, used - cached)))
        return HostMemory(free, limit, "limited by the container")
    return host


def read_wired_limit() -> int | None:
    """Bytes a Mac's GPU may use (iogpu.wired_limit_mb); None if it is the default."""
    if sys.platform != "darwin":
        return None
    value = ctypes.c_int64()
    size = ctypes.c_size_t(ctypes.sizeof(value))
    with suppress(OSError, AttributeError):
        sysctlbyname = ctypes.CDLL(None).sysctlbyname
        name = b"iogpu.wired_limit_mb"
        status = sysctlbyname(
            name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
        )
        if status == 0:
            return value.value << 20 or None
    return None


def _read_int(path: Path) -> int | None:
    with suppress(OSError, ValueError):  # "max" means no limit
        return int(path.read_text(encoding="ascii").strip())
    return None


def _read_stat(path: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


def read_cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """From /proc/cpuinfo, else from the platform; may be empty."""
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return sanitize(value.strip(), multiline=False)
    except OSError:
        pass
    return sanitize(platform.processor(), multiline=False)
