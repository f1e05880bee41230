"""Servers of tools at the doors without a screen: `run -p`, the linear chat, the API."""

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from localspec import LLM
from localspec.errors import ToolServerError
from localspec.tools import server_settings
from tests.extras.tools.servers import SCRIPT
from tests.support.run_command import Done, localspec
from tests.support.zoo import RESULT_TEXT, Zoo

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="the extra `tools` is not installed"
)
QUESTION = "How is the weather?"
GREEDY = ("--temperature", "0", "--spec", "lookup")
CTRL_C = "\x03"


def add_server(name: str, behaviour: str) -> None:
    table = {"command": sys.executable, "args": [str(SCRIPT), behaviour]}
    server_settings.save_server(name, table)


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """A configuration with the server `mine`, in this process and in others."""
    environ = {
        "LOCALSPEC_CONFIG": str(tmp_path / "config.toml"),
        "LOCALSPEC_DATA_DIR": str(tmp_path / "data"),
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    add_server("mine", "weather")
    return {**environ, "PYTHONPATH": ":".join(sys.path)}


def run(zoo: Zoo, environ: Mapping[str, str], *arguments: str) -> Done:
    asked = ("-p", QUESTION, *GREEDY, *arguments)
    return localspec("run", zoo["agent"], *asked, env=environ)


@pytest.mark.parametrize("choice", [("--tools", "mine"), ("--tools",)])
def test_a_named_tool_of_a_server_runs(
    choice: tuple[str, ...], zoo: Zoo, environ: Mapping[str, str]
) -> None:
    done = run(zoo, environ, "--allow", "mine.weather", "--json", *choice)
    assert done.code == 0, done.err
    (call,) = done.document["calls"]
    assert call["name"] == "mine.weather"
    assert call["arguments"] == {"city": "Rome"}
    assert (call["result"], call["verdict"]) == ("you said ", "named")
    assert done.document["text"].endswith(RESULT_TEXT)


def test_a_server_is_not_used_unless_it_is_named(
    zoo: Zoo, environ: Mapping[str, str]
) -> None:
    assert run(zoo, environ, "--json").document["calls"] == []


def test_what_was_always_allowed_in_chats_is_refused_to_a_script(
    zoo: Zoo, environ: Mapping[str, str]
) -> None:
    done = run(zoo, environ, "--tools", "--json")
    (call,) = done.document["calls"]
    assert call["verdict"] == "no"
    assert "--allow mine.weather" in done.err


def test_a_server_that_does_not_start_ends_a_script(
    zoo: Zoo, environ: Mapping[str, str]
) -> None:
    add_server("bad", "fails-to-start")
    done = run(zoo, environ, "--tools", "bad")
    assert (done.code, done.out) == (19, b"")
    assert "the key is missing" in done.err


def test_a_server_that_ends_in_a_call_is_a_notice_and_the_answer_goes_on(
    zoo: Zoo, environ: Mapping[str, str]
) -> None:
    add_server("dies", "weather-dies")
    done = run(zoo, environ, "--tools", "dies", "--allow", "dies", "--json")
    assert done.code == 0
    (call,) = done.document["calls"]
    assert call["is_error"]
    assert "dies" in done.err
    assert done.document["text"].endswith(RESULT_TEXT)


@pytest.fixture
def agent(zoo: Zoo, environ: Mapping[str, str]) -> Iterator[LLM]:
    with LLM(zoo["agent"], spec="lookup", ctx=2048, threads=1) as llm:
        yield llm


def test_a_program_has_to_allow_the_tools_of_a_server(agent: LLM) -> None:
    refused = agent.chat(QUESTION, tools=["mine"], temperature=0)
    allowed = agent.chat(
        QUESTION,
        tools=["mine"],
        on_call=lambda request: request.full_name == "mine.weather",
        temperature=0,
    )
    assert refused.calls[0].verdict == "no"
    assert "allows no calls" in refused.calls[0].result
    assert allowed.calls[0].result == "you said "


def test_a_program_is_told_which_server_does_not_start(agent: LLM) -> None:
    add_server("bad", "fails-to-start")
    with pytest.raises(ToolServerError, match="bad"):
        agent.chat(QUESTION, tools=["mine", "bad"])


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_chat_connects_its_servers_and_asks(
    zoo: Zoo, environ: Mapping[str, str]
) -> None:
    from tests.support.dialogue import Dialogue  # noqa: PLC0415  none on Windows

    add_server("bad", "fails-to-start")
    with Dialogue("run", zoo["agent"], *GREEDY, env=environ) as chat:
        chat.until("\n> ")
        chat.type(f"{QUESTION}\r")
        asked = chat.until("say why:")
        assert "mine.weather" in asked
        assert "city: Rome" in asked
        assert str(SCRIPT) in asked
        assert asked.count("The server bad") == 1
        assert "you said" in chat.line("o")
        listed = chat.line("/tools")
        assert "mine.weather" in listed
        assert "bad" in listed


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_ctrl_c_stops_a_tool_that_runs(zoo: Zoo, environ: Mapping[str, str]) -> None:
    from tests.support.dialogue import Dialogue  # noqa: PLC0415  none on Windows

    add_server("waits", "weather-waits")
    named = ("--tools", "waits", "--allow", "waits", *GREEDY)
    with Dialogue("run", zoo["agent"], "-p", QUESTION, *named, env=environ) as once:
        once.until("running waits.weather, Ctrl+C stops it")
        once.type(CTRL_C)
        once.until("stopped")
        assert once.end() == 130
    with Dialogue("run", zoo["agent"], *named, env=environ) as chat:
        chat.until("\n> ")
        chat.type(f"{QUESTION}\r")
        chat.until("running waits.weather, Ctrl+C stops it")
        chat.type(CTRL_C)
        chat.until("stopped")
        chat.until("\n> ")
        assert "waits.weather" in chat.line("/tools")
