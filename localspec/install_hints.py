"""The command that installs a package into the environment this process runs in.

`pip install` alone installs elsewhere, or nowhere: pipx and uv keep a command in an
environment of its own, often without pip, and Debian's Python refuses to be changed.
"""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

SERVE_PACKAGES = ("starlette", "uvicorn")
GRAMMAR_PACKAGES = ("llguidance",)


def install_command(*packages: str, options: Sequence[str] = ()) -> str:
    """For a shell; `options` are pip's, which uv knows, too."""
    prefix = Path(sys.prefix)
    if "pipx" in prefix.parts and "venvs" in prefix.parts:
        arguments = ["pipx", "inject"]
        if options:
            arguments += [f"--pip-args={shlex.join(options)}"]
        return _join([*arguments, prefix.name, *packages])
    is_venv = sys.prefix != sys.base_prefix
    if is_venv and importlib.util.find_spec("pip") is None:
        uv_options = [option for option in options if option != "--no-cache-dir"]
        command = ["uv", "pip", "install", "--python", sys.executable]
        return _join([*command, *uv_options, *packages])
    arguments = [sys.executable, "-m", "pip", "install", *options]
    if not is_venv and _is_externally_managed():
        arguments.append("--break-system-packages")
    return _join([*arguments, *packages])


def reinstall_llama_cpp() -> str:
    options = ("--force-reinstall", "--no-cache-dir")
    return install_command("llama-cpp-python", options=options)


def _is_externally_managed() -> bool:
    """Whether pip refuses to change this Python: PEP 668."""
    return Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists()


def _join(arguments: Sequence[str]) -> str:
    if sys.platform == "win32":
        return subprocess.list2cmdline(arguments)
    return shlex.join(arguments)
