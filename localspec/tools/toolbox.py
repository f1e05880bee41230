"""The tools of one chat: who provides them, and which of them are on."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from localspec.errors import NotFoundError
from localspec.sanitize import sanitize
from localspec.tools import argument_check
from localspec.tools.approval import CallRequest
from localspec.tools.tool_types import (
    StopSignal,
    ToolDefinition,
    ToolProvider,
    ToolResult,
    make_error,
)

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_]+")
_MAX_NAME = 64
"""Characters of a name that every chat template and API takes."""
_MAX_LISTED_NAMES = 20
_MAX_LEVELS = 100
"""How deep arguments may be nested. `json.dumps` and other recursive code bears more."""


class NamedTool(Struct, frozen=True):
    """A tool, and the name by which the model calls it."""

    name: str
    tool: ToolDefinition


class Toolbox:
    """The providers that are connected for a chat.

    All methods may be called from any thread: one answers, another one shows the list.
    """

    def __init__(self, providers: Iterable[ToolProvider] = ()) -> None:
        self._lock = threading.RLock()
        self._providers: dict[str, ToolProvider] = {}
        self._lasting: dict[str, ToolProvider] = {}
        """Those that every chat has, also one that this chat has replaced or left out."""
        self._disabled_providers: set[str] = set()
        self._disabled_tools: set[str] = set()
        """The full names of the tools that are off by themselves."""
        for provider in providers:
            self.add(provider)

    # --- who provides tools

    @property
    def providers(self) -> tuple[ToolProvider, ...]:
        with self._lock:
            return tuple(self._providers.values())

    def find_provider(self, name: str) -> ToolProvider | None:
        with self._lock:
            return self._providers.get(name)

    def add(self, provider: ToolProvider) -> None:
        """Add a provider, in place of those of the same name, which are closed."""
        with self._lock:
            before = self._list_held()
            self._providers.pop(provider.name, None)
            self._providers[provider.name] = provider
            self._lasting[provider.name] = provider
            unheld = self._find_unheld(before)
        _close(unheld)

    def add_for_chat(self, provider: ToolProvider) -> None:
        """Add a provider until the next chat begins.

        One of the same name that every chat has is back then. With the folder `notes`
        for every chat and `letters` for this one, the next chat has `notes` again.
        """
        with self._lock:
            before = self._list_held()
            self._providers.pop(provider.name, None)
            self._providers[provider.name] = provider
            unheld = self._find_unheld(before)
        _close(unheld)

    def remove_for_chat(self, name: str) -> None:
        """Leave a provider out until the next chat begins.

        It is closed, unless every chat has it. Raises NotFoundError if there is none of
        this name.
        """
        with self._lock:
            before = self._list_held()
            provider = self._providers.pop(name, None)
            self._disabled_providers.discard(name)
            unheld = self._find_unheld(before)
        _close(unheld)
        if provider is None:
            raise _no_such(name)

    def begin_chat(self) -> None:
        """Another chat begins: it has the tools that every chat has, and all are on."""
        with self._lock:
            before = self._list_held()
            self._providers = dict(self._lasting)
            self._disabled_providers.clear()
            self._disabled_tools.clear()
            unheld = self._find_unheld(before)
        _close(unheld)

    def close(self) -> None:
        """End all providers. It may be called more than once."""
        with self._lock:
            before = self._list_held()
            self._providers.clear()
            self._lasting.clear()
        _close(before)

    def _list_held(self) -> list[ToolProvider]:
        """The providers of this chat, and those of every chat; each once."""
        held = list(self._providers.values())
        for provider in self._lasting.values():
            if provider not in held:
                held.append(provider)
        return held

    def _find_unheld(self, before: Iterable[ToolProvider]) -> list[ToolProvider]:
        """Those that were held before and are no longer: they are to be closed."""
        held = self._list_held()
        return [provider for provider in before if provider not in held]

    # --- which tools are on

    def all_definitions(self) -> tuple[ToolDefinition, ...]:
        definitions: list[ToolDefinition] = []
        for provider in self.providers:
            definitions += provider.definitions()
        return tuple(definitions)

    def select(self, name: str) -> list[ToolDefinition]:
        """A tool by its full name, or all of a provider. Raises NotFoundError."""
        found: list[ToolDefinition] = []
        for tool in self.all_definitions():
            if name in (tool.full_name, tool.provider):
                found.append(tool)
        if not found:
            raise _no_such(name)
        return found

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools that are on: these are offered to the model."""
        return tuple(tool for tool in self.all_definitions() if self._is_on(tool))

    def is_enabled(self, full_name: str) -> bool:
        """Whether there is such a tool, and it is on."""
        return full_name in [tool.full_name for tool in self.definitions()]

    def _is_on(self, tool: ToolDefinition) -> bool:
        with self._lock:
            if tool.provider in self._disabled_providers:
                return False
            return tool.full_name not in self._disabled_tools

    def set_enabled(self, name: str, enabled: bool) -> None:
        """Turn a tool (`time.convert_time`), or all of a provider (`time`), on or off.

        A provider that is off stays so when its list of tools changes. Raises
        NotFoundError.
        """
        tools = self.all_definitions()
        with self._lock:
            if name in self._providers:
                own_tools = _list_names(tools, provider=name)
                self._set_provider(name, own_tools, enabled=enabled)
                return
            for tool in tools:
                if tool.full_name == name:
                    own_tools = _list_names(tools, provider=tool.provider)
                    self._set_tool(tool, own_tools, enabled=enabled)
                    return
        raise _no_such(name)

    def _set_provider(
        self, name: str, own_tools: Iterable[str], *, enabled: bool
    ) -> None:
        if enabled:
            self._disabled_providers.discard(name)
            self._disabled_tools.difference_update(own_tools)
        else:
            self._disabled_providers.add(name)

    def _set_tool(
        self, tool: ToolDefinition, own_tools: Iterable[str], *, enabled: bool
    ) -> None:
        """Turn a tool on or off; `own_tools` are the full names of all of its provider.

        If the provider is off, a tool that is turned on is the only one that is on. With
        `time` off, turning on `time.now` leaves `time.convert` off.
        """
        if not enabled:
            self._disabled_tools.add(tool.full_name)
            return
        if tool.provider in self._disabled_providers:
            self._disabled_providers.discard(tool.provider)
            self._disabled_tools.update(own_tools)
        self._disabled_tools.discard(tool.full_name)

    # --- what the model sees

    def list_named(self) -> list[NamedTool]:
        """The tools that are on, by unique names.

        Names are made of all tools, so they stay when another one is turned off. The
        tools `a.b_c` and `a_b.c` are called `a_b_c` and `a_b_c_2`.
        """
        named: list[NamedTool] = []
        taken: set[str] = set()
        for tool in self.all_definitions():
            name = _make_unique(_join_name(tool), taken)
            taken.add(name)
            if self._is_on(tool):
                named.append(NamedTool(name, tool))
        return named

    def model_name(self, tool: ToolDefinition) -> str:
        """The name by which the model calls a tool. Raises NotFoundError."""
        for named in self.list_named():
            if named.tool.full_name == tool.full_name:
                return named.name
        raise _no_such(tool.full_name)

    def find(self, model_name: str) -> ToolDefinition | None:
        """The tool that is on and has this name; None if there is none.

        Its full name, and its own if no other tool has that, are taken too: small
        models write `read` for `folder_read`.
        """
        alike: list[ToolDefinition] = []
        for named in self.list_named():
            if model_name in (named.name, named.tool.full_name):
                return named.tool
            if named.tool.name == model_name:
                alike.append(named.tool)
        if len(alike) == 1:
            return alike[0]
        return None

    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """The JSON Schema of each tool's arguments, by the name that the model uses."""
        return {named.name: named.tool.schema for named in self.list_named()}

    def to_json(self) -> str:
        """OpenAI's array of tools, as `GenerateCommand.tools`; empty if none is on."""
        tools: list[dict[str, Any]] = []
        for named in self.list_named():
            function = {
                "name": named.name,
                "description": named.tool.description,
                "parameters": named.tool.schema,
            }
            tools.append({"type": "function", "function": function})
        if not tools:
            return ""
        return json.dumps(tools, ensure_ascii=False)

    # --- calls

    def make_request(self, call_id: str, name: str, arguments: str) -> CallRequest:
        """A call as the model wrote it, checked; `arguments` is JSON, or should be.

        A call that cannot run has a `problem`. For example, `{"path": 3}` for a tool
        whose path is a text gives "The arguments are wrong: path must be of the type
        string."
        """
        tool = self.find(name)
        problem = ""
        parsed: Any = None
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            problem = "The arguments are no JSON."
        if _count_levels(parsed) > _MAX_LEVELS:
            parsed = None
            problem = "The arguments are nested too deeply."
        if isinstance(parsed, dict):
            shown = _escape(json.dumps(parsed, ensure_ascii=False))
        else:
            shown = _escape(arguments)
            parsed = {}
            problem = problem or "The arguments are no JSON object."
        if tool is None:
            problem = self._describe_unknown(name)
        elif not problem:
            wrong = argument_check.find_problem(tool.schema, parsed)
            if wrong:
                problem = f"The arguments are wrong: {wrong}."
        return CallRequest(
            call_id=call_id,
            name=name,
            tool=tool,
            arguments=parsed,
            arguments_text=shown,
            problem=problem,
        )

    def _describe_unknown(self, name: str) -> str:
        names = [named.name for named in self.list_named()]
        listed = ", ".join(names[:_MAX_LISTED_NAMES]) or "none"
        if len(names) > _MAX_LISTED_NAMES:
            listed += ", …"
        shown = sanitize(name, multiline=False)[:_MAX_NAME]
        return f"There is no tool {shown!r}. The tools are: {listed}."

    def call(self, request: CallRequest, stop: StopSignal) -> ToolResult:
        """Call a tool that was allowed. Raises nothing for what a provider does.

        It does not run if it is another one now than the one that was allowed.
        """
        tool = request.tool
        if tool is None:
            return make_error(request.problem)
        with self._lock:
            provider = self._providers.get(tool.provider)
        if provider is None:
            return make_error(f"The server {tool.provider} was disconnected.")
        for current in provider.definitions():
            if current.name == tool.name and current.fingerprint == tool.fingerprint:
                return provider.call(tool.name, request.arguments, stop)
        return make_error(
            f"The tool {tool.full_name} has changed since it was allowed. Call it again."
        )


def _close(providers: Iterable[ToolProvider]) -> None:
    """Close them, without a lock: a server may take its time."""
    for provider in providers:
        provider.close()


def _list_names(tools: Iterable[ToolDefinition], provider: str) -> list[str]:
    return [tool.full_name for tool in tools if tool.provider == provider]


def _join_name(tool: ToolDefinition) -> str:
    """The name for the model, perhaps not unique: `time_now` for `time.now`.

    A Python function of the API has no provider's name before its own.
    """
    joined = tool.name
    if tool.provider:
        joined = f"{tool.provider}_{tool.name}"
    return _NOT_IN_A_NAME.sub("_", joined)[:_MAX_NAME]


def _make_unique(name: str, taken: set[str]) -> str:
    unique = name
    n = 1
    while unique in taken:
        n += 1
        suffix = f"_{n}"
        unique = name[: _MAX_NAME - len(suffix)] + suffix
    return unique


def _count_levels(value: Any) -> int:
    """How deep objects and lists are nested: 2 for [[1]].

    The count stops at `_MAX_LEVELS` + 1, so that the deepest arguments cost no more.
    """
    n_levels = 0
    inner = [value]
    while n_levels <= _MAX_LEVELS:
        deeper: list[Any] = []
        for each in inner:
            if isinstance(each, dict):
                deeper += each.values()
            elif isinstance(each, list):
                deeper += each
        is_nested = any(isinstance(each, dict | list) for each in inner)
        if not is_nested:
            break
        n_levels += 1
        inner = deeper
    return n_levels


def _escape(text: str) -> str:
    """The text with escapes for what cannot be seen.

    A person reads the arguments before saying yes. Characters that hide others, or
    reverse their order, must not change what that person sees.
    """
    if text.isprintable():
        return text
    pieces: list[str] = []
    for character in text:
        if character.isprintable():
            pieces.append(character)
        else:
            pieces.append(json.dumps(character)[1:-1])
    return "".join(pieces)


def _no_such(name: str) -> NotFoundError:
    shown = sanitize(name, multiline=False)[:100]
    return NotFoundError(
        f"There is no tool, and no server of tools, called {shown!r}.",
        "Type /tools to list them.",
    )
