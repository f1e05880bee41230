"""Chooses the build of llama-cpp-python for this computer, and how to install it.

scripts/run uses this file before packages are installed, so it imports the standard
library only.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

BACKENDS = ("cpu", "cuda", "rocm", "vulkan", "metal")
ENV_VARIABLE = "LOCALSPEC_BACKEND"

_MIN_VRAM = 2 << 30  # A GPU with less shares system memory: the CPU is as fast.
_VENDORS = {"0x1002": "amd", "0x8086": "intel"}
_NVRM = re.compile(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s")

RunCommand = Callable[[Sequence[str]], str]


class SystemHardware(NamedTuple):
    """Hardware and drivers of a computer, detected from files and nvidia-smi."""

    system: str  # Linux, Darwin, Windows.
    arch: str
    nvidia_driver: str | None = None  # Version of the driver.
    # CUDA compute capability of the oldest GPU.
    compute_capability: float | None = None
    has_amd: bool = False  # Has an AMD GPU with its own memory.
    has_rocm: bool = False
    has_intel: bool = False  # Has an Intel GPU with its own memory.
    has_vulkan: bool = False  # Has a Vulkan driver.


class LlamaCppBuild(NamedTuple):
    backend: str
    reason: str
    wheel_index: str | None = None
    """URL of prebuilt wheels; None if there are none for this computer."""
    cmake: str = ""
    libraries: tuple[str, ...] = ()  # Packages the wheel needs but does not contain.
    compilers: tuple[str, ...] = ()  # A source build needs one of these programs.
    required_header: tuple[str, str] | None = None
    """A header file that a source build includes, and a name that it must define."""
    # How long a source build computes; None: not measured.
    core_seconds: int | None = None

    def can_compile(self) -> bool:
        return any(map(shutil.which, self.compilers))


@cache
def load_table() -> dict[str, Any]:
    file = Path(__file__).with_name("backends.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _run(command: Sequence[str]) -> str:
    """The standard output of a program; empty if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return ""
    return done.stdout


def detect_hardware(
    root: Path = Path("/"),
    system: str | None = None,
    arch: str | None = None,
    run: RunCommand = _run,
) -> SystemHardware:
    """Detects this computer; the parameters exist for tests."""
    system = system or platform.system()
    arch = (arch or platform.machine()).lower()
    if system == "Darwin":
        return SystemHardware(system, arch)
    driver, compute = _detect_nvidia(root, system, run)
    if system == "Windows":
        return SystemHardware(system, arch, driver, compute)
    makers = _detect_gpu_makers(root)
    has_rocm = (root / "dev/kfd").exists() and any((root / "opt").glob("rocm*"))
    vulkan_drivers = [
        *(root / "usr/share/vulkan/icd.d").glob("*.json"),
        *(root / "etc/vulkan/icd.d").glob("*.json"),
    ]
    return SystemHardware(
        system,
        arch,
        nvidia_driver=driver,
        compute_capability=compute,
        has_amd="amd" in makers,
        has_rocm=has_rocm,
        has_intel="intel" in makers,
        has_vulkan=bool(vulkan_drivers),
    )


def _detect_nvidia(
    root: Path, system: str, run: RunCommand
) -> tuple[str | None, float | None]:
    """Driver version and the lowest compute capability; (None, None) without a GPU."""
    program = "nvidia-smi"
    version = None
    if system == "Linux":
        wsl = root / "usr/lib/wsl/lib/nvidia-smi"
        module = _NVRM.search(_read_text(root / "proc/driver/nvidia/version"))
        if module:
            version = module[1]
            if not any((root / "dev").glob("nvidia[0-9]*")):
                return None, None  # a container without access to the GPU
        elif wsl.exists():
            program = str(wsl)
        else:
            return None, None
    output = run(
        [program, "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]
    )
    capabilities = []
    for line in output.splitlines():  # 550.54.14, 8.9
        driver, comma, capability = line.partition(",")
        if not comma or "," in capability:
            continue
        if version is None and re.match(r"\d+\.\d+", driver.strip()):
            version = driver.strip()
        if re.fullmatch(r"\d+\.\d+", capability.strip()):
            capabilities.append(float(capability))
    return version, min(capabilities, default=None)


def _detect_gpu_makers(root: Path) -> set[str | None]:
    """Vendors of GPUs with their own memory; None for others."""
    makers = set()
    for device in (root / "sys/class/drm").glob("card[0-9]*/device"):
        memory = _read_text(device / "mem_info_vram_total")
        memory = memory or _read_text(device.parent / "lmem_total_bytes")
        if memory.isdigit() and int(memory) >= _MIN_VRAM:
            makers.add(_VENDORS.get(_read_text(device / "vendor")))
    return makers


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def choose_build(hardware: SystemHardware, requested: str = "") -> LlamaCppBuild:
    """The best build for this hardware, or the requested backend.

    Raises ValueError for an unknown backend or one not available on this system.
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
            return _make_build(hardware, "metal", "Apple silicon")
        return _make_build(hardware, "cpu", "no GPU that llama.cpp supports well")
    if hardware.nvidia_driver and hardware.arch in ("x86_64", "amd64"):
        cuda = _make_build(
            hardware, "cuda", f"NVIDIA driver ({hardware.nvidia_driver}) found"
        )
        if cuda.wheel_index:
            return cuda
    if hardware.has_amd and hardware.has_rocm:
        return _make_build(hardware, "rocm", "AMD GPU and ROCm found")
    if (hardware.has_amd or hardware.has_intel) and hardware.has_vulkan:
        maker = "AMD" if hardware.has_amd else "Intel"
        return _make_build(hardware, "vulkan", f"{maker} GPU and Vulkan driver found")
    return _make_build(hardware, "cpu", "no GPU found that llama.cpp can use")


def _make_build(hardware: SystemHardware, backend: str, reason: str) -> LlamaCppBuild:
    table = load_table()
    entry = table[backend]
    index = entry.get("index", {}).get(hardware.system)
    libraries: tuple[str, ...] = ()
    if backend == "cuda":
        wheel = _find_cuda_wheel(hardware)
        if wheel is not None:
            index = wheel["index"]
            libraries = tuple(wheel["libraries"])
    wheel_index = None
    if index:
        wheel_index = table["host"] + index
    required_header = None
    if "header" in entry:
        required_header = (entry["header"]["file"], entry["header"]["has"])
    return LlamaCppBuild(
        backend,
        reason,
        wheel_index=wheel_index,
        cmake=entry["cmake"],
        libraries=libraries,
        compilers=tuple(entry.get("compiler", ())),
        required_header=required_header,
        core_seconds=entry.get("core_seconds"),
    )


def _find_cuda_wheel(hardware: SystemHardware) -> dict[str, Any] | None:
    """The newest wheel that the driver and the oldest GPU support."""
    if hardware.nvidia_driver is None:
        return None
    driver = parse_version(hardware.nvidia_driver)
    # An unknown capability is taken as an old one: those wheels run on newer GPUs too.
    capability = hardware.compute_capability or 6.0
    for wheel in load_table()["cuda"]["wheels"]:
        oldest_driver = wheel["driver"].get(hardware.system)
        if not oldest_driver or driver < parse_version(oldest_driver):
            continue
        if capability >= float(wheel["compute"]):
            return dict(wheel)
    return None


def parse_version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


PACKAGE = "llama-cpp-python"


def wheel_command(
    build: LlamaCppBuild, release: str, python: str, uv: str | None
) -> list[str]:
    """Installs the prebuilt wheel and nothing else.

    --only-binary: if the index has no wheel, pip must not build a source package from
    PyPI instead.
    """
    index = ["--extra-index-url", build.wheel_index or "", "--only-binary", PACKAGE]
    return _reinstall_command(index, release, python, uv)


def libraries_command(build: LlamaCppBuild, python: str, uv: str | None) -> list[str]:
    """Installs libraries the wheel needs but does not contain."""
    return [*_installer(python, uv), *build.libraries]


def source_command(release: str, python: str, uv: str | None) -> list[str]:
    """Compiles without a cache, which could return a build for another backend."""
    no_cache = "--no-cache" if uv else "--no-cache-dir"
    options = [no_cache, "--no-binary", PACKAGE]
    return _reinstall_command(options, release, python, uv)


def shell_line(build: LlamaCppBuild, release: str, python: str) -> str:
    """A shell line that installs this build for this Python."""
    lines = [quote_command(line) for line in list_commands(build, release, python)]
    if build.wheel_index:
        return " && ".join(lines)
    line = lines[0]
    if platform.system() == "Windows":
        return f'set "CMAKE_ARGS={build.cmake}" && {line}'
    if not build.cmake:
        return line
    return f'CMAKE_ARGS="{build.cmake}" {line}'


def list_commands(build: LlamaCppBuild, release: str, python: str) -> list[list[str]]:
    """Commands to run in order; without a wheel, CMAKE_ARGS must select the backend."""
    uv = find_uv()
    if not build.wheel_index:
        return [source_command(release, python, uv)]
    commands = [wheel_command(build, release, python, uv)]
    if build.libraries:
        commands.append(libraries_command(build, python, uv))
    return commands


def find_uv() -> str | None:
    """The path of uv, if this Python has no pip."""
    if importlib.util.find_spec("pip"):
        return None
    return shutil.which("uv")


def can_install() -> bool:
    return bool(importlib.util.find_spec("pip") or find_uv())


def quote_command(command: Sequence[str]) -> str:
    if platform.system() == "Windows":
        return subprocess.list2cmdline(command)
    return shlex.join(command)


def _installer(python: str, uv: str | None) -> list[str]:
    if uv:
        return [uv, "pip", "install", "--python", python]
    return [python, "-m", "pip", "install"]


def _reinstall_command(
    options: list[str], release: str, python: str, uv: str | None
) -> list[str]:
    """The installed package may be the same version for another backend."""
    flags = ["--reinstall-package", PACKAGE] if uv else ["--force-reinstall"]
    return [
        *_installer(python, uv),
        *flags,
        "--no-deps",
        *options,
        f"{PACKAGE}=={release}",
    ]
