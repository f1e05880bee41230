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
from localspec.doctor import build
from localspec.doctor.finding import Finding
from localspec.machine import backends, installing, listing
from localspec.machine import devices as machine
from localspec.machine.backends import Choice
from localspec.machine.device import Device
from localspec.machine.probe import ProbeError
from localspec.models import heads
from localspec.units import gib
from localspec.worker import crashes, ending

_CPU_FLAGS = {
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
_GAINFUL = ("AVX2", "FMA", "F16C", "AVX512", "DOTPROD")
"""Worth a build of one's own where it is missing from this one."""
_LITTLE = 2 << 30

_FIXES = (
    (
        r"libcudart|libcublas|cudart64|cublas64",
        "pip install nvidia-cuda-runtime-cu12 nvidia-cublas-cu12 (or -cu11, as the name says)",
    ),
    (r"libamdhip|librocblas|libhipblas", "Install ROCm, or set LOCALSPEC_BACKEND=vulkan"),
    (r"libvulkan|vulkan-1", "Install the Vulkan loader (libvulkan1), or your card's driver"),
    (r"GLIBC", "Build it on this system: pip install --no-binary llama-cpp-python"),
)
"""What llama.cpp misses, by what the loader says."""


def findings() -> Iterator[Finding]:
    yield _versions()
    try:
        heard = listing.listed(refresh=True)
    except (ProbeError, OSError) as error:
        yield _broken(str(error))
        return
    able = "can use a GPU" if heard.offloads else "can use the CPU only"
    yield Finding("library", "engine", "ok", f"{heard.library} {able}")
    yield _heads(heard.lacking)
    yield from _features(heard.features, _cpu_flags())
    if (found := build.mismatch()) is not None:
        yield found
    yield from _crashes()


def _versions() -> Finding:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    system += " (WSL)" if "microsoft" in platform.release().lower() else ""
    what = f"localspec {__version__}, Python {platform.python_version()}, {system}"
    try:
        what += f", llama-cpp-python {metadata.version('llama-cpp-python')}"
    except metadata.PackageNotFoundError:
        fix = f"{sys.executable} -m pip install {build.pinned() or 'localspec'}"
        return Finding("engine-missing", "engine", "error", f"{what}, no llama-cpp-python", fix)
    return Finding("versions", "engine", "ok", what)


def _broken(why: str) -> Finding:
    """llama.cpp does not even load, or dies at once."""
    for sign, fix in _FIXES:
        if re.search(sign, why):
            return Finding("library-missing", "engine", "error", f"llama.cpp fails: {why}", fix)
    with suppress(metadata.PackageNotFoundError):
        release = metadata.version(installing.PACKAGE)
        plain = Choice("cpu", "", compilers=("c++",))
        fix = installing.advice(plain, release, sys.executable)
        if re.search(r"code (-4|-?1073741795|3221225501|132)\b|SIGILL", why):
            what = "llama.cpp was built for another processor: an illegal instruction ended it"
            return Finding("illegal-instruction", "engine", "error", what, fix)
        return Finding("engine-fails", "engine", "error", f"llama.cpp fails: {why}", fix)
    return Finding("engine-fails", "engine", "error", f"llama.cpp fails: {why}", "Install it again")


def _crashes() -> Iterator[Finding]:
    """Pairs that died again and again."""
    if loops := crashes.loops():
        of = ", ".join(sorted({ending.say(how) for hows in loops for how in hows}))
        n = len(loops)
        what = f"{n} pair{'s' * (n > 1)} crashed each of the last times: {of}"
        fix = "Try a smaller context or no draft; localspec doctor --fix forgets the crashes"
        yield Finding("crash-loops", "engine", "notice", what, fix)


def _heads(lacking: Sequence[str]) -> Finding:
    """Whether drafts that read the target's hidden states can run."""
    *first, last = heads.NAMES.values()
    kinds = f"{', '.join(first)} and {last}"
    if not lacking:
        return Finding("heads", "engine", "ok", f"can guess with {kinds} heads")
    what = f"this llama.cpp cannot guess with heads ({kinds}): it lacks {', '.join(lacking)}"
    fix = "Install the llama-cpp-python that localspec names; other drafts work: --draft none"
    return Finding("no-heads", "engine", "notice", what, fix)


def _features(told: str, has: frozenset[str]) -> Iterator[Finding]:
    """What the build wants of the processor against what there is."""
    wanted = re.findall(r"(\w+) = 1", told)
    yield Finding("features", "engine", "ok", f"built with {' '.join(wanted) or 'nothing special'}")
    if not has:  # a system that does not tell
        return
    missing = [name for name in wanted if _CPU_FLAGS.get(name, name) not in has | {name}]
    choice, release = Choice("cpu", ""), metadata.version(installing.PACKAGE)
    line = installing.advice(choice, release, sys.executable)
    if missing:
        what = f"built for what this processor lacks: {', '.join(missing)}; it may die of it"
        yield Finding("other-cpu", "engine", "error", what, line)
    unused = [name for name in _GAINFUL if name not in wanted and _CPU_FLAGS[name] in has]
    if unused:
        what = (
            f"built without {', '.join(unused)}, which this processor has: slower than it could be"
        )
        yield Finding("slow-build", "engine", "notice", what, line)


def _cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Of the first processor; nothing where the system does not tell."""
    with suppress(OSError):
        text = path.read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.M):
            return frozenset(found[1].split())
    return frozenset()


def devices() -> Iterator[Finding]:
    here = machine.look(refresh=True)
    if here.note:
        yield Finding("devices-unknown", "devices", "warning", here.note)
    for one in here.devices:
        odd = one.note or one.free is None
        yield Finding("gpu", "devices", "notice" if odd else "ok", _told(one))
    if not here.devices and not here.note:
        hardware = backends.detect()
        seen = f"; an NVIDIA driver ({hardware.nvidia}) is here" if hardware.nvidia else ""
        yield Finding("no-gpu", "devices", "ok", f"no GPU that this llama.cpp can use{seen}")
    yield _memory(here.cpu)


def _told(one: Device) -> str:
    free = "unknown" if one.free is None else gib(one.free)
    total = "unknown" if one.total is None else gib(one.total)
    parts = [f"{one.name} {one.description}: {free} of {total} free"]
    parts += [f"{gib(one.others)} used by other programs"] if one.others else []
    parts += ["shares the computer's memory"] if one.unified else []
    parts += ["draws the screen"] if one.display else []
    parts += [f"driver {one.driver}"] if one.driver else []
    parts += [one.note] if one.note else []
    return ", ".join(parts)


def _memory(cpu: Device) -> Finding:
    name, free, total = cpu.description or "processor", gib(cpu.free or 0), gib(cpu.total or 0)
    what = f"{name}: {free} of {total} memory free"
    what += f" ({cpu.note})" if cpu.note else ""
    if (cpu.free or 0) < _LITTLE:
        fix = "Close other programs, or run a smaller model: localspec pair suggest"
        return Finding("little-memory", "devices", "warning", what, fix)
    return Finding("memory", "devices", "ok", what)
