"""Every command of localspec that a text of the package names can be typed.

The texts are the string constants of the package, and the help of each command. What an
f-string fills in is `X`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

import localspec
from localspec import cli, command_table
from localspec.config.options import SETTINGS

PACKAGE = Path(localspec.__file__).parent
COMMANDS = {*command_table.read_commands(), *command_table.ALIASES}
VERBS = {"has", "is", "was"}
NAMED = re.compile(r"(?P<before>^|[^\w/.-])localspec (?P<words>[a-z][^`\n]*)")


def literals(path: Path) -> Iterator[str]:
    """String constants and f-strings of a file, without docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            values = [getattr(part, "value", "X") for part in node.values]
            yield "".join(v if isinstance(v, str) else "X" for v in values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def helps(command: click.Command) -> Iterator[str]:
    yield command.help or ""
    yield command.epilog or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context) or sorted(COMMANDS):
            found = command.get_command(context, name)
            assert found is not None
            yield from helps(found)


def all_texts() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield from literals(path)
    yield from helps(cli.localspec)


def commands_in(text: str) -> Iterator[list[str]]:
    """The words after `localspec`; prose such as "localspec has exited" is none."""
    for found in NAMED.finditer(text):
        sentence = re.split(r"\.(?=X|\s|$)", found["words"])[0]
        words = [word.rstrip(",;:)") for word in sentence.split()]
        is_marked = text[: found.end("before")].endswith(("`", ": "))
        if words[0] in COMMANDS or (is_marked and words[0] not in VERBS):
            yield words


def check_command(words: list[str]) -> None:
    """Raise AssertionError unless command, options and setting are known."""
    command: click.Command = cli.localspec
    rest = list(words)
    known = set()
    while isinstance(command, click.Group) and rest:
        found = command.get_command(click.Context(command), rest.pop(0))
        assert found is not None, words
        command = found
    for parameter in [*command.params, *cli.localspec.params]:
        known.update([*parameter.opts, *parameter.secondary_opts])
    for word in rest:
        if re.match("--?[a-z]", word):
            assert word in {*known, "--help"}, (word, words)
    if words[:2] == ["config", "set"] and "." in "".join(words[2:3]):
        assert words[2] in SETTINGS or words[2].startswith("keys."), words


def test_each_command_that_a_text_names_can_be_typed() -> None:
    named = [words for text in all_texts() for words in commands_in(text)]
    assert len(named) > 80
    for words in named:
        check_command(words)


def test_no_text_names_an_installer_that_may_be_elsewhere() -> None:
    """The commands of pip, pipx, uv and hf are made by install_hints.py."""
    tools = re.compile(r"\b(?:pip3?|pipx|uv) (?:un)?install\b|\bhf auth\b")
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name != "install_hints.py":
            for text in literals(path):
                is_hint = text != "The token of `hf auth login`"
                assert not (is_hint and tools.search(text)), (path, text)
