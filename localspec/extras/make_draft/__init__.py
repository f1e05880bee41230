"""`localspec make-draft`: a draft model from some layers or tokens of a model."""

from localspec.command_table import CommandRow

COMMANDS = (
    CommandRow(
        "make-draft",
        "Make a draft model from some layers or tokens of a model.",
        group="models",
        path="localspec.extras.make_draft.command:command",
    ),
)
