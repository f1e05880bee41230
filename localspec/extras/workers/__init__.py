"""Workers: devices of other computers, reached through llama.cpp's RPC backend."""

from localspec.command_table import CommandRow

COMMANDS = (
    CommandRow(
        "worker",
        "Offer this computer's devices to localspec on another one.",
        group="models",
        path="localspec.extras.workers.command:command",
    ),
)
LOAD_OPTIONS = ("localspec.extras.workers.options:WORKERS",)
REMOTE_DEVICES = (("workers", "localspec.extras.workers.source:SOURCE"),)
EXIT_CAUSES = (("worker", "the connection to a worker was lost"),)
ENGINE_CHECKS = ("localspec.extras.workers.doctor:check_rpc_backend",)
OPTION_WORDS = (("workers", ("the worker in the preferences", "")),)
