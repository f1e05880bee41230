"""Completion of a typed command line."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.chat.slash_commands import COMMANDS, COMMANDS_BY_NAME


def complete(line: str) -> list[str]:
    """The lines that `line` can become: command names, or arguments of one command.

    Names are in the order of use, as in the table: `/` begins with `/model`.
    """
    if not line.startswith("/") or "\n" in line:
        return []
    name, space, argument = line[1:].partition(" ")
    if not space:
        return [f"/{word}" for word in _complete_name(name.lower())]
    command = COMMANDS_BY_NAME.get(name.lower())
    if command is None:
        return []
    words = [word for word in command.choices if word.startswith(argument)]
    return [f"/{name} {word}" for word in (*words, *command.complete(argument))]


def _complete_name(prefix: str) -> Iterator[str]:
    """Aliases only of commands whose names do not match."""
    for command in COMMANDS:
        if command.name.startswith(prefix):
            yield command.name
        else:
            yield from (alias for alias in command.aliases if alias.startswith(prefix))


def is_final(line: str) -> bool:
    """Whether the line ends in a new name, which need not be one of the completions."""
    name, _, argument = line[1:].partition(" ")
    command = COMMANDS_BY_NAME.get(name)
    if command is None or command.new_name_after is None:
        return False
    argument = argument.lstrip()
    new_name = argument.removeprefix(command.new_name_after)
    return argument.startswith(command.new_name_after) and bool(new_name.strip())


def usage(line: str) -> str:
    """The argument and the help of a command whose name is complete, else empty."""
    command = COMMANDS_BY_NAME.get(line[1:])
    if command is None:
        return ""
    return f"{command.argument}  {command.help}".strip()


def takes_argument(line: str) -> bool:
    command = COMMANDS_BY_NAME.get(line[1:])
    return command is not None and command.argument != ""
