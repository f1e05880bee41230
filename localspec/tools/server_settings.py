"""The MCP servers that a person configured: [tools.servers.NAME] and mcp.json.

mcp.json stands beside config.toml and has the format of Claude Desktop, Cursor and LM
Studio, so that a file of theirs can be copied:

    {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}

A server of config.toml hides one with the same name in mcp.json.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field
from msgspec.structs import fields

from localspec import data_files, paths
from localspec.config import toml_file
from localspec.config.toml_file import ConfigFile
from localspec.errors import NotFoundError, UsageError
from localspec.protocol.json_values import JsonError, from_json
from localspec.sanitize import sanitize
from localspec.tools import folder_tools

TABLE = "tools.servers"
"""The table of config.toml whose tables are the servers."""
DEFAULT_TIMEOUT = 60.0
_MAX_MCP_FILE_BYTES = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
"""`${NAME}`, and `${env:NAME}` as Cursor and VS Code write it."""

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class _ServerTable(Struct, frozen=True):
    """What config.toml and mcp.json say of a server, in TOML's and JSON's types."""

    command: str = ""
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    enabled: bool = True
    timeout: Seconds = DEFAULT_TIMEOUT


class ServerSettings(Struct, frozen=True):
    """How one MCP server is started, or reached."""

    name: str
    file: str = ""
    """The file that configures it: config.toml or mcp.json."""
    command: str = ""
    """Empty if the server is reached by `url`."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    url: str = ""
    """The address of a server that speaks streamable HTTP."""
    headers: Mapping[str, str] = field(default_factory=dict)
    enabled: bool = True
    timeout: float = DEFAULT_TIMEOUT
    """Seconds that its start, and each call, may take."""

    @property
    def address(self) -> str:
        """What runs, or where the server is; without the values of secrets."""
        if self.url:
            parts = urlsplit(self.url)
            host = parts.netloc.rpartition("@")[2]
            return f"{parts.scheme}://{host}{parts.path}"
        return " ".join([self.command, *self.args])


class ConfiguredServers(Struct, frozen=True):
    servers: tuple[ServerSettings, ...] = ()
    """The servers in the order of the files, config.toml's first."""
    errors: tuple[str, ...] = ()
    """One line for each server, or file, that cannot be used, with its place."""

    def find(self, name: str) -> ServerSettings | None:
        for server in self.servers:
            if server.name == name:
                return server
        return None

    def require(self, name: str) -> ServerSettings:
        """Raises NotFoundError, or UsageError if its settings are wrong."""
        server = self.find(name)
        if server is not None:
            return server
        for error in self.errors:
            if f"{TABLE}.{name}:" in error or f" {name}:" in error:
                raise UsageError(error, "Fix it: localspec config edit")
        names = ", ".join(each.name for each in self.servers)
        hint = f"There are: {names}." if names else "Add it with localspec tools add."
        shown = sanitize(name, multiline=False)[:60]
        raise NotFoundError(f"There is no server {shown!r}.", hint)


def read_servers(environ: Mapping[str, str] | None = None) -> ConfiguredServers:
    """Read both files. Does not raise: what is wrong is part of the result."""
    if environ is None:
        environ = os.environ
    reader = _ServerReader(environ)
    reader.read_config(toml_file.read(paths.config_file()))
    reader.read_mcp_file(paths.mcp_file())
    return ConfiguredServers(tuple(reader.servers.values()), tuple(reader.errors))


def check_name(name: str) -> None:
    """Raise UsageError if a server cannot have this name."""
    if _NAME.fullmatch(name) is None:
        message = f"{sanitize(name, multiline=False)[:60]!r} cannot be a server's name."
        raise UsageError(message, "Use up to 40 letters, digits, - and _.")
    if name == folder_tools.PROVIDER:
        message = f"{name!r} is the name of the tools that read a folder."
        raise UsageError(message, "Choose another name.")


def save_server(name: str, table: Mapping[str, Any]) -> None:
    """Write [tools.servers.NAME] into config.toml.

    Raises UsageError if the table is wrong, and as `toml_file.set_value` does.
    """
    check_name(name)
    _check_keys(table)
    checker = _ServerReader(os.environ)
    checker.add(name, table, paths.config_file().name)
    tools = toml_file.read(paths.config_file()).document.get("tools")
    servers = tools.get("servers") if isinstance(tools, Mapping) else None
    if isinstance(servers, Mapping) and servers:
        toml_file.set_value(f"{TABLE}.{name}", dict(table))
    else:
        toml_file.set_value(TABLE, {name: dict(table)})


def remove_server(server: ServerSettings) -> None:
    """Remove it from config.toml. Raises UsageError if mcp.json has it."""
    if server.file != paths.config_file().name:
        path = paths.mcp_file()
        message = f"{server.name} is configured in {path}."
        raise UsageError(message, "Remove it there.")
    toml_file.set_value(f"{TABLE}.{server.name}", None)


class _ServerReader:
    """Collects the servers of the files, and the errors."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.servers: dict[str, ServerSettings] = {}
        self.errors: list[str] = []

    def read_config(self, file: ConfigFile) -> None:
        if file.error:
            self.errors.append(file.error)
            return
        tools = file.document.get("tools", {})
        servers: Any = {}
        if isinstance(tools, Mapping):
            servers = tools.get("servers", {})
        if not isinstance(servers, Mapping):
            self.errors.append(file.locate(f"{TABLE} must be tables", TABLE))
            return
        for name, table in servers.items():
            key = f"{TABLE}.{name}"
            try:
                check_name(name)
                _check_keys(table)
                self.add(name, table, file.path.name)
            except UsageError as error:
                self.errors.append(file.locate(f"{key}: {error.message}", key))

    def read_mcp_file(self, path: Path) -> None:
        try:
            servers = _load_mcp_file(path)
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self._add_error(path, f"it cannot be used: {reason}")
            return
        from_config = set(self.servers)
        for full_name, table in servers.items():
            # Other programs allow any text as a name, such as "My files".
            name = _NOT_IN_A_NAME.sub("-", full_name).strip("-")[:40]
            if name in from_config:
                continue
            try:
                check_name(name)
                if name in self.servers:
                    raise UsageError(f"another server of this file is called {name}")
                self.add(name, _translate(table), path.name)
            except UsageError as error:
                self._add_error(path, f"{full_name[:60]}: {error.message}")

    def _add_error(self, path: Path, message: str) -> None:
        self.errors.append(sanitize(f"{path}: {message}", multiline=False))

    def add(self, name: str, table: Any, file: str) -> None:
        """Raises UsageError."""
        try:
            read = from_json(_ServerTable, table)
        except JsonError as error:
            raise UsageError(str(error)) from error
        if bool(read.command.strip()) == bool(read.url.strip()):
            raise UsageError("it needs either `command` or `url`")
        if read.url:
            _check_address(read.url)
        self.servers[name] = ServerSettings(
            name=name,
            file=file,
            command=os.path.expanduser(read.command),
            args=tuple(self._expand(each) for each in read.args),
            env=self._expand_all(read.env),
            cwd=os.path.expanduser(read.cwd),
            url=self._expand(read.url),
            headers=self._expand_all(read.headers),
            enabled=read.enabled,
            timeout=read.timeout,
        )

    def _expand_all(self, values: Mapping[str, str]) -> dict[str, str]:
        return {name: self._expand(value) for name, value in values.items()}

    def _expand(self, text: str) -> str:
        """Replace `${NAME}` by the variable of the environment.

        So a token need not stand in the file. Raises UsageError if it is not set.
        """

        def replace(match: re.Match[str]) -> str:
            value = self._environ.get(match[1])
            if value is None:
                raise UsageError(f"the variable {match[1]} is not set")
            return value

        return _VARIABLE.sub(replace, text)


def _check_keys(table: Any) -> None:
    """Raise UsageError for a key of config.toml that does not exist.

    `enable = false` must not start a server.
    """
    known = [each.name for each in fields(_ServerTable)]
    if not isinstance(table, Mapping):
        raise UsageError("it must be a table")
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"{key[:40]} is unknown{hint}")


def _check_address(url: str) -> None:
    """Raise UsageError if it is no web address."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        raise UsageError("url must begin with http:// or https://")


def _load_mcp_file(path: Path) -> Mapping[str, Any]:
    """The servers of mcp.json; none if there is no such file.

    Raises OSError or ValueError.
    """
    try:
        with data_files.open_regular(path) as file:
            body = file.read(_MAX_MCP_FILE_BYTES + 1)
    except FileNotFoundError:
        return {}
    if len(body) > _MAX_MCP_FILE_BYTES:
        raise ValueError("it is too large")
    document = json.loads(body.decode("utf-8-sig"))
    servers: Any = None
    if isinstance(document, dict):
        # VS Code calls the table `servers`.
        servers = document.get("mcpServers", document.get("servers"))
    if not isinstance(servers, dict):
        raise ValueError('it has no object "mcpServers"')
    return servers


def _translate(table: Any) -> Any:
    """A server's object in our words. Other programs' own keys are ignored.

    Raises UsageError for the transport that MCP had before streamable HTTP.
    """
    if not isinstance(table, dict):
        raise UsageError("it must be an object")
    if table.get("type") == "sse":
        raise UsageError("its type `sse` is outdated; use the server's HTTP address")
    translated = dict(table)
    if "disabled" in table:
        translated["enabled"] = not table["disabled"]
    translated.pop("timeout", None)  # Programs disagree whether it is in seconds.
    return translated
