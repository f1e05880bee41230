"""The table of slash commands and its parser."""

from localspec.chat.session_commands import SESSION_COMMANDS
from localspec.chat.settings import CHAT_SETTING_FIELDS
from localspec.chat.slash_commands import COMMANDS, CommandCall, UnknownCommand, parse
from localspec.chat.tab_completion import complete
from localspec.cli import slash_handlers


def test_parse() -> None:
    for text, found in [
        ("/help", CommandCall("help")),
        ("/?", CommandCall("help")),
        ("/RETRY ", CommandCall("regen")),
        ("/set  top-k 3 ", CommandCall("set", "top-k 3")),
        ("/edit one\ntwo", CommandCall("edit", "one\ntwo")),
        ("/hepl", UnknownCommand("/hepl", "/help")),
        ("/xyzzy", UnknownCommand("/xyzzy", "")),
        ("hello", None),
        ("/", None),
        ("//help", None),
        ("/usr/bin/env", None),
        ("/* a comment */", None),
        ("/home x\nand more", None),
    ]:
        assert parse(text) == found


def test_complete() -> None:
    for prefix, lines in [
        ("/sp", ["/spec"]),
        ("/s", ["/save", "/set", "/show", "/spec", "/stats", "/system"]),
        ("/think s", ["/think show"]),
        (
            "/think ",
            [
                f"/think {word}"
                for word in ("on", "off", "low", "medium", "high", "show")
            ],
        ),
        ("/set top", ["/set top_k", "/set top_p"]),
        ("/set verify b", ["/set verify block"]),
        ("/set nothing b", []),
        ("/nothing ", []),
        ("say", []),
    ]:
        assert complete(prefix) == lines


def test_the_table_is_whole() -> None:
    names = [word for command in COMMANDS for word in (command.name, *command.aliases)]
    assert len(names) == len(set(names))
    here = {*slash_handlers.HANDLERS, *SESSION_COMMANDS, "exit", "regen"}
    assert {command.name for command in COMMANDS} == here
    assert all(command.help.endswith(".") for command in COMMANDS)
    assert set(next(c for c in COMMANDS if c.name == "set").choices) == set(
        CHAT_SETTING_FIELDS
    )
