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

NAMES = ("cpu", "cuda", "rocm", "vulkan", "metal")
VARIABLE = "LOCALSPEC_BACKEND"

_TABLE = Path(__file__).with_name("backends.toml")
_GIB = 1 << 30
_OWN_MEMORY = 2 * _GIB
"""A card with less than this shares the computer's memory: the CPU is as fast."""
_VENDORS = {"amd": "0x1002", "intel": "0x8086"}
_NVRM = re.compile(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_PATIENCE = 10.0

Ask = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class Hardware:
    """What there is to compute on, as far as files and drivers tell without a library."""

    system: str
    """Linux, Darwin, Windows."""
    arch: str
    nvidia: str | None = None
    """The driver's version."""
    compute: float | None = None
    """CUDA's compute capability, of the oldest card."""
    amd: bool = False
    """A card of AMD's with memory of its own."""
    rocm: bool = False
    """AMD's own libraries are installed."""
    intel: bool = False
    vulkan: bool = False
    """Some driver for Vulkan is installed."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A build to install."""

    backend: str
    why: str
    index: str | None = None
    """The address of its prebuilt wheels, if there are any for this computer."""
    cmake: str = ""
    libraries: tuple[str, ...] = ()
    """Packages with what its wheel needs and does not carry."""
    compilers: tuple[str, ...] = ()
    """One of these is needed to build it from source."""

    def compilable(self, which: Callable[[str], str | None] = shutil.which) -> bool:
        return any(map(which, self.compilers))


@cache
def table() -> dict[str, Any]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))


# What is here.


def _asked(command: Sequence[str]) -> str:
    """What a program prints; nothing where it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return ""
    return done.stdout


def detect(
    root: Path = Path("/"), system: str | None = None, arch: str | None = None, ask: Ask = _asked
) -> Hardware:
    """This computer; `root`, `system` and `arch` are for trying it on another."""
    system, arch = system or platform.system(), (arch or platform.machine()).lower()
    if system == "Darwin":
        return Hardware(system, arch)
    driver, compute = _nvidia(root, system, ask)
    if system == "Windows":
        return Hardware(system, arch, driver, compute)
    cards = _cards(root)
    return Hardware(
        system,
        arch,
        driver,
        compute,
        amd="amd" in cards,
        rocm=(root / "dev/kfd").exists() and any((root / "opt").glob("rocm*")),
        intel="intel" in cards,
        vulkan=any(
            any((root / folder).glob("*.json"))
            for folder in ("usr/share/vulkan/icd.d", "etc/vulkan/icd.d")
        ),
    )


def _nvidia(root: Path, system: str, ask: Ask) -> tuple[str | None, float | None]:
    """The driver and the oldest card's capability; a driver without a card is none."""
    program = "nvidia-smi"
    version = None
    if system == "Linux":
        wsl = root / "usr/lib/wsl/lib/nvidia-smi"
        version = _nvrm(root / "proc/driver/nvidia/version")
        if version is None and not wsl.exists():
            return None, None
        if version is not None and not any((root / "dev").glob("nvidia[0-9]*")):
            return None, None  # a container that was not given the card
        program = program if version else str(wsl)
    told = ask([program, "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"])
    rows = [line.split(",") for line in told.splitlines() if line.count(",") == 1]
    drivers = [row[0].strip() for row in rows if re.match(r"\d+\.\d+", row[0].strip())]
    capable = [float(row[1]) for row in rows if re.fullmatch(r"\d+\.\d+", row[1].strip())]
    return version or next(iter(drivers), None), min(capable, default=None)


def _nvrm(path: Path) -> str | None:
    try:
        found = _NVRM.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found[1] if found else None


def _cards(root: Path) -> set[str]:
    """Makers of cards that have memory of their own."""
    found = set()
    for device in sorted((root / "sys/class/drm").glob("card[0-9]*/device")):
        vendor = _line(device / "vendor")
        memory = _line(device / "mem_info_vram_total") or _line(device.parent / "lmem_total_bytes")
        if memory.isdigit() and int(memory) >= _OWN_MEMORY:
            found |= {name for name, number in _VENDORS.items() if number == vendor}
    return found


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


# What suits it.


def choose(hardware: Hardware, asked: str = "") -> Choice:
    """The build for it, or the one that was asked for.

    Raises ValueError where no such build is known, or none for this system.
    """
    if not asked:
        return _best(hardware)
    if asked not in NAMES:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(NAMES)}")
    systems = table()[asked].get("systems", [hardware.system])
    if hardware.system not in systems:
        raise ValueError(f"{VARIABLE}={asked} is for {' and '.join(systems)}")
    return _choice(hardware, asked, f"{VARIABLE}={asked}")


def _best(here: Hardware) -> Choice:
    if here.system == "Darwin":
        if here.arch == "arm64":
            return _choice(here, "metal", "Apple silicon is here")
        return _choice(here, "cpu", "no GPU that llama.cpp uses well is here")
    if here.nvidia and here.arch in ("x86_64", "amd64"):
        cuda = _choice(here, "cuda", f"an NVIDIA driver ({here.nvidia}) is here")
        if cuda.index:
            return cuda
    if here.amd and here.rocm:
        return _choice(here, "rocm", "an AMD card and ROCm are here")
    if (here.amd or here.intel) and here.vulkan:
        maker = "AMD" if here.amd else "Intel"
        return _choice(here, "vulkan", f"{maker}'s card and a Vulkan driver are here")
    return _choice(here, "cpu", "no GPU that llama.cpp could use is here")


def _choice(here: Hardware, backend: str, why: str) -> Choice:
    about = table()[backend]
    index, libraries = about.get("index", {}).get(here.system), ()
    if backend == "cuda" and (wheel := _cuda(here)) is not None:
        index, libraries = wheel["index"], tuple(wheel["libraries"])
    return Choice(
        backend,
        why,
        index=table()["host"] + index if index else None,
        cmake=about["cmake"],
        libraries=libraries,
        compilers=tuple(about.get("compiler", ())),
    )


def _cuda(here: Hardware) -> dict[str, Any] | None:
    """The newest wheel that this driver runs and that the oldest card is new enough for."""
    if here.nvidia is None:
        return None
    for wheel in table()["cuda"]["wheels"]:
        least = wheel["driver"].get(here.system)
        # Where the capability is unknown, the wheel for older cards, too, is the safe one.
        capable = (here.compute or 6.0) >= float(wheel["compute"])
        if least and capable and version(here.nvidia) >= version(least):
            return dict(wheel)
    return None


def libraries(generation: str) -> tuple[str, ...]:
    """What a CUDA wheel of a generation (11, 12, 13) needs and does not carry."""
    wheels = table()["cuda"]["wheels"]
    found = (wheel for wheel in wheels if wheel["index"].startswith(f"cu{generation}"))
    return tuple(next(found, {"libraries": ()})["libraries"])


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))
