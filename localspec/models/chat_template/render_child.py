"""The child process that runs a model's chat template: one JSON request and one answer per line."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from localspec import child_process
from localspec.models.chat_template.jinja_render import render
from localspec.models.chat_template.render_process import READY_LINE
from localspec.protocol.json_dataclasses import from_json
from localspec.protocol.wire import ChatMessage

_MEMORY_LIMIT = 512 * 1024 * 1024
"""Address space; Python and its libraries need some 30 MiB."""


def _render_request(request: dict[str, Any]) -> bytes:
    messages = [from_json(ChatMessage, part) for part in request["messages"]]
    rendered = render(
        request["source"], messages, request["tokens"], request["think"], request["tools"]
    )
    return json.dumps(asdict(rendered), separators=(",", ":")).encode() + b"\n"


def _write(out: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(out, rest) :]


def main() -> None:
    child_process.set_up_child(int(sys.argv[1]))
    out = child_process.take_over_stdout()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the parent does not read stderr
    child_process.limit_resources(address_space=_MEMORY_LIMIT)
    _write(out, READY_LINE)
    for line in sys.stdin.buffer:
        _write(out, _render_request(json.loads(line)))


if __name__ == "__main__":
    main()
