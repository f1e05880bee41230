"""Drafters of other packages: `tests/example_drafter/` is installed beside localspec."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import example_drafter
from tests.support.run_command import ROOT, Done, localspec

QUESTION = ("-p", "def f(a, b):", "--temperature", "0", "--max-tokens", "24")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, as pip leaves it."""
    folder = tmp_path_factory.mktemp("installed")
    example_drafter.install(example_drafter.SOURCE, folder)
    return folder


@pytest.fixture
def broken(installed: Path, tmp_path: Path) -> Path:
    """The same package, whose code needs another one that is missing."""
    folder = tmp_path / "broken"
    shutil.copytree(installed, folder)
    code = folder / "localspec_echo" / "__init__.py"
    code.write_text(f"import missing_package\n{code.read_text()}")
    return folder


def run_beside(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> Done:
    """Run localspec with the packages of a folder beside it."""
    paths = {"PYTHONPATH": f"{ROOT}:{folder}"}
    return localspec(*arguments, env={**paths, **(env or {})})


def test_it_drafts_in_the_engine_and_the_text_stays_the_same(installed: Path) -> None:
    plain = run_beside(installed, "run", "demo", *QUESTION, "--spec", "off", "--json")
    echoed = run_beside(installed, "run", "demo", *QUESTION, "--spec", "echo", "--json")

    assert echoed.code == 0, echoed.err
    assert echoed.document["text"] == plain.document["text"]
    assert set(echoed.document["speculation"]["by_source"]) == {"echo"}
    assert echoed.document["speculation"]["drafted"] > 0


def test_help_lists_it(installed: Path) -> None:
    done = run_beside(installed, "run", "--help")

    assert "Of other packages: echo." in " ".join(done.text.split())


def test_the_shell_completes_it(installed: Path) -> None:
    words = "localspec run --spec e"
    completion = {
        "_LOCALSPEC_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": "3",
    }

    done = run_beside(installed, env=completion)

    assert done.text.split() == ["plain,eagle3", "plain,echo"]


def test_it_may_be_the_preference_of_config_toml(
    installed: Path, tmp_path: Path
) -> None:
    home = {"LOCALSPEC_CONFIG": str(tmp_path / "config.toml")}

    done = run_beside(installed, "config", "set", "answers.spec", "echo", env=home)
    assert done.code == 0, done.err
    shown = run_beside(installed, "config", "get", "answers.spec", env=home)

    assert shown.text.strip() == "echo"


def test_the_doctor_names_its_package(installed: Path) -> None:
    done = run_beside(installed, "doctor", "--json")

    findings = {each["id"]: each for each in done.document["findings"]}
    assert findings["drafter"]["what"] == "--spec echo comes from localspec-echo 1.0"


def test_without_the_package_the_name_is_unknown() -> None:
    done = localspec("run", "demo", *QUESTION, "--spec", "echo")

    assert done.code == 2
    assert "'echo' is not possible" in done.err


def test_a_package_that_cannot_be_imported_is_named_in_the_error(broken: Path) -> None:
    done = run_beside(broken, "run", "demo", *QUESTION, "--spec", "echo")

    assert done.code == 17
    assert "the package localspec-echo 1.0 cannot be used" in done.err
    assert "No module named 'missing_package'" in done.err
    assert "pip uninstall localspec-echo" in done.err


def test_such_a_package_does_not_disturb_other_drafters(broken: Path) -> None:
    done = run_beside(broken, "run", "demo", *QUESTION, "--spec", "lookup")

    assert done.code == 0, done.err


def test_the_doctor_explains_such_a_package(broken: Path) -> None:
    done = run_beside(broken, "doctor", "--json")

    findings = {each["id"]: each for each in done.document["findings"]}
    assert "localspec-echo 1.0" in findings["drafter-package"]["what"]
    assert "pip uninstall localspec-echo" in findings["drafter-package"]["fix"]


def test_code_that_only_the_engine_imports_is_named_in_the_error(
    installed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(installed, folder)
    code = folder / "localspec_echo" / "drafter.py"
    code.write_text(f"import missing_package\n{code.read_text()}")

    done = run_beside(folder, "run", "demo", *QUESTION, "--spec", "echo")

    assert done.code == 17
    assert "the package localspec-echo 1.0 cannot be used" in done.err
