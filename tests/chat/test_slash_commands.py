"""The table of slash commands, its parser and its completions."""

import pytest

from localspec.chat.settings import CHAT_SETTING_FIELDS
from localspec.chat.slash_commands import (
    COMMANDS,
    COMMANDS_BY_NAME,
    CommandCall,
    UnknownCommand,
    parse,
)
from localspec.chat.tab_completion import complete, is_final


def test_parse() -> None:
    for text, found in [
        ("/help", CommandCall("help")),
        ("/?", CommandCall("help")),
        ("/RETRY ", CommandCall("regen")),
        ("/set  top-k 3 ", CommandCall("set", "top-k 3")),
        ("/edit one\ntwo", CommandCall("edit", "one\ntwo")),
        ("/temp 0.3", CommandCall("set", "temp 0.3")),
        ("/top_k 40", CommandCall("set", "top_k 40")),
        ("/num_ctx 8192", CommandCall("set", "num_ctx 8192")),
        ("/num-predict 9", CommandCall("set", "num-predict 9")),
        ("/load gemma", CommandCall("model", "gemma")),
        ("/not_a_setting 3", None),
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


def test_a_command_of_another_program_is_answered_with_what_is_here() -> None:
    call = parse("/nowordwrap")
    assert isinstance(call, UnknownCommand)
    assert call.message == ("Unknown command: /nowordwrap. Lines are wrapped at words.")


def test_complete() -> None:
    for prefix, lines in [
        ("/sp", ["/spec"]),
        ("/s", ["/system", "/set", "/spec", "/save", "/stats", "/show"]),
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


def test_completion_begins_with_what_is_used_most_and_ends_with_the_exception() -> None:
    every = complete("/")
    assert every == [f"/{command.name}" for command in COMMANDS]
    assert (every[0], every[-1]) == ("/model", "/anyway")


def test_every_word_names_one_command() -> None:
    words = [word for command in COMMANDS for word in (command.name, *command.aliases)]
    assert len(words) == len(set(words))


def test_every_command_does_something_and_says_what() -> None:
    for command in COMMANDS:
        assert command.change is not None or command.show is not None
        assert command.help.endswith(".")


def test_set_completes_every_setting() -> None:
    assert set(COMMANDS_BY_NAME["set"].choices) == set(CHAT_SETTING_FIELDS)


@pytest.mark.parametrize(
    ("line", "is_whole"),
    [
        ("/save notes.md", True),
        ("/export notes.md", True),
        ("/preset save short", True),
        ("/preset save ", False),
        ("/preset short", False),
        ("/save ", False),
        ("/read notes.md", False),
    ],
)
def test_a_new_name_needs_no_completion(line: str, is_whole: bool) -> None:
    assert is_final(line) is is_whole
