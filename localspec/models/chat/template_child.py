"""The process in which a model's chat template runs: requests in, prompts out, one JSON a line."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from localspec import children
from localspec.models.chat.renderer import READY
from localspec.models.template import render
from localspec.protocol.wire import Message

_MEMORY = 512 * 1024 * 1024
"""Bytes of address space; some 30 MiB are Python's and its libraries'."""


def _limit_memory() -> None:
    """Where the system has such a limit; elsewhere only the time is limited."""
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  not on Windows

        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def _answer(asked: dict[str, Any]) -> bytes:
    messages = [Message(**part) for part in asked["messages"]]
    rendered = render(asked["source"], messages, asked["tokens"], asked["think"])
    return json.dumps(asdict(rendered), separators=(",", ":")).encode() + b"\n"


def _write(out: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(out, rest) :]


def main() -> None:
    children.settle(int(sys.argv[1]))
    out = children.private_stdout()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody reads what a template may cause there
    _limit_memory()
    _write(out, READY)
    for line in sys.stdin.buffer:
        _write(out, _answer(json.loads(line)))


if __name__ == "__main__":
    main()
