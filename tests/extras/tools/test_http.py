"""Servers that are reached by an address."""

import threading
import time
from contextlib import closing

import pytest

pytest.importorskip("mcp")

from localspec.errors import OfflineError, ToolServerError
from localspec.extras.tools import opening
from localspec.tools.server_settings import ServerSettings
from localspec.tools.tool_types import ToolResult
from tests.extras.tools.hostile_web_server import serve


def call(behaviour: str, timeout: float = 30.0) -> ToolResult:
    with serve(behaviour) as url:
        settings = ServerSettings(
            "web", url=url, headers={"Authorization": "Bearer mine"}, timeout=timeout
        )
        with closing(opening.connect(settings)) as connection:
            (tool,) = connection.definitions()
            assert tool.full_name == "web.echo"
            return connection.call("echo", {"text": "hi"}, threading.Event())


def test_a_tool_is_called_with_the_headers_of_the_settings() -> None:
    assert call("good") == ToolResult("Bearer mine")


@pytest.mark.parametrize(
    "behaviour",
    ["error-500", "no-json", "compressed", "redirect", "hangs-up", "long-message"],
)
def test_what_an_address_does_wrong_is_an_error_result(behaviour: str) -> None:
    result = call(behaviour)

    assert result.is_error
    assert len(result.text) < 1000
    assert "\n" not in result.text


def test_an_address_that_does_not_answer_ends_with_the_timeout() -> None:
    before = time.monotonic()

    result = call("never-answers", timeout=3.0)

    assert result.text == "web did not answer in 3 seconds."
    assert time.monotonic() - before < 30


def test_nobody_at_an_address_is_an_error() -> None:
    with serve("good") as url:
        pass

    with pytest.raises(ToolServerError, match="The server web: "):
        opening.connect(ServerSettings("web", url=url, timeout=10.0))


def test_offline_mode_refuses_other_computers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(OfflineError, match="not on this computer"):
        opening.connect(ServerSettings("web", url="http://192.0.2.1/mcp"))

    assert call("good") == ToolResult("Bearer mine")
