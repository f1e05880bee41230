"""The house rules that a program can see: lengths, reasons, first lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import quantiles

import pytest

import localspec
from localspec.engine import protocols

ROOT = Path(__file__).resolve().parent.parent
LONG = {
    "localspec/protocol/wire.py": "the contract of both processes, which is read as one",
    "localspec/machine/simulated_gpu.py": "one C interface, whose functions share its structs",
    "localspec/worker/engine_process.py": (
        "one process and the patience with it: its parts are one state"
    ),
    "localspec/tui/screens/measurement.py": "what two screens share, whole",
    "scripts/check_templates.py": "a program of one file, with its report",
}
"""Files of more than 300 lines, and why they were not divided."""


@cache
def files(folder: str) -> dict[str, str]:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def lengths(folder: str) -> Iterator[tuple[int, str]]:
    for name, text in files(folder).items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield node.end_lineno - node.lineno + 1, f"{name}:{node.lineno} {node.name}"


@pytest.mark.parametrize("folder", ["localspec", "scripts", "tests"])
def test_functions_are_short(folder: str) -> None:
    found = sorted(lengths(folder))
    assert quantiles([n for n, _ in found], n=20)[-1] <= 30
    assert [name for n, name in found if n > 60] == []


def test_files_are_short_or_say_why() -> None:
    every = files("localspec") | files("scripts")
    long = {name for name, text in every.items() if text.count("\n") > 300}
    assert long - set(LONG) == set()
    assert set(LONG) - long == set(), "no reason is needed any more"
    assert [name for name in long if every[name].count("\n") > 400] == []


@pytest.mark.parametrize("folder", ["localspec", "scripts"])
def test_a_file_says_what_it_is(folder: str) -> None:
    found = files(folder).items()
    assert [name for name, text in found if text and not ast.get_docstring(ast.parse(text))] == []


def test_what_is_public_says_what_it_does() -> None:
    """The API, and what the engine's parts need from one another."""
    public = [getattr(localspec, name) for name in localspec.__all__ if name != "__version__"]
    parts = [getattr(protocols, name) for name in vars(protocols) if name[0].isupper()]
    ours = [one for one in parts if getattr(one, "__module__", "") == protocols.__name__]
    for one in (*public, *ours):
        named = (member for name, member in vars(one).items() if name[0] != "_")
        members = [m for m in named if callable(m) or isinstance(m, property)]
        for documented in (one, *members):
            assert documented.__doc__, f"{one.__name__}: {documented}"


def test_a_broad_except_has_a_reason() -> None:
    """It raises again, or a comment on its line says why it takes everything."""
    bare = []
    for name, text in (files("localspec") | files("scripts")).items():
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            )
            raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            if broad and not raises and "#" not in lines[node.lineno - 1]:
                bare.append(f"{name}:{node.lineno}")
    assert bare == []
