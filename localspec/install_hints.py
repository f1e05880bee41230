"""Commands that change the environment this process runs in, for hints.

`pip install` alone installs elsewhere, or nowhere: pipx and uv keep a command in an
environment of its own, often without pip, and the system may manage its own Python
(PEP 668), which pip then refuses to change.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, assert_never

SERVE_PACKAGES = ("starlette", "uvicorn")
GRAMMAR_PACKAGES = ("llguidance",)
DOCUMENT_PACKAGES = ("pypdf",)

_Environment = Literal["pipx", "uv", "system", "pip"]
"""Who may change it: pipx, uv, the system only, or the pip of this Python."""


def install_command(*packages: str, options: Sequence[str] = ()) -> str:
    """For a shell; `options` are pip's, which uv knows, too."""
    environment = _find_environment()
    match environment:
        case "pipx":
            if options:  # `pipx inject` leaves packages alone that are there.
                arguments = ["runpip", _venv_name(), "install", *options]
                return _join(["pipx", *arguments, *packages])
            return _join(["pipx", "inject", _venv_name(), *packages])
        case "uv":
            uv_options = [each for each in options if each != "--no-cache-dir"]
            return _join([*_uv_pip("install"), *uv_options, *packages])
        case "system":
            return _install_apart(packages, options)
        case "pip":
            return _join([*_pip("install"), *options, *packages])
    assert_never(environment)


def uninstall_command(package: str) -> str:
    environment = _find_environment()
    match environment:
        case "pipx":
            return _join(["pipx", "uninject", _venv_name(), package])
        case "uv":
            return _join([*_uv_pip("uninstall"), package])
        case "system":  # Whatever installed the package there.
            return _join([*_pip("uninstall"), "--break-system-packages", package])
        case "pip":
            return _join([*_pip("uninstall"), package])
    assert_never(environment)


def reinstall_llama_cpp() -> str:
    options = ("--force-reinstall", "--no-cache-dir")
    return install_command("llama-cpp-python", options=options)


def login_command() -> str:
    """Logs in to the hub; `hf` is on the path only of an active environment."""
    if shutil.which("hf"):
        return "hf auth login"
    return _join([sys.executable, "-m", "huggingface_hub.cli.hf", "auth", "login"])


def _find_environment() -> _Environment:
    prefix = Path(sys.prefix)
    # pipx's folder may have any name (PIPX_HOME); its file in an environment has one.
    if (prefix / "pipx_metadata.json").is_file():
        return "pipx"
    is_venv = sys.prefix != sys.base_prefix
    if is_venv and importlib.util.find_spec("pip") is None:
        return "uv"
    if not is_venv and _is_externally_managed():
        return "system"
    return "pip"


def _venv_name() -> str:
    """Of an environment of pipx: the name by which pipx knows it."""
    return Path(sys.prefix).name


def _pip(command: str) -> list[str]:
    return [sys.executable, "-m", "pip", command]


def _uv_pip(command: str) -> list[str]:
    return ["uv", "pip", command, "--python", sys.executable]


def _install_apart(packages: Sequence[str], options: Sequence[str]) -> str:
    """Installs localspec and `packages` where the system does not mind.

    `--break-system-packages` would do what its name says.
    """
    source = _own_source()
    if shutil.which("uv") and not shutil.which("pipx"):
        command = ["uv", "tool", "install", source]
        for package in packages:
            command += ["--with", package]
        return _join(command)
    install = ["pipx", "install", source]
    from_source = [each for each in options if "force" not in each]
    if from_source:
        install.insert(2, f"--pip-args={shlex.join(from_source)}")
    inject = ["pipx", "inject", "localspec", *packages]
    return f"{_join(install)} && {_join(inject)}"


def _own_source() -> str:
    """What installs this localspec again: its folder, or its name on the index."""
    from importlib import metadata  # noqa: PLC0415  it takes 20 ms
    from urllib.parse import urlsplit  # noqa: PLC0415
    from urllib.request import url2pathname  # noqa: PLC0415  slow

    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        return str(checkout)
    try:
        text = metadata.distribution("localspec").read_text("direct_url.json")
        url = urlsplit(json.loads(text or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, OSError, ValueError, AttributeError):
        return "localspec"
    folder = Path(url2pathname(url.path))
    return str(folder) if url.scheme == "file" and folder.exists() else "localspec"


def _is_externally_managed() -> bool:
    """Whether pip refuses to change this Python: PEP 668."""
    return Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists()


def _join(arguments: Sequence[str]) -> str:
    if sys.platform == "win32":
        return subprocess.list2cmdline(arguments)
    return shlex.join(arguments)
