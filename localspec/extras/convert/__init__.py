"""`localspec convert`: a copy of a model in the type that this CPU computes fastest."""

from localspec.command_table import CommandRow

COMMANDS = (
    CommandRow(
        "convert",
        "Copy a model to the weight type that this CPU computes fastest.",
        group="models",
        path="localspec.extras.convert.command:command",
    ),
)
FASTER_COPIES = ("localspec.extras.convert.conversion:choose_faster_copy",)
IDLE_TASKS = ("localspec.extras.convert.conversion:make_faster_copy",)
CPU_NOTICES = ("localspec.extras.convert.conversion:suggest_once",)
MODEL_CHECKS = ("localspec.extras.convert.doctor:check_weight_types",)
