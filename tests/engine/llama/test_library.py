"""A llama.cpp that does not fit is found before anything is loaded with it: said with versions."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.cli.command import ROOT, localspec
from tests.support.zoo import Zoo

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need a right there")


def beside(folder: Path, old: str, new: str) -> dict[str, str]:
    """An environment in which the installed llama_cpp has one line otherwise."""
    found = importlib.util.find_spec("llama_cpp")
    assert found is not None and found.submodule_search_locations
    real, fake = Path(found.submodule_search_locations[0]), folder / "llama_cpp"
    fake.mkdir()
    for entry in real.iterdir():
        if entry.name not in ("llama_cpp.py", "__pycache__"):
            (fake / entry.name).symlink_to(entry)
    source = (real / "llama_cpp.py").read_text(encoding="utf-8")
    assert old in source
    (fake / "llama_cpp.py").write_text(source.replace(old, new), encoding="utf-8")
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('        ("n_outputs_max", ctypes.c_uint32),\n', ""),
        ('        ("n_rs_seq", ctypes.c_uint32),\n', ""),
        ('        ("ctx_type", ', '        ("new", ctypes.c_int64),\n        ("ctx_type", '),
    ],
    ids=["lacks-a-field", "lacks-another", "has-one-more"],
)
def test_another_layout_is_not_run(zoo: Zoo, tmp_path: Path, old: str, new: str) -> None:
    done = localspec("run", zoo["parrot"], "-p", "a", env=beside(tmp_path, old, new))
    assert done.code == 9, done.err
    assert "and the llama.cpp library it loads are of different releases" in done.err
    assert "Reinstall it" in done.err


def test_a_function_that_is_gone(zoo: Zoo, tmp_path: Path) -> None:
    env = beside(tmp_path, "def llama_log_set(", "def llama_log_set_as_it_was(")
    done = localspec("run", zoo["parrot"], "-p", "a", env=env)
    assert done.code == 9
    assert "has no attribute 'llama_log_set'" in done.err
    assert "Reinstall it" in done.err


def test_the_same_files_in_another_place_run(zoo: Zoo, tmp_path: Path) -> None:
    env = beside(tmp_path, "def llama_log_set(", "def llama_log_set(  # as it is\n")
    assert localspec("run", zoo["parrot"], "-p", "a", env=env).code == 0
