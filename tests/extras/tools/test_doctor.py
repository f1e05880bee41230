"""What the doctor says about servers of tools."""

from pathlib import Path

import pytest

pytest.importorskip("mcp")

from localspec import paths
from localspec.extras.tools.doctor import check_servers
from localspec.tools import server_settings
from tests.extras.tools.servers import hostile_server


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config.toml"))


def save(name: str, behaviour: str) -> None:
    server = hostile_server(behaviour)
    table = {"command": server.command, "args": list(server.args)}
    server_settings.save_server(name, table)


def test_a_server_that_does_not_start_is_named_with_its_last_line() -> None:
    save("good", "good")
    save("bad", "fails-to-start")
    server_settings.save_server("off", {"command": "x", "enabled": False})
    server_settings.save_server("far", {"url": "http://192.0.2.1/mcp"})

    findings = {finding.what: finding for finding in check_servers()}

    assert findings["tools of good: 1 tool"].level == "ok"
    assert findings["tools of off: off"].level == "ok"
    assert findings["tools of far: http://192.0.2.1/mcp, not tried"].level == "ok"
    bad = findings["The server bad: it ended."]
    assert bad.level == "warning"
    assert bad.fix == "It wrote: the key is missing"


def test_wrong_settings_are_named_with_their_place() -> None:
    paths.config_file().write_text('[tools.servers.a]\ncomand = "x"\n')

    (finding,) = check_servers()

    assert finding.id == "tool-settings"
    assert "config.toml:1: tools.servers.a: comand is unknown" in finding.what
