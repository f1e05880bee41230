"""Checks of the llama.cpp build and of the devices it can use."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from localspec import __version__, paths
from localspec.doctor import llama_build
from localspec.doctor.findings import Finding, ok, problem
from localspec.machine import (
    device_detection,
    installed_llama_cpp,
    llama_cpp_builds,
    memory_probe,
)
from localspec.machine.cpu_and_ram import read_cpu_cores
from localspec.machine.device import Device
from localspec.machine.llama_cpp_builds import LlamaCppBuild
from localspec.machine.measurements import MeasurementStore
from localspec.machine.memory_probe import ProbeError
from localspec.machine.rpc import side_library
from localspec.models import draft_heads
from localspec.units import gib

_X86_FEATURES = "SSSE3 AVX AVX_VNNI AVX2 F16C FMA BMI2 AVX512_VNNI AVX512_BF16 AMX_INT8 SVE"
_LINUX_CPU_FLAGS = {name: name.lower() for name in _X86_FEATURES.split()} | {
    "SSE3": "pni",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "NEON": "asimd",
    "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm",
}
"""llama.cpp's name of a CPU feature -> the flag in /proc/cpuinfo."""
_FAST_FEATURES = ("AVX2", "FMA", "F16C", "AVX512", "DOTPROD")
"""Features worth a local build if the CPU has them and the installed build does not use them."""
_MIN_FREE_MEMORY = 2 << 30
_NO_DEVICE_FIX = (
    "Check the driver (nvidia-smi, rocminfo or vulkaninfo --summary), and that "
    f"{', '.join(device_detection.VISIBLE_DEVICES_VARIABLES)} name devices that are there"
)
_LOADER_FIXES = (
    (
        r"libcudart|libcublas|cudart64|cublas64",
        "pip install nvidia-cuda-runtime-cu12 nvidia-cublas-cu12 (or -cu11, as the name says)",
    ),
    (r"libamdhip|librocblas|libhipblas", "Install ROCm, or set LOCALSPEC_BACKEND=vulkan"),
    (r"libvulkan|vulkan-1", "Install the Vulkan loader (libvulkan1), or your GPU's driver"),
    (r"GLIBC", "Build it on this system: pip install --no-binary llama-cpp-python"),
)
"""Pattern in the dynamic loader's message -> fix."""


def check_engine() -> Iterator[Finding]:
    yield _check_versions()
    try:
        info = memory_probe.query_llama_cpp()
    except (ProbeError, OSError) as error:
        yield _explain_load_failure(str(error))
        return
    backend = "can use a GPU" if info.supports_gpu_offload else "can use the CPU only"
    if not info.supports_gpu_offload and (built_for := installed_llama_cpp.find_gpu_backends()):
        backend = f"was built for {' and '.join(built_for)} and finds no such device"
    yield ok("library", f"{info.library_path} {backend}")
    *first, last = draft_heads.KIND_TITLES.values()
    kinds = f"{', '.join(first)} and {last}"
    if missing := ", ".join(info.missing_head_functions):
        what = f"this llama.cpp cannot draft with heads ({kinds}): it lacks {missing}"
        fix = "Install the llama-cpp-python version that localspec requires; or use --draft none"
        yield problem("no-heads", what, fix)
    else:
        yield ok("heads", f"can draft with {kinds} heads")
    yield from _check_cpu_features(info.features, _read_cpu_flags())
    yield ok("threads", _describe_threads())
    library = side_library.find()
    compiler = side_library.find_compiler()
    how = "is built when first used" if compiler else "needs a C++ compiler to be built"
    yield ok("workers", f"llama.cpp's RPC backend: {library or f'not here, it {how}'}")
    if (mismatch := llama_build.find_mismatch()) is not None:
        yield mismatch


def _check_versions() -> Finding:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    system += " (WSL)" if "microsoft" in platform.release().lower() else ""
    what = f"localspec {__version__}, Python {platform.python_version()}, {system}"
    try:
        return ok("versions", f"{what}, llama-cpp-python {_release()}")
    except metadata.PackageNotFoundError:
        required = llama_build.find_pinned_requirement() or "localspec"
        fix = f"{sys.executable} -m pip install {required}"
        return problem("engine-missing", f"{what}, no llama-cpp-python", fix)


def _release() -> str:
    return metadata.version(llama_cpp_builds.PACKAGE)


def _explain_load_failure(error: str) -> Finding:
    what = f"llama.cpp fails: {error}"
    for pattern, fix in _LOADER_FIXES:
        if re.search(pattern, error):
            return problem("library-missing", what, fix)
    try:
        fix = _cpu_build_line()
    except metadata.PackageNotFoundError:
        return problem("engine-fails", what, "Reinstall llama-cpp-python")
    if re.search(r"code (-4|-?1073741795|3221225501|132)\b|SIGILL", error):
        what = "llama.cpp was built for another CPU: it stopped at an illegal instruction"
        return problem("illegal-instruction", what, fix)
    return problem("engine-fails", what, fix)


def _describe_threads() -> str:
    """CPU threads of a model, and why so many."""
    cores = read_cpu_cores()
    text = f"{cores.physical} physical cores"
    if cores.performance < cores.physical:
        text += f" ({cores.performance} performance cores)"
    for record in MeasurementStore(paths.data_dir() / "measured.sqlite").read_all():
        costs = record.measured
        if costs is not None and costs.threads is not None and costs.threads_batch is not None:
            counts = f"{costs.threads} a token, {costs.threads_batch} for prompts and drafts"
            return f"{text}; CPU threads: {counts} (measured)"
    return f"{text}; CPU threads: {cores.default_threads} until a model is measured"


def _check_cpu_features(features: str, cpu_flags: frozenset[str]) -> Iterator[Finding]:
    """Compares the build's CPU features with the CPU's own."""
    built = re.findall(r"(\w+) = 1", features)
    yield ok("features", f"built with {' '.join(built) or 'no CPU extension'}")
    if not cpu_flags:  # no /proc/cpuinfo
        return
    missing = [name for name in built if _LINUX_CPU_FLAGS.get(name, name) not in cpu_flags | {name}]
    if missing:
        what = f"built for CPU features this CPU lacks: {', '.join(missing)}; it may crash"
        yield problem("other-cpu", what, _cpu_build_line())
    usable = [name for name in _FAST_FEATURES if _LINUX_CPU_FLAGS[name] in cpu_flags]
    if unused := [name for name in usable if name not in built]:
        what = f"built without {', '.join(unused)}, which this CPU has: slower than it could be"
        yield problem("slow-build", what, _cpu_build_line())


def _cpu_build_line() -> str:
    """The shell line that compiles the installed release for this CPU."""
    return llama_cpp_builds.shell_line(LlamaCppBuild("cpu", ""), _release(), sys.executable)


def _read_cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The first CPU's flags; empty if the file is missing."""
    with suppress(OSError):
        text = path.read_text(encoding="utf-8", errors="replace")
        if line := re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.M):
            return frozenset(line[1].split())
    return frozenset()


def check_devices() -> Iterator[Finding]:
    detected = device_detection.detect_devices(refresh=True)
    if detected.note:
        yield problem("devices-unknown", detected.note, _NO_DEVICE_FIX)
    for device in detected.devices:
        make = problem if device.note or device.free is None else ok
        yield make("gpu", _format_device(device))
    if not detected.devices and not detected.note:
        driver = llama_cpp_builds.detect_hardware().nvidia_driver
        hint = f"; an NVIDIA driver ({driver}) is installed" if driver else ""
        yield ok("no-gpu", f"no GPU that this llama.cpp can use{hint}")
    cpu = detected.cpu
    free, total = cpu.free or 0, cpu.total or 0
    what = f"{cpu.description or 'CPU'}: {gib(free)} of {gib(total)} memory free"
    what += f" ({cpu.note})" if cpu.note else ""
    if free < _MIN_FREE_MEMORY:
        fix = "Close other programs, or run a smaller model: localspec pair suggest"
        yield problem("little-memory", what, fix)
    else:
        yield ok("memory", what)


def _format_device(device: Device) -> str:
    free, total = ("unknown" if n is None else gib(n) for n in (device.free, device.total))
    parts = [
        f"{device.name} {device.description}: {free} of {total} free",
        device.used_by_others and f"{gib(device.used_by_others)} used by other programs",
        device.unified and "shares the computer's memory",
        device.drives_display and "drives the display",
        device.driver and f"driver {device.driver}",
        device.note,
    ]
    return ", ".join(part for part in parts if isinstance(part, str) and part)
