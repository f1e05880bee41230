"""Workers: devices of other computers, reached through llama.cpp's RPC backend."""

from localspec.command_table import CommandRow

COMMANDS = (
    CommandRow(
        "worker",
        "Offer this computer's devices to localspec on another one.",
        "models",
        "localspec.extras.workers.command:command",
    ),
)
