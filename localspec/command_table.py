"""The table of commands: a row a command, from which `localspec --help` is rendered.

The command itself is named by an import path and imported when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from localspec import extras

ConfigUse = Literal["answers", "load", "downloads", "itself", "repairs"]
"""What a command does with config.toml.

`answers`, `load` and `downloads` name the settings that are defaults of its options. A
command that `repairs` also runs with a damaged file. Every other one, `itself`, reads
the settings that it needs.
"""


CommandGroup = Literal["answers", "models", "other"]
"""The help lists the groups in this order, each with its own rows before the extras'."""


class CommandRow(NamedTuple):
    name: str
    about: str  # One line.
    group: CommandGroup
    path: str  # `module:name` of the click command.
    config: ConfigUse = "itself"


_CORE = (
    CommandRow(
        "run",
        "Answer a prompt or chat, with speculation.",
        "answers",
        "localspec.cli.run:command",
        "answers",
    ),
    CommandRow(
        "serve",
        "Serve a model to other programs (OpenAI's API).",
        "answers",
        "localspec.cli.serve:command",
        "answers",
    ),
    CommandRow(
        "bench",
        "Measure a pair on this computer: plain and speculative.",
        "answers",
        "localspec.cli.measuring:bench_command",
        "load",
    ),
    CommandRow(
        "replay",
        "Show a recorded answer round by round.",
        "answers",
        "localspec.cli.history:replay_command",
    ),
    CommandRow(
        "verify",
        "Check that speculation does not change the output.",
        "answers",
        "localspec.cli.measuring:verify_command",
        "load",
    ),
    CommandRow(
        "pull",
        "Download models and verify them.",
        "models",
        "localspec.cli.pull:pull_command",
        "downloads",
    ),
    CommandRow(
        "list",
        "List the models on this computer (also: ls).",
        "models",
        "localspec.cli.local_models:list_command",
    ),
    CommandRow(
        "show",
        "Show the details of a model or a pair.",
        "models",
        "localspec.cli.show:command",
    ),
    CommandRow(
        "rm",
        "Remove models from this computer.",
        "models",
        "localspec.cli.local_models:rm_command",
    ),
    CommandRow(
        "search",
        "Search the Hugging Face hub for models.",
        "models",
        "localspec.cli.pull:search_command",
    ),
    CommandRow(
        "pair",
        "List and suggest pairs; check compatibility.",
        "models",
        "localspec.cli.pair:command",
    ),
    CommandRow(
        "fit",
        "Estimate whether a pair fits, and how fast it is.",
        "other",
        "localspec.cli.fit:command",
        "load",
    ),
    CommandRow(
        "history",
        "List, search, show, rename and remove saved chats.",
        "other",
        "localspec.cli.history:history_command",
    ),
    CommandRow(
        "export",
        "Export a chat as Markdown, HTML or JSON.",
        "other",
        "localspec.cli.history:export_command",
    ),
    CommandRow(
        "config",
        "List, get, set and edit the settings in config.toml.",
        "other",
        "localspec.cli.config:command",
        "repairs",
    ),
    CommandRow(
        "doctor",
        "Find problems on this computer and fix them.",
        "other",
        "localspec.cli.doctor:command",
        "repairs",
    ),
    CommandRow(
        "completion",
        "Print the completion script of a shell.",
        "other",
        "localspec.cli.shell_completion:completion_command",
        "repairs",
    ),
    CommandRow(
        "version",
        "Show versions.",
        "other",
        "localspec.cli.shell_completion:version_command",
        "repairs",
    ),
)


def read_commands() -> Mapping[str, CommandRow]:
    """The rows by name, the extras' too, in the order of the help."""
    rows: list[CommandRow] = [*_CORE, *extras.rows("COMMANDS")]
    groups: tuple[CommandGroup, ...] = get_args(CommandGroup)
    rows.sort(key=lambda row: groups.index(row.group))
    return {row.name: row for row in rows}


ALIASES = {"ls": "list"}
