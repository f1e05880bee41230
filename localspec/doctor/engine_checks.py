"""The engine's build and the devices that it sees."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from localspec import __version__
from localspec.doctor import llama_build
from localspec.doctor.findings import Finding
from localspec.machine import device_detection as machine
from localspec.machine import install_commands, llama_cpp_builds, llama_cpp_info
from localspec.machine.device import Device
from localspec.machine.llama_cpp_builds import LlamaCppBuild
from localspec.machine.probe import ProbeError
from localspec.models import draft_heads
from localspec.units import gib
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
"""What llama.cpp calls a feature, and what Linux does."""
_FAST_FEATURES = ("AVX2", "FMA", "F16C", "AVX512", "DOTPROD")
"""Worth a build of one's own where it is missing from this one."""
_MIN_FREE_MEMORY = 2 << 30

_LOADER_FIXES = (
    (
        r"libcudart|libcublas|cudart64|cublas64",
        "pip install nvidia-cuda-runtime-cu12 nvidia-cublas-cu12 (or -cu11, as the name says)",
    ),
    (r"libamdhip|librocblas|libhipblas", "Install ROCm, or set LOCALSPEC_BACKEND=vulkan"),
    (r"libvulkan|vulkan-1", "Install the Vulkan loader (libvulkan1), or your card's driver"),
    (r"GLIBC", "Build it on this system: pip install --no-binary llama-cpp-python"),
)
"""What llama.cpp misses, by what the loader says."""


def check_engine() -> Iterator[Finding]:
    yield _check_versions()
    try:
        heard = llama_cpp_info.query(refresh=True)
    except (ProbeError, OSError) as error:
        yield _explain_load_failure(str(error))
        return
    able = "can use a GPU" if heard.supports_gpu_offload else "can use the CPU only"
    yield Finding("library", "engine", "ok", f"{heard.library_path} {able}")
    yield _check_heads(heard.missing_head_functions)
    yield from _check_cpu_features(heard.features, _read_cpu_flags())
    if (found := llama_build.find_mismatch()) is not None:
        yield found
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
    """llama.cpp does not even load, or dies at once."""
    for sign, fix in _LOADER_FIXES:
        if re.search(sign, error):
            return Finding("library-missing", "engine", "error", f"llama.cpp fails: {error}", fix)
    with suppress(metadata.PackageNotFoundError):
        release = metadata.version(install_commands.PACKAGE)
        plain = LlamaCppBuild("cpu", "", compilers=("c++",))
        fix = install_commands.shell_line(plain, release, sys.executable)
        if re.search(r"code (-4|-?1073741795|3221225501|132)\b|SIGILL", error):
            what = "llama.cpp was built for another processor: an illegal instruction ended it"
            return Finding("illegal-instruction", "engine", "error", what, fix)
        return Finding("engine-fails", "engine", "error", f"llama.cpp fails: {error}", fix)
    return Finding(
        "engine-fails", "engine", "error", f"llama.cpp fails: {error}", "Install it again"
    )


def _check_crashes() -> Iterator[Finding]:
    """Pairs that died again and again."""
    if loops := crashes.find_crash_loops():
        of = ", ".join(sorted({crashes.describe_cause(how) for hows in loops for how in hows}))
        n = len(loops)
        what = f"{n} pair{'s' * (n > 1)} crashed each of the last times: {of}"
        fix = "Try a smaller context or no draft; localspec doctor --fix forgets the crashes"
        yield Finding("crash-loops", "engine", "notice", what, fix)


def _check_heads(missing: Sequence[str]) -> Finding:
    """Whether drafts that read the target's hidden states can run."""
    *first, last = draft_heads.KIND_TITLES.values()
    kinds = f"{', '.join(first)} and {last}"
    if not missing:
        return Finding("heads", "engine", "ok", f"can guess with {kinds} heads")
    what = f"this llama.cpp cannot guess with heads ({kinds}): it lacks {', '.join(missing)}"
    fix = "Install the llama-cpp-python that localspec names; other drafts work: --draft none"
    return Finding("no-heads", "engine", "notice", what, fix)


def _check_cpu_features(features: str, cpu_flags: frozenset[str]) -> Iterator[Finding]:
    """What the build wants of the processor against what there is."""
    wanted = re.findall(r"(\w+) = 1", features)
    yield Finding("features", "engine", "ok", f"built with {' '.join(wanted) or 'nothing special'}")
    if not cpu_flags:  # a system that does not tell
        return
    missing = [
        name for name in wanted if _LINUX_CPU_FLAGS.get(name, name) not in cpu_flags | {name}
    ]
    choice, release = LlamaCppBuild("cpu", ""), metadata.version(install_commands.PACKAGE)
    line = install_commands.shell_line(choice, release, sys.executable)
    if missing:
        what = f"built for what this processor lacks: {', '.join(missing)}; it may die of it"
        yield Finding("other-cpu", "engine", "error", what, line)
    unused = [
        name
        for name in _FAST_FEATURES
        if name not in wanted and _LINUX_CPU_FLAGS[name] in cpu_flags
    ]
    if unused:
        what = (
            f"built without {', '.join(unused)}, which this processor has: slower than it could be"
        )
        yield Finding("slow-build", "engine", "notice", what, line)


def _read_cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Of the first processor; nothing where the system does not tell."""
    with suppress(OSError):
        text = path.read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.M):
            return frozenset(found[1].split())
    return frozenset()


def check_devices() -> Iterator[Finding]:
    here = machine.detect_devices(refresh=True)
    if here.note:
        yield Finding("devices-unknown", "devices", "warning", here.note)
    for one in here.devices:
        odd = one.note or one.free is None
        yield Finding("gpu", "devices", "notice" if odd else "ok", _format_device(one))
    if not here.devices and not here.note:
        hardware = llama_cpp_builds.detect_hardware()
        seen = (
            f"; an NVIDIA driver ({hardware.nvidia_driver}) is here"
            if hardware.nvidia_driver
            else ""
        )
        yield Finding("no-gpu", "devices", "ok", f"no GPU that this llama.cpp can use{seen}")
    yield _check_memory(here.cpu)


def _format_device(device: Device) -> str:
    free = "unknown" if device.free is None else gib(device.free)
    total = "unknown" if device.total is None else gib(device.total)
    parts = [f"{device.name} {device.description}: {free} of {total} free"]
    parts += (
        [f"{gib(device.used_by_others)} used by other programs"] if device.used_by_others else []
    )
    parts += ["shares the computer's memory"] if device.unified else []
    parts += ["draws the screen"] if device.drives_display else []
    parts += [f"driver {device.driver}"] if device.driver else []
    parts += [device.note] if device.note else []
    return ", ".join(parts)


def _check_memory(cpu: Device) -> Finding:
    name, free, total = cpu.description or "processor", gib(cpu.free or 0), gib(cpu.total or 0)
    what = f"{name}: {free} of {total} memory free"
    what += f" ({cpu.note})" if cpu.note else ""
    if (cpu.free or 0) < _MIN_FREE_MEMORY:
        fix = "Close other programs, or run a smaller model: localspec pair suggest"
        return Finding("little-memory", "devices", "warning", what, fix)
    return Finding("memory", "devices", "ok", what)
