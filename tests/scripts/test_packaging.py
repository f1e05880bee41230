"""The content of a wheel, and what it does once it is installed."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_BUNDLED = {"demo": 24_000_000, "starter": 14_000_000}
"""Bytes of the bundled models by folder."""
PACKED = ("pyproject.toml", "models.yaml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    copy = tmp_path_factory.mktemp("source")
    for name in PACKED:
        shutil.copy(ROOT / name, copy / name)
    shutil.copytree(
        ROOT / "localspec",
        copy / "localspec",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = subprocess.run(
        command, cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_wheel_contains_the_catalogue_and_the_demo_pair(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert (
            archive.read("localspec/models.yaml") == (ROOT / "models.yaml").read_bytes()
        )
    assert {
        f"localspec/data/demo/demo-{role}.gguf" for role in ("target", "draft")
    } <= names
    starter = ("smollm2-135m-eagle3.gguf", "README.md", "LICENSE")
    assert {f"localspec/data/starter/{name}" for name in starter} <= names
    assert not [name for name in names if name.startswith(("tests", "scripts", "docs"))]
    assert not [name for name in names if "__pycache__" in name]
    suffixes = (".py", ".jinja", ".yaml", ".toml", ".typed")
    files = [
        path for path in (ROOT / "localspec").rglob("*") if path.suffix in suffixes
    ]
    assert {path.relative_to(ROOT).as_posix() for path in files} <= names


def test_the_bundled_models_stay_small() -> None:
    for folder, most in MAX_BUNDLED.items():
        files = (ROOT / "localspec/data" / folder).glob("*.gguf")
        assert 0 < sum(path.stat().st_size for path in files) <= most, folder


ANSWERS = r"""
from localspec import launch, paths
from localspec.cli import main
choice = launch.resolve_pair("demo", "auto")
print(paths.catalog_file(), choice.target, choice.draft, sep="\n")
main(["run", "demo", "-p", "import os", "--max-tokens", "4", "--json", "--seed", "1"])
"""


def test_an_installed_package_answers_with_its_own_files(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", ANSWERS],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(installed), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    catalogue, *pair, answer = done.stdout.split("\n", 3)
    assert Path(catalogue) == installed / "localspec" / "models.yaml"
    assert {Path(file).parent for file in pair} == {
        installed / "localspec" / "data" / "demo"
    }
    assert json.loads(answer)["model"] == "demo-target.gguf"
