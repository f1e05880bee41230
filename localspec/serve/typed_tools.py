"""Tools that requests name by a type instead of a schema, and tools in namespaces.

Of each type this file says what becomes of it, and no tool is left out silently:

| run by | for example | here |
|---|---|---|
| the client | Anthropic's `bash_20250124` | offered as a function, with the schema below |
| the client | OpenAI's `namespace` (Codex, MCP) | its functions are offered as `namespace__name` |
| the API's servers | `web_search` | left out, and named in the server's log |
| anyone else | `local_shell`, `custom` | refused with 400 and the tool's name |

A tool of the API's servers is no error, because agents offer some in each request.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from localspec.sanitize import sanitize
from localspec.serve.api_error import ApiError, invalid, unsupported
from localspec.serve.json_bodies import to_unicode

_SEPARATOR = "__"
_MAX_SHOWN = 64

_HOSTED_BY_OPENAI = (
    "web_search",
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "tool_search",
    "programmatic_tool_calling",
)
_HOSTED_BY_ANTHROPIC = (
    "web_search_",
    "web_fetch_",
    "code_execution_",
    "tool_search_tool_",
)
"""Beginnings of types, behind which a date follows."""


def _object(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT = {"type": "string"}
_WHOLE_NUMBER = {"type": "integer"}
_TWO_NUMBERS = {"type": "array", "items": _WHOLE_NUMBER, "minItems": 2, "maxItems": 2}


def _commands(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


_BASH = _object(
    (),
    command={**_TEXT, "description": "The command to run."},
    restart={"type": "boolean", "description": "Restart the shell instead."},
)
_EDITOR_FIELDS = {
    "path": {**_TEXT, "description": "An absolute path."},
    "file_text": {**_TEXT, "description": "For create: the file's content."},
    "old_str": {**_TEXT, "description": "For str_replace: the text to replace."},
    "new_str": {**_TEXT, "description": "For str_replace: the new text."},
    "insert_line": {**_WHOLE_NUMBER, "description": "For insert: the line before it."},
    "insert_text": {**_TEXT, "description": "For insert: the text to insert."},
    "view_range": {**_TWO_NUMBERS, "description": "For view: first and last line."},
}
_EDITOR = _object(
    ("command", "path"),
    command=_commands("view", "create", "str_replace", "insert"),
    **_EDITOR_FIELDS,
)
_EDITOR_WITH_UNDO = _object(
    ("command", "path"),
    command=_commands("view", "create", "str_replace", "insert", "undo_edit"),
    **_EDITOR_FIELDS,
)
_MEMORY = _object(
    ("command",),
    command=_commands("view", "create", "str_replace", "insert", "delete", "rename"),
    **_EDITOR_FIELDS,
    old_path={**_TEXT, "description": "For rename: the present path."},
    new_path={**_TEXT, "description": "For rename: the new path."},
)
_COMPUTER = _object(
    ("action",),
    action={**_TEXT, "description": "Such as screenshot, left_click, type, key."},
    coordinate={**_TWO_NUMBERS, "description": "x and y in pixels."},
    start_coordinate=_TWO_NUMBERS,
    text={**_TEXT, "description": "For type and key."},
    scroll_direction=_commands("up", "down", "left", "right"),
    scroll_amount=_WHOLE_NUMBER,
    duration={"type": "number", "description": "For wait: seconds."},
)


class _ClientTool(Struct, frozen=True):
    """A type of tool that Anthropic's clients run."""

    description: str
    parameters: dict[str, Any]


_CLIENT_TOOLS: Mapping[str, _ClientTool] = {
    # Beginnings of types; the first that matches applies.
    "bash_": _ClientTool("Run a command in a shell.", _BASH),
    "text_editor_20241022": _ClientTool("View and edit files.", _EDITOR_WITH_UNDO),
    "text_editor_20250124": _ClientTool("View and edit files.", _EDITOR_WITH_UNDO),
    "text_editor_": _ClientTool("View and edit files.", _EDITOR),
    "memory_": _ClientTool("Keep notes in files under /memories.", _MEMORY),
    "computer_2": _ClientTool("Use the screen, mouse and keyboard.", _COMPUTER),
}


def make_client_function(type_: str, name: str, param: str) -> dict[str, Any] | None:
    """The function of one of Anthropic's types; None for a type of its servers.

    Raises ApiError for a type that is not known.
    """
    for beginning, tool in _CLIENT_TOOLS.items():
        if type_.startswith(beginning):
            return {
                "name": name,
                "description": tool.description,
                "parameters": tool.parameters,
            }
    if type_.startswith(_HOSTED_BY_ANTHROPIC):
        return None
    raise refuse_tool(type_, name, param)


def check_left_out(names: Sequence[str], choice: Any, *, has_others: bool) -> None:
    """Name the tools that are left out in the log, each once.

    Raises ApiError if the request wants a call that none of the others can be.
    """
    if not names:
        return
    chosen = choice.get("type") if isinstance(choice, dict) else choice
    if chosen in names or (chosen == "required" and not has_others):
        shown = ", ".join(sorted(set(names)))[:_MAX_SHOWN]
        raise unsupported("tool_choice", f"{shown} runs on the API's own servers")
    for name in names:
        _report_left_out(name[:_MAX_SHOWN])


@lru_cache(maxsize=64)
def _report_left_out(name: str) -> None:
    message = (
        f"localspec: the tool {name} is left out: it runs on the API's own servers"
    )
    print(sanitize(message, multiline=False), file=sys.stderr, flush=True)


def refuse_tool(type_: object, name: object, param: str) -> ApiError:
    """The error for a tool that is neither offered nor left out, with its name."""
    shown = to_unicode(str(name or type_))[:_MAX_SHOWN]
    kind = to_unicode(str(type_))[:_MAX_SHOWN]
    problem = (
        f"the tool {shown!r} of the type {kind!r} is not supported; offer a function"
    )
    return unsupported(f"{param}.type", problem)


class NamespacedTool(Struct, frozen=True):
    """A function in a namespace."""

    namespace: str
    name: str

    @property
    def flat_name(self) -> str:
        return f"{self.namespace}{_SEPARATOR}{self.name}"


def find_namespaced(tools: Sequence[Any] | None) -> dict[str, NamespacedTool]:
    """The functions in namespaces, by the names under which they are offered."""
    found: dict[str, NamespacedTool] = {}
    for tool in tools or ():
        if not isinstance(tool, dict) or tool.get("type") != "namespace":
            continue
        for function in _inner_tools(tool):
            named = NamespacedTool(str(tool.get("name")), str(function.get("name")))
            found[named.flat_name] = named
    return found


def flatten_tools(tools: Sequence[Any] | None) -> tuple[list[Any], list[str]]:
    """The functions of OpenAI's tools, and the types that are left out.

    Raises ApiError for a tool that cannot be offered. `{"type": "namespace", "name":
    "mcp", "tools": [{"type": "function", "name": "add"}]}` becomes
    `{"type": "function", "name": "mcp__add"}`.
    """
    flat: list[Any] = []
    left_out: list[str] = []
    for i, tool in enumerate(tools or ()):
        param = f"tools[{i}]"
        type_ = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or type_ == "function":
            flat.append(tool)
        elif type_ == "namespace":
            flat += _flatten_namespace(tool, param)
        elif isinstance(type_, str) and type_.startswith(_HOSTED_BY_OPENAI):
            left_out.append(type_)
        else:
            raise refuse_tool(type_, tool.get("name"), param)
    _check_names(flat)
    return flat, left_out


def _flatten_namespace(namespace: dict[str, Any], param: str) -> Iterator[Any]:
    name = namespace.get("name")
    if not isinstance(name, str) or not name:
        raise invalid(f"{param}.name", "it is empty")
    description = namespace.get("description")
    for j, tool in enumerate(_inner_tools(namespace)):
        if tool.get("type") != "function":
            place = f"{param}.tools[{j}]"
            raise refuse_tool(tool.get("type"), tool.get("name"), place)
        said = [text for text in (description, tool.get("description")) if text]
        flat = NamespacedTool(name, str(tool.get("name"))).flat_name
        function = {**tool, "name": flat}
        if said:
            function["description"] = "\n".join(map(str, said))
        yield function
        description = None  # Only the first one says what the namespace is.


def _inner_tools(namespace: dict[str, Any]) -> list[dict[str, Any]]:
    tools = namespace.get("tools")
    if not isinstance(tools, list):
        return []
    return [tool for tool in tools if isinstance(tool, dict)]


def _check_names(tools: Sequence[Any]) -> None:
    """Two tools of one name could not be told apart in a call."""
    seen: set[str] = set()
    for tool in tools:
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(name, str):
            continue
        if name in seen:
            shown = to_unicode(name)[:_MAX_SHOWN]
            raise invalid("tools", f"two have the name {shown!r}")
        seen.add(name)
