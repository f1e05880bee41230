"""Servers in config.toml and in mcp.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from localspec import config, paths
from localspec.errors import UsageError
from localspec.tools import server_settings
from localspec.tools.server_settings import ConfiguredServers


@pytest.fixture(autouse=True)
def config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config.toml"))
    return tmp_path


def read(toml: str = "", mcp: Any = None, **environ: str) -> ConfiguredServers:
    paths.config_file().write_text(toml)
    if mcp is not None:
        text = mcp if isinstance(mcp, str) else json.dumps(mcp)
        paths.mcp_file().write_text(text)
    return server_settings.read_servers(environ)


def test_a_program_and_an_address_are_read() -> None:
    found = read("""
        [tools.servers.time]
        command = "uvx"
        args = ["mcp-server-time"]
        env = {TZ = "UTC"}
        timeout = 5

        [tools.servers.notes]
        url = "http://127.0.0.1:8000/mcp"
        headers = {Authorization = "Bearer x"}
        enabled = false
    """)

    time, notes = found.servers
    assert found.errors == ()
    assert time.address == "uvx mcp-server-time"
    assert time.env == {"TZ": "UTC"}
    assert time.timeout == 5
    assert time.enabled
    assert notes.url == "http://127.0.0.1:8000/mcp"
    assert notes.headers == {"Authorization": "Bearer x"}
    assert not notes.enabled


def test_without_files_there_are_no_servers() -> None:
    assert server_settings.read_servers() == ConfiguredServers()


def test_servers_are_no_unknown_settings() -> None:
    read('[tools.servers.time]\ncommand = "uvx"')

    effective = config.resolve()

    assert effective.errors == ()
    assert effective.warnings == ()


def test_other_keys_of_tools_are_unknown_settings() -> None:
    read('[tools]\nserver = "x"')

    (warning,) = config.resolve().warnings

    assert "unknown setting tools.server" in warning


WRONG_TABLES = {
    "": "it needs either `command` or `url`",
    'command = "x"\nurl = "http://a"': "it needs either `command` or `url`",
    'command = " "': "it needs either `command` or `url`",
    'comand = "x"': "comand is unknown; did you mean command?",
    'command = "x"\nenable = false': "enable is unknown; did you mean enabled?",
    "command = 3": "command",
    'command = "x"\nargs = "y"': "args",
    'command = "x"\nargs = [1]': "args[0]",
    'command = "x"\nenv = {A = 1}': "env",
    'command = "x"\ntimeout = 0': "timeout",
    'command = "x"\ntimeout = "5"': "timeout",
    'command = "x"\nenabled = "no"': "enabled",
    'url = "file:///etc/passwd"': "url must begin with http:// or https://",
    'url = "http://"': "url must begin with http:// or https://",
    'url = "http://[1"': "url must begin with http:// or https://",
    'command = "x"\nargs = ["${NOT_SET}"]': "the variable NOT_SET is not set",
}


@pytest.mark.parametrize("table", WRONG_TABLES)
def test_a_wrong_table_is_one_line_with_its_place(table: str) -> None:
    found = read(
        f'# A comment.\n[tools.servers.a]\n{table}\n[tools.servers.b]\ncommand = "y"'
    )

    (error,) = found.errors
    assert error.startswith(f"{paths.config_file()}:2: tools.servers.a: ")
    assert WRONG_TABLES[table] in error
    assert "\n" not in error
    assert [server.name for server in found.servers] == ["b"]


@pytest.mark.parametrize(
    "toml",
    [
        "tools = 3",
        "[tools]\nservers = 3",
        "[tools.servers]\na = 3",
        '[tools.servers."a b"]\ncommand = "x"',
        '[tools.servers."a.b"]\ncommand = "x"',
        '[tools.servers."\\u001b[31m"]\ncommand = "x"',
        '[tools.servers.folder]\ncommand = "x"',
        "not toml",
    ],
)
def test_what_is_no_table_of_servers_is_an_error_or_ignored(toml: str) -> None:
    found = read(toml)

    assert found.servers == ()
    assert not any("\x1b" in error for error in found.errors)
    if toml != "tools = 3":  # config.toml's own reader says this one
        assert len(found.errors) == 1


def test_mcp_json_of_other_programs_is_read() -> None:
    servers = {
        "My files": {
            "type": "stdio",
            "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-filesystem", "."],
            "autoApprove": ["read_file"],
            "timeout": 60000,
        },
        "off": {"command": "x", "disabled": True},
        "web": {"url": "https://example.com/mcp", "headers": {"A": "${env:KEY}"}},
    }

    found = read(mcp={"mcpServers": servers}, KEY="secret")

    files, off, web = found.servers
    assert found.errors == ()
    assert files.name == "My-files"
    assert files.file == "mcp.json"
    assert files.timeout == server_settings.DEFAULT_TIMEOUT
    assert not off.enabled
    assert web.headers == {"A": "secret"}


def test_the_config_hides_a_server_of_the_same_name() -> None:
    found = read(
        '[tools.servers.a]\ncommand = "mine"', {"mcpServers": {"a": {"command": "x"}}}
    )

    (server,) = found.servers
    assert server.command == "mine"
    assert found.errors == ()


WRONG_FILES: tuple[Any, ...] = (
    "",
    "{",
    "[]",
    "[" * 100_000,
    {"servers": 3},
    {"mcpServers": []},
    {"mcpServers": {"a": 3}},
    {"mcpServers": {"a": {"type": "sse", "url": "http://a"}}},
    {"mcpServers": {"": {"command": "x"}}},
    {"mcpServers": {"a": {"command": "x"}, "b c": {"command": ["x"]}}},
    {"mcpServers": {"b c": {"command": "x"}, "b-c": {"command": "y"}}},
)


@pytest.mark.parametrize("document", WRONG_FILES, ids=range(len(WRONG_FILES)))
def test_a_wrong_mcp_json_is_one_line(document: Any) -> None:
    found = read(mcp=document)

    (error,) = found.errors
    assert error.startswith(f"{paths.mcp_file()}: ")
    assert "\n" not in error


def test_a_folder_in_the_place_of_mcp_json_is_an_error() -> None:
    paths.mcp_file().mkdir(parents=True)

    (error,) = read().errors

    assert "cannot be used" in error


def test_saved_servers_are_read_again_and_comments_stay() -> None:
    paths.config_file().write_text('# Mine.\n[screen]\ntheme = "nord"\n')

    server_settings.save_server("one", {"command": "a", "args": ["b"]})
    server_settings.save_server("two", {"url": "http://127.0.0.1/mcp", "timeout": 3})

    one, two = server_settings.read_servers().servers
    assert one.address == "a b"
    assert two.timeout == 3
    assert (
        paths.config_file().read_text().startswith('# Mine.\n[screen]\ntheme = "nord"')
    )


def test_a_removed_server_leaves_the_others() -> None:
    server_settings.save_server("one", {"command": "a"})
    server_settings.save_server("two", {"command": "b"})
    one, _ = server_settings.read_servers().servers

    server_settings.remove_server(one)

    (left,) = server_settings.read_servers().servers
    assert left.name == "two"


def test_the_last_server_can_be_removed_and_another_added() -> None:
    server_settings.save_server("one", {"command": "a"})
    server_settings.remove_server(server_settings.read_servers().servers[0])

    server_settings.save_server("two", {"command": "b"})

    assert [each.name for each in server_settings.read_servers().servers] == ["two"]


def test_a_variable_is_saved_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")

    server_settings.save_server("a", {"command": "x", "env": {"T": "${MY_TOKEN}"}})

    assert "secret" not in paths.config_file().read_text()
    assert server_settings.read_servers().servers[0].env == {"T": "secret"}


@pytest.mark.parametrize(
    ("name", "table"), [("a b", {"command": "x"}), ("a", {}), ("folder", {})]
)
def test_what_is_wrong_is_not_saved(name: str, table: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        server_settings.save_server(name, table)

    assert not paths.config_file().exists()


def test_a_server_of_mcp_json_is_removed_there() -> None:
    (server,) = read(mcp={"mcpServers": {"a": {"command": "x"}}}).servers

    with pytest.raises(UsageError, match=r"mcp\.json"):
        server_settings.remove_server(server)


def test_an_address_is_shown_without_its_password() -> None:
    (server,) = read(
        '[tools.servers.a]\nurl = "https://me:secret@example.com:81/mcp?key=secret"'
    ).servers

    assert server.address == "https://example.com:81/mcp"
