"""Tools of the Python API: what `tools=` may be, and which calls run.

The calls of an answer run in the thread that waits for it, between two jobs of the
engine. So a function may use what belongs to its thread, such as a database connection,
and Ctrl+C reaches it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from localspec.api.function_tools import FunctionTools
from localspec.chat.answer import GeneratedAnswer
from localspec.chat.conversation import Turn
from localspec.chat.tool_loop import CallState
from localspec.chat.tool_steps import ToolSteps
from localspec.config.options import SETTINGS
from localspec.errors import LocalspecError, UsageError
from localspec.protocol.events import Notice
from localspec.tools import connecting, folder_tools, server_settings
from localspec.tools.approval import Approvals, CallDecision, CallRequest
from localspec.tools.server_settings import ConfiguredServers, ServerSettings
from localspec.tools.tool_types import StopSignal, ToolProvider
from localspec.tools.toolbox import Toolbox

Tool = Callable[..., Any] | ToolProvider | str
"""A function, `FolderTools`, or the name of a server in config.toml or mcp.json."""
OnCall = Callable[[CallRequest], bool | str]
"""Whether a call may run; a text refuses it and is what the model is told."""

DEFAULT_MAX_CALLS: int = SETTINGS["tools.max_calls"].default
_NOT_ALLOWED = "The program that asks you allows no calls of this tool."
_RUN_WITHOUT_ASKING = (FunctionTools.name, folder_tools.PROVIDER)
"""Providers whose tools the caller has given itself; those of a server are its own."""


class CallPolicy:
    """A `ToolFrontEnd` that `on_call` decides for.

    Without it functions and the tools of a folder run, and tools of servers do not.
    """

    def __init__(self, on_call: OnCall | None) -> None:
        self._on_call = on_call

    def ask_call(self, request: CallRequest, stop: StopSignal) -> CallDecision:
        assert request.tool is not None, "nobody is asked about a wrong call"
        if self._on_call is None:
            if request.tool.provider in _RUN_WITHOUT_ASKING:
                return CallDecision("named")
            return CallDecision("no", _NOT_ALLOWED)
        answer = self._on_call(request)
        if isinstance(answer, str):
            return CallDecision("no", answer)
        if not isinstance(answer, bool):
            raise TypeError(f"on_call must return a bool or a text, not {answer!r}")
        if answer:
            return CallDecision("once")
        return CallDecision("no")

    def show_call(self, state: CallState) -> None:
        """`Answer.calls` has the calls."""

    def begin_turn(self, turn: Turn) -> None:
        """The pieces of the next step follow those of the step before."""


class ConnectedServers:
    """The servers that an `LLM` has connected, each at its first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._providers: dict[str, ToolProvider] = {}

    def find(self, names: Sequence[str]) -> list[ToolProvider]:
        """Connect the servers that are not connected yet, all at the same time.

        Raises NotFoundError, or ToolServerError if one cannot be connected.
        """
        with self._lock:
            missing = [name for name in names if name not in self._providers]
            configured = server_settings.read_servers()
            servers = [_find_server(configured, name) for name in missing]
            failures: list[LocalspecError] = []
            for server, connected in connecting.connect_servers(servers):
                if isinstance(connected, LocalspecError):
                    failures.append(connected)
                else:
                    self._providers[server.name] = connected
            if failures:
                raise failures[0]
            return [self._providers[name] for name in names]

    def close(self) -> None:
        with self._lock:
            providers = list(self._providers.values())
            self._providers.clear()
        for provider in providers:
            provider.close()


def _find_server(configured: ConfiguredServers, name: str) -> ServerSettings:
    """A server that is off is used where it is named."""
    return replace(configured.require(name), enabled=True)


def make_providers(
    tools: Iterable[Tool], servers: ConnectedServers
) -> list[ToolProvider]:
    """What provides the tools of `tools=`.

    Raises UsageError for what is no tool, and as `ConnectedServers.find`.
    """
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise UsageError(f"tools cannot be {tools!r}.", "Give a list of tools.")
    functions: list[Callable[..., Any]] = []
    providers: list[ToolProvider] = []
    names: list[str] = []
    for tool in tools:
        if isinstance(tool, str):
            names.append(tool)
        elif isinstance(tool, ToolProvider):
            providers.append(tool)
        else:
            functions.append(tool)
    if functions:
        providers.insert(0, FunctionTools(functions))
    provider_names = [*(provider.name for provider in providers), *names]
    for name in provider_names:
        if provider_names.count(name) > 1:
            raise UsageError(f"tools has {name!r} twice.", "Give it once.")
    return [*providers, *servers.find(names)]


class ToolUse:
    """The tools of one answer, and its steps."""

    def __init__(
        self,
        providers: Sequence[ToolProvider],
        on_call: OnCall | None,
        max_calls: int,
    ) -> None:
        self.stop = threading.Event()
        self.is_calling = False
        """Whether a call runs, or is asked about, now."""
        self.notices: list[Notice] = []
        """About servers that have failed."""
        # What a person allowed in chats is not allowed to programs.
        approvals = Approvals(reads_saved=False)
        self.steps = ToolSteps(
            toolbox=Toolbox(providers),
            approvals=approvals,
            front_end=CallPolicy(on_call),
            max_calls=max_calls,
            notify=self.notices.append,
        )

    def run_calls(self, answer: GeneratedAnswer) -> bool:
        """Run the calls of a step, as `ToolSteps.run_calls` does."""
        self.is_calling = True
        try:
            return self.steps.run_calls(answer, self.stop)
        finally:
            self.is_calling = False
