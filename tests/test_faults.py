"""docs/quality/faults.md: every fault once; its tests exist and its exit codes are in use."""

from __future__ import annotations

import ast
import re
import signal
from functools import cache
from pathlib import Path

import pytest

from localspec import errors

ROOT = Path(__file__).resolve().parents[1]
FAULTS = 95
_ROW = re.compile(r"\| (\d+) \| (.+?) \| (.+) \| (.+) \|")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_SIGNALS = ("SIGHUP", "SIGINT", "SIGPIPE", "SIGTERM")


def rows() -> dict[int, tuple[str, str, str]]:
    """Fault, behaviour and tests by number."""
    table = (ROOT / "docs" / "quality" / "faults.md").read_text(encoding="utf-8")
    found = [_ROW.fullmatch(line) for line in table.splitlines() if re.match(r"\| \d", line)]
    assert all(found), "a row that cannot be read"
    parts = [row.groups() for row in found if row]
    numbers = [int(number) for number, *_ in parts]
    assert numbers == list(range(1, FAULTS + 1)), "each once, in order"
    return {int(number): (fault, does, tests) for number, fault, does, tests in parts}


ROWS = rows()


@cache
def named_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


@pytest.mark.parametrize("number", ROWS)
def test_a_row_names_tests_that_are_there(number: int) -> None:
    *_, tests = ROWS[number]
    named = _TEST.findall(tests)
    assert named
    assert _TEST.sub("", tests).strip() == "", "nothing else stands there"
    for file, name in named:
        assert name in named_in(file), f"{file} has no {name}"


@pytest.mark.parametrize("number", ROWS)
def test_a_row_says_something(number: int) -> None:
    fault, does, _ = ROWS[number]
    assert len(fault) > 5 and len(does) > 12


def test_exit_codes_are_those_of_errors() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    known = {
        errors.exit_code(kind("x")) for kind in kinds if issubclass(kind, errors.LocalspecError)
    }
    known |= {128 + signal.Signals[name] for name in _SIGNALS if hasattr(signal, name)}
    known |= {129, 141}  # where the system has no such signals
    said = {int(code) for _, does, _ in ROWS.values() for code in re.findall(r"exit (\d+)", does)}
    assert said <= known
    assert known - said <= {errors.exit_code(errors.LocalspecError("x"))}


def test_what_cannot_be_had_here_says_so_and_names_its_stand_in() -> None:
    absent = {number for number, (_, does, _) in ROWS.items() if "*Not here:*" in does}
    assert absent == {46, 54, 89, 94}


def test_durations_are_never_of_the_clock() -> None:
    """`time.time()` is for moments that are kept: nothing is taken from it or compared with it."""
    kept = {"measurements.py", "store.py", "checksum_cache.py", "hub_snapshots.py"}
    for path in sorted((ROOT / "localspec").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for call in re.findall(r".*\btime\.time\(\).*", source):
            assert path.name in kept, f"is this a moment, or a duration? {path}: {call}"
            assert not re.search(r"time\.time\(\) *[-<>]|[-<>] *time\.time\(\)", call), call
