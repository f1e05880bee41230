"""Servers of tools in the app: connected in the background, asked about, ended with it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mcp")

from localspec import paths
from localspec.tui.dialogs.tools import ToolsScreen
from localspec.tui.widgets import call_question
from tests.extras.tools.servers import SCRIPT
from tests.support.app_driver import Chat
from tests.support.clock_tools import saying
from tests.support.downloads import wait_for
from tests.support.fake_tools import write_call
from tests.support.scripted_engine import ScriptedEngine

CALL = write_call("mine_echo", text="hi")


@pytest.fixture(autouse=True)
def a_choice_may_follow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_question, "MIN_ASKED_SECONDS", 0.0)


def configure(**behaviours: str) -> None:
    servers: dict[str, Any] = {}
    for name, behaviour in behaviours.items():
        args = [str(SCRIPT), behaviour]
        servers[name] = {"command": sys.executable, "args": args}
    document = {"mcpServers": servers}
    path = Path(paths.mcp_file())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")


def chat_with(*scripts: Callable[[], Any]) -> Chat:
    return Chat(ScriptedEngine(*scripts))


def children() -> list[psutil.Process]:
    own = psutil.Process().children(recursive=True)
    return [each for each in own if str(SCRIPT) in " ".join(_command(each))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def test_a_server_of_the_settings_is_connected_and_its_tool_is_called() -> None:
    configure(mine="good")
    async with chat_with(saying(CALL), saying("It said hi.")) as chat:
        await chat.sees("tools: mine")
        await chat.begin("Say hi.")
        await chat.sees("May it?", "“echo”, a tool of the server mine")

        await chat.press("tab", "enter")

        await chat.until("ready")
        await chat.sees("✓ mine.echo", "you said hi", "It said hi.")
    wait_for(lambda: not children())


async def test_a_server_that_fails_does_not_keep_another_out() -> None:
    configure(bad="fails-to-start", mine="good")
    async with chat_with(saying("Hello.")) as chat:
        await chat.sees("tools: mine")
        await chat.sees("The server bad: it ended.")
        chat.screen.show_tools()
        await chat.reaches(ToolsScreen)
        await chat.sees("bad failed", "mine connected", "echo on")


async def test_a_server_that_never_starts_keeps_nobody_waiting() -> None:
    configure(slow="never-starts")
    async with chat_with(saying("Hello.")) as chat:
        await chat.sees("connecting 1 server …")
        await chat.send("Hello")
        await chat.sees("Hello.")


async def test_a_server_that_dies_in_a_call_leaves_the_chat_usable() -> None:
    configure(mine="closes-in-mid-call")
    async with chat_with(saying(CALL), saying("It is gone.")) as chat:
        await chat.sees("tools: mine")
        await chat.begin("Say hi.")
        await chat.sees("May it?")

        await chat.press("tab", "enter")

        await chat.until("ready")
        await chat.sees("✗ mine.echo", "failed", "It is gone.")
