"""The tools of a chat request, in OpenAI's form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from localspec.errors import UsageError
from localspec.lazy_dataclass import dataclass
from localspec.models.chat_template.tool_calls import (
    ForcedCall,
    ToolCallParser,
    ToolFormat,
    force_call,
)
from localspec.serve.api_error import invalid, unsupported
from localspec.serve.json_fields import JsonFields, to_fields

_MAX_TOOLS = 1024
_NAME = re.compile(r"[\w.-]{1,128}")


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """Tools that the model may call, or has to."""

    format: ToolFormat
    tools: str
    """The request's array, as JSON: templates read it."""
    parameters: Mapping[str, Any]
    """The JSON Schema of the arguments, by the tool's name."""
    forced: ForcedCall | None = None

    def make_parser(self) -> ToolCallParser:
        return ToolCallParser(self.format, self.parameters)


def parse_tools(fields: JsonFields, form: ToolFormat | None) -> OfferedTools | None:
    """None without tools, or with `tool_choice` none. Raises ApiError."""
    given = fields.items("tools", _MAX_TOOLS)
    fields.flag("parallel_tool_calls")
    choice = fields.get("tool_choice")
    if not given or choice == "none":
        return None
    if form is None:
        raise unsupported("tools", "the chat template of this model takes no tools that are known")
    parameters = dict(_parse_tool(tool, f"tools[{i}]") for i, tool in enumerate(given))
    tools = OfferedTools(form, json.dumps(given), parameters)
    if choice is None or choice == "auto":
        return tools
    names = list(parameters) if choice == "required" else [_chosen_name(choice)]
    if names[0] not in parameters:
        raise invalid("tool_choice", "it names none of the tools")
    try:
        forced = force_call(form, {name: parameters[name] for name in names})
    except UsageError as error:
        raise unsupported("tool_choice", f"{error.message} Name one") from None
    return OfferedTools(form, tools.tools, parameters, forced)


def _parse_tool(value: Any, param: str) -> tuple[str, Any]:
    """The name of a tool, and the schema of its arguments."""
    tool = to_fields(value, param)
    if tool.get("type") != "function":
        raise unsupported(f"{param}.type", "only functions can be called")
    function = tool.fields("function")
    name = function.text("name")
    if not _NAME.fullmatch(name):
        raise invalid(f"{param}.function.name", "it is not a name of up to 128 letters or digits")
    return name, function.get("parameters") or {"type": "object"}


def _chosen_name(choice: Any) -> str:
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid("tool_choice", "it is none of none, auto, required, and a function's name")
    return name
