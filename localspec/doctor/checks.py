"""All checks, from llama.cpp to the terminal.

They only read, and use no network. An extra's check may start what a person configured
to be started: servers of tools.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

from msgspec.structs import replace

from localspec import (
    __version__,
    config,
    draft_kinds,
    extras,
    install_hints,
    paths,
    sqlite_damage,
)
from localspec.chat.history import schema
from localspec.doctor import llama_build
from localspec.doctor.findings import Finding, ok, problem, redact
from localspec.doctor.repairs import find_repair
from localspec.errors import DrafterPackageError, LocalspecError
from localspec.machine import (
    device_detection,
    installed_llama_cpp,
    llama_cpp_builds,
    memory_probe,
)
from localspec.machine.cpu_and_ram import choose_n_threads, read_cpu_cores
from localspec.machine.device import Device
from localspec.machine.llama_cpp_builds import LlamaCppBuild
from localspec.machine.measurements import MeasurementStore
from localspec.machine.memory_probe import LlamaCppInfo, ProbeError
from localspec.models import catalog, projectors, short_names
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.models.hub import network_errors
from localspec.models.local_files import hub_cache, inventory
from localspec.models.local_files.local_model import LocalModel
from localspec.temporary_files import TemporaryFolder
from localspec.units import count, gb, gib

_X86_FEATURES = (
    "SSSE3 AVX AVX_VNNI AVX2 F16C FMA BMI2 AVX512_VNNI AVX512_BF16 AMX_INT8 SVE"
)
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
"""Features worth a local build.

They count if the CPU has them and the installed build does not use them.
"""
_LOADER_FIXES = (
    (
        r"libcudart|libcublas|cudart64|cublas64",
        install_hints.install_command("nvidia-cuda-runtime-cu12", "nvidia-cublas-cu12")
        + " (or -cu11, as the name says)",
    ),
    (
        r"libamdhip|librocblas|libhipblas",
        "Install ROCm, or set LOCALSPEC_BACKEND=vulkan",
    ),
    (
        r"libvulkan|vulkan-1",
        "Install the Vulkan loader (libvulkan1), or your GPU's driver",
    ),
    (
        r"GLIBC",
        "Build it on this system: "
        + install_hints.install_command(
            "llama-cpp-python",
            options=("--force-reinstall", "--no-binary", "llama-cpp-python"),
        ),
    ),
)
"""Pattern in the dynamic loader's message -> fix."""


def check_engine() -> Iterator[Finding]:
    yield _check_versions()
    yield from _check_drafter_packages()
    try:
        info = memory_probe.query_llama_cpp()
    except (ProbeError, OSError) as error:
        yield _explain_load_failure(str(error))
        return
    yield ok("library", f"{info.library_path} {_describe_backends(info)}")
    yield _check_heads(info)
    yield from _check_cpu_features(info.features, _read_cpu_flags())
    yield ok("threads", _describe_threads())
    extra_checks: list[Callable[[], Iterator[Finding]]] = extras.load("ENGINE_CHECKS")
    for check in extra_checks:
        yield from check()
    mismatch = llama_build.find_mismatch()
    if mismatch is not None:
        yield mismatch


def _describe_backends(info: LlamaCppInfo) -> str:
    if info.supports_gpu_offload:
        return "can use a GPU"
    built_for = installed_llama_cpp.find_gpu_backends()
    if built_for:
        return f"was built for {' and '.join(built_for)} and finds no such device"
    return "can use the CPU only"


def _check_heads(info: LlamaCppInfo) -> Finding:
    *first, last = [kind.title for kind in draft_kinds.heads()]
    kinds = f"{', '.join(first)} and {last}"
    if not info.missing_head_functions:
        return ok("heads", f"can draft with {kinds} heads")
    missing = ", ".join(info.missing_head_functions)
    what = f"this llama.cpp cannot draft with heads ({kinds}): it lacks {missing}"
    fix = "Install the llama-cpp-python version that localspec requires; or use --draft none"
    return problem("no-heads", what, fix)


def _check_drafter_packages() -> Iterator[Finding]:
    """The drafters that other packages offer; most computers have none."""
    for drafter in draft_kinds.installed().values():
        try:
            kind = drafter.load()
        except DrafterPackageError as error:
            yield problem("drafter-package", error.message, error.hint)
        else:
            yield ok("drafter", f"--spec {kind.name} comes from {drafter.package}")


def _check_versions() -> Finding:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    if "microsoft" in platform.release().lower():
        system += " (WSL)"
    what = f"localspec {__version__}, Python {platform.python_version()}, {system}"
    try:
        return ok("versions", f"{what}, llama-cpp-python {_release()}")
    except metadata.PackageNotFoundError:
        required = llama_build.find_pinned_requirement() or "localspec"
        fix = install_hints.install_command(required)
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
        what = (
            "llama.cpp was built for another CPU: it stopped at an illegal instruction"
        )
        return problem("illegal-instruction", what, fix)
    return problem("engine-fails", what, fix)


def _describe_threads() -> str:
    """CPU threads of a model, and why so many."""
    cores = read_cpu_cores()
    text = f"{cores.physical} physical cores"
    if cores.performance < cores.physical:
        text += f" ({cores.performance} performance cores)"
    for record in MeasurementStore(paths.DataFile.MEASUREMENTS.path).read_all():
        costs = record.measured
        if costs is None or costs.threads is None or costs.threads_batch is None:
            continue
        return (
            f"{text}; CPU threads: {costs.threads} a token, "
            f"{costs.threads_batch} for prompts and drafts (measured)"
        )
    return f"{text}; CPU threads: {choose_n_threads()} until a model is measured"


def _check_cpu_features(features: str, cpu_flags: frozenset[str]) -> Iterator[Finding]:
    """Compare the build's CPU features with the CPU's own."""
    built = re.findall(r"(\w+) = 1", features)
    yield ok("features", f"built with {' '.join(built) or 'no CPU extension'}")
    if not cpu_flags:  # no /proc/cpuinfo
        return
    # A feature without an entry is not looked for: its flag is unknown.
    known = [name for name in built if name in _LINUX_CPU_FLAGS]
    missing = [name for name in known if _LINUX_CPU_FLAGS[name] not in cpu_flags]
    if missing:
        what = (
            f"built for CPU features this CPU lacks: {', '.join(missing)}; it may crash"
        )
        yield problem("other-cpu", what, _cpu_build_line())
    usable = [name for name in _FAST_FEATURES if _LINUX_CPU_FLAGS[name] in cpu_flags]
    unused = [name for name in usable if name not in built]
    if unused:
        what = f"built without {', '.join(unused)}, which this CPU has: slower than it could be"
        yield problem("slow-build", what, _cpu_build_line())


def _cpu_build_line() -> str:
    """The shell line that compiles the installed release for this CPU."""
    return llama_cpp_builds.shell_line(
        LlamaCppBuild("cpu", ""), _release(), sys.executable
    )


def _read_cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The first CPU's flags; empty if the file is missing."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.M)
    if line is None:
        return frozenset()
    return frozenset(line[1].split())


# --- The devices.

_MIN_FREE_MEMORY = 2 << 30  # Bytes of RAM.
_NO_CUDA_GRAPHS = "GGML_CUDA_DISABLE_GRAPHS"
_NO_DEVICE_FIX = (
    "Check the driver (nvidia-smi, rocminfo or vulkaninfo --summary), and that "
    f"{', '.join(device_detection.VISIBLE_DEVICES_VARIABLES)} name devices that are there"
)


def check_devices() -> Iterator[Finding]:
    detected = device_detection.detect_devices(refresh=True)
    if detected.note:
        yield problem("devices-unknown", detected.note, _NO_DEVICE_FIX)
    for device in detected.devices:
        what = _format_device(device)
        if device.note or device.free is None:
            yield problem("gpu", what)
        else:
            yield ok("gpu", what)
    yield from _check_cuda_graphs(os.environ, detected.devices)
    if not detected.devices and not detected.note:
        what = "no GPU that this llama.cpp can use"
        driver = llama_cpp_builds.detect_hardware().nvidia_driver
        if driver:
            what += f"; an NVIDIA driver ({driver}) is installed"
        yield ok("no-gpu", what)
    yield _check_ram(detected.cpu)


def _check_cuda_graphs(
    environ: Mapping[str, str], devices: Sequence[Device]
) -> Iterator[Finding]:
    """llama.cpp asks whether the variable is set, not what it says."""
    value = environ.get(_NO_CUDA_GRAPHS)
    if value is None:
        return
    what = f"{_NO_CUDA_GRAPHS} is set"
    if value in ("", "0"):
        said = "0" if value else "nothing"
        what += f" (to {said}, which counts too)"
    what += ": an NVIDIA GPU starts each operation by itself, which is slower"
    if any(device.backend == "CUDA" for device in devices):
        yield problem("no-cuda-graphs", what, f"unset {_NO_CUDA_GRAPHS}")
    else:
        yield ok("no-cuda-graphs", f"{what}; there is none here")


def _check_ram(cpu: Device) -> Finding:
    name = cpu.description or "CPU"
    free = cpu.free or 0
    total = cpu.total or 0
    what = f"{name}: {gib(free)} of {gib(total)} memory free"
    if cpu.note:
        what += f" ({cpu.note})"
    if free < _MIN_FREE_MEMORY:
        fix = "Close other programs, or run a smaller model: localspec pair suggest"
        return problem("little-memory", what, fix)
    return ok("memory", what)


def _format_device(device: Device) -> str:
    free = "unknown" if device.free is None else gib(device.free)
    total = "unknown" if device.total is None else gib(device.total)
    facts = [f"{device.name} {device.description}: {free} of {total} free"]
    if device.used_by_others:
        facts.append(f"{gib(device.used_by_others)} used by other programs")
    if device.unified:
        facts.append("shares the computer's memory")
    if device.drives_display:
        facts.append("drives the display")
    if device.driver:
        facts.append(f"driver {device.driver}")
    if device.note:
        facts.append(device.note)
    return ", ".join(facts)


# --- The disk.

_MIN_FREE_DISK = 10 * 10**9  # Bytes; an 8B model with its draft model takes about 6 GB.
_MAX_REPOS_SHOWN = 3  # Of those whose download can be resumed.


def check_disk() -> Iterator[Finding]:
    cache = hub_cache.cache_root()
    yield _check_folder("cache", "models", "HF_HUB_CACHE", cache)
    free = hub_cache.free_bytes(cache)
    if free < _MIN_FREE_DISK:
        fix = "Free some space, or set HF_HUB_CACHE to a folder on another disk"
        yield problem("little-room", f"only {gb(free)} free for models", fix)
    else:
        yield ok("room", f"{gb(free)} free for models")
    if os.path.isdir(cache) and os.access(cache, os.W_OK):
        yield from _check_symlinks(cache)
    yield from _check_leftovers()
    data = paths.data_dir()
    yield _check_folder(
        "data", "chats, measurements and logs", "LOCALSPEC_DATA_DIR", data
    )
    yield from _check_data_files()
    folder = inventory.models_folder()
    if folder is not None and not os.path.isdir(folder):
        fix = "Create it, or choose another: localspec config set models.folder FOLDER"
        yield problem("models-folder", f"{folder} is not a folder", fix)
    view = config.resolve()
    for fault in view.errors:
        if config.is_in_file(fault):
            yield problem("config-damaged", fault, config.EDIT_HINT)
        else:
            yield problem("environment-wrong", fault, config.UNSET_HINT)
    for warning in view.warnings:
        yield problem("config-unknown", warning, config.EDIT_HINT)
    _, error = catalog.load_valid()
    if error is not None:
        yield problem("catalogue-damaged", error.message, error.hint)


def _check_leftovers() -> Iterator[Finding]:
    leftovers = inventory.find_leftovers()
    if not leftovers:
        return
    size = gb(sum(file.size for file in leftovers))
    what = f"{size} in {count(len(leftovers), 'incomplete download')}"
    resumable = dict.fromkeys(file.repo for file in leftovers if file.resumable)
    first_repos = list(resumable)[:_MAX_REPOS_SHOWN]
    remedies = [f"localspec pull {repo} resumes it" for repo in first_repos]
    pronoun = "it" if len(leftovers) == 1 else "them"
    remedies.append(f"localspec rm --leftovers deletes {pronoun}")
    yield problem("leftovers", what, "; ".join(remedies))


def _check_folder(id_: str, contents: str, variable: str, folder: Path) -> Finding:
    """Whether a folder, or the lowest existing one above it, can be written."""
    existing = folder
    while not os.path.exists(existing) and existing != existing.parent:
        existing = existing.parent
    if os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK):
        note = "" if existing == folder else " (created when needed)"
        return ok(id_, f"{contents} in {folder}{note}")
    fix = f"Make it writable, or set {variable} to another folder"
    return problem(f"{id_}-refused", f"{existing} is not writable", fix)


def _check_data_files() -> Iterator[Finding]:
    """Reports what localspec can neither read nor replace.

    A damaged file is replaced. A folder in the place of a file is not.
    """
    for file in paths.DataFile:
        reason = _find_obstacle(file)
        if reason:
            what = f"{file.path} {reason}"
            yield problem(
                "data-file", what, "Move it away. It is made again when it is needed"
            )


def _find_obstacle(file: paths.DataFile) -> str:
    """Why the file cannot be read; empty if it can be, or does not exist."""
    path = file.path
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if file.is_folder:
        if not stat.S_ISDIR(mode):
            return "is not a folder"
    elif not stat.S_ISREG(mode):
        return "is not a file"
    if not os.access(path, os.R_OK):
        return (
            "cannot be read: it belongs to another user, or its permissions forbid it"
        )
    return ""


def _check_symlinks(cache: Path) -> Iterator[Finding]:
    """Without symbolic links the cache stores one copy of a file per revision."""
    try:
        with TemporaryFolder("links", cache) as folder:
            (folder / "link").symlink_to("nowhere")
    except (OSError, NotImplementedError):
        what = "no symbolic links in the model cache: each revision of a file takes its full size"
        fix = (
            "Windows: turn on Developer Mode; otherwise use a disk that supports links"
        )
        yield problem("no-links", what, fix)


# --- The chats.

_MAX_CHECKED_BYTES = 256 << 20
"""Larger chat databases skip the integrity check; this size takes about a second."""


def check_chats() -> Iterator[Finding]:
    """Opens the chats read-only."""
    path = paths.chats_file()
    if not os.path.exists(path):
        yield ok("chats", "no saved chats")
        return
    try:
        yield from _check_database(path)
    except sqlite_damage.DATABASE_ERRORS as error:
        if not sqlite_damage.is_damage(error, path):
            raise
        fix = "localspec doctor --fix recovers what it can read and keeps the damaged file"
        yield problem("chats-damaged", f"the chat database is damaged: {path}", fix)
    # A repair keeps the damaged file.
    copies = sorted(path.parent.glob(f"{path.name}.corrupt-*"))
    if copies:
        size = gb(sum(copy.stat().st_size for copy in copies))
        what = (
            f"{count(len(copies), 'damaged chat database')} kept, {size}: {path.parent}"
        )
        yield ok("chats-aside", what)


def _check_database(path: Path) -> Iterator[Finding]:
    size = path.stat().st_size
    with closing(schema.open_read_only(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == schema.SCHEMA_VERSION and size <= _MAX_CHECKED_BYTES:
            schema.check_integrity(connection, path)
        (n_chats,) = connection.execute("SELECT count(*) FROM chats").fetchone()
    what = "no saved chats"
    if n_chats:
        what = f"{count(n_chats, 'saved chat')}, {gb(size)}"
    yield ok("chats", what)
    if version > schema.SCHEMA_VERSION:
        what = "a newer localspec wrote the chats: they are read-only here"
        yield problem("chats-newer", what, "Update localspec")


# --- The installed models.

_TIME_BUDGET_SECONDS = 5.0  # For reading model headers.
ModelCheck = Callable[[Sequence[tuple[LocalModel, Header]]], Iterator[Finding]]
"""Findings of an extra about the installed models that can be read."""


def check_models() -> Iterator[Finding]:
    models = inventory.list_models()
    if not models:
        yield ok("models", "none installed", "localspec pair suggest")
        return
    size = gb(sum(model.size for model in models))
    yield ok("models", f"{len(models)} installed, {size}")
    deadline = time.monotonic() + _TIME_BUDGET_SECONDS
    checked: list[tuple[LocalModel, Header]] = []
    names = short_names.shorten((model.path for model in models), short_names.file_name)
    for n_done, model in enumerate(models):
        if time.monotonic() > deadline:
            n_left = len(models) - n_done
            what = f"{n_left} of them were not checked: that would take too long"
            yield problem("not-looked-at", what)
            return
        name = names[model.path]
        try:
            reader.check_magic(model.path)
            header = reader.read(model.path)
            if projectors.is_projector_file(header):
                continue  # It is loaded beside its model, never as one.
            reader.check_loadable(model.path)
            checked.append((model, header))
            if header.unsupported_reason:
                what = f"{name} cannot run: {header.unsupported_reason}"
                fix = "Run another model, or a newer localspec"
                yield problem("unsupported", what, fix)
        except LocalspecError as error:
            yield problem("unreadable", f"{name}: {error.message}", error.hint)
    model_checks: list[ModelCheck] = extras.load("MODEL_CHECKS")
    for check in model_checks:
        yield from check(checked)


# --- The network.


def check_network(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    yield from _check_offline(environ)
    yield _check_endpoint(environ.get("HF_ENDPOINT", ""))
    yield _check_token(environ)
    proxies = []
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        if environ.get(name) or environ.get(name.lower()):
            proxies.append(name)
    if proxies:
        # The values are not shown: they may hold passwords.
        yield ok("proxy", f"a proxy is set ({', '.join(proxies)})")


def _check_offline(environ: Mapping[str, str]) -> Iterator[Finding]:
    setting = config.resolve(environ).settings["network.offline"]
    if setting.origin == "command line":
        fix = "leave it out, to download models"
        yield problem("offline", f"offline: {setting.origin_text} was given", fix)
        return
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if environ.get(name, "").lower() in ("1", "on", "yes", "true"):
            fix = f"unset {name}, to download models"
            yield problem("offline", f"offline: {name} is set", fix)
    if setting.current and not setting.is_overridden:
        what = f"offline: network.offline is set in {setting.origin_text}"
        fix = "localspec config set network.offline false, to download models"
        yield problem("offline", what, fix)


def _check_endpoint(value: str) -> Finding:
    value = network_errors.trim_address(value)
    if not value:
        return ok("endpoint", "downloads come from huggingface.co (not tried now)")
    if not network_errors.is_web_address(value):
        fix = "unset HF_ENDPOINT, or set it to an address like https://hub.example"
        return problem("endpoint-wrong", "HF_ENDPOINT is not a URL", fix)
    # The address is shown without user and password.
    parts = urlsplit(value)
    address = f"{parts.scheme}://{parts.hostname}"
    if parts.port:
        address += f":{parts.port}"
    what = f"HF_ENDPOINT: downloads from {address} instead of huggingface.co"
    return problem("endpoint", what)


def _check_token(environ: Mapping[str, str]) -> Finding:
    """Whether there is a token, which is not read."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if environ.get(name):
            return ok("token", f"hub token set ({name})")
    caches = environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    token_path = environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")
    file = os.path.expanduser(token_path)
    if os.path.isfile(file):
        return ok("token", f"hub token in {file}")
    return ok("no-token", "no hub token: gated models cannot be downloaded")


# --- The terminal.

_MIN_COLUMNS = 60
_MIN_LINES = 15


def check_terminal(
    environ: Mapping[str, str] = os.environ, out: TextIO | None = None
) -> Iterator[Finding]:
    out = out or sys.__stdout__ or sys.stdout  # The app replaces sys.stdout.
    yield ok("terminal", ", ".join(_describe_terminal(environ, out)))
    size = shutil.get_terminal_size()
    what = f"{size.columns} columns, {size.lines} lines"
    is_small = size.columns < _MIN_COLUMNS or size.lines < _MIN_LINES
    if out.isatty() and is_small:
        fix = f"Enlarge it to at least {_MIN_COLUMNS} by {_MIN_LINES}"
        yield problem("small", f"{what}: small for the app", fix)
    elif out.isatty():
        yield ok("size", what)
    encoding = (getattr(out, "encoding", "") or "").lower().replace("-", "")
    if encoding != "utf8":
        shown = encoding or "unknown"
        what = f"the output encoding is {shown}: other characters become ?"
        fix = "Set PYTHONUTF8=1 and a UTF-8 locale such as LANG=C.UTF-8"
        yield problem("no-unicode", what, fix)
    else:
        yield ok("unicode", "Unicode")
    if environ.get("TERM") == "dumb":
        fix = "TERM=xterm-256color, if your terminal supports it"
        yield problem("dumb", "TERM=dumb: line-based chat only", fix)
    if sys.platform == "win32" and not environ.get("WT_SESSION"):
        what = "old console: some keys and colours may not work"
        yield problem("old-console", what, "Use Windows Terminal")


def _describe_terminal(environ: Mapping[str, str], out: TextIO) -> Iterator[str]:
    yield environ.get("TERM_PROGRAM") or environ.get("TERM") or "unknown terminal"
    if not out.isatty():
        yield "output to a file or a pipe"
    yield _describe_colours(environ)
    if environ.get("TMUX"):
        yield "in tmux"
    elif environ.get("STY"):
        yield "in screen"
    if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        yield "over SSH"


def _describe_colours(environ: Mapping[str, str]) -> str:
    if environ.get("NO_COLOR"):
        return "no colours (NO_COLOR)"
    is_true_colour = environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    if is_true_colour or environ.get("WT_SESSION"):
        return "16 million colours"
    return "256 colours" if "256" in environ.get("TERM", "") else "16 colours or fewer"


# --- All areas.

AREAS: dict[str, Callable[[], Iterator[Finding]]] = {
    "engine": check_engine,
    "devices": check_devices,
    "disk": check_disk,
    "chats": check_chats,
    "network": check_network,
    "terminal": check_terminal,
    "models": check_models,
}
"""The checks of each area, in the order of the report."""


def run_checks() -> tuple[Finding, ...]:
    """All findings, safe to share: no home folder, no user name, no tokens."""
    findings: list[Finding] = []
    for area in AREAS:
        findings += check_area(area)
    return tuple(findings)


def check_area(area: str) -> Iterator[Finding]:
    """Run one of AREAS, and add the repair of each problem.

    An exception becomes a finding.
    """
    try:
        for finding in AREAS[area]():
            repair = find_repair(finding.id)
            yield redact(replace(finding, area=area, action=repair))
    except Exception as error:  # one area that breaks must not hide the others
        what = f"this check failed: {type(error).__name__}: {error}"
        failed = problem("failed", what, "Report this, with the whole output.")
        yield redact(replace(failed, area=area))
