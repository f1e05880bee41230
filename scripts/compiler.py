"""Checks for a C++ compiler, and names the command that installs one."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

COMPILERS = {
    "debian": "apt install g++",
    "ubuntu": "apt install g++",
    "fedora": "dnf install gcc-c++",
    "rhel": "dnf install gcc-c++",
    "arch": "pacman -S --needed base-devel",
    "alpine": "apk add build-base",
    "suse": "zypper install gcc-c++",
    "opensuse": "zypper install gcc-c++",
}
BUILD_TOOLS = (
    "winget install Microsoft.VisualStudio.2022.BuildTools --override "
    '"--passive --wait --add Microsoft.VisualStudio.Workload.VCTools --includeRecommended"'
)
WHEEL_SOURCES = (
    "PIP_FIND_LINKS",
    "PIP_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_EXTRA_INDEX_URL",
)
"""If one of these is set, it may provide a prebuilt llama-cpp-python: without a compiler
the installation is tried, and its failure is explained.
"""


def require_compiler() -> None:
    if has_compiler() or any(os.environ.get(name) for name in WHEEL_SOURCES):
        return
    raise SystemExit(f"localspec: {compiler_needed()}")


def compiler_needed() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    hint = compiler_hint(platform.system(), release)
    return f"llama.cpp must be compiled. Install a C++ compiler:  {hint}"


def has_compiler() -> bool:
    if sys.platform == "win32":  # cl is not on the PATH; CMake finds it with vswhere
        programs = Path(os.environ.get("PROGRAMFILES(X86)", "C:/Program Files (x86)"))
        if (programs / "Microsoft Visual Studio/Installer/vswhere.exe").exists():
            return True
    # c++ is a stub until the command line tools are installed
    if sys.platform == "darwin":
        done = subprocess.run(["xcode-select", "-p"], capture_output=True, check=False)
        return done.returncode == 0
    names = [*os.environ.get("CXX", "").split()[:1], "c++", "g++", "clang++", "cl"]
    return any(map(shutil.which, names))


def compiler_hint(system: str, release: Mapping[str, str]) -> str:
    """The line that installs a C++ compiler on this system."""
    if system == "Windows":
        return BUILD_TOOLS
    if system == "Darwin":
        return "xcode-select --install"
    families = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    for family in families:
        if family in COMPILERS:
            return as_root() + COMPILERS[family]
    return "install g++ or clang++ with your system's package manager"


def as_root() -> str:
    return "" if sys.platform != "win32" and os.geteuid() == 0 else "sudo "
