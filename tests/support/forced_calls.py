"""Makes a model that is too weak to choose call tools, at any door of the program.

As a program it is `localspec` with such calls: `forced_calls folder_list,add run demo`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec import cli
from localspec.engine_process.client import EngineProcess
from localspec.protocol.events import Event
from localspec.protocol.wire import ChatMessage, GenerateCommand

CLOSING = "</tool_call>"
NO_CALLS = "root ::= [^<]+"
"""A grammar for an answer without tags: the starter would call again and again."""


def count_results(messages: Sequence[ChatMessage]) -> int:
    """How many calls of the last question have a result."""
    n_results = 0
    for message in messages:
        if message.role == "user":
            n_results = 0
        elif message.role == "tool":
            n_results += 1
    return n_results


class ForcedCalls:
    """Each question is answered by calls of these tools in turn, then by a text.

    Only the requests are changed, on their way to the engine's process. The model writes
    the arguments itself, within the grammar of the tool's schema, and the text.
    """

    def __init__(self, *tools: str) -> None:
        """`tools`: as the model names them, such as `folder_list`."""
        self.tools = tools
        self.requests: list[GenerateCommand] = []

    def force(self, request: GenerateCommand) -> GenerateCommand:
        """The request, whose answer is the next call and ends with it, or the text."""
        n_done = count_results(request.messages)
        if n_done >= len(self.tools):
            return replace(request, grammar=NO_CALLS)
        return replace(
            request,
            must_call=True,
            callable_tools=(self.tools[n_done],),
            stop=(*request.stop, CLOSING),
        )

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Change the requests of all engines that this process starts."""
        generate = EngineProcess.generate

        def generate_forced(
            engine: EngineProcess, request: GenerateCommand
        ) -> Iterator[Event]:
            forced = self.force(request)
            self.requests.append(forced)
            return generate(engine, forced)

        monkeypatch.setattr(EngineProcess, "generate", generate_forced)


def forced_command(tools: Sequence[str], *arguments: str | Path) -> list[str]:
    """The command line of `localspec` with these arguments, whose model calls `tools`."""
    program = [sys.executable, "-P", "-m", __name__, ",".join(tools)]
    return [*program, *map(str, arguments)]


def main() -> None:
    forced = ForcedCalls(*sys.argv[1].split(","))
    forced.install(pytest.MonkeyPatch())
    cli.main(sys.argv[2:])


if __name__ == "__main__":
    main()
