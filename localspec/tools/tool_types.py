"""What a tool is, what a call of it returns, and what provides tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

MAX_RESULT_CHARACTERS = 200_000
"""A longer result is cut where it arrives; a chat cuts it again to what fits."""


class ToolDefinition(Struct, frozen=True):
    """A tool as its provider describes it.

    Everything but `provider` comes from the provider and is untrusted text.
    """

    provider: str
    """The name of the MCP server in the settings, or `folder`.

    It is empty for a function of a Python program, which has only its own name.
    """
    name: str
    description: str
    schema: Mapping[str, Any]
    """The JSON Schema of the arguments, which are an object."""
    claims: tuple[str, ...] = ()
    """What the provider says of the tool, such as "read-only".

    It is shown, and nothing relies on it: a server may claim anything.
    """
    origin: str = ""
    """What stands behind the provider's name: a folder, a program or an address."""

    @property
    def full_name(self) -> str:
        """Unique in a chat: tools of two servers may have one name."""
        if not self.provider:
            return self.name
        return f"{self.provider}.{self.name}"

    @property
    def fingerprint(self) -> str:
        """Changes with everything that a person reads before allowing the tool.

        A server may describe a tool in another way after it was allowed, and another
        program or folder may take over its name. Then it is asked for again.
        """
        facts = [
            self.full_name,
            self.description,
            self.schema,
            self.claims,
            self.origin,
        ]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class ResultPicture(Struct, frozen=True):
    media_type: str
    data: bytes


class ToolResult(Struct, frozen=True):
    """What the model receives. It is untrusted text, also if it is an error."""

    text: str
    is_error: bool = False
    pictures: tuple[ResultPicture, ...] = ()
    n_left_out: int = 0
    """How many characters were cut; the text says so."""
    failure: str = ""
    """What a person is told if the provider itself has failed; else empty.

    Example: the server has ended.
    """


def make_result(text: str, pictures: Sequence[ResultPicture] = ()) -> ToolResult:
    """A result whose text is cut to `MAX_RESULT_CHARACTERS`."""
    kept, n_left_out = cut_text(text, MAX_RESULT_CHARACTERS)
    return ToolResult(text=kept, pictures=tuple(pictures), n_left_out=n_left_out)


def make_error(text: str) -> ToolResult:
    """A result that tells the model what went wrong, cut as `make_result` cuts."""
    kept, n_left_out = cut_text(text, MAX_RESULT_CHARACTERS)
    return ToolResult(text=kept, is_error=True, n_left_out=n_left_out)


def cut_text(text: str, limit: int) -> tuple[str, int]:
    """The text of at most `limit` characters, and how many were left out.

    The last line of a cut text says so, and is not counted. `cut_text("abcdef", 4)` is
    "abcd", a line about 2 characters, and 2.
    """
    n_left_out = len(text) - limit
    if n_left_out <= 0:
        return text, 0
    note = f"[{n_left_out:,} more characters of this result were left out.]"
    return f"{text[:limit]}\n{note}", n_left_out


class StopSignal(Protocol):
    """Says whether a person stopped the call; `threading.Event` is one."""

    def is_set(self) -> bool: ...


@runtime_checkable
class ToolProvider(Protocol):
    """An MCP server that is connected, or the folder tools.

    All methods may be called from any thread, and none of them raises for what a server
    does: an error is a result.
    """

    @property
    def name(self) -> str: ...

    def definitions(self) -> Sequence[ToolDefinition]:
        """The tools that can be called now."""
        ...

    def call(
        self, tool: str, arguments: Mapping[str, Any], stop: StopSignal
    ) -> ToolResult:
        """Call a tool by its name at the provider, and wait for its result.

        Returns soon after `stop` is set.
        """
        ...

    def close(self) -> None:
        """End the provider. It may be called more than once."""
        ...
