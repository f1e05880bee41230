"""`localspec tools`: the servers of tools that a model can call in a chat."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import click

from localspec.cli import global_options, shell_completion, terminal
from localspec.cli.global_options import number_option, text_option
from localspec.cli.report_printer import echo_columns
from localspec.cli.terminal import echo, echo_json, echo_text, notify
from localspec.errors import LocalspecError, NotFoundError, UsageError
from localspec.extras.tools import opening
from localspec.tools import server_settings
from localspec.tools.server_settings import ServerSettings
from localspec.tools.tool_types import ToolDefinition, ToolResult

_MAX_DESCRIPTION = 70


@click.group("tools")
def command() -> None:
    """List, add, remove and try servers of tools, which speak MCP.

    A model calls a tool only after you allow it. A server is a program on this computer,
    or an address. Its text, also the description of its tools, is not trusted.

    \b
    localspec tools add time uvx mcp-server-time
    localspec tools add --url http://127.0.0.1:8000/mcp notes
    localspec tools try time get_current_time '{"timezone": "UTC"}'

    mcp.json beside config.toml is read, too.
    """


@command.command("list")
@click.argument(
    "server", required=False, shell_complete=shell_completion.complete_server
)
@global_options.JSON
def list_command(server: str | None, as_json: bool) -> int:
    """Start the servers, or SERVER, and list their tools.

    Exit code 1 if one of them cannot be used.
    """
    configured = server_settings.read_servers()
    chosen = configured.servers
    if server is not None:
        chosen = (configured.require(server),)
    reports = _connect(chosen)
    is_complete = not any(report["problem"] for report in reports)
    faults = [] if server is not None else list(configured.errors)
    if as_json:
        echo_json({"servers": reports, "faults": faults})
    else:
        _print_servers(reports)
        for fault in faults:
            notify(fault)
        if not reports and not faults:
            echo("No servers. Add one: localspec tools add NAME COMMAND", err=True)
    return 0 if is_complete and not faults else 1


def _connect(servers: Sequence[ServerSettings]) -> list[dict[str, Any]]:
    """What `list --json` says of each server, in their order."""
    reports: dict[str, dict[str, Any]] = {}
    for server in servers:
        reports[server.name] = {
            "name": server.name,
            "address": server.address,
            "file": server.file,
            "enabled": server.enabled,
            "problem": "",
            "log": [],
            "left_out": [],
            "tools": [],
        }
    enabled = [server for server in servers if server.enabled]
    for server, opened in opening.connect_all(enabled):
        report = reports[server.name]
        if isinstance(opened, LocalspecError):
            report["problem"] = f"{opened.message} {opened.hint}".rstrip()
            report["log"] = list(opened.detail)
            continue
        report["left_out"] = list(opened.left_out)
        report["tools"] = [_tool_to_json(tool) for tool in opened.definitions()]
    return list(reports.values())


def _tool_to_json(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "claims": list(tool.claims),
        "schema": tool.schema,
    }


def _print_servers(reports: Sequence[dict[str, Any]]) -> None:
    rows = [("SERVER", "TOOLS", "PROGRAM OR ADDRESS", "FROM")]
    for report in reports:
        state = str(len(report["tools"]))
        if not report["enabled"]:
            state = "off"
        elif report["problem"]:
            state = "failed"
        rows.append((report["name"], state, report["address"], report["file"]))
    if len(rows) > 1:
        echo_columns(rows)
    tool_rows = [("TOOL", "DESCRIPTION", "SAYS IT IS")]
    for report in reports:
        for tool in report["tools"]:
            name = f"{report['name']}.{tool['name']}"
            claims = ", ".join(tool["claims"])
            tool_rows.append((name, _summarise(tool["description"]), claims))
    if len(tool_rows) > 1:
        echo()
        echo_columns(tool_rows)
    for report in reports:
        for line in report["left_out"]:
            notify(f"{report['name']}: {line}.")
        if report["problem"]:
            notify(report["problem"])
        for line in report["log"][:-1]:
            echo(f"  {line}", err=True)


def _summarise(description: str) -> str:
    """The first line of a description, cut."""
    lines = description.strip().splitlines()
    first = lines[0] if lines else ""
    if len(first) > _MAX_DESCRIPTION:
        return f"{first[: _MAX_DESCRIPTION - 1]}…"
    return first


@command.command("add", context_settings={"allow_interspersed_args": False})
@click.argument("name")
@click.argument("program", nargs=-1, metavar="[COMMAND [ARGUMENT]...]")
@text_option("--url", "URL", "Address of a server that speaks streamable HTTP.")
@text_option(
    "--env", "NAME=VALUE", "Variable for the program; repeatable.", multiple=True
)
@text_option(
    "--header", "NAME=VALUE", "Header for the address; repeatable.", multiple=True
)
@text_option("--cwd", "DIR", "Folder in which the program runs.")
@number_option(
    "--timeout",
    "Time that the start and each call may take.",
    type=global_options.FiniteRange(0.1, 3600),
    metavar="SECONDS",
)
def add_command(name: str, program: tuple[str, ...], **given: Any) -> None:
    """Add the server NAME, a COMMAND or --url, to config.toml.

    Options come before NAME. A value may name a variable: 'TOKEN=${MY_TOKEN}'.
    """
    if server_settings.read_servers().find(name) is not None:
        raise UsageError(
            f"There is a server {name} already.",
            f"Remove it first: localspec tools rm {name}",
        )
    table: dict[str, Any] = {}
    if program:
        table["command"] = program[0]
    if program[1:]:
        table["args"] = list(program[1:])
    for key in ("url", "cwd", "timeout"):
        if given[key] is not None:
            table[key] = given[key]
    for key, option in (("env", "env"), ("headers", "header")):
        pairs = dict(_split_pair(text) for text in given[option])
        if pairs:
            table[key] = pairs
    server_settings.save_server(name, table)
    echo(f"Look at its tools: localspec tools list {name}", err=True)


def _split_pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"{text[:60]!r} is not NAME=VALUE.", "Write the sign =.")
    return name, value


@command.command("rm")
@click.argument("name", shell_complete=shell_completion.complete_server)
def rm_command(name: str) -> None:
    """Remove the server NAME from config.toml."""
    server_settings.remove_server(server_settings.read_servers().require(name))


@command.command("try")
@click.argument("server", shell_complete=shell_completion.complete_server)
@click.argument("tool")
@click.argument("arguments", metavar="[JSON]", default="{}")
@global_options.JSON
def try_command(server: str, tool: str, arguments: str, as_json: bool) -> int:
    """Call TOOL of SERVER with the arguments JSON, and print the result.

    Exit code 1 if the result is an error.
    """
    settings = server_settings.read_servers().require(server)
    parsed = _parse_arguments(arguments)
    connection = opening.connect(settings)
    stop = threading.Event()
    try:
        names = [each.name for each in connection.definitions()]
        if tool not in names:
            hint = f"It has: {', '.join(names[:20]) or 'none'}."
            raise NotFoundError(f"The server {server} has no tool {tool!r}.", hint)
        with terminal.stop_on_interrupt(stop.set):
            result = connection.call(tool, parsed, stop)
    finally:
        connection.close()
    if as_json:
        echo_json(_result_to_json(result))
    else:
        echo_text(result.text, err=result.is_error)
    return 1 if result.is_error else 0


def _parse_arguments(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"The arguments are no JSON: {error}."
        raise UsageError(message, """Write them as '{"name": "value"}'.""") from error
    if not isinstance(parsed, dict):
        raise UsageError(
            "The arguments must be an object.", """Write them as '{"name": "value"}'."""
        )
    return parsed


def _result_to_json(result: ToolResult) -> dict[str, Any]:
    pictures = []
    for picture in result.pictures:
        facts = {"type": picture.media_type, "bytes": len(picture.data)}
        pictures.append(facts)
    return {
        "text": result.text,
        "is_error": result.is_error,
        "left_out": result.n_left_out,
        "pictures": pictures,
    }
