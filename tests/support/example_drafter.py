"""Installs the example package `tests/example_drafter/`, as a person would with pip."""

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "example_drafter"


def install(source: Path, folder: Path) -> None:
    """Build and install a package into a folder, from this environment alone."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--target", str(folder)]
    subprocess.run([*command, str(source)], check=True)
