"""Checks of the llama.cpp build and of the devices it can use."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from localspec import __version__, paths
from localspec.doctor import llama_build
from localspec.doctor.findings import Finding, Level
from localspec.machine import (
    device_detection,
    install_commands,
    installed_llama_cpp,
    llama_cpp_builds,
    probe,
)
from localspec.machine.cpu_cores import read_cpu_cores
from localspec.machine.device import Device
from localspec.machine.llama_cpp_builds import LlamaCppBuild
from localspec.machine.measurements import MeasurementStore
from localspec.machine.probe import ProbeError
from localspec.machine.rpc import side_library
from localspec.models import draft_heads
from localspec.units import count, gib
from localspec.worker import crashes

_LINUX_CPU_FLAGS = {
    "SSE3": "pni",
    "SSSE3": "ssse3",
    "AVX": "avx",
    "AVX_VNNI": "avx_vnni",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
    "NEON": "asimd",
    "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm",
    "SVE": "sve",
}
"""llama.cpp's name of a CPU feature -> the flag in /proc/cpuinfo."""
_FAST_FEATURES = ("AVX2", "FMA", "F16C", "AVX512", "DOTPROD")
"""Features worth a local build if the CPU has them and the installed build does not use them."""
_MIN_FREE_MEMORY = 2 << 30

NO_DEVICE_FIX = (
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
        info = probe.query_llama_cpp()
    except (ProbeError, OSError) as error:
        yield _explain_load_failure(str(error))
        return
    backend = "can use a GPU" if info.supports_gpu_offload else "can use the CPU only"
    if not info.supports_gpu_offload and (built_for := installed_llama_cpp.find_gpu_backends()):
        backend = f"was built for {' and '.join(built_for)} and finds no such device"
    yield Finding("library", "engine", "ok", f"{info.library_path} {backend}")
    yield _check_heads(info.missing_head_functions)
    yield from _check_cpu_features(info.features, _read_cpu_flags())
    yield _describe_threads()
    yield _describe_rpc()
    if (mismatch := llama_build.find_mismatch()) is not None:
        yield mismatch
    yield from _check_crashes()


def _check_versions() -> Finding:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    system += " (WSL)" if "microsoft" in platform.release().lower() else ""
    what = f"localspec {__version__}, Python {platform.python_version()}, {system}"
    try:
        what += f", llama-cpp-python {metadata.version('llama-cpp-python')}"
    except metadata.PackageNotFoundError:
        fix = (
            f"{sys.executable} -m pip install "
            f"{llama_build.find_pinned_requirement() or 'localspec'}"
        )
        return Finding("engine-missing", "engine", "error", f"{what}, no llama-cpp-python", fix)
    return Finding("versions", "engine", "ok", what)


def _explain_load_failure(error: str) -> Finding:
    for pattern, fix in _LOADER_FIXES:
        if re.search(pattern, error):
            return Finding("library-missing", "engine", "error", f"llama.cpp fails: {error}", fix)
    with suppress(metadata.PackageNotFoundError):
        fix = _cpu_build_line()
        if re.search(r"code (-4|-?1073741795|3221225501|132)\b|SIGILL", error):
            what = "llama.cpp was built for another CPU: it stopped at an illegal instruction"
            return Finding("illegal-instruction", "engine", "error", what, fix)
        return Finding("engine-fails", "engine", "error", f"llama.cpp fails: {error}", fix)
    return Finding(
        "engine-fails", "engine", "error", f"llama.cpp fails: {error}", "Reinstall llama-cpp-python"
    )


def _check_crashes() -> Iterator[Finding]:
    if loops := crashes.find_crash_loops():
        causes = {crashes.describe_cause(exit_) for exits in loops for exit_ in exits}
        what = f"{count(len(loops), 'pair')} crashed repeatedly: {', '.join(sorted(causes))}"
        fix = "Try a smaller context or no draft; localspec doctor --fix clears the crash count"
        yield Finding("crash-loops", "engine", "notice", what, fix)


def _check_heads(missing: Sequence[str]) -> Finding:
    """Whether drafts that read the target's hidden states can run."""
    *first, last = draft_heads.KIND_TITLES.values()
    kinds = f"{', '.join(first)} and {last}"
    if not missing:
        return Finding("heads", "engine", "ok", f"can draft with {kinds} heads")
    what = f"this llama.cpp cannot draft with heads ({kinds}): it lacks {', '.join(missing)}"
    fix = "Install the llama-cpp-python version that localspec requires; or use --draft none"
    return Finding("no-heads", "engine", "notice", what, fix)


def _describe_rpc() -> Finding:
    """Whether models can be spread over two computers."""
    if (library := side_library.find()) is not None:
        return Finding("workers", "engine", "ok", f"llama.cpp's RPC backend: {library}")
    compiler = side_library.find_compiler()
    how = "it is built when first used" if compiler else "it needs a C++ compiler to be built"
    return Finding("workers", "engine", "ok", f"llama.cpp's RPC backend: not here, {how}")


def _describe_threads() -> Finding:
    """CPU threads of a model, and why so many."""
    cores = read_cpu_cores()
    text = f"{cores.physical} physical cores"
    if cores.performance < cores.physical:
        text += f" ({cores.performance} performance cores)"
    for record in MeasurementStore(paths.data_dir() / "measured.sqlite").read_all():
        costs = record.measured
        if costs is None or costs.threads is None or costs.threads_batch is None:
            continue
        counts = f"{costs.threads} a token, {costs.threads_batch} for prompts and drafts"
        return Finding("threads", "engine", "ok", f"{text}; CPU threads: {counts} (measured)")
    count = f"{cores.default_threads} until a model is measured"
    return Finding("threads", "engine", "ok", f"{text}; CPU threads: {count}")


def _check_cpu_features(features: str, cpu_flags: frozenset[str]) -> Iterator[Finding]:
    """Compares the build's CPU features with the CPU's own."""
    built = re.findall(r"(\w+) = 1", features)
    yield Finding("features", "engine", "ok", f"built with {' '.join(built) or 'no CPU extension'}")
    if not cpu_flags:  # no /proc/cpuinfo
        return
    missing = [name for name in built if _LINUX_CPU_FLAGS.get(name, name) not in cpu_flags | {name}]
    if missing:
        what = f"built for CPU features this CPU lacks: {', '.join(missing)}; it may crash"
        yield Finding("other-cpu", "engine", "error", what, _cpu_build_line())
    unused = [
        name for name in _FAST_FEATURES if name not in built and _LINUX_CPU_FLAGS[name] in cpu_flags
    ]
    if unused:
        what = f"built without {', '.join(unused)}, which this CPU has: slower than it could be"
        yield Finding("slow-build", "engine", "notice", what, _cpu_build_line())


def _cpu_build_line() -> str:
    """The shell line that compiles the installed release for this CPU."""
    release = metadata.version(install_commands.PACKAGE)
    return install_commands.shell_line(LlamaCppBuild("cpu", ""), release, sys.executable)


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
        yield Finding("devices-unknown", "devices", "warning", detected.note, NO_DEVICE_FIX)
    for device in detected.devices:
        is_uncertain = device.note or device.free is None
        level: Level = "notice" if is_uncertain else "ok"
        yield Finding("gpu", "devices", level, _format_device(device))
    if not detected.devices and not detected.note:
        driver = llama_cpp_builds.detect_hardware().nvidia_driver
        hint = f"; an NVIDIA driver ({driver}) is installed" if driver else ""
        yield Finding("no-gpu", "devices", "ok", f"no GPU that this llama.cpp can use{hint}")
    yield _check_memory(detected.cpu)


def _format_device(device: Device) -> str:
    free = "unknown" if device.free is None else gib(device.free)
    total = "unknown" if device.total is None else gib(device.total)
    parts = [f"{device.name} {device.description}: {free} of {total} free"]
    parts += (
        [f"{gib(device.used_by_others)} used by other programs"] if device.used_by_others else []
    )
    parts += ["shares the computer's memory"] if device.unified else []
    parts += ["drives the display"] if device.drives_display else []
    parts += [f"driver {device.driver}"] if device.driver else []
    parts += [device.note] if device.note else []
    return ", ".join(parts)


def _check_memory(cpu: Device) -> Finding:
    name, free, total = cpu.description or "CPU", gib(cpu.free or 0), gib(cpu.total or 0)
    what = f"{name}: {free} of {total} memory free"
    what += f" ({cpu.note})" if cpu.note else ""
    if (cpu.free or 0) < _MIN_FREE_MEMORY:
        fix = "Close other programs, or run a smaller model: localspec pair suggest"
        return Finding("little-memory", "devices", "warning", what, fix)
    return Finding("memory", "devices", "ok", what)
