"""Makes the checkout's .venv ready, silently when nothing changed."""

import sys

# Before anything that an older Python cannot import, so that it gets a sentence.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        "localspec needs Python 3.11 or newer, and this is " + sys.version.split()[0] + ": "
        "start it with a newer one, such as  python3.12 " + sys.argv[0]
    )

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

import builds
from compiler import as_root, require_compiler
from lock import only_one
from progress import first_time_note, progress

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ".".join(map(str, sys.version_info[:2]))

STOP_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    STOP_SIGNALS.append(signal.SIGHUP)

LOG_LINES_SHOWN, LOG_COLUMNS_SHOWN = 25, 300
TTY_PERIOD, PLAIN_PERIOD = 0.5, 30.0
"""Seconds between two progress lines: one that is redrawn, one that scrolls."""


class Venv:
    """Where the parts of a checkout's virtual environment lie."""

    def __init__(self, root: Path) -> None:
        windows = sys.platform == "win32"
        self.root = root
        self.home = root / ".venv"
        self.python = self.home / ("Scripts/python.exe" if windows else "bin/python")
        self.packages = self.home / ("Lib" if windows else f"lib/python{PYTHON}") / "site-packages"
        self.stamp = self.home / "localspec-ready"
        self.log = self.home / "install.log"
        self.build = self.home / "localspec-backend"
        # Beside .venv, not in it: it has to outlive a .venv that is made anew.
        self.lock = root / ".venv.lock"


def python_for(*extras: str, root: Path = ROOT) -> str:
    """The .venv's python, after installing whatever the project with `extras` still lacks."""
    venv = Venv(root)
    try:
        if not is_ready(venv, extras):
            with on_stop_signals(give_up), only_one(venv.lock, say):
                if not is_ready(venv, extras):
                    install(venv, extras)
    except KeyboardInterrupt as stopped:
        say("interrupted; the next run takes the installation up again")
        raise SystemExit(*stopped.args or (130,)) from None
    except OSError as problem:
        raise SystemExit(f"localspec: cannot prepare {venv.home}: {problem}") from None
    return str(venv.python)


def hand_over(command: list[str]) -> None:
    """Become `command`; Windows has no exec that keeps the terminal, so there wait for it."""
    if sys.platform != "win32":
        os.execv(command[0], command)
    process = subprocess.Popen(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the child's to answer
    sys.exit(process.wait())


def say(line: str) -> None:
    print(f"localspec: {line}", file=sys.stderr, flush=True)


# What is there already.


def fingerprint(venv: Venv) -> str:
    """Changes when the project's needs, the Python or the place of the checkout change."""
    parts = (venv.root / "pyproject.toml").read_bytes(), PYTHON, str(venv.root)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def read_stamp(venv: Venv) -> tuple[str, set[str]]:
    """The fingerprint of the last complete installation, and its extras."""
    try:
        mark, *extras = venv.stamp.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return "", set()
    return mark, set(extras)


def write_stamp(venv: Venv, mark: str, extras: Iterable[str]) -> None:
    draft = venv.stamp.with_suffix(".new")
    draft.write_text("\n".join([mark, *extras, ""]), encoding="utf-8")
    draft.replace(venv.stamp)


def is_ready(venv: Venv, extras: Iterable[str]) -> bool:
    mark, installed = read_stamp(venv)
    if not (mark == fingerprint(venv) and installed.issuperset(extras) and venv.python.exists()):
        return False
    return builds.is_wanted(builds.kept(venv.build))


def is_usable(venv: Venv, uv: str | None) -> bool:
    """Whether what is there can be installed into, rather than made anew."""
    needed = "sys" if uv else "sys, pip._internal.commands.install"  # half a pip will not do
    fits = f"sys.prefix != sys.base_prefix and sys.version_info[:2] == {sys.version_info[:2]}"
    probe = [str(venv.python), "-c", f"import {needed}; sys.exit(not ({fits}))"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


# Installing.


def install(venv: Venv, wanted: Iterable[str]) -> None:
    mark = fingerprint(venv)
    extras = sorted({*wanted, *read_stamp(venv)[1]})
    uv = shutil.which("uv")
    usable = is_usable(venv, uv)
    compiles = not (usable and (venv.packages / "llama_cpp").is_dir())
    kept = builds.kept(venv.build)
    build = builds.chosen(kept)
    if compiles and build is None:
        require_compiler()
    say(f"installing into {venv.home}" + (first_time_note() if compiles and not build else ""))
    venv.stamp.unlink(missing_ok=True)
    if not usable:
        make(venv, uv)
    if build is not None:
        fetch_build(venv, uv, build, anew=build.backend != kept)
    run_logged(venv, install_command(venv, uv, extras))
    write_stamp(venv, mark, extras)


def fetch_build(venv: Venv, uv: str | None, build: builds.LlamaCppBuild, anew: bool) -> None:
    """llama-cpp-python for this computer's GPU, before the rest would take any build of it."""
    release = builds.release(venv.root / "pyproject.toml")
    if not anew and any(venv.packages.glob(f"llama_cpp_python-{release}*.dist-info")):
        return

    def run(command: Sequence[str], environ: Mapping[str, str]) -> bool:
        return logged(venv, [*command[:4], *manners(command), *command[4:]], environ) == 0

    if not builds.install(build, release, (str(venv.python), uv), run, say):
        if not (venv.packages / "llama_cpp").is_dir():
            require_compiler()
        say("so llama.cpp runs on the CPU; `scripts/run doctor` says how to change that")
    builds.keep(venv.build, build)


def make(venv: Venv, uv: str | None) -> None:
    if not uv and importlib.util.find_spec("ensurepip") is None:
        raise SystemExit(
            f"localspec: this Python cannot make virtual environments yet. On Debian and Ubuntu:  "
            f"{as_root()}apt install python{PYTHON}-venv"
        )
    if venv.home.exists():
        shutil.rmtree(venv.home)
    venv.home.mkdir()
    # The base interpreter, since this may be the python of the .venv just removed.
    base = str(getattr(sys, "_base_executable", sys.executable))
    with_uv = [uv or "", "venv", "--allow-existing", "--python", base, str(venv.home)]
    run_logged(venv, with_uv if uv else [base, "-m", "venv", str(venv.home)])


def install_command(venv: Venv, uv: str | None, extras: Sequence[str]) -> list[str]:
    python = str(venv.python)
    project = f".[{','.join(extras)}]" if extras else "."
    if uv:
        return [uv, "pip", "install", "--python", python, "-e", project]
    command = [python, "-m", "pip", "install"]
    return [*command, *manners(command), "-e", project]


def manners(command: Sequence[str]) -> list[str]:
    """What pip is to be told besides; uv needs none."""
    if list(command[1:4]) != ["-m", "pip", "install"]:
        return []
    # -v writes the compiler's steps to the log as they happen: the progress line reads them.
    return ["-v", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]


def run_logged(venv: Venv, command: Sequence[str]) -> None:
    """Run `command` with its output in the log; exit with the log's end if it fails."""
    if logged(venv, command):
        for line in log_text(venv.log).splitlines()[-LOG_LINES_SHOWN:]:
            print(line[:LOG_COLUMNS_SHOWN], file=sys.stderr)
        raise SystemExit(f"localspec: installation failed; the lines above end {venv.log}")


def logged(venv: Venv, command: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Run `command` with its output in the log; its exit code."""
    process, pending = None, list[int]()
    with venv.log.open("wb") as log:
        try:
            # Until we know whom to stop, a signal has to wait.
            with on_stop_signals(lambda number, _: pending.append(number)):
                process = start(command, venv.root, log, environ)
            for number in pending:
                signal.raise_signal(number)
            return watch(process, venv.log)
        except BaseException:
            if process:
                stop(process)
            raise


def start(
    command: Sequence[str], folder: Path, log: BinaryIO, environ: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that stop() reaches the compilers too
        close_fds=False,  # should we be killed, it goes on holding the lock
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.terminate()
        return
    for number in (signal.SIGINT, signal.SIGKILL):  # after the first, pip clears up
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
            return


# Progress.


def watch(process: subprocess.Popen[bytes], log: Path) -> int:
    started = time.monotonic()
    live = sys.stderr.isatty()
    while True:
        try:
            code = process.wait(timeout=TTY_PERIOD if live else PLAIN_PERIOD)
        except subprocess.TimeoutExpired:
            line = progress(time.monotonic() - started, log_text(log))
            redraw(line) if live else say(line)
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


# Tidy when told to stop.


def give_up(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(128 + number)


@contextmanager
def on_stop_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Ctrl-C, a kill or a closed terminal call `handler`, unless ignored as nohup wishes."""
    heard = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
