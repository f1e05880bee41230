"""Prepares the checkout's .venv; silent if nothing has changed."""

import sys

# Before imports that fail on an older Python, so that it shows this message instead.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        "localspec needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". "
        "Start it with a newer Python, for example:  python3.12 " + sys.argv[0]
    )

import errno
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

import builds
from compiler import as_root, compiler_needed, has_compiler, require_compiler
from progress import COMPILE_CORE_SECONDS, clock, compile_note, progress

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ".".join(map(str, sys.version_info[:2]))

STOP_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    STOP_SIGNALS.append(signal.SIGHUP)

LOG_LINES_SHOWN = 25
LOG_COLUMNS_SHOWN = 300
# Seconds between progress lines, on a terminal and in a log.
TTY_PERIOD = 0.5
PLAIN_PERIOD = 30.0


class Venv:
    """The paths of a checkout's virtual environment."""

    def __init__(self, root: Path, name: str = ".venv") -> None:
        self.root = root
        self.home = root / name
        if sys.platform == "win32":
            self.python = self.home / "Scripts/python.exe"
            self.packages = self.home / "Lib/site-packages"
        else:
            self.python = self.home / "bin/python"
            self.packages = self.home / f"lib/python{PYTHON}/site-packages"
        self.stamp = self.home / "localspec-ready"
        self.log = self.home / "install.log"
        self.build = self.home / "localspec-backend"
        # Next to .venv: the lock must survive when .venv is deleted and created again.
        self.lock = root / f"{name}.lock"


def python_for(*extras: str, venv: Venv | None = None) -> str:
    """The .venv's Python, after installing the project with `extras` if needed."""
    venv = venv or Venv(ROOT)
    try:
        if not is_ready(venv, extras):
            with on_stop_signals(interrupt), install_lock(venv.lock, say):
                if not is_ready(venv, extras):
                    install(venv, extras)
    except KeyboardInterrupt as stopped:
        say("interrupted; the next run begins the installation again")
        raise SystemExit(*stopped.args or (130,)) from None
    except OSError as problem:
        if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise SystemExit(read_only_note(venv)) from None
        raise SystemExit(f"localspec: cannot prepare {venv.home}: {problem}") from None
    return str(venv.python)


def read_only_note(venv: Venv) -> str:
    return (
        f"localspec: {venv.root} cannot be written, and {venv.home.name} belongs there. "
        f"Copy the folder to one of your own, or install the command:  "
        f"pipx install '{venv.root}[starter,serve,documents,images,tools]'"
    )


def exec_command(command: list[str]) -> None:
    """Replace this process; on Windows run `command` and exit with its code."""
    if sys.platform != "win32":
        os.execv(command[0], command)
    process = subprocess.Popen(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child handles Ctrl-C
    sys.exit(process.wait())


def say(line: str) -> None:
    print(f"localspec: {line}", file=sys.stderr, flush=True)


# --- One installation at a time.


@contextmanager
def install_lock(lock: Path, say: Callable[[str], None]) -> Iterator[None]:
    with lock.open("a") as handle:
        os.set_inheritable(handle.fileno(), True)
        if not try_lock(handle.fileno()):
            say("another installation of this checkout is running; waiting for it")
            while not try_lock(handle.fileno()):
                time.sleep(0.2)
        yield


def try_lock(handle: int) -> bool:
    """False while another process holds it; True on a file system without locks."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        return problem.errno not in (errno.EACCES, errno.EAGAIN)
    return True


# --- The state of the .venv.


def fingerprint(venv: Venv) -> str:
    """Changes with pyproject.toml, the Python version and the checkout's path."""
    project = (venv.root / "pyproject.toml").read_bytes()
    parts = (project, PYTHON, str(venv.root))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def read_stamp(venv: Venv) -> tuple[str, set[str]]:
    """Fingerprint and extras of the last complete installation."""
    try:
        installed_fingerprint, *extras = venv.stamp.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return "", set()
    return installed_fingerprint, set(extras)


def write_stamp(venv: Venv, new_fingerprint: str, extras: Iterable[str]) -> None:
    temporary = venv.stamp.with_suffix(".new")
    temporary.write_text("\n".join([new_fingerprint, *extras, ""]), encoding="utf-8")
    temporary.replace(venv.stamp)


def is_ready(venv: Venv, extras: Iterable[str]) -> bool:
    installed_fingerprint, installed_extras = read_stamp(venv)
    if installed_fingerprint != fingerprint(venv):
        return False
    if not installed_extras.issuperset(extras) or not venv.python.exists():
        return False
    return builds.is_current(builds.read_backend(venv.build))


def is_usable(venv: Venv, uv: str | None) -> bool:
    """False if the .venv is broken or has another Python: it must be created again."""
    modules = (
        "sys" if uv else "sys, pip._internal.commands.install"
    )  # pip may be broken
    is_venv = "sys.prefix != sys.base_prefix"
    has_version = f"sys.version_info[:2] == {sys.version_info[:2]}"
    code = f"import {modules}; sys.exit(not ({is_venv} and {has_version}))"
    probe = [str(venv.python), "-c", code]
    try:
        done = subprocess.run(probe, capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


# --- Installation.


def install(venv: Venv, required_extras: Iterable[str]) -> None:
    new_fingerprint = fingerprint(venv)
    _, installed_extras = read_stamp(venv)
    extras = sorted({*required_extras, *installed_extras})
    uv = shutil.which("uv")
    usable = is_usable(venv, uv)
    compiles = not (usable and (venv.packages / "llama_cpp").is_dir())
    backend = builds.read_backend(venv.build)
    build = builds.choose(backend)
    if compiles and build is None:
        require_compiler()
    note = compile_note() if compiles and build is None else ""
    say(f"installing into {venv.home}{note}")
    venv.stamp.unlink(missing_ok=True)
    if not usable:
        make_venv(venv, uv)
    if build is not None:
        install_build(venv, uv, build, reinstall=build.backend != backend)
    run_logged(venv, install_command(venv, uv, extras))
    write_stamp(venv, new_fingerprint, extras)


def install_build(
    venv: Venv, uv: str | None, build: builds.LlamaCppBuild, reinstall: bool
) -> None:
    """Install llama-cpp-python for this GPU first: later, pip accepts any build of it."""
    release = builds.pinned_release(venv.root / "pyproject.toml")
    is_installed = any(venv.packages.glob(f"llama_cpp_python-{release}*.dist-info"))
    if is_installed and not reinstall:
        return

    def run(command: Sequence[str], environ: Mapping[str, str]) -> bool:
        words = [*command[:4], *pip_options(command), *command[4:]]
        return call_logged(venv, words, environ, core_seconds=build.core_seconds) == 0

    if not builds.install(build, release, (str(venv.python), uv), run, say):
        if not (venv.packages / "llama_cpp").is_dir():
            require_compiler()
        say(
            "llama.cpp will run on the CPU; `scripts/run doctor` shows how to change that"
        )
    builds.record_backend(venv.build, build)


def make_venv(venv: Venv, uv: str | None) -> None:
    if not uv and importlib.util.find_spec("ensurepip") is None:
        raise SystemExit(
            f"localspec: this Python cannot create virtual environments. On Debian and Ubuntu:  "
            f"{as_root()}apt install python{PYTHON}-venv"
        )
    if venv.home.exists():
        shutil.rmtree(venv.home)
    venv.home.mkdir()
    # The base interpreter: this process may run the Python of the .venv just removed.
    base = str(getattr(sys, "_base_executable", sys.executable))
    home = str(venv.home)
    if uv:
        run_logged(venv, [uv, "venv", "--allow-existing", "--python", base, home])
    else:
        run_logged(venv, [base, "-m", "venv", home])


def install_command(venv: Venv, uv: str | None, extras: Sequence[str]) -> list[str]:
    python = str(venv.python)
    project = f".[{','.join(extras)}]" if extras else "."
    if uv:
        return [uv, "pip", "install", "--python", python, "-e", project]
    command = [python, "-m", "pip", "install"]
    return [*command, *pip_options(command), "-e", project]


def pip_options(command: Sequence[str]) -> list[str]:
    """Extra options if `command` is pip; none for uv."""
    if list(command[1:4]) != ["-m", "pip", "install"]:
        return []
    # -v logs the compiler's steps at once; the progress line is computed from them.
    return ["-v", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]


def run_logged(venv: Venv, command: Sequence[str]) -> None:
    """Run `command` with its output in the log; show the log's end if it fails.

    Raises SystemExit then.
    """
    if call_logged(venv, command):
        log = log_text(venv.log)
        reason = explain_failure(log, os.environ)
        if reason:
            raise SystemExit(f"localspec: {reason}  The full log is {venv.log}")
        for line in log.splitlines()[-LOG_LINES_SHOWN:]:
            print(line[:LOG_COLUMNS_SHOWN], file=sys.stderr)
        raise SystemExit(f"localspec: installation failed; the full log is {venv.log}")


UNREACHABLE = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "nodename nor servname",
    "getaddrinfo failed",
    "Network is unreachable",
    "Connection refused",
    "NewConnectionError",
    "dns error",
    "Failed to fetch",
    "error sending request",
)
NOT_FOUND = (
    "No matching distribution found",
    "Could not find a version",
    "No solution found",
    "was not found in the provided package locations",
)
INDEX_VARIABLES = (
    "PIP_NO_INDEX",
    "UV_NO_INDEX",
    "UV_OFFLINE",
    "PIP_INDEX_URL",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
)
"""Variables that keep pip or uv away from the Python package index."""
COMPILING_FAILED = (
    "CMAKE_CXX_COMPILER",
    "CMAKE_C_COMPILER",
    "No CMAKE_",
    "CMake Error",
    "Failed building wheel for llama",
    "Failed to build `llama",
)


def explain_failure(log: str, environ: Mapping[str, str]) -> str:
    """What to do about a failed installation, as one sentence; empty if it is unknown."""
    if not has_compiler() and any(text in log for text in COMPILING_FAILED):
        return compiler_needed()
    is_unreachable = any(text in log for text in UNREACHABLE)
    if not is_unreachable and not any(text in log for text in NOT_FOUND):
        return ""
    for name in INDEX_VARIABLES:
        if environ.get(name):
            return (
                f"Packages cannot be fetched, because {name} is set: unset it, or name "
                "a folder that has them in PIP_FIND_LINKS (for uv: UV_FIND_LINKS)."
            )
    if is_unreachable:
        return "The package index cannot be reached: go online, and start it again."
    return ""


def call_logged(
    venv: Venv,
    command: Sequence[str],
    environ: Mapping[str, str] | None = None,
    phase: str = "",
    core_seconds: int | None = COMPILE_CORE_SECONDS,
) -> int:
    """Run `command` with its output in the log; return its exit code.

    `phase` is shown as progress; without it, progress is computed from the log and from
    how long compiling takes (None: not measured).
    """
    process = None
    pending: list[int] = []
    with venv.log.open("wb") as log:
        try:
            # Signals are deferred until there is a process to stop.
            with on_stop_signals(lambda number, _: pending.append(number)):
                process = start(command, venv.root, log, environ)
            for number in pending:
                signal.raise_signal(number)
            return watch(process, venv.log, phase, core_seconds)
        except BaseException:
            if process:
                stop(process)
            raise


def start(
    command: Sequence[str],
    folder: Path,
    log: BinaryIO,
    environ: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that stop() reaches the compilers too
        close_fds=False,  # it inherits the lock, in case this process is killed
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.terminate()
        return
    for number in (signal.SIGINT, signal.SIGKILL):  # pip cleans up after SIGINT
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
            return


# --- Progress.


def watch(
    process: subprocess.Popen[bytes], log: Path, phase: str, core_seconds: int | None
) -> int:
    started = time.monotonic()
    live = sys.stderr.isatty()
    period = TTY_PERIOD if live else PLAIN_PERIOD
    while True:
        try:
            code = process.wait(timeout=period)
        except subprocess.TimeoutExpired:
            elapsed = time.monotonic() - started
            line = f"{clock(elapsed)}, {phase}"
            if not phase:
                line = progress(elapsed, log_text(log), core_seconds)
            if live:
                redraw(line)
            else:
                say(line)
        else:
            if live:
                redraw("")
            return code


def redraw(line: str) -> None:
    width = shutil.get_terminal_size().columns - 1
    text = f"localspec: {line}" if line else ""
    print("\r" + text[:width].ljust(width), end="\r", file=sys.stderr, flush=True)


def log_text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


# --- Signals.


def interrupt(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(128 + number)


@contextmanager
def on_stop_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP, but not those ignored already, as by nohup."""
    before = {}
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
