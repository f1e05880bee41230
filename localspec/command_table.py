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
        group="answers",
        path="localspec.cli.run:command",
        config="answers",
    ),
    CommandRow(
        "serve",
        "Serve a model to other programs (OpenAI's API).",
        group="answers",
        path="localspec.cli.serve:command",
        config="answers",
    ),
    CommandRow(
        "bench",
        "Measure a pair on this computer: plain and speculative.",
        group="answers",
        path="localspec.cli.measuring:bench_command",
        config="load",
    ),
    CommandRow(
        "replay",
        "Show a recorded answer round by round.",
        group="answers",
        path="localspec.cli.history:replay_command",
    ),
    CommandRow(
        "verify",
        "Check that speculation does not change the output.",
        group="answers",
        path="localspec.cli.measuring:verify_command",
        config="load",
    ),
    CommandRow(
        "pull",
        "Download models and verify them.",
        group="models",
        path="localspec.cli.pull:pull_command",
        config="downloads",
    ),
    CommandRow(
        "list",
        "List the models on this computer (also: ls).",
        group="models",
        path="localspec.cli.local_models:list_command",
    ),
    CommandRow(
        "show",
        "Show the details of a model or a pair.",
        group="models",
        path="localspec.cli.show:command",
    ),
    CommandRow(
        "rm",
        "Remove models from this computer.",
        group="models",
        path="localspec.cli.local_models:rm_command",
    ),
    CommandRow(
        "search",
        "Search the Hugging Face hub for models.",
        group="models",
        path="localspec.cli.pull:search_command",
    ),
    CommandRow(
        "pair",
        "List and suggest pairs; check compatibility.",
        group="models",
        path="localspec.cli.pair:command",
    ),
    CommandRow(
        "fit",
        "Estimate whether a pair fits, and how fast it is.",
        group="other",
        path="localspec.cli.fit:command",
        config="load",
    ),
    CommandRow(
        "history",
        "List, search, show, rename, import and remove saved chats.",
        group="other",
        path="localspec.cli.history:history_command",
    ),
    CommandRow(
        "export",
        "Export a chat as Markdown, HTML or JSON.",
        group="other",
        path="localspec.cli.history:export_command",
    ),
    CommandRow(
        "config",
        "List, get, set and edit the settings in config.toml.",
        group="other",
        path="localspec.cli.config:command",
        config="repairs",
    ),
    CommandRow(
        "doctor",
        "Find problems on this computer and fix them.",
        group="other",
        path="localspec.cli.doctor:command",
        config="repairs",
    ),
    CommandRow(
        "completion",
        "Print the completion script of a shell.",
        group="other",
        path="localspec.cli.shell_completion:completion_command",
        config="repairs",
    ),
    CommandRow(
        "version",
        "Show versions.",
        group="other",
        path="localspec.cli.shell_completion:version_command",
        config="repairs",
    ),
)


def read_commands() -> Mapping[str, CommandRow]:
    """The rows by name, the extras' too, in the order of the help."""
    rows: list[CommandRow] = [*_CORE, *extras.rows("COMMANDS")]
    groups: tuple[CommandGroup, ...] = get_args(CommandGroup)
    rows.sort(key=lambda row: groups.index(row.group))
    return {row.name: row for row in rows}


ALIASES = {"ls": "list"}
