"""The tools of `localspec run`: what --folder, --tools and --allow name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from localspec.cli.terminal import notify
from localspec.errors import LocalspecError, NotFoundError
from localspec.sanitize import sanitize
from localspec.tools import connecting, folder_tools, server_settings
from localspec.tools.folder_tools import FolderTools
from localspec.tools.server_settings import ServerSettings
from localspec.tools.tool_types import ToolProvider
from localspec.tools.toolbox import Toolbox

_ALL = "all"
_NONE = "none"
_ALL_OF_A_SERVER = ".*"
_MAX_LISTED = 20


class ToolArguments(Struct, frozen=True):
    """What is typed behind --folder, --tools and --allow."""

    folder: str | None = None
    servers: tuple[str, ...] = ()
    """Names of servers, `all` or `none`."""
    allowed: tuple[str, ...] = ()
    """Patterns of tools, as `find_allowed` reads them."""

    @property
    def are_named(self) -> bool:
        """Whether an answer without a chat is offered tools."""
        return self.folder is not None or any(each != _NONE for each in self.servers)

    def open_folder(self) -> list[ToolProvider]:
        """The tools of --folder. Raises NotFoundError."""
        if self.folder is None:
            return []
        return [FolderTools(Path(self.folder).expanduser())]

    def choose_servers(self, default: str) -> list[ServerSettings]:
        """The servers to connect; `default` is `all` or `none`.

        One that is off is connected if it is named. Raises NotFoundError.
        """
        words = self.servers or (default,)
        configured = server_settings.read_servers()
        chosen: dict[str, ServerSettings] = {}
        for word in words:
            if word == _NONE:
                continue
            if word == _ALL:
                for error in configured.errors:
                    notify(error)
                for server in configured.servers:
                    if server.enabled:
                        chosen.setdefault(server.name, server)
                continue
            chosen[word] = replace(configured.require(word), enabled=True)
        return list(chosen.values())


def open_toolbox(arguments: ToolArguments) -> Toolbox:
    """The tools of an answer without a chat.

    A server that cannot be connected is an error: without its tools, a script would get
    another answer than it asked for. Raises LocalspecError.
    """
    toolbox = Toolbox(arguments.open_folder())
    failures: list[LocalspecError] = []
    for _, connected in connecting.connect_servers(arguments.choose_servers(_NONE)):
        if isinstance(connected, LocalspecError):
            failures.append(connected)
        else:
            toolbox.add(connected)
    if failures:
        toolbox.close()
        raise failures[0]
    return toolbox


def has_servers(toolbox: Toolbox) -> bool:
    """Whether results may have pictures: those of a folder are text."""
    return any(each.name != folder_tools.PROVIDER for each in toolbox.providers)


def find_allowed(toolbox: Toolbox, patterns: Sequence[str]) -> list[str]:
    """The full names of the tools that --allow names.

    `time.convert_time` is one tool; `time` and `time.*` are all that the server has now.
    Raises NotFoundError, so that a typing error is not a refusal in the middle of an
    answer.
    """
    names = [tool.full_name for tool in toolbox.all_definitions()]
    allowed: list[str] = []
    for pattern in patterns:
        provider = pattern.removesuffix(_ALL_OF_A_SERVER)
        found = [
            name for name in names if name == pattern or _provider_of(name) == provider
        ]
        if not found:
            raise _no_such_tool(pattern, names)
        allowed += found
    return allowed


def _provider_of(full_name: str) -> str:
    return full_name.partition(".")[0]


def _no_such_tool(pattern: str, names: Sequence[str]) -> NotFoundError:
    shown = sanitize(pattern, multiline=False)[:100]
    listed = sanitize(", ".join(names[:_MAX_LISTED]), multiline=False)
    hint = f"There are: {listed}." if names else "Offer it: --tools SERVER"
    return NotFoundError(f"There is no tool {shown!r} to allow.", hint)
