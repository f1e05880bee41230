"""MCP servers: programs, or web addresses, whose tools a model can call.

Only this folder imports the package `mcp`, and only when a server is connected.
"""

from localspec.command_table import CommandRow

COMMANDS = (
    CommandRow(
        "tools",
        "List, add, remove and try servers of tools (MCP).",
        group="other",
        path="localspec.extras.tools.command:command",
    ),
)
ENGINE_CHECKS = ("localspec.extras.tools.doctor:check_servers",)
TOOL_CONNECTORS = ("localspec.extras.tools.opening:connect",)
