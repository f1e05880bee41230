"""Python functions as tools: the schema of their arguments, and calls of them."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from localspec.errors import UsageError
from localspec.protocol.json_values import JsonError, from_json, to_plain
from localspec.tools.tool_types import (
    StopSignal,
    ToolDefinition,
    ToolResult,
    make_error,
    make_result,
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_REFERENCE = "#/$defs/{name}"
_TYPES_HINT = "Use str, int, float, bool, list, dict, Literal, and None for optional."
_PLAIN_DEFAULTS = (bool, int, float, str, type(None))
"""The types of defaults that the schema shows; any other is left to the function."""


class FunctionTools:
    """A `ToolProvider` of functions of this process.

    Its name is empty: the model calls a function by its own name.
    """

    name = ""

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        """Raises UsageError for a function that cannot be a tool."""
        self._functions: dict[str, _ToolFunction] = {}
        for function in functions:
            made = _make_function(function)
            name = made.definition.name
            if name in self._functions:
                raise UsageError(f"Two tools are called {name}.", "Rename one of them.")
            self._functions[name] = made

    def definitions(self) -> Sequence[ToolDefinition]:
        return [function.definition for function in self._functions.values()]

    def call(
        self, tool: str, arguments: Mapping[str, Any], stop: StopSignal
    ) -> ToolResult:
        """Call a function, in the caller's thread; it cannot be stopped."""
        function = self._functions.get(tool)
        if function is None:
            return make_error(f"There is no tool {tool!r}.")
        try:
            bound = function.bind(arguments)
        except JsonError as error:
            return make_error(f"The arguments are wrong: {error}.")
        try:
            value = function.function(*bound.args, **bound.kwargs)
        except Exception as error:  # what a tool raises is its result
            return make_error(f"{type(error).__name__}: {error}")
        return _write_result(value)

    def close(self) -> None:
        """Functions need no end."""


class _ToolFunction(Struct, frozen=True):
    """A function, and what is known of its parameters."""

    function: Callable[..., Any]
    definition: ToolDefinition
    signature: inspect.Signature
    arguments_type: type[Struct]
    """A field for each parameter. Fields that are not given are UNSET."""

    def bind(self, arguments: Mapping[str, Any]) -> inspect.BoundArguments:
        """The arguments as the types of the parameters. Raises JsonError."""
        # A model may write "3" for a number.
        read = from_json(self.arguments_type, dict(arguments), strict=False)
        given: dict[str, Any] = {}
        for name in self.signature.parameters:
            value = getattr(read, name)
            if value is not UNSET:
                given[name] = value
        return inspect.BoundArguments(self.signature, given)


def _make_function(function: Callable[..., Any]) -> _ToolFunction:
    """Raises UsageError."""
    named = _find_named(function)
    name = getattr(named, "__name__", "")
    if not callable(function) or not _NAME.fullmatch(name):
        raise UsageError(
            f"A tool cannot be {function!r}.",
            "Give a function with a name, which `def` makes.",
        )
    if inspect.iscoroutinefunction(named):
        raise UsageError(f"{name} is a coroutine.", "Give a function without async.")
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(named, include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise _type_error(name, str(error)) from error
    arguments_type = _make_arguments_type(name, signature, hints)
    definition = ToolDefinition(
        provider=FunctionTools.name,
        name=name,
        description=inspect.getdoc(named) or "",
        schema=_make_schema(name, arguments_type),
    )
    return _ToolFunction(
        function=function,
        definition=definition,
        signature=signature,
        arguments_type=arguments_type,
    )


def _find_named(function: Any) -> Any:
    """The function that has a name and a docstring: for a partial one, that within."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _type_error(name: str, problem: str) -> UsageError:
    return UsageError(f"The types of {name} cannot be read: {problem}.", _TYPES_HINT)


def _make_arguments_type(
    name: str, signature: inspect.Signature, hints: Mapping[str, Any]
) -> type[Struct]:
    """A Struct of the parameters, by which arguments are described and checked.

    `def f(city: str, days: int = 1)` gives `city: str` and `days: int = 1`.
    """
    required: list[tuple[str, Any]] = []
    optional: list[tuple[str, Any, Any]] = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(
                f"{name} takes any number of arguments, as {parameter}.",
                "Give each of its parameters a name.",
            )
        type_ = _describe_parameter(hints.get(parameter.name, Any))
        default = parameter.default
        if default is parameter.empty:
            required.append((parameter.name, type_))
        elif isinstance(default, _PLAIN_DEFAULTS):
            optional.append((parameter.name, type_, default))
        else:
            optional.append((parameter.name, type_ | UnsetType, UNSET))
    try:
        return msgspec.defstruct(
            "Arguments",
            [*required, *optional],
            kw_only=True,
            forbid_unknown_fields=True,
        )
    except TypeError as error:
        raise _type_error(name, str(error)) from error


def _describe_parameter(type_: Any) -> Any:
    """`Annotated[str, "a city"]` as a type whose schema has that description."""
    if get_origin(type_) is not Annotated:
        return type_
    own, *notes = get_args(type_)
    texts = [note for note in notes if isinstance(note, str)]
    if not texts:
        return type_
    return Annotated[own, Meta(description=texts[0])]


def _make_schema(name: str, arguments_type: type[Struct]) -> dict[str, Any]:
    """The JSON Schema of the arguments.

    msgspec describes the Struct among its `$defs`; a tool's own is at the top.
    """
    try:
        (top,), parts = msgspec.json.schema_components(
            [arguments_type], ref_template=_REFERENCE
        )
    except TypeError as error:
        # The lines before the last one are about msgspec.
        reason = str(error).splitlines()[-1].rstrip(".")
        raise _type_error(name, reason) from error
    own_name = top["$ref"].rpartition("/")[2]
    schema: dict[str, Any] = parts.pop(own_name)
    del schema["title"]
    if parts:
        schema["$defs"] = parts
    return schema


def _write_result(value: Any) -> ToolResult:
    """What a function returns, as a text; what is no text is JSON where possible."""
    if isinstance(value, ToolResult):
        return value
    if value is None:
        return make_result("Done.")
    if isinstance(value, str):
        return make_result(value)
    try:
        text = json.dumps(to_plain(value), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = str(value)
    return make_result(text)
