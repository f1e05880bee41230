"""Tools that a model can call in a chat, and what a person allows.

- `tool_types.py` has what a tool is, what a call returns, and who provides tools.
- `folder_tools.py` provides three tools that read the files of one folder.
- `toolbox.py` has the providers of a chat, and which of their tools are on.
- `approval.py` decides whether a call runs; `argument_check.py` finds wrong arguments.
- `server_settings.py` reads which MCP servers a person configured. The client that
  connects them is in `extras/tools/`, because it needs the package `mcp`;
  `connecting.py` finds it, and `background_connections.py` uses it without delaying a
  chat.

What happens between two answers of a model is in `chat/tool_loop.py`: `Toolbox` makes a
`CallRequest` of what the model wrote, `Approvals` decides about it, and `Toolbox` calls
the provider.
"""
