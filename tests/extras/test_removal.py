"""The core works without any one of the extras' folders, and does not know them."""

import ast
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from localspec import extras
from localspec.command_table import CommandRow
from tests.support.run_command import ROOT

FOLDERS = sorted(path.parent for path in Path(extras.__path__[0]).glob("*/__init__.py"))
NAMES = [folder.name for folder in FOLDERS]
TREE = ("localspec", "tests", "scripts", "docs")
FILES = ("pyproject.toml", "models.yaml", "README.md", "CONTRIBUTING.md", "LICENSE")
TESTS_OF_EVERYTHING = (
    # They show the settings and the files of the extras too.
    "tests/tui/test_app.py::test_picture[home-preferences-80x24]",
    "tests/tui/test_app.py::test_picture[home-damaged-preferences-80x24]",
    "tests/config/test_options.py::test_the_document_has_every_value_as_the_table_has_it",
    "tests/test_own_files.py::test_every_file_of_the_data_folder_is_in_the_table",
)


def copy_without(name: str, folder: Path) -> Path:
    """A copy of this tree in which the folders of one extra and its tests are missing."""
    missing = {ROOT / "localspec/extras" / name, ROOT / "tests/extras" / name}

    def find_left_out(directory: str, names: list[str]) -> list[str]:
        left_out = ["__pycache__"]
        for each in names:
            if each.startswith(".") or Path(directory, each) in missing:
                left_out.append(each)
        return left_out

    copy = folder / "copy"
    copy.mkdir()
    for each in TREE:
        shutil.copytree(ROOT / each, copy / each, ignore=find_left_out)
    for each in FILES:
        shutil.copy(ROOT / each, copy / each)
    return copy


def run_in(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )


@functools.cache
def imported_modules(path: Path) -> frozenset[str]:
    """The modules that a file imports, and what it imports from them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def imports_one_of(path: Path, packages: Sequence[str]) -> bool:
    for module in imported_modules(path):
        for package in packages:
            if module == package or module.startswith(f"{package}."):
                return True
    return False


@pytest.mark.parametrize("name", NAMES)
def test_only_an_extra_and_its_tests_import_it(name: str) -> None:
    own_folders = (ROOT / "localspec/extras" / name, ROOT / "tests/extras" / name)
    packages = (f"localspec.extras.{name}", f"tests.extras.{name}")
    files = [*(ROOT / "localspec").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    importing: list[str] = []
    for path in files:
        is_own = any(path.is_relative_to(folder) for folder in own_folders)
        if not is_own and imports_one_of(path, packages):
            importing.append(str(path.relative_to(ROOT)))

    assert importing == []


@pytest.mark.parametrize("name", NAMES)
def test_without_its_folder_a_command_is_unknown_and_a_model_answers(
    name: str, tmp_path: Path
) -> None:
    own_prefix = f"localspec.extras.{name}."
    commands: list[CommandRow] = [
        row for row in extras.rows("COMMANDS") if row.path.startswith(own_prefix)
    ]
    copy = copy_without(name, tmp_path)

    question = ("-p", "def f(", "--max-tokens", "4")
    answer = run_in(copy, "localspec", "run", "demo", *question)
    shown = run_in(copy, "localspec", "--help")

    assert answer.returncode == 0
    assert answer.stderr.count("\n") < 5
    assert shown.returncode == 0
    for row in commands:
        assert row.about not in shown.stdout
        unknown = run_in(copy, "localspec", row.name)
        assert unknown.returncode == 2
        assert f"There is no command '{row.name}'." in unknown.stderr


@pytest.mark.long
@pytest.mark.skipif(
    not os.environ.get("LOCALSPEC_TEST_BULK"), reason="a whole suite for each folder"
)
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", NAMES)
def test_the_core_passes_its_tests_without_the_folder(
    name: str, tmp_path: Path
) -> None:
    """All folders take an hour. `-k "its_tests and workers"` chooses one."""
    copy = copy_without(name, tmp_path)
    left_out = [f"--deselect={test}" for test in TESTS_OF_EVERYTHING]
    left_out.append("--ignore=tests/extras/test_removal.py")

    done = run_in(copy, "pytest", "-q", "-n2", "--dist=worksteal", *left_out)

    assert done.returncode == 0, done.stdout[-4000:]
