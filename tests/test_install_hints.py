"""The command in a hint installs into the environment that lacks the package."""

import importlib.util
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from localspec import install_hints, paths


@pytest.fixture
def in_venv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "base"))


@pytest.fixture
def in_pipx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its folder is where PIPX_HOME says."""
    environment = tmp_path / "anywhere" / "localspec"
    environment.mkdir(parents=True)
    (environment / "pipx_metadata.json").touch()
    monkeypatch.setattr(sys, "prefix", str(environment))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "base"))


@pytest.mark.usefixtures("in_pipx")
def test_in_an_environment_of_pipx_the_package_is_injected() -> None:
    command = install_hints.install_command("starlette", "uvicorn")
    assert command == "pipx inject localspec starlette uvicorn"


@pytest.mark.usefixtures("in_venv")
def test_an_environment_of_uv_has_no_pip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "uv/tools/localspec"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    command = install_hints.install_command("llguidance")
    assert command.startswith("uv pip install --python ")
    assert sys.executable in command and command.endswith(" llguidance")


@pytest.mark.usefixtures("in_venv")
def test_elsewhere_it_is_the_pip_of_this_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/a b/python")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    command = install_hints.install_command("llguidance", options=("--no-cache-dir",))
    assert "/a b/python" in command.replace("'", "").replace('"', "")
    assert command.endswith("-m pip install --no-cache-dir llguidance")


@pytest.mark.usefixtures("in_pipx")
def test_pipx_installs_a_package_again_that_is_there() -> None:
    """`pipx inject` would leave it alone."""
    command = install_hints.reinstall_llama_cpp()
    assert command.startswith("pipx runpip localspec install --force-reinstall ")


@pytest.fixture
def managed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Debian's Python: PEP 668."""
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))


@pytest.mark.usefixtures("managed")
@pytest.mark.parametrize("tools", [(), ("pipx",), ("pipx", "uv"), ("uv",)])
def test_the_system_s_python_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tools: tuple[str, ...]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if name in tools else None)
    command = install_hints.install_command("starlette", "uvicorn")
    checkout = shlex.quote(str(paths.PACKAGE.parent))
    expected = f"pipx install {checkout} && pipx inject localspec starlette uvicorn"
    if tools == ("uv",):
        expected = f"uv tool install {checkout} --with starlette --with uvicorn"
    assert command == expected
    assert "--break-system-packages" not in install_hints.reinstall_llama_cpp()


def test_the_way_to_log_in_does_not_need_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    python, *arguments = shlex.split(install_hints.login_command())
    assert python == sys.executable
    done = subprocess.run(
        [python, *arguments, "--help"], capture_output=True, check=False
    )
    assert done.returncode == 0
    assert b"login" in done.stdout


def test_a_drafter_s_package_is_removed_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "base"))
    removed = install_hints.uninstall_command("echo-drafter")
    assert removed.endswith("-m pip uninstall echo-drafter")


@pytest.mark.usefixtures("in_pipx")
def test_pipx_removes_a_drafter_s_package() -> None:
    removed = install_hints.uninstall_command("echo-drafter")
    assert removed == "pipx uninject localspec echo-drafter"
