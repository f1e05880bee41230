"""Which build of llama-cpp-python suits this computer.

Read by scripts/run before anything is installed: the standard library only.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

BACKENDS = ("cpu", "cuda", "rocm", "vulkan", "metal")
ENV_VARIABLE = "LOCALSPEC_BACKEND"

_TABLE_FILE = Path(__file__).with_name("backends.toml")
_GIB = 1 << 30
_MIN_VRAM = 2 * _GIB
"""A card with less than this shares the computer's memory: the CPU is as fast."""
_VENDORS = {"amd": "0x1002", "intel": "0x8086"}
_NVRM = re.compile(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_TIMEOUT = 10.0

RunCommand = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class SystemHardware:
    """What there is to compute on, as far as files and drivers tell without a library."""

    system: str
    """Linux, Darwin, Windows."""
    arch: str
    nvidia_driver: str | None = None
    """The driver's version."""
    compute_capability: float | None = None
    """CUDA's compute capability, of the oldest card."""
    has_amd: bool = False
    """A card of AMD's with memory of its own."""
    has_rocm: bool = False
    """AMD's own libraries are installed."""
    has_intel: bool = False
    has_vulkan: bool = False
    """Some driver for Vulkan is installed."""


@dataclass(frozen=True, slots=True)
class LlamaCppBuild:
    """A build to install."""

    backend: str
    reason: str
    wheel_index: str | None = None
    """The address of its prebuilt wheels, if there are any for this computer."""
    cmake: str = ""
    libraries: tuple[str, ...] = ()
    """Packages with what its wheel needs and does not carry."""
    compilers: tuple[str, ...] = ()
    """One of these is needed to build it from source."""

    def can_compile(self, which: Callable[[str], str | None] = shutil.which) -> bool:
        return any(map(which, self.compilers))


@cache
def load_table() -> dict[str, Any]:
    return tomllib.loads(_TABLE_FILE.read_text(encoding="utf-8"))


# What is here.


def _run(command: Sequence[str]) -> str:
    """What a program prints; nothing where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return ""
    return done.stdout


def detect_hardware(
    root: Path = Path("/"),
    system: str | None = None,
    arch: str | None = None,
    run: RunCommand = _run,
) -> SystemHardware:
    """This computer; `root`, `system` and `arch` are for trying it on another."""
    system, arch = system or platform.system(), (arch or platform.machine()).lower()
    if system == "Darwin":
        return SystemHardware(system, arch)
    driver, compute = _detect_nvidia(root, system, run)
    if system == "Windows":
        return SystemHardware(system, arch, driver, compute)
    cards = _detect_gpu_makers(root)
    return SystemHardware(
        system,
        arch,
        driver,
        compute,
        has_amd="amd" in cards,
        has_rocm=(root / "dev/kfd").exists() and any((root / "opt").glob("rocm*")),
        has_intel="intel" in cards,
        has_vulkan=any(
            any((root / folder).glob("*.json"))
            for folder in ("usr/share/vulkan/icd.d", "etc/vulkan/icd.d")
        ),
    )


def _detect_nvidia(root: Path, system: str, run: RunCommand) -> tuple[str | None, float | None]:
    """The driver and the oldest card's capability; a driver without a card is none."""
    program = "nvidia-smi"
    version = None
    if system == "Linux":
        wsl = root / "usr/lib/wsl/lib/nvidia-smi"
        version = _read_nvidia_driver(root / "proc/driver/nvidia/version")
        if version is None and not wsl.exists():
            return None, None
        if version is not None and not any((root / "dev").glob("nvidia[0-9]*")):
            return None, None  # a container that was not given the card
        program = program if version else str(wsl)
    told = run([program, "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"])
    rows = [line.split(",") for line in told.splitlines() if line.count(",") == 1]
    drivers = [row[0].strip() for row in rows if re.match(r"\d+\.\d+", row[0].strip())]
    capable = [float(row[1]) for row in rows if re.fullmatch(r"\d+\.\d+", row[1].strip())]
    return version or next(iter(drivers), None), min(capable, default=None)


def _read_nvidia_driver(path: Path) -> str | None:
    try:
        found = _NVRM.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found[1] if found else None


def _detect_gpu_makers(root: Path) -> set[str]:
    """Makers of cards that have memory of their own."""
    found = set()
    for device in sorted((root / "sys/class/drm").glob("card[0-9]*/device")):
        vendor = _read_line(device / "vendor")
        memory = _read_line(device / "mem_info_vram_total") or _read_line(
            device.parent / "lmem_total_bytes"
        )
        if memory.isdigit() and int(memory) >= _MIN_VRAM:
            found |= {name for name, number in _VENDORS.items() if number == vendor}
    return found


def _read_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


# What suits it.


def choose_build(hardware: SystemHardware, requested: str = "") -> LlamaCppBuild:
    """The build for it, or the one that was asked for.

    Raises ValueError where no such build is known, or none for this system.
    """
    if not requested:
        return _best_build(hardware)
    if requested not in BACKENDS:
        raise ValueError(f"{ENV_VARIABLE} must be one of {', '.join(BACKENDS)}")
    systems = load_table()[requested].get("systems", [hardware.system])
    if hardware.system not in systems:
        raise ValueError(f"{ENV_VARIABLE}={requested} is for {' and '.join(systems)}")
    return _make_build(hardware, requested, f"{ENV_VARIABLE}={requested}")


def _best_build(hardware: SystemHardware) -> LlamaCppBuild:
    if hardware.system == "Darwin":
        if hardware.arch == "arm64":
            return _make_build(hardware, "metal", "Apple silicon is here")
        return _make_build(hardware, "cpu", "no GPU that llama.cpp uses well is here")
    if hardware.nvidia_driver and hardware.arch in ("x86_64", "amd64"):
        cuda = _make_build(hardware, "cuda", f"an NVIDIA driver ({hardware.nvidia_driver}) is here")
        if cuda.wheel_index:
            return cuda
    if hardware.has_amd and hardware.has_rocm:
        return _make_build(hardware, "rocm", "an AMD card and ROCm are here")
    if (hardware.has_amd or hardware.has_intel) and hardware.has_vulkan:
        maker = "AMD" if hardware.has_amd else "Intel"
        return _make_build(hardware, "vulkan", f"{maker}'s card and a Vulkan driver are here")
    return _make_build(hardware, "cpu", "no GPU that llama.cpp could use is here")


def _make_build(hardware: SystemHardware, backend: str, reason: str) -> LlamaCppBuild:
    about = load_table()[backend]
    index, libraries = about.get("index", {}).get(hardware.system), ()
    if backend == "cuda" and (wheel := _find_cuda_wheel(hardware)) is not None:
        index, libraries = wheel["index"], tuple(wheel["libraries"])
    return LlamaCppBuild(
        backend,
        reason,
        wheel_index=load_table()["host"] + index if index else None,
        cmake=about["cmake"],
        libraries=libraries,
        compilers=tuple(about.get("compiler", ())),
    )


def _find_cuda_wheel(hardware: SystemHardware) -> dict[str, Any] | None:
    """The newest wheel that this driver runs and that the oldest card is new enough for."""
    if hardware.nvidia_driver is None:
        return None
    for wheel in load_table()["cuda"]["wheels"]:
        least = wheel["driver"].get(hardware.system)
        # Where the capability is unknown, the wheel for older cards, too, is the safe one.
        capable = (hardware.compute_capability or 6.0) >= float(wheel["compute"])
        if least and capable and parse_version(hardware.nvidia_driver) >= parse_version(least):
            return dict(wheel)
    return None


def cuda_libraries(generation: str) -> tuple[str, ...]:
    """What a CUDA wheel of a generation (11, 12, 13) needs and does not carry."""
    wheels = load_table()["cuda"]["wheels"]
    found = (wheel for wheel in wheels if wheel["index"].startswith(f"cu{generation}"))
    return tuple(next(found, {"libraries": ()})["libraries"])


def parse_version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))
