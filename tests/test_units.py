"""Counts, sizes and speeds as people read them; sizes in one unit, made by `units`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import localspec
from localspec.units import count, gb, gib, size_limit

PACKAGE = Path(localspec.__file__).parent
BINARY_UNIT = re.compile(r"\b[KMG]iB\b")
EXEMPT = {
    "models/catalog_file.py",  # The form of a size in models.yaml.
    "machine/device.py",  # Lines of llama.cpp's log.
}
_NUMBER_BEFORE_UNIT = re.compile(r"^ ?[MG]B\b")


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """The lines and the texts of a file that are no documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in documentation:
            continue
        if isinstance(node.value, str):
            yield node.lineno, node.value


def _sources() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), path


def test_no_text_of_the_package_has_a_second_unit_of_memory() -> None:
    found = []
    for name, path in _sources():
        for line, text in _texts(path):
            if name not in EXEMPT and BINARY_UNIT.search(text):
                found.append(f"{name}:{line}: {text}")
    assert found == []


def test_only_the_functions_of_units_compute_a_size_within_a_text() -> None:
    """`{n >> 20} MB` and `{n / 1e9:.2f} GB` are written nowhere else."""
    found = []
    for name, path in _sources():
        if name == "units.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.JoinedStr):
                continue
            for number, unit in zip(node.values, node.values[1:], strict=False):
                is_unit = isinstance(unit, ast.Constant) and _NUMBER_BEFORE_UNIT.match(
                    str(unit.value)
                )
                is_computed = isinstance(number, ast.FormattedValue) and isinstance(
                    number.value, ast.BinOp
                )
                if is_unit and is_computed:
                    found.append(f"{name}:{node.lineno}")
    assert found == []


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (gib(24 * 2**30), "24.0 GB"),
        (size_limit(64 * 2**20), "64 MB"),
        (gb(24 * 10**9), "24.0 GB"),
    ],
)
def test_a_size_is_said_as_it_is_sold(said: str, meant: str) -> None:
    assert said == meant


@pytest.mark.parametrize(
    ("noun", "plural"),
    [
        ("token", "tokens"),
        ("code block", "code blocks"),
        ("match", "matches"),
        ("pass", "passes"),
    ],
)
def test_a_noun_has_its_english_plural(noun: str, plural: str) -> None:
    shown = [count(n, noun) for n in (0, 1, 2)]

    assert shown == [f"0 {plural}", f"1 {noun}", f"2 {plural}"]
