"""The table of slash commands and its parser."""

from __future__ import annotations

import pytest

from localspec.chat.commands import COMMANDS, Call, Unknown, complete, literal, parse
from localspec.chat.fields import FIELDS
from localspec.cli import actions


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/help", Call("help")),
        ("/?", Call("help")),
        ("/bye", Call("exit")),
        ("/RETRY ", Call("regen")),
        ("/set  top-k 3 ", Call("set", "top-k 3")),
        ("/edit one\ntwo", Call("edit", "one\ntwo")),
        ("/hepl", Unknown("/hepl", "/help")),
        ("/xyzzy", Unknown("/xyzzy", "")),
        ("hello", None),
        ("", None),
        ("/", None),
        ("//help", None),
        ("/usr/bin/env", None),
        ("/* a comment */", None),
        ("/home x\nand more", None),
        ("a /help", None),
    ],
)
def test_parse(text: str, found: Call | Unknown | None) -> None:
    assert parse(text) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [("//help", "/help"), ("// a comment", "// a comment"), ("/usr/bin", "/usr/bin"), ("a", "a")],
)
def test_a_double_slash_is_a_slash(text: str, said: str) -> None:
    assert literal(text) == said


@pytest.mark.parametrize(
    ("prefix", "lines"),
    [
        ("/sp", ["/spec"]),
        ("/s", ["/save", "/set", "/show", "/spec", "/stats", "/system"]),
        ("/think ", ["/think on", "/think off", "/think show"]),
        ("/set top", ["/set top_k", "/set top_p"]),
        ("/set verify b", ["/set verify block"]),
        ("/set nothing b", []),
        ("/nothing ", []),
        ("say", []),
    ],
)
def test_complete(prefix: str, lines: list[str]) -> None:
    assert complete(prefix) == lines


def test_the_table_is_whole() -> None:
    names = [word for command in COMMANDS for word in (command.name, *command.aliases)]
    assert len(names) == len(set(names))
    assert {command.name for command in COMMANDS} == set(actions._ACTIONS)
    assert all(command.help.endswith(".") for command in COMMANDS)
    assert set(next(c for c in COMMANDS if c.name == "set").choices) == set(FIELDS)
