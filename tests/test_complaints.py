"""docs/quality/complaints.md: every complaint once; its tests, commands and pages exist."""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from localspec.chat.settings import CHAT_SETTING_FIELDS
from localspec.chat.slash_commands import CommandCall
from localspec.chat.slash_commands import parse as slash_command
from localspec.cli import localspec

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "quality" / "complaints.md"
NUMBERS = [
    *map(str, range(1, 22)),
    "21b",
    "21c",
    "21d",
    "21e",
    *map(str, range(22, 67)),
    *(f"{part}{n}" for part in "AB" for n in range(1, 12)),
]

_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_COMMAND = re.compile(r"`localspec( [^`]*)?`")
_LINK = re.compile(r"\]\(([^)]+)\)")
_SLASH = re.compile(r"`(/[a-z][^`]*)`")
_OPTION = re.compile(r"`(--[a-z-]+)`")


@dataclass(frozen=True)
class Row:
    number: str
    complaint: str
    answer: str
    evidence: str


@functools.cache
def rows() -> tuple[Row, ...]:
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and re.fullmatch(r"[AB]?\d+[a-z]?", cells[0]):
            assert len(cells) == 4, line
            found.append(Row(*cells))
    return tuple(found)


@functools.cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


@pytest.fixture
def _environment() -> Iterator[None]:
    """Some options set variables when they are read."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_every_complaint_stands_there_once_and_in_order() -> None:
    assert [row.number for row in rows()] == NUMBERS


def test_every_row_shows_what_it_says() -> None:
    for row in rows():
        shown = [pattern.search(row.evidence) for pattern in (_TEST, _COMMAND, _LINK)]
        assert any(shown), f"nothing shows what is said of {row.number}"


def test_the_page_counts_what_is_done() -> None:
    partly = [row for row in rows() if row.answer.startswith("Partly")]
    never = [row for row in rows() if row.answer.startswith("Not done: ")]
    done = len(rows()) - len(partly) - len(never)
    counted = f"Of {len(rows())} rows {done} are done, {len(partly)} partly, {len(never)} not."
    assert counted in PAGE.read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    named = [found for row in rows() for found in _TEST.findall(row.evidence)]
    assert len(named) > 60
    missing = [f"{file}::{name}" for file, name in named if name not in functions_of(file)]
    assert missing == []
    mentioned = sum(row.evidence.count("tests/") for row in rows())
    assert mentioned == len(named), "one is written in another form"


@pytest.mark.usefixtures("_environment")
def test_every_command_that_is_named_can_be_typed() -> None:
    named = [typed for row in rows() for typed in _COMMAND.findall(row.evidence)]
    assert len(named) > 10
    for typed in named:
        context = understood(shlex.split(typed))
        assert context.command is not localspec, typed


def understood(words: list[str]) -> click.Context:
    """As click reads it, without doing it.  Raises click.UsageError where it is no command."""
    context = click.Context(localspec, info_name="localspec")
    command: click.Command = localspec
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    return command.make_context(command.name, words, parent=context)


def test_every_option_and_slash_command_in_the_answers_exists() -> None:
    options = {option for name in localspec.list_commands(_context()) for option in _options(name)}
    for row in rows():
        for option in _OPTION.findall(row.answer):
            assert option in options, f"{row.number}: {option}"
        for typed in _SLASH.findall(row.answer):
            if typed == "/":  # a key of the first screen
                continue
            call = slash_command(typed)
            assert isinstance(call, CommandCall), f"{row.number}: {typed}"
            if call.name == "set":
                assert call.argument.split()[0] in CHAT_SETTING_FIELDS, f"{row.number}: {typed}"


def _context() -> click.Context:
    return click.Context(localspec, info_name="localspec")


def _options(name: str) -> Iterator[str]:
    command = localspec.get_command(_context(), name)
    assert command is not None
    for param in command.params:
        yield from param.opts


def test_every_page_that_is_linked_exists() -> None:
    linked = [link for row in rows() for link in _LINK.findall(row.answer + row.evidence)]
    assert linked
    assert [link for link in linked if not (PAGE.parent / link).is_file()] == []
