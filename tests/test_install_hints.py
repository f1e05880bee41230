"""The command in a hint installs into the environment that lacks the package."""

import importlib.util
import sys
import sysconfig
from pathlib import Path

import pytest

from localspec import install_hints


@pytest.fixture
def in_venv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "base"))


@pytest.mark.usefixtures("in_venv")
def test_in_an_environment_of_pipx_the_package_is_injected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/a/.local/share/pipx/venvs/localspec")
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


def test_debians_python_is_told_that_the_user_wants_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert "--break-system-packages" in install_hints.install_command("llguidance")


def test_no_hint_names_a_pip_without_its_python() -> None:
    """Every command in a message comes from here, or names the Python that it is for."""
    package = Path(install_hints.__file__).parent
    for path in package.rglob("*.py"):
        if path.name == "install_hints.py":
            continue
        for line in path.read_text("utf-8").splitlines():
            assert "pip install '" not in line, path
            assert "again: pip install" not in line, path
