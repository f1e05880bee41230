"""The option that names the workers to use."""

from __future__ import annotations

from typing import Any

from localspec.config.option_types import Option, Setting, ValueType
from localspec.extras.workers.address import parse_addresses


def _check_workers(value: Any) -> tuple[str, ...]:
    """The addresses as texts; the computers need not be reachable. Raises UsageError."""
    joined = value if isinstance(value, str) else ",".join(value)
    return tuple(map(str, parse_addresses(joined))) if joined else ()


WORKERS = Option(
    "workers",
    ValueType(
        'one or two computers, in quotes: "gpu-box, 192.168.1.20:50053"',
        str,
        _check_workers,
        is_text=True,
    ),
    "Other computers that run localspec worker; at most two share the model.",
    default=(),
    title="other computers",
    offered=("command", "python"),
    metavar="HOST[:PORT],…|none",
    setting=Setting(
        "run.workers",
        "when a model is loaded",
        "They run localspec worker, and share models that are too large or too slow here.",
        unset_label="none",
    ),
    fills="remote_hosts",
)
