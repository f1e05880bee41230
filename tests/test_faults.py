"""docs/quality/: every fault once; tests that are named exist, exit codes are in use."""

from __future__ import annotations

import ast
import re
import signal
from functools import cache
from pathlib import Path

from localspec import errors

ROOT = Path(__file__).resolve().parents[1]
FAULTS = 103
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


def test_every_row_names_tests_that_are_there() -> None:
    for number, (*_, tests) in ROWS.items():
        named = _TEST.findall(tests)
        assert named, number
        assert _TEST.sub("", tests).strip() == "", f"{number}: nothing else stands there"
        for file, name in named:
            assert name in named_in(file), f"{number}: {file} has no {name}"


def test_the_page_of_the_server_and_the_workers_names_tests_that_are_there() -> None:
    page = (ROOT / "docs" / "quality" / "server-and-workers.md").read_text(encoding="utf-8")
    named = _TEST.findall(page)
    assert len(named) == page.count("::test_")
    for file, name in named:
        assert name in named_in(file), f"{file} has no {name}"


def test_exit_codes_are_those_of_errors() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    known = {kind("x").exit_code for kind in kinds if issubclass(kind, errors.LocalspecError)}
    known |= {128 + signal.Signals[name] for name in _SIGNALS if hasattr(signal, name)}
    known |= {129, 141}  # where the system has no such signals
    said = {int(code) for _, does, _ in ROWS.values() for code in re.findall(r"exit (\d+)", does)}
    assert said <= known
    assert known - said <= {errors.LocalspecError("x").exit_code}


def test_durations_are_never_of_the_clock() -> None:
    """`time.time()` is for moments that are kept: nothing is taken from it or compared with it."""
    kept = {"measurements.py", "store.py", "hub_cache.py"}
    kept |= {"completion.py", "served_model.py"}  # `created` of an answer and of a model
    kept |= {"request_metrics.py"}  # the server's start, in a header of /metrics
    for path in sorted((ROOT / "localspec").rglob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "time.time()" not in line:
                continue
            assert path.name in kept, f"is this a moment, or a duration? {path}: {line}"
            assert not re.search(r"time\.time\(\) *[-<>]|[-<>] *time\.time\(\)", line), line
