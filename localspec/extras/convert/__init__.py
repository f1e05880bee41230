"""`localspec convert`: a copy of a model in the type that this CPU computes fastest."""

from localspec.command_table import CommandRow

COMMANDS = (
    CommandRow(
        "convert",
        "Copy a model to the weight type that this CPU computes fastest.",
        "models",
        "localspec.extras.convert.command:command",
    ),
)
